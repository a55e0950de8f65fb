"""Kernels that run ops under a budget: eviction by price, regeneration of what is missing, passes."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel
from hremate.solvers._beam_state_kernel import (
    BYTES,
    DEAD,
    DEBT,
    DONE,
    EXEC,
    EXTRA,
    LIVE,
    LOG_FULL,
    LOG_SIZE,
    MORE_WORK,
    N_LIVE,
    N_POOL,
    NO_ROOM,
    PEAK,
    RAN,
    STALE,
    STAMP,
    WORK,
    is_source,
    move,
    next_use,
    undo,
)

# As numpy scalars, so that numba does not compile kernels anew for these values.
ZERO, NO_OP = np.int64(0), np.int64(-1)
#: Ops looked at beyond the shared regeneration cost when a price is set: long scans are seen as a whole.
NEIGHBOURS = 16_384
#: Arcs looked at when a price is set; what must run again counts double when there are more.
ARCS = 65_536
#: Up to this many live tensors all are priced anew whenever room is needed.
EXACT = 160
#: Work between two looks at the clock, in units, at which a step is given up: at least, and for each op.
MAX_STEP_WORK, STEP_WORK_PER_OP = 20_000_000, 1_000


@kernel
def price(g, st, s, x, now, pol, scr):  # type: ignore[no-untyped-def]
    """What evicting live tensor `x` costs per byte; infinite when it could not be made again.

    Counted are the ops that would have to run again and do not have to already, plus `reach` times the
    evicted neighbourhood upwards and downwards (as in Dynamic Tensor Rematerialization, Kirisame et
    al., ICLR 2021, section 4), which stands for recomputations that will not be shared; all divided by
    the bytes and by the time until the next use to the power of `patience`. Spare tensors are below
    zero, large ones first.
    """
    if st.need[s, x] == 0:
        return -float(g.size[x])
    p = g.producer[x]
    if g.once[p]:
        return np.inf
    scr.cell[STAMP] += 1
    stamp = scr.cell[STAMP]
    shared = 0.0
    around = 0.0
    looked, arcs = 0, 0
    if st.missing[s, p] == 0:
        scr.stack[0] = p
        scr.seen[p] = stamp
        top = 1
        while top:
            top -= 1
            r = scr.stack[top]
            if st.missing[s, r] > 0:
                looked += 1
                around += g.time[r]
                if looked >= NEIGHBOURS:
                    continue
            elif g.once[r]:
                return np.inf
            else:
                shared += g.time[r] + g.toll
                if arcs > ARCS:
                    shared *= 2
                    break
            arcs += g.in_ptr[r + 1] - g.in_ptr[r]
            for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
                z = g.in_idx[a]
                q = g.producer[z]
                if st.live_at[s, z] < 0 and scr.seen[q] != stamp and (pol.reach > 0 or st.missing[s, q] == 0):
                    scr.seen[q] = stamp
                    scr.stack[top] = q
                    top += 1
    if pol.reach > 0:
        scr.stack[0] = p
        top = 1
        while top and looked < NEIGHBOURS and arcs <= ARCS:
            top -= 1
            r = scr.stack[top]
            arcs += g.use_ptr[g.out_ptr[r + 1]] - g.use_ptr[g.out_ptr[r]]
            for w in range(x if r == p else g.out_ptr[r], x + 1 if r == p else g.out_ptr[r + 1]):
                if w != x and st.live_at[s, w] >= 0:
                    continue
                for a in range(g.use_ptr[w], g.use_ptr[w + 1]):
                    j = g.use_idx[a]
                    if st.missing[s, j] > 0 and scr.seen[j] != stamp:
                        scr.seen[j] = stamp
                        looked += 1
                        around += g.time[j]
                        scr.stack[top] = j
                        top += 1
    scr.cell[WORK] += 24 + looked + arcs + g.use_ptr[x + 1] - g.use_ptr[x]
    distance = max(1.0, float(next_use(g, st, s, x, pol.position) - now))
    cost = (shared + pol.reach * around) * pol.bias[x] / g.size[x]
    if pol.patience > 0:
        cost /= distance**pol.patience
    return cost


@kernel
def _sift_up(key, item, k):  # type: ignore[no-untyped-def]
    """Move entry `k` of a heap up to its place."""
    c, x = key[k], item[k]
    while k > 0 and key[(k - 1) // 2] > c:
        key[k], item[k] = key[(k - 1) // 2], item[(k - 1) // 2]
        k = (k - 1) // 2
    key[k], item[k] = c, x


@kernel
def _sift_down(key, item, k, length):  # type: ignore[no-untyped-def]
    """Move entry `k` of a heap of `length` entries down to its place."""
    c, x = key[k], item[k]
    while 2 * k + 1 < length:
        child = 2 * k + 1
        if child + 1 < length and key[child + 1] < key[child]:
            child += 1
        if key[child] >= c:
            break
        key[k], item[k] = key[child], item[child]
        k = child
    key[k], item[k] = c, x


@kernel
def _fill_pool(g, st, s, now, pol, scr):  # type: ignore[no-untyped-def]
    """Price all live tensors that could go."""
    key, item, t = st.pool_price[s], st.pool[s], st.tally[s]
    length = ZERO
    for k in range(t[N_LIVE]):
        x = np.int64(st.live[s, k])
        if scr.pin[x] == 0 and g.size[x] > 0:
            c = price(g, st, s, x, now, pol, scr)
            if c < np.inf:
                key[length], item[length] = c, x
                length += 1
    for k in range(length // 2 - 1, -1, -1):
        _sift_down(key, item, k, length)
    t[N_POOL], t[STALE] = length, 0


@kernel
def suggest(g, st, s, x):  # type: ignore[no-untyped-def]
    """Put tensor `x`, live again, into the pool, to be priced when its turn comes."""
    t = st.tally[s]
    if g.size[x] == 0 or t[N_LIVE] <= EXACT:
        return  # it is never evicted; all are priced whenever room is needed
    if t[N_POOL] == st.pool.shape[1]:
        t[STALE] += t[N_LIVE]
        return
    st.pool_price[s, t[N_POOL]], st.pool[s, t[N_POOL]] = 0.0, x
    _sift_up(st.pool_price[s], st.pool[s], np.int64(t[N_POOL]))
    t[N_POOL] += 1


@kernel
def _cheapest(g, st, s, op, now, pol, scr):  # type: ignore[no-untyped-def]
    """Take the live tensor of least price out of the pool, -1 when none is left.

    Prices in the pool may be old: the cheapest entry is priced anew and goes back while another seems
    cheaper. Pinned tensors and inputs that die with `op` are passed over.
    """
    key, item, t = st.pool_price[s], st.pool[s], st.tally[s]
    while t[N_POOL]:
        x = np.int64(item[0])
        t[N_POOL] -= 1
        length = t[N_POOL]
        key[0], item[0] = key[length], item[length]
        _sift_down(key, item, ZERO, length)
        if st.live_at[s, x] < 0 or scr.pin[x] > 0:
            continue
        if op >= 0 and st.need[s, x] == 1 and _reads(g, op, x):
            continue  # counted as dying already
        t[STALE] += 1
        c = price(g, st, s, x, now, pol, scr)
        if length == 0 or c <= key[0]:
            return x
        if c < np.inf:
            key[length], item[length] = c, x
            _sift_up(key, item, length)
            t[N_POOL] += 1
    return -1


@kernel
def _make_room(g, st, s, limit, dying, op, now, pol, scr):  # type: ignore[no-untyped-def]
    """Evict until at most `limit` bytes are live beside `dying` ones; False when that is impossible.

    Pinned tensors stay, except (when `op` >= 0) inputs of `op` that nothing else waits for: they die at
    its step. What was evicted needlessly, because something bigger had to go as well, is put back.
    """
    t = st.tally[s]
    if t[BYTES] - dying <= limit:
        return True
    start = scr.cell[LOG_SIZE]
    debt, live = t[DEBT], t[BYTES]
    if op >= 0:
        for a in range(g.in_ptr[op], g.in_ptr[op + 1]):
            scr.pin[g.in_idx[a]] -= 1
    filled = False
    while t[BYTES] - dying > limit:
        if not filled and (t[N_LIVE] <= EXACT or 2 * t[STALE] > t[N_LIVE]):
            _fill_pool(g, st, s, now, pol, scr)
            filled = True
        x = _cheapest(g, st, s, op, now, pol, scr)
        if x >= 0:
            move(g, st, s, x, DEAD, pol, scr)
        elif filled:
            break
        else:
            _fill_pool(g, st, s, now, pol, scr)
            filled = True
    enough = t[BYTES] - dying <= limit
    if enough:
        for k in range(scr.cell[LOG_SIZE] - 2, start - 1, -1):  # dearest first; the last one had to go
            x = np.int64(scr.log[k] >> 2)
            if t[BYTES] - dying + g.size[x] <= limit:
                move(g, st, s, x, LIVE, pol, scr)
                suggest(g, st, s, x)
        if t[DEBT] > debt:
            st.price[s] = (t[DEBT] - debt) / (live - t[BYTES])
    if op >= 0:
        for a in range(g.in_ptr[op], g.in_ptr[op + 1]):
            scr.pin[g.in_idx[a]] += 1
    return enough


@kernel
def _reads(g, op, x):  # type: ignore[no-untyped-def]
    """Whether `op` reads tensor `x`."""
    for a in range(g.in_ptr[op], g.in_ptr[op + 1]):
        if g.in_idx[a] == x:
            return True
    return False


@kernel
def _dying(g, st, s, r, pin):  # type: ignore[no-untyped-def]
    """Bytes of the inputs of op `r` that nobody but `r` needs or waits for."""
    total = 0
    for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
        z = g.in_idx[a]
        if st.need[s, z] == 1 and pin[z] == 1 and st.live_at[s, z] >= 0:
            total += g.size[z]
    return total


@kernel
def _execute(g, st, s, r, budget, now, pol, scr):  # type: ignore[no-untyped-def]
    """Run op `r`, whose inputs are live and pinned, making room first; False when there is none."""
    again = st.ran[s, r] == 1
    for x in range(g.out_ptr[r], g.out_ptr[r + 1]):
        if st.live_at[s, x] >= 0:
            move(g, st, s, x, DEAD, pol, scr)  # a fresh copy replaces it
    made = g.out_bytes[r]
    if g.reuse:
        if not _make_room(g, st, s, budget - g.workspace[r], ZERO, NO_OP, now, pol, scr):
            return False
        before = st.tally[s, BYTES] + g.workspace[r]
        dying = _dying(g, st, s, r, scr.pin)
        while st.tally[s, BYTES] - dying + made > budget:
            if not _make_room(g, st, s, budget - made, dying, r, now, pol, scr):
                return False
            dying = _dying(g, st, s, r, scr.pin)  # an eviction may have made an input needed again
        here = max(before, st.tally[s, BYTES] - dying + made)
    else:
        if not _make_room(g, st, s, budget - made - g.workspace[r], ZERO, NO_OP, now, pol, scr):
            return False
        here = st.tally[s, BYTES] + made + g.workspace[r]
    st.tally[s, PEAK] = max(st.tally[s, PEAK], here)
    move(g, st, s, r, EXEC, pol, scr)
    for x in range(g.out_ptr[r], g.out_ptr[r + 1]):
        move(g, st, s, x, LIVE, pol, scr)
    if not again:
        move(g, st, s, r, RAN, pol, scr)
    for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
        z = g.in_idx[a]
        scr.pin[z] -= 1
        if st.live_at[s, z] < 0 or scr.pin[z] > 0:
            continue
        if st.need[s, z] == 0 and (g.reuse or not pol.lazy):
            move(g, st, s, z, DEAD, pol, scr)
        else:
            suggest(g, st, s, z)
    for x in range(g.out_ptr[r], g.out_ptr[r + 1]):
        if scr.pin[x] == 0:
            if st.need[s, x] == 0 and not pol.lazy:
                move(g, st, s, x, DEAD, pol, scr)
            else:
                suggest(g, st, s, x)
    scr.cell[WORK] += 32 + 4 * (g.in_ptr[r + 1] - g.in_ptr[r])
    return True


@kernel
def step(g, st, s, i, budget, pol, scr, max_runs):  # type: ignore[no-untyped-def]
    """Run ready op `i` for the first time in slot `s`, after regenerating what it misses.

    Depth first: to run an op, pin its inputs, run the producer of each dead one, make room, run. On
    failure everything is taken back.

    Parameters
    ----------
    budget : int, bytes.
    max_runs : int, ops run before the step is given up.

    Returns
    -------
    int
        DONE, NO_ROOM or LOG_FULL.
    """
    start = scr.cell[LOG_SIZE]
    peak, paid = st.tally[s, PEAK], st.price[s]
    now = pol.position[i]
    top = 0
    scr.todo[0] = i
    scr.cursor[0] = g.in_ptr[i]
    for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
        scr.pin[g.in_idx[a]] += 1
    runs = 0
    max_work = max(MAX_STEP_WORK, STEP_WORK_PER_OP * len(g.time))
    outcome = DONE
    while top >= 0:
        r = np.int64(scr.todo[top])
        a = scr.cursor[top]
        while a < g.in_ptr[r + 1] and st.live_at[s, g.in_idx[a]] >= 0:
            a += 1
        scr.cursor[top] = a
        if a < g.in_ptr[r + 1]:
            p = g.producer[g.in_idx[a]]
            if g.once[p] and st.ran[s, p]:
                outcome = NO_ROOM
                break
            top += 1
            scr.todo[top] = p
            scr.cursor[top] = g.in_ptr[p]
            for b in range(g.in_ptr[p], g.in_ptr[p + 1]):
                scr.pin[g.in_idx[b]] += 1
            continue
        # Within one execution every tensor is logged a few times at most.
        if scr.cell[LOG_SIZE] + 4 * len(g.size) + 8 > len(scr.log):
            outcome = LOG_FULL
            break
        runs += 1
        too_long = runs > max_runs or scr.cell[WORK] > max_work
        if too_long or not _execute(g, st, s, r, budget, now, pol, scr):
            outcome = NO_ROOM
            break
        top -= 1
    if outcome != DONE:
        while top >= 0:
            r = scr.todo[top]
            for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
                scr.pin[g.in_idx[a]] -= 1
            top -= 1
        while scr.cell[LOG_SIZE] > start:
            scr.cell[LOG_SIZE] -= 1
            undo(g, st, s, np.int64(scr.log[scr.cell[LOG_SIZE]]), pol, scr)
        st.tally[s, PEAK], st.price[s] = peak, paid
    return outcome


@kernel
def follow(  # type: ignore[no-untyped-def]
    g, st, s, order, start, budget, pol, scr, max_extra, max_runs, max_work
):
    """Run the ops of `order` from index `start` for the first time, one step each, sources late.

    Returns (outcome, index of the next op): MORE_WORK after `max_work` counted units, NO_ROOM also when
    more than `max_extra` ticks are recomputed.
    """
    scr.cell[WORK] = 0
    for k in range(start, len(order)):
        if is_source(g, order[k]):
            continue  # runs with its first reader
        outcome = step(g, st, s, order[k], budget, pol, scr, max_runs)
        if outcome != DONE:
            return outcome, k
        if st.tally[s, EXTRA] > max_extra:
            return NO_ROOM, k
        if scr.cell[WORK] > max_work:
            return MORE_WORK, k + 1
    return DONE, len(order)


