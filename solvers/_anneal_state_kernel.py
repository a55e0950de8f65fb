"""Kernels of `anneal`: a sequence in slots whose memory profile follows every insertion and removal.

A sequence of L executions lies in N > L slots, the others empty. An execution ("run") of an op is known by
its *handle* (op, k): the k-th run of that op. Copy k of a tensor starts at the slot of run k of its producer
and ends at the slot of its last read before run k + 1, or at slot N, behind all runs, when it is the last
copy of a graph output.

The profile holds bytes above the budget, one cell per slot under `coexist` (a copy from slot b to slot e
fills b..e) and two under `reuse` (inputs end in the first half of a slot, outputs start in the second: cells
2b+1..2e, or 2b+1 alone when nobody reads the copy). Cells of empty slots are held `VACANT` lower, so that the
*overflow*, the sum of all positive cells, counts steps only and does not depend on where they lie. Cells come
in blocks with a pending addition and an upper bound of their maximum: a range addition touches the cells of
its two outermost blocks, and of those between only blocks that may exceed the budget. Of tensors that many
ops read, the reads in each block of slots are counted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hremate._jit import kernel
from hremate.graph import BoolArray, FloatArray, IntArray

Int32Array = npt.NDArray[np.int32]

#: Bytes that the cells of an empty slot are lowered by; all sums of sizes stay below.
VACANT = 1 << 61
#: Cells per block, as a power of two.
SHIFT = 7
BLOCK = 1 << SHIFT
#: Entries of `State.scalar`: overflow, runs, ops that run more than once, entries of the log.
OVERFLOW, STEPS, REPEATED, LOGGED = range(4)
#: First column of the log.
INSERTED, REMOVED, MOVED = range(3)


class Net(NamedTuple):
    """The graph, in units of memory: arrays as in `hremate.graph.Graph`."""

    time: FloatArray
    workspace: IntArray
    size: IntArray
    producer: Int32Array
    out_ptr: Int32Array
    in_ptr: Int32Array
    in_idx: Int32Array
    use_ptr: Int32Array
    use_idx: Int32Array
    #: Bytes of all outputs of each op.
    made: IntArray
    is_output: BoolArray
    once: BoolArray
    #: Cells per slot: 1 under `coexist`, 2 under `reuse`.
    halves: int
    #: Row of `State.reads` of each tensor, -1 for those that few ops read, int32[m].
    row: Int32Array


class State(NamedTuple):
    """A sequence and its profile."""

    #: Op in each slot, -1 where it is empty, int32[N+1]; slot N stays empty.
    op: Int32Array
    #: Slots of the runs of each op, ascending, int32[n, capacity], and how many there are, int32[n].
    runs: Int32Array
    n_runs: Int32Array
    #: Slot where each copy of each tensor ends, int32[m, capacity].
    ends: Int32Array
    #: Bytes above the budget of each cell, less what its block has pending, int64[blocks * BLOCK].
    profile: IntArray
    #: Addition pending for each block, and an upper bound of its cells, int64[blocks].
    pending: IntArray
    top: IntArray
    #: See `OVERFLOW`, int64[4].
    scalar: IntArray
    #: Sum of the times of all runs, float64[1].
    time: FloatArray
    #: The ops that run more than once, in any order, int32[n], and the place of each op in it (-1: none).
    repeated: Int32Array
    place: Int32Array
    #: What changed since the last decision: kind, op, k and handle of the run after it, int32[entries, 5].
    log: IntArray
    #: Runs in each block of `BLOCK` slots that read a tensor that many ops read, int32[rows, blocks].
    reads: Int32Array


@kernel
def add(profile, pending, top, a, b, delta):  # type: ignore[no-untyped-def]
    """Add `delta` to the cells a..b; return the change of the overflow."""
    change = np.int64(0)
    first, last = a >> SHIFT, b >> SHIFT
    for block in range(first, last + 1):
        base = block << SHIFT
        low = max(a, base)
        high = min(b + 1, base + BLOCK)
        bound = top[block] + max(delta, 0)
        if high - low < BLOCK:
            cells = profile[low:high]
            if bound <= 0:
                for i in range(len(cells)):
                    cells[i] += delta
            else:
                held = pending[block]
                for i in range(len(cells)):
                    old = cells[i] + held
                    cells[i] += delta
                    change += max(old + delta, 0) - max(old, 0)
            top[block] = bound
        else:
            if bound > 0:
                cells = profile[low:high]
                held = pending[block]
                highest = -2 * VACANT
                for i in range(len(cells)):
                    old = cells[i] + held
                    change += max(old + delta, 0) - max(old, 0)
                    highest = max(highest, old)
                top[block] = highest
            pending[block] += delta
            top[block] += delta
    return change


@kernel
def add_cell(profile, pending, top, cell, delta):  # type: ignore[no-untyped-def]
    """Add `delta` to one cell; return the change of the overflow."""
    block = cell >> SHIFT
    old = profile[cell] + pending[block]
    profile[cell] += delta
    top[block] = max(top[block], old + delta)
    return max(old + delta, 0) - max(old, 0)


@kernel
def find_run(s, v, slot):  # type: ignore[no-untyped-def]
    """The last run of op `v` before `slot`, -1 when there is none."""
    k = s.n_runs[v] - 1
    while k >= 0 and s.runs[v, k] >= slot:
        k -= 1
    return k


@kernel
def last_read(g, s, x, start, slot):  # type: ignore[no-untyped-def]
    """The last slot within start < . < slot that reads tensor `x`, else `start`."""
    if g.row[x] >= 0:
        return _last_counted(g, s, x, start, slot)
    best = start
    for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
        u = g.use_idx[a]
        k = s.n_runs[u] - 1
        while k >= 0 and s.runs[u, k] >= slot:
            k -= 1
        if k >= 0:
            best = max(best, s.runs[u, k])
    return best


@kernel
def _last_counted(g, s, x, start, slot):  # type: ignore[no-untyped-def]
    """`last_read` of a tensor whose reads are counted."""
    row = g.row[x]
    p = slot - 1
    while p > start:
        block = p >> SHIFT
        base = block << SHIFT
        if s.reads[row, block] > 0:
            while p >= base and p > start:
                v = s.op[p]
                if v >= 0:
                    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
                        if g.in_idx[a] == x:
                            return np.int64(p)
                p -= 1
        p = min(p, base - 1)
    return np.int64(start)


@kernel
def _count(g, s, v, slot, change):  # type: ignore[no-untyped-def]
    """Add `change` to the reads that op `v` makes in the block of `slot`."""
    if len(s.reads):
        for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
            row = g.row[g.in_idx[a]]
            if row >= 0:
                s.reads[row, slot >> SHIFT] += change


@kernel
def first_cell(halves, start):  # type: ignore[no-untyped-def]
    """First cell of a copy made at slot `start`."""
    return start * halves + halves - 1


@kernel
def last_cell(halves, start, end):  # type: ignore[no-untyped-def]
    """Last cell of a copy made at slot `start` that ends at slot `end`."""
    if halves == 1:
        return end
    return 2 * end if end > start else 2 * start + 1


@kernel
def insert(g, s, v, slot):  # type: ignore[no-untyped-def]
    """Run op `v` in the empty `slot`, where its inputs exist; return the k of the run.

    The op must have fewer runs than there is room for.
    """
    halves = g.halves
    c = s.n_runs[v]
    k = find_run(s, v, slot) + 1
    for j in range(c, k, -1):
        s.runs[v, j] = s.runs[v, j - 1]
    s.runs[v, k] = slot
    s.n_runs[v] = c + 1
    change = np.int64(0)
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        for j in range(c, k, -1):
            s.ends[x, j] = s.ends[x, j - 1]
        if k > 0 and s.ends[x, k - 1] > slot:  # later reads of the copy before read this one
            start = s.runs[v, k - 1]
            s.ends[x, k] = s.ends[x, k - 1]
            end = last_read(g, s, x, start, slot)
            s.ends[x, k - 1] = end
            change += add(
                s.profile, s.pending, s.top, last_cell(halves, start, end) + 1,
                first_cell(halves, slot) - 1, -g.size[x],
            )  # fmt: skip
        else:
            end = len(s.op) - 1 if c == 0 and g.is_output[x] else slot
            s.ends[x, k] = end
            change += add(
                s.profile, s.pending, s.top, first_cell(halves, slot), last_cell(halves, slot, end),
                g.size[x],
            )  # fmt: skip
    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
        x = g.in_idx[a]
        u = g.producer[x]
        j = find_run(s, u, slot)
        end = s.ends[x, j]
        if end < slot:
            start = s.runs[u, j]
            s.ends[x, j] = slot
            change += add(
                s.profile, s.pending, s.top, last_cell(halves, start, end) + 1,
                last_cell(halves, start, slot), g.size[x],
            )  # fmt: skip
    s.op[slot] = v
    _count(g, s, v, slot, 1)
    change += add_cell(s.profile, s.pending, s.top, halves * slot, g.workspace[v] + VACANT)
    if halves == 2:
        change += add_cell(s.profile, s.pending, s.top, 2 * slot + 1, VACANT)
    s.scalar[OVERFLOW] += change
    s.scalar[STEPS] += 1
    s.time[0] += g.time[v]
    if c == 1:
        s.place[v] = s.scalar[REPEATED]
        s.repeated[s.scalar[REPEATED]] = v
        s.scalar[REPEATED] += 1
    return k


@kernel
def remove(g, s, v, k):  # type: ignore[no-untyped-def]
    """Take run `k` of op `v` out; its readers must be served by run k - 1, or there are none."""
    halves = g.halves
    slot = s.runs[v, k]
    c = s.n_runs[v]
    change = add_cell(s.profile, s.pending, s.top, halves * slot, -g.workspace[v] - VACANT)
    if halves == 2:
        change += add_cell(s.profile, s.pending, s.top, 2 * slot + 1, -VACANT)
    s.op[slot] = -1
    _count(g, s, v, slot, -1)
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        end = s.ends[x, k]
        if end > slot:
            start = s.runs[v, k - 1]
            change += add(
                s.profile, s.pending, s.top, last_cell(halves, start, s.ends[x, k - 1]) + 1,
                first_cell(halves, slot) - 1, g.size[x],
            )  # fmt: skip
            s.ends[x, k - 1] = end
        else:
            change += add(
                s.profile, s.pending, s.top, first_cell(halves, slot), last_cell(halves, slot, slot),
                -g.size[x],
            )  # fmt: skip
        for j in range(k, c - 1):
            s.ends[x, j] = s.ends[x, j + 1]
    for j in range(k, c - 1):
        s.runs[v, j] = s.runs[v, j + 1]
    s.n_runs[v] = c - 1
    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
        x = g.in_idx[a]
        u = g.producer[x]
        j = find_run(s, u, slot)
        if s.ends[x, j] == slot:
            start = s.runs[u, j]
            end = last_read(g, s, x, start, slot)
            s.ends[x, j] = end
            change += add(
                s.profile, s.pending, s.top, last_cell(halves, start, end) + 1,
                last_cell(halves, start, slot), -g.size[x],
            )  # fmt: skip
    s.scalar[OVERFLOW] += change
    s.scalar[STEPS] -= 1
    s.time[0] -= g.time[v]
    if c == 2:
        s.scalar[REPEATED] -= 1
        other = s.repeated[s.scalar[REPEATED]]
        s.repeated[s.place[v]] = other
        s.place[other] = s.place[v]
        s.place[v] = -1


@kernel
def relocate(g, s, v, k, slot):  # type: ignore[no-untyped-def]
    """Move run `k` of op `v` to the empty `slot`, between its runs k - 1 and k + 1, where its inputs exist.

    Reads of its outputs between the two places must have, or get, a copy of run k - 1.
    """
    halves = g.halves
    old = s.runs[v, k]
    s.op[old] = -1
    s.op[slot] = v
    _count(g, s, v, old, -1)
    _count(g, s, v, slot, 1)
    s.runs[v, k] = slot
    change = add_cell(s.profile, s.pending, s.top, halves * old, -g.workspace[v] - VACANT)
    change += add_cell(s.profile, s.pending, s.top, halves * slot, g.workspace[v] + VACANT)
    if halves == 2:
        change += add_cell(s.profile, s.pending, s.top, 2 * old + 1, -VACANT)
        change += add_cell(s.profile, s.pending, s.top, 2 * slot + 1, VACANT)
    kept = np.int64(0)  # bytes of the outputs that end where they did
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        end = s.ends[x, k]
        now = end if end > old else slot
        if k > 0:
            now, more = _divide(g, s, v, k, x, old, slot)
            change += more
        if now == end:
            kept += g.size[x]
            continue
        s.ends[x, k] = now
        change += add(
            s.profile, s.pending, s.top, first_cell(halves, old), last_cell(halves, old, end), -g.size[x]
        )
        change += add(
            s.profile, s.pending, s.top, first_cell(halves, slot), last_cell(halves, slot, now), g.size[x]
        )
    if kept > 0:
        a, b = first_cell(halves, old), first_cell(halves, slot)
        change += add(s.profile, s.pending, s.top, min(a, b), max(a, b) - 1, kept if b < a else -kept)
    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
        x = g.in_idx[a]
        u = g.producer[x]
        j = find_run(s, u, slot)
        start, end = s.runs[u, j], s.ends[x, j]
        if end < slot:
            s.ends[x, j] = slot
            change += add(
                s.profile, s.pending, s.top, last_cell(halves, start, end) + 1,
                last_cell(halves, start, slot), g.size[x],
            )  # fmt: skip
        j = find_run(s, u, old)
        if s.ends[x, j] == old:
            start = s.runs[u, j]
            end = last_read(g, s, x, start, old)
            s.ends[x, j] = end
            change += add(
                s.profile, s.pending, s.top, last_cell(halves, start, end) + 1,
                last_cell(halves, start, old), -g.size[x],
            )  # fmt: skip
    s.scalar[OVERFLOW] += change


@kernel
def _divide(g, s, v, k, x, old, slot):  # type: ignore[no-untyped-def]
    """Divide the reads of tensor `x` anew between runs k - 1 and k of op `v` as the latter moves.

    Sets where the copy of run k - 1 ends; returns where that of run k does, and the change of the overflow.
    """
    start, end, before = s.runs[v, k - 1], s.ends[x, k], s.ends[x, k - 1]
    now, shared = end if end > old else slot, before
    if slot < before:
        shared = last_read(g, s, x, start, slot)
        now = max(end if end > old else slot, before)
    elif old < slot:
        read = last_read(g, s, x, old, slot)
        if read > old:
            shared = read
            now = end if end > read else slot
    if shared == before:
        return now, np.int64(0)
    s.ends[x, k - 1] = shared
    a, b = last_cell(g.halves, start, before), last_cell(g.halves, start, shared)
    size = g.size[x] if b > a else -g.size[x]
    return now, add(s.profile, s.pending, s.top, min(a, b) + 1, max(a, b), size)


@kernel
def vacate(g, s, slot):  # type: ignore[no-untyped-def]
    """An empty slot right before `slot` and behind all runs before it; runs move aside for it.

    Some slot must be empty. Moving aside changes no order, hence neither memory nor time.
    """
    if slot > 0 and s.op[slot - 1] < 0:
        return slot - 1
    last = len(s.op) - 1
    right, left = slot, slot - 2
    while True:
        if right < last:
            if s.op[right] < 0:
                break
            right += 1
        if left >= 0:
            if s.op[left] < 0:
                break
            left -= 1
    if right < last and s.op[right] < 0:
        across = _across(g, s, slot)
        for p in range(right, slot, -1):
            _shift(g, s, p - 1, p)
        _fill(g, s, slot, across)
        return slot
    across = _across(g, s, slot)
    for p in range(left, slot - 1):
        _shift(g, s, p + 1, p)
    _fill(g, s, slot - 1, across)
    return slot - 1


@kernel
def _across(g, s, slot):  # type: ignore[no-untyped-def]
    """Cell of an empty slot right before `slot`: what is live between."""
    cell = slot * g.halves
    value = s.profile[cell] + s.pending[cell >> SHIFT]
    v = s.op[slot]
    if v < 0:
        return value
    value -= g.workspace[v] + VACANT
    return value - g.made[v] if g.halves == 1 else value


@kernel
def _fill(g, s, slot, value):  # type: ignore[no-untyped-def]
    """Make `slot` empty, with `value` in its cells."""
    s.op[slot] = -1
    for cell in range(slot * g.halves, (slot + 1) * g.halves):
        s.profile[cell] = value - s.pending[cell >> SHIFT]


@kernel
def _shift(g, s, source, target):  # type: ignore[no-untyped-def]
    """Move the run in slot `source` to the free slot `target` next to it."""
    v = s.op[source]
    k = find_run(s, v, source + 1)
    for a in range(g.in_ptr[v], g.in_ptr[v + 1]):
        x = g.in_idx[a]
        j = find_run(s, g.producer[x], source)
        if s.ends[x, j] == source:
            s.ends[x, j] = target
    for x in range(g.out_ptr[v], g.out_ptr[v + 1]):
        if s.ends[x, k] == source:
            s.ends[x, k] = target
    s.runs[v, k] = target
    s.op[target] = v
    if source >> SHIFT != target >> SHIFT:
        _count(g, s, v, source, -1)
        _count(g, s, v, target, 1)
    for half in range(g.halves):
        old, new = source * g.halves + half, target * g.halves + half
        value = s.profile[old] + s.pending[old >> SHIFT]
        block = new >> SHIFT
        s.profile[new] = value - s.pending[block]
        s.top[block] = max(s.top[block], value)


@kernel
def next_run(s, slot):  # type: ignore[no-untyped-def]
    """The first occupied slot from `slot` on, N when there is none."""
    last = len(s.op) - 1
    while slot < last and s.op[slot] < 0:
        slot += 1
    return slot


@kernel
def put(g, s, v, u, j):  # type: ignore[no-untyped-def]
    """Run op `v` right before run `j` of op `u` (at the end: u = -1) and log it.

    Returns the k of the new run, or -1, with nothing changed, where there is no room for it.
    """
    if (
        s.n_runs[v] >= s.runs.shape[1]
        or s.scalar[STEPS] >= len(s.op) - 2
        or s.scalar[LOGGED] >= len(s.log)
    ):
        return np.int64(-1)
    slot = vacate(g, s, s.runs[u, j] if u >= 0 else np.int64(len(s.op) - 1))
    k = insert(g, s, v, slot)
    entry = s.log[s.scalar[LOGGED]]
    entry[0], entry[1], entry[2] = INSERTED, v, k
    s.scalar[LOGGED] += 1
    return np.int64(k)


@kernel
def take(g, s, v, k):  # type: ignore[no-untyped-def]
    """Remove run `k` of op `v` as `remove` does and log it; whether there was room in the log."""
    if s.scalar[LOGGED] >= len(s.log):
        return False
    slot = s.runs[v, k]
    remove(g, s, v, k)
    _note(s, REMOVED, v, k, slot)
    return True


@kernel
def shift(g, s, v, k, u, j):  # type: ignore[no-untyped-def]
    """Move run `k` of op `v` to right before run `j` of op `u` (to the end: u = -1) and log it.

    Returns False, with nothing changed, where another run of `v` lies between or the log is full.
    """
    target = s.runs[u, j] if u >= 0 else np.int64(len(s.op) - 1)
    if (
        s.scalar[LOGGED] >= len(s.log)
        or (k + 1 < s.n_runs[v] and s.runs[v, k + 1] < target)
        or (k > 0 and s.runs[v, k - 1] >= target)
    ):
        return False
    _note(s, MOVED, v, k, s.runs[v, k])
    relocate(g, s, v, k, vacate(g, s, target))
    return True


@kernel
def _note(s, kind, v, k, slot):  # type: ignore[no-untyped-def]
    """Log what was done to run `k` of op `v` in `slot`, and the run after it."""
    after = next_run(s, slot + 1)
    u = s.op[after]
    entry = s.log[s.scalar[LOGGED]]
    entry[0], entry[1], entry[2], entry[3] = kind, v, k, u
    entry[4] = find_run(s, u, after + 1) if u >= 0 else 0
    s.scalar[LOGGED] += 1


@kernel
def undo(g, s):  # type: ignore[no-untyped-def]
    """Take back all that is logged."""
    while s.scalar[LOGGED] > 0:
        s.scalar[LOGGED] -= 1
        entry = s.log[s.scalar[LOGGED]]
        if entry[0] == INSERTED:
            remove(g, s, entry[1], entry[2])
            continue
        u = entry[3]
        slot = vacate(g, s, s.runs[u, entry[4]] if u >= 0 else np.int64(len(s.op) - 1))
        if entry[0] == REMOVED:
            insert(g, s, entry[1], slot)
        else:
            relocate(g, s, entry[1], entry[2], slot)


@kernel
def load(g, s, order, budget):  # type: ignore[no-untyped-def]
    """Make `s` the sequence `order` (valid, int64[L]), its runs evenly spread over the slots."""
    slots = len(s.op) - 1
    s.op[:] = -1
    s.n_runs[:] = 0
    s.profile[:] = -budget - VACANT
    s.pending[:] = 0
    s.top[:] = -budget - VACANT
    s.scalar[:] = 0
    s.time[0] = 0.0
    s.place[:] = -1
    s.reads[:] = 0
    for p in range(len(order)):
        insert(g, s, order[p], p * slots // len(order))


@kernel
def unload(s, order):  # type: ignore[no-untyped-def]
    """Write the sequence to the start of `order` (int, at least as long); return its length."""
    steps = 0
    for slot in range(len(s.op) - 1):
        if s.op[slot] >= 0:
            order[steps] = s.op[slot]
            steps += 1
    return steps
