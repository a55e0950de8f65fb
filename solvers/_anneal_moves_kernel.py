"""Kernels of `anneal`: the moves. Each works through `put` and `take` only, so `undo` takes it back.

A move returns whether it changed anything sensible; where it does not, what it logged is to be undone. All
keep the sequence valid.
"""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel
from hremate.solvers._anneal_state_kernel import (
    BLOCK,
    OVERFLOW,
    REPEATED,
    SHIFT,
    find_run,
    last_read,
    next_run,
    put,
    shift,
    take,
)

#: Executions that one move may add or shift at most.
GROUP = 64
#: Chance that an input that is not there is kept alive instead of made again.
KEEP = 0.1
#: Reads looked at in search of a tensor that is live at a given slot.
TRIES = 12


@kernel
def draw(rng):  # type: ignore[no-untyped-def]
    """A random number in [0, 1); `rng` is uint64[1], advanced (splitmix64)."""
    rng[0] += np.uint64(0x9E3779B97F4A7C15)
    z = rng[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@kernel
def below(rng, n):  # type: ignore[no-untyped-def]
    """A random integer in 0 .. n - 1."""
    return np.int64(draw(rng) * n)


@kernel
def any_run(s, rng):  # type: ignore[no-untyped-def]
    """Slot of a random run."""
    slots = len(s.op) - 1
    while True:
        slot = below(rng, slots)
        if s.op[slot] >= 0:
            return slot


@kernel
def first_read(g, s, v, k):  # type: ignore[no-untyped-def]
    """First slot that reads a copy made by run `k` of op `v`; the next run of `v`, or N, without reader."""
    start = s.runs[v, k]
    best = np.int64(len(s.op) - 1)
    if k + 1 < s.n_runs[v]:
        best = np.int64(s.runs[v, k + 1])
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        if s.ends[x, k] == start:
            continue
        for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
            u = g.use_idx[a]
            for j in range(s.n_runs[u]):
                if s.runs[u, j] > start:
                    best = min(best, np.int64(s.runs[u, j]))
                    break
    return best


@kernel
def earliest(g, s, v, k):  # type: ignore[no-untyped-def]
    """Slot after which run `k` of op `v` reads the copies it reads now, and follows its run before."""
    slot = s.runs[v, k]
    best = np.int64(s.runs[v, k - 1]) if k > 0 else np.int64(-1)
    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
        u = g.producer[g.in_idx[a]]
        best = max(best, np.int64(s.runs[u, find_run(s, u, slot)]))
    return best


@kernel
def useless(g, s, v, k):  # type: ignore[no-untyped-def]
    """Whether nobody reads what run `k` of op `v` makes, and `v` has another run."""
    if s.n_runs[v] < 2:
        return False
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        if s.ends[x, k] > s.runs[v, k]:
            return False
    return True


@kernel
def take_all(g, s, v, k, stack):  # type: ignore[no-untyped-def]
    """Remove run `k` of op `v` and every run that only served it; whether the log had room.

    `stack` is int64[2 * depth], scratch: ops removed and the slots they lay in. Where it is full, runs that
    became useless stay.
    """
    stack[0], stack[1] = v, s.runs[v, k]
    if not take(g, s, v, k):
        return False
    depth = 2
    while depth > 0:
        depth -= 2
        w, slot = stack[depth], stack[depth + 1]
        for a in range(g.in_ptr[w], g.in_ptr[w + 1]):
            u = g.producer[g.in_idx[a]]
            j = find_run(s, u, slot)
            if j >= 0 and depth + 2 <= len(stack) and useless(g, s, u, j):
                stack[depth], stack[depth + 1] = u, s.runs[u, j]
                depth += 2
                if not take(g, s, u, j):
                    return False
    return True


@kernel
def drop(g, s, u, k, x, most, rng, mark, group):  # type: ignore[no-untyped-def]
    """Make tensor `x` again right before run `k` of op `u` reads it.

    With it come the producers of inputs that are not live there, as long as the time added is <= `most`.
    `mark` is int64[n + 1], its last entry a counter; `group` is int64[GROUP], scratch.
    """
    slot = s.runs[u, k]
    v = g.producer[x]
    if g.once[v] or g.time[v] > most:
        return False
    last = find_run(s, v, slot)
    if last_read(g, s, x, s.runs[v, last], slot) == slot - 1:
        return False
    n = len(mark) - 1
    mark[n] += 1
    stamp = mark[n]
    mark[v] = stamp
    group[0] = v
    size, done = 1, 0
    added = g.time[v]
    while done < size:
        w = group[done]
        done += 1
        for a in range(g.in_ptr[w], g.in_ptr[w + 1]):
            y = g.in_idx[a]
            t = g.producer[y]
            if mark[t] == stamp or s.ends[y, find_run(s, t, slot)] >= slot:
                continue
            if g.once[t] or draw(rng) < KEEP:
                continue
            added += g.time[t]
            if added > most or size == len(group):
                return False
            mark[t] = stamp
            group[size] = t
            size += 1
    for i in range(1, size):  # ops are numbered in a topological order
        w = group[i]
        j = i - 1
        while j >= 0 and group[j] > w:
            group[j + 1] = group[j]
            j -= 1
        group[j + 1] = w
    for i in range(size):
        if put(g, s, group[i], u, k) < 0:
            return False
    if useless(g, s, v, last):
        return take_all(g, s, v, last, group)
    return True


@kernel
def drop_any(g, s, most, rng, mark, group):  # type: ignore[no-untyped-def]
    """`drop` at a random read."""
    slot = any_run(s, rng)
    u = np.int64(s.op[slot])
    degree = g.in_ptr[u + 1] - g.in_ptr[u]
    if degree == 0:
        return False
    x = g.in_idx[g.in_ptr[u] + below(rng, degree)]
    return drop(g, s, u, find_run(s, u, slot + 1), x, most, rng, mark, group)


@kernel
def drop_over(g, s, slot, most, rng, mark, group):  # type: ignore[no-untyped-def]
    """`drop` a tensor that is live at `slot` and neither made nor read there."""
    last = len(s.op) - 1
    for _ in range(TRIES):
        later = slot + 1 + below(rng, last - slot)
        u = np.int64(s.op[later])
        if u < 0 or g.in_ptr[u] == g.in_ptr[u + 1]:
            continue
        x = g.in_idx[g.in_ptr[u] + below(rng, g.in_ptr[u + 1] - g.in_ptr[u])]
        v = g.producer[x]
        start = s.runs[v, find_run(s, v, later)]
        if start < slot and last_read(g, s, x, start, later) < slot:
            return drop(g, s, u, find_run(s, u, later + 1), x, most, rng, mark, group)
    return False


@kernel
def worst_slot(g, s, low, high):  # type: ignore[no-untyped-def]
    """The first slot within low .. high whose cells are highest.

    Blocks of cells are searched from the one of highest bound on. Those whose bound is no higher than what
    was found are passed over; the others' bounds become exact.
    """
    first, last = low * g.halves, (high + 1) * g.halves - 1
    lead = first >> SHIFT
    for block in range(lead + 1, (last >> SHIFT) + 1):
        if s.top[block] > s.top[lead]:
            lead = block
    best, value = _highest(s, lead, first, last)
    for block in range(first >> SHIFT, (last >> SHIFT) + 1):
        if block != lead and (s.top[block] > value or (s.top[block] == value and block << SHIFT < best)):
            where, highest = _highest(s, block, first, last)
            if highest > value or (highest == value and where < best):
                best, value = where, highest
    return np.int64(best // g.halves)


@kernel
def _highest(s, block, first, last):  # type: ignore[no-untyped-def]
    """The first of the highest cells of a block within first .. last, and what it holds."""
    base = block << SHIFT
    start, stop = max(first, base), min(last + 1, base + BLOCK)
    highest, where = np.int64(-(1 << 62)), start
    for cell in range(start, stop):
        if s.profile[cell] > highest:
            highest, where = s.profile[cell], cell
    highest += s.pending[block]
    if stop - start == BLOCK:
        s.top[block] = highest
    return where, highest


@kernel
def over_slot(g, s, rng):  # type: ignore[no-untyped-def]
    """A slot above the budget, the next one from a random slot on; -1 when there is none."""
    if s.scalar[OVERFLOW] == 0:
        return np.int64(-1)
    cells = (len(s.op) - 1) * g.halves
    cell = below(rng, cells)
    seen = 0
    while seen <= cells:
        block = cell >> SHIFT
        stop = min((block + 1) << SHIFT, cells)
        if s.top[block] > 0:
            for c in range(cell, stop):
                if s.profile[c] + s.pending[block] > 0:
                    return np.int64(c // g.halves)
        seen += stop - cell
        cell = stop if stop < cells else 0
    for c in range(cells):
        if s.profile[c] + s.pending[c >> SHIFT] > 0:
            return np.int64(c // g.halves)
    return np.int64(-1)


@kernel
def drop_where_over(g, s, most, rng, mark, group):  # type: ignore[no-untyped-def]
    """`drop` a tensor that is live where memory exceeds the budget."""
    slot = over_slot(g, s, rng)
    if slot < 0:
        return drop_any(g, s, most, rng, mark, group)
    return drop_over(g, s, slot, most, rng, mark, group)


@kernel
def remove_any(g, s, rng, group, span):  # type: ignore[no-untyped-def]
    """Remove a random repeated run and what only served it.

    `span`, int64[2], receives the slots between which its tensors are kept alive instead.
    """
    if s.scalar[REPEATED] == 0:
        return False
    v = np.int64(s.repeated[below(rng, s.scalar[REPEATED])])
    k = below(rng, s.n_runs[v])
    if k == 0 and not useless(g, s, v, 0):
        k = 1 + below(rng, s.n_runs[v] - 1)
    slot = np.int64(s.runs[v, k])
    start = slot
    if k > 0:
        start = np.int64(s.runs[v, k - 1])
        for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
            if s.ends[x, k] > slot:
                start = max(start, np.int64(s.ends[x, k - 1]))
    span[0], span[1] = start, slot
    return take_all(g, s, v, k, group)


@kernel
def exchange(g, s, most, rng, mark, group, span):  # type: ignore[no-untyped-def]
    """`remove_any`, then `drop` something where that needs most memory."""
    before = s.scalar[OVERFLOW]
    time = s.time[0]
    if not remove_any(g, s, rng, group, span):
        return False
    if s.scalar[OVERFLOW] <= before:
        return True
    slot = worst_slot(g, s, span[0], span[1])
    return drop_over(g, s, slot, most + time - s.time[0], rng, mark, group)


@kernel
def move_any(g, s, rng):  # type: ignore[no-untyped-def]
    """Move a random run within the slots where it reads, and is read, as now."""
    slot = any_run(s, rng)
    v = np.int64(s.op[slot])
    k = find_run(s, v, slot + 1)
    low, high = earliest(g, s, v, k), first_read(g, s, v, k)
    kind = draw(rng)
    if kind < 0.25:
        target = high
    elif kind < 0.35:
        target = low + 1
    elif kind < 0.6:
        reach = 12
        target = max(low + 1, slot - reach) + below(
            rng, min(high, slot + reach) - max(low + 1, slot - reach) + 1
        )
    else:
        target = low + 1 + below(rng, high - low)
    target = next_run(s, target)
    if target == slot or target > high or target == next_run(s, slot + 1):
        return False
    u = np.int64(s.op[target])
    return shift(g, s, v, k, u, find_run(s, u, target + 1) if u >= 0 else 0)


@kernel
def tree(g, s, rng, mark, group):  # type: ignore[no-untyped-def]
    """Move a random run later, to before a reader, with the runs whose outputs only it or they read."""
    slot = any_run(s, rng)
    v = np.int64(s.op[slot])
    k = find_run(s, v, slot + 1)
    target = first_read(g, s, v, k)
    if draw(rng) < 0.3:
        target = slot + 1 + below(rng, target - slot)
    target = next_run(s, target)
    n = len(mark) - 1
    mark[n] += 1
    stamp = mark[n]
    mark[v] = stamp
    half = len(group) // 2
    group[0], group[half] = v, k
    size, done = 1, 0
    while done < size:
        w, here = group[done], s.runs[group[done], group[half + done]]
        done += 1
        for a in range(g.in_ptr[w], g.in_ptr[w + 1]):
            t = g.producer[g.in_idx[a]]
            j = find_run(s, t, here)
            if mark[t] == stamp or size == half or not _served_only(g, s, t, j, mark, stamp, group, size):
                continue
            if draw(rng) < 0.1:
                continue
            mark[t] = stamp
            group[size], group[half + size] = t, j
            size += 1
    if size == 1 and target == next_run(s, slot + 1):
        return False
    sort_runs(s, group, size)
    u = np.int64(s.op[target])
    j = np.int64(find_run(s, u, target + 1)) if u >= 0 else np.int64(0)
    return shift_all(g, s, group, size, u, j, True)


@kernel
def _served_only(g, s, t, j, mark, stamp, group, size):  # type: ignore[no-untyped-def]
    """Whether only runs of the group read the copies made by run `j` of op `t`."""
    half = len(group) // 2
    start = s.runs[t, j]
    for y in range(g.out_ptr[t], g.out_ptr[t + 1]):
        end = s.ends[y, j]
        if end == len(s.op) - 1:
            return False
        if end == start:
            continue
        if mark[s.op[end]] != stamp:  # the last one that reads it
            return False
        for a in range(g.use_ptr[y], g.use_ptr[y + 1]):
            w = g.use_idx[a]
            k = find_run(s, w, end + 1)
            while k >= 0 and s.runs[w, k] > start:
                if mark[w] != stamp:
                    return False
                inside = False
                for i in range(size):
                    if group[i] == w and group[half + i] == k:
                        inside = True
                if not inside:
                    return False
                k -= 1
    return True


@kernel
def block(g, s, rng, group):  # type: ignore[no-untyped-def]
    """Move some runs in a row earlier or later, as far as what they read and who reads them allows."""
    last = len(s.op) - 1
    half = len(group) // 2
    first = any_run(s, rng)
    most = 2 + below(rng, half - 1)
    most = 2 + below(rng, most - 1)
    size = 0
    slot = after = first
    while after < last and size < most:
        slot = after
        v = np.int64(s.op[slot])
        group[size], group[half + size] = v, find_run(s, v, slot + 1)
        size += 1
        after = next_run(s, slot + 1)
    later = draw(rng) < 0.5
    limit = last if later else np.int64(-1)
    for i in range(size):
        v, k = group[i], group[half + i]
        if later:
            limit = min(limit, first_read_after(g, s, v, k, slot))
        else:
            limit = max(limit, last_made_before(g, s, v, k, first))
    if later:
        if limit <= after:
            return False
        target = next_run(s, after + 1 + reach(rng, limit - after))
        if target > limit:
            target = limit
        u = np.int64(s.op[target])
        j = np.int64(find_run(s, u, target + 1)) if u >= 0 else np.int64(0)
        return shift_all(g, s, group, size, u, j, True)
    if limit >= first - 1:
        return False
    target = next_run(s, first - 1 - reach(rng, first - limit - 1))
    if target >= first:
        return False
    u = np.int64(s.op[target])
    j = np.int64(find_run(s, u, target + 1))
    return shift_all(g, s, group, size, u, j, False)


@kernel
def reach(rng, n):  # type: ignore[no-untyped-def]
    """A random distance in 0 .. n - 1: all of it, or uniform in its logarithm."""
    kind = draw(rng)
    if kind < 0.2:
        return n - 1
    return min(np.int64(np.exp(draw(rng) * np.log(n + 1.0))) - 1, n - 1)


@kernel
def first_read_after(g, s, v, k, slot):  # type: ignore[no-untyped-def]
    """First slot after `slot` that reads a copy made by run `k` of `v` or runs `v` again; N if none does."""
    best = np.int64(len(s.op) - 1)
    if k + 1 < s.n_runs[v]:
        best = np.int64(s.runs[v, k + 1])
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        if s.ends[x, k] <= slot:
            continue
        for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
            u = g.use_idx[a]
            for j in range(s.n_runs[u]):
                if s.runs[u, j] > slot:
                    best = min(best, np.int64(s.runs[u, j]))
                    break
    return best


@kernel
def last_made_before(g, s, v, k, slot):  # type: ignore[no-untyped-def]
    """Last slot before `slot` that makes a copy read by run `k` of op `v`, or runs `v`; -1 if none does."""
    best = np.int64(s.runs[v, k - 1]) if k > 0 else np.int64(-1)
    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
        u = g.producer[g.in_idx[a]]
        made = np.int64(s.runs[u, find_run(s, u, s.runs[v, k])])
        if made < slot:
            best = max(best, made)
    return best


@kernel
def pull(g, s, rng, mark, group):  # type: ignore[no-untyped-def]
    """Move a random run earlier, with the runs between that it needs."""
    last = len(s.op) - 1
    slot = any_run(s, rng)
    if slot == 0:
        return False
    target = slot - 1 - reach(rng, min(slot, 1 + last // 2))
    half = len(group) // 2
    v = np.int64(s.op[slot])
    n = len(mark) - 1
    mark[n] += 1
    stamp = mark[n]
    mark[v] = stamp
    group[0], group[half] = v, find_run(s, v, slot + 1)
    size, done = 1, 0
    while done < size:
        w, k = group[done], group[half + done]
        done += 1
        here = s.runs[w, k]
        if k > 0 and s.runs[w, k - 1] >= target:
            return False
        for a in range(g.in_ptr[w], g.in_ptr[w + 1]):
            t = g.producer[g.in_idx[a]]
            j = find_run(s, t, here)
            if s.runs[t, j] < target:
                continue
            if mark[t] == stamp:
                continue
            if size == half:
                return False
            mark[t] = stamp
            group[size], group[half + size] = t, j
            size += 1
    sort_runs(s, group, size)
    anchor = next_run(s, target)
    for i in range(size):
        if s.runs[group[i], group[half + i]] != anchor:
            break
        anchor = next_run(s, anchor + 1)
    if anchor > slot:
        return False
    u = np.int64(s.op[anchor])
    j = np.int64(find_run(s, u, anchor + 1))
    return shift_all(g, s, group, size, u, j, False)


@kernel
def push(g, s, rng, mark, group):  # type: ignore[no-untyped-def]
    """Move a random run later, with the runs between that need it."""
    last = len(s.op) - 1
    slot = any_run(s, rng)
    target = min(slot + 1 + reach(rng, min(last - slot, 1 + last // 2)), last - 1)
    if target <= slot:
        return False
    half = len(group) // 2
    v = np.int64(s.op[slot])
    n = len(mark) - 1
    mark[n] += 1
    stamp = mark[n]
    mark[v] = stamp
    group[0], group[half] = v, find_run(s, v, slot + 1)
    size, done = 1, 0
    while done < size:
        w, k = group[done], group[half + done]
        done += 1
        here = s.runs[w, k]
        if k + 1 < s.n_runs[w] and s.runs[w, k + 1] <= target:
            return False
        for x in range(g.out_ptr[w], g.out_ptr[w + 1]):
            if s.ends[x, k] == here:
                continue
            end = min(s.ends[x, k], target)
            for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
                t = g.use_idx[a]
                j = find_run(s, t, end + 1)
                if j < 0 or s.runs[t, j] <= here:
                    continue
                if j > 0 and s.runs[t, j - 1] > here:
                    return False
                if mark[t] == stamp:
                    continue
                if size == half:
                    return False
                mark[t] = stamp
                group[size], group[half + size] = t, j
                size += 1
    anchor = next_run(s, target + 1)
    u = np.int64(s.op[anchor])
    j = np.int64(find_run(s, u, anchor + 1)) if u >= 0 else np.int64(0)
    if next_run(s, slot + 1) == anchor:
        return False
    sort_runs(s, group, size)
    return shift_all(g, s, group, size, u, j, True)


@kernel
def shift_all(g, s, group, size, u, j, later):  # type: ignore[no-untyped-def]
    """Move the first `size` handles of a group, sorted by slot, to right before run `j` of op `u`.

    `later`: they come from before it, the last one first; else from behind it, those in front staying there.
    """
    half = len(group) // 2
    for i in range(size):
        p = size - 1 - i if later else i
        v, k = group[p], group[half + p]
        if not later and s.runs[v, k] < s.runs[u, j]:
            continue
        if not shift(g, s, v, k, u, j):
            return False
        if later:
            u, j = v, k
    return True


@kernel
def sort_runs(s, group, size):  # type: ignore[no-untyped-def]
    """Sort the first `size` handles of a group (ops, then from its middle on the k) by their slots."""
    half = len(group) // 2
    for i in range(1, size):
        w, j = group[i], group[half + i]
        here = s.runs[w, j]
        p = i - 1
        while p >= 0 and s.runs[group[p], group[half + p]] > here:
            group[p + 1], group[half + p + 1] = group[p], group[half + p]
            p -= 1
        group[p + 1], group[half + p + 1] = w, j
