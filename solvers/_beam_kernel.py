"""Kernels of the beam search with recomputation: states in slots, moved by undo and redo of a log.

A slot holds one partial schedule as flat arrays. Every change of a slot is one of three elementary
moves (a tensor becomes live, a tensor dies, an op runs for the first time), each with its inverse; the
moves are written to a log, so that a failed step is rolled back and a slot can be moved from one node
of the history tree to another without copying.

Terms: a tensor is *needed* when an op that has not run reads it, when it is a graph output, or when it
feeds an op that must run again; an op must *run again* when one of its outputs is needed and dead. The
times of these ops are the *debt* of a state: what it has already committed itself to recompute. Both
are kept up to date move by move. A live tensor that is not needed is *spare*: it may serve as the start
of a later recomputation and is the first to go when room is needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hremate._jit import kernel
from hremate.graph import BoolArray, FloatArray, IntArray

Int32Array = npt.NDArray[np.int32]

# Log entries are id * 4 + kind.
LIVE, DEAD, RAN, EXEC = range(4)
# Outcome of a step, and of a kernel call.
DONE, NO_ROOM, LOG_FULL, MORE_WORK = range(4)
# Columns of State.tally.
BYTES, NEEDED, PEAK, N_LIVE, N_READY, N_RAN, NODE, HASH, EXTRA, DEBT = range(10)
# Cells of Scratch.cell.
STAMP, LOG_SIZE, WORK = range(3)
#: State.wait of ops that are never ready by themselves; more than the inputs of any op.
NEVER = 2**30
#: Ops looked at beyond the shared regeneration cost when a price is set.
NEIGHBOURS = 64
#: Eviction candidates kept from one scan of the live tensors.
CANDIDATES = 8


class Net(NamedTuple):
    """The graph: arrays as in `hremate.graph.Graph`, and one op more at the end.

    The last op, the *end*, takes no time, makes nothing, reads the graph outputs and runs when all
    others have run: what was evicted of the outputs is made again for it.
    """

    time: FloatArray
    workspace: IntArray
    once: BoolArray
    size: IntArray
    producer: IntArray
    out_ptr: IntArray
    in_ptr: IntArray
    in_idx: IntArray
    use_ptr: IntArray
    use_idx: IntArray
    out_bytes: IntArray
    reuse: bool
    #: Times as whole numbers, so that sums come back exactly when moves are undone, int64[n].
    ticks: IntArray
    #: Time charged for each recomputation beyond the op's own, so that recomputing is never free.
    toll: float


class State(NamedTuple):
    """`width` partial schedules; first axis: slot."""

    #: 1 once the op has run, int8[width, n].
    ran: npt.NDArray[np.int8]
    #: Input tensors whose producer has not run, sources apart, int32[width, n]; never 0 for sources and
    #: the end, which are in no list of ready ops.
    wait: Int32Array
    #: Needed dead outputs of an op that has run; > 0 when it must run again, int32[width, n].
    missing: Int32Array
    #: Position of the first read that makes the op run again, int32[width, n].
    due: Int32Array
    #: Ready ops (not run, inputs made at some time) and the place of each op in that list (-1: none).
    ready: Int32Array
    ready_at: Int32Array
    #: Reasons why each tensor is needed, int32[width, m].
    need: Int32Array
    #: Live tensors and the place of each tensor in that list (-1: dead), int32[width, m].
    live: Int32Array
    live_at: Int32Array
    #: int64[width, 10]: live bytes, needed live bytes, peak, lengths of the lists live and ready, ops that
    #: have run, node of the history tree, hash of the ops that have run, ticks recomputed, ticks of debt.
    tally: IntArray
    #: Ticks of debt per byte at the last eviction, float64[width].
    price: FloatArray


class Policy(NamedTuple):
    """How tensors are chosen for eviction."""

    #: Exponent of the time until the next use in the price.
    patience: float
    #: Weight of evicted neighbours in the price.
    reach: float
    #: Keep spare tensors until room is needed.
    lazy: bool
    #: Factor on the price of each tensor, float64[m].
    bias: FloatArray
    #: Position of each op in the order that says when tensors are used next, int32[n].
    position: Int32Array


class Scratch(NamedTuple):
    """Work space shared by all slots; nothing in it outlives a step but the log and the cells."""

    #: Waiting reads of each tensor by ops on the stack of the current step, int32[m].
    pin: Int32Array
    #: Stamps of visited ops, int64[n].
    seen: IntArray
    #: Stack of ops for searches, int32[n + 1].
    stack: Int32Array
    #: Stack of ops to run in the current step, and the next input to look at, int32[n + 1].
    todo: Int32Array
    cursor: IntArray
    #: Random 63-bit number of each op, int64[n].
    zobrist: IntArray
    #: Elementary moves in order, int32[capacity].
    log: Int32Array
    #: int64[3]: STAMP, LOG_SIZE, WORK (counted).
    cell: IntArray


@kernel
def init_slot(g, st, s):  # type: ignore[no-untyped-def]
    """Set slot `s` to the empty schedule."""
    n, m = len(g.time), len(g.size)
    st.ran[s] = 0
    st.missing[s] = 0
    st.ready_at[s] = -1
    st.live_at[s] = -1
    st.tally[s] = 0
    st.price[s] = 0.0
    for x in range(m):
        st.need[s, x] = g.use_ptr[x + 1] - g.use_ptr[x]
    for i in range(n):
        if i == n - 1 or is_source(g, i):
            st.wait[s, i] = NEVER
            continue
        st.wait[s, i] = 0
        for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
            st.wait[s, i] += not is_source(g, g.producer[g.in_idx[a]])
        if st.wait[s, i] == 0:
            _add(st.ready, st.ready_at, s, i, st.tally[s, N_READY])
            st.tally[s, N_READY] += 1


@kernel
def is_source(g, i):  # type: ignore[no-untyped-def]
    """Whether op `i` reads nothing and somebody reads it: it runs late, when its first reader asks."""
    return g.in_ptr[i] == g.in_ptr[i + 1] and (
        g.use_ptr[g.out_ptr[i]] < g.use_ptr[g.out_ptr[i + 1]]
    )


@kernel
def _add(items, place, s, item, length):  # type: ignore[no-untyped-def]
    """Append `item` to the list of slot `s` that holds `length` items."""
    items[s, length] = item
    place[s, item] = length


@kernel
def _take(items, place, s, item, length):  # type: ignore[no-untyped-def]
    """Take `item` out of the list of slot `s` that holds `length` items; the last one fills its place."""
    at = place[s, item]
    last = items[s, length - 1]
    items[s, at] = last
    place[s, last] = at
    place[s, item] = -1


@kernel
def next_use(g, st, s, x, position):  # type: ignore[no-untyped-def]
    """Position of the next op that reads tensor `x`, directly or through ops that must run again."""
    nearest = len(g.time)
    for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
        j = g.use_idx[a]
        if not st.ran[s, j]:
            nearest = min(nearest, position[j])
        elif st.missing[s, j] > 0:
            nearest = min(nearest, st.due[s, j])
    return nearest


@kernel
def _miss(g, st, s, x, due, stack):  # type: ignore[no-untyped-def]
    """Count tensor `x` of an op that has run as needed and dead; follow what that makes needed."""
    p = g.producer[x]
    st.missing[s, p] += 1
    if st.missing[s, p] > 1:
        st.due[s, p] = min(st.due[s, p], due)
        return
    stack[0] = p
    top = 1
    while top:
        top -= 1
        r = stack[top]
        st.due[s, r] = due
        st.tally[s, DEBT] += g.ticks[r]
        for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
            z = g.in_idx[a]
            st.need[s, z] += 1
            if st.need[s, z] == 1:
                if st.live_at[s, z] >= 0:
                    st.tally[s, NEEDED] += g.size[z]
                else:
                    q = g.producer[z]
                    st.missing[s, q] += 1
                    if st.missing[s, q] == 1:
                        stack[top] = q
                        top += 1


@kernel
def _find(g, st, s, x, stack):  # type: ignore[no-untyped-def]
    """Undo `_miss`: tensor `x` is no longer both needed and dead."""
    p = g.producer[x]
    st.missing[s, p] -= 1
    if st.missing[s, p]:
        return
    stack[0] = p
    top = 1
    while top:
        top -= 1
        r = stack[top]
        st.tally[s, DEBT] -= g.ticks[r]
        for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
            z = g.in_idx[a]
            st.need[s, z] -= 1
            if st.need[s, z] == 0:
                if st.live_at[s, z] >= 0:
                    st.tally[s, NEEDED] -= g.size[z]
                else:
                    q = g.producer[z]
                    st.missing[s, q] -= 1
                    if st.missing[s, q] == 0:
                        stack[top] = q
                        top += 1


@kernel
def _make_live(g, st, s, x, stack):  # type: ignore[no-untyped-def]
    _add(st.live, st.live_at, s, x, st.tally[s, N_LIVE])
    st.tally[s, N_LIVE] += 1
    st.tally[s, BYTES] += g.size[x]
    if st.need[s, x] > 0:
        st.tally[s, NEEDED] += g.size[x]
        if st.ran[s, g.producer[x]]:
            _find(g, st, s, x, stack)


@kernel
def _make_dead(g, st, s, x, position, stack):  # type: ignore[no-untyped-def]
    _take(st.live, st.live_at, s, x, st.tally[s, N_LIVE])
    st.tally[s, N_LIVE] -= 1
    st.tally[s, BYTES] -= g.size[x]
    if st.need[s, x] > 0:
        st.tally[s, NEEDED] -= g.size[x]
        if st.ran[s, g.producer[x]]:
            _miss(g, st, s, x, next_use(g, st, s, x, position), stack)


@kernel
def _first_run(g, st, s, i, zobrist):  # type: ignore[no-untyped-def]
    """Note the first run of op `i`, whose inputs are or were live and whose outputs are live."""
    st.ran[s, i] = 1
    st.tally[s, HASH] ^= zobrist[i]
    st.tally[s, N_RAN] += 1
    if st.wait[s, i] > 0:
        return
    _take(st.ready, st.ready_at, s, i, st.tally[s, N_READY])
    st.tally[s, N_READY] -= 1
    for x in range(g.out_ptr[i], g.out_ptr[i + 1]):
        for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
            j = g.use_idx[a]
            st.wait[s, j] -= 1
            if st.wait[s, j] == 0:
                _add(st.ready, st.ready_at, s, j, st.tally[s, N_READY])
                st.tally[s, N_READY] += 1


@kernel
def _unneed_inputs(g, st, s, i, stack):  # type: ignore[no-untyped-def]
    """Op `i` has run for the first time: its inputs have one reason less to be needed."""
    for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
        z = g.in_idx[a]
        st.need[s, z] -= 1
        if st.need[s, z] == 0:
            if st.live_at[s, z] >= 0:
                st.tally[s, NEEDED] -= g.size[z]
            else:
                _find(g, st, s, z, stack)


@kernel
def _undo_first_run(g, st, s, i, zobrist, position, stack):  # type: ignore[no-untyped-def]
    for a in range(g.in_ptr[i + 1] - 1, g.in_ptr[i] - 1, -1):
        z = g.in_idx[a]
        st.need[s, z] += 1
        if st.need[s, z] == 1:
            if st.live_at[s, z] >= 0:
                st.tally[s, NEEDED] += g.size[z]
            else:
                _miss(g, st, s, z, position[i], stack)
    st.ran[s, i] = 0
    st.tally[s, HASH] ^= zobrist[i]
    st.tally[s, N_RAN] -= 1
    if st.wait[s, i] > 0:
        return
    for x in range(g.out_ptr[i + 1] - 1, g.out_ptr[i] - 1, -1):
        for a in range(g.use_ptr[x + 1] - 1, g.use_ptr[x] - 1, -1):
            j = g.use_idx[a]
            if st.wait[s, j] == 0:
                _take(st.ready, st.ready_at, s, j, st.tally[s, N_READY])
                st.tally[s, N_READY] -= 1
            st.wait[s, j] += 1
    _add(st.ready, st.ready_at, s, i, st.tally[s, N_READY])
    st.tally[s, N_READY] += 1


@kernel
def redo(g, st, s, entry, pol, scr):  # type: ignore[no-untyped-def]
    """Apply one log entry to slot `s`."""
    kind, item = entry & 3, entry >> 2
    if kind == LIVE:
        _make_live(g, st, s, item, scr.stack)
    elif kind == DEAD:
        _make_dead(g, st, s, item, pol.position, scr.stack)
    elif kind == RAN:
        _first_run(g, st, s, item, scr.zobrist)
        _unneed_inputs(g, st, s, item, scr.stack)
    elif st.ran[s, item]:
        st.tally[s, EXTRA] += g.ticks[item]


@kernel
def undo(g, st, s, entry, pol, scr):  # type: ignore[no-untyped-def]
    """Take one log entry of slot `s` back."""
    kind, item = entry & 3, entry >> 2
    if kind == LIVE:
        _make_dead(g, st, s, item, pol.position, scr.stack)
    elif kind == DEAD:
        _make_live(g, st, s, item, scr.stack)
    elif kind == RAN:
        _undo_first_run(g, st, s, item, scr.zobrist, pol.position, scr.stack)
    elif st.ran[s, item]:
        st.tally[s, EXTRA] -= g.ticks[item]


@kernel
def _move(g, st, s, item, kind, pol, scr):  # type: ignore[no-untyped-def]
    """Apply a move and log it (the caller has checked the capacity of the log)."""
    entry = item * 4 + kind
    scr.log[scr.cell[LOG_SIZE]] = entry
    scr.cell[LOG_SIZE] += 1
    redo(g, st, s, entry, pol, scr)


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
    looked = 0
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
                scr.cell[WORK] += 1
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
        while top and looked < NEIGHBOURS:
            top -= 1
            r = scr.stack[top]
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
    distance = max(1.0, float(next_use(g, st, s, x, pol.position) - now))
    cost = (shared + pol.reach * around) * pol.bias[x] / g.size[x]
    if pol.patience > 0:
        cost /= distance**pol.patience
    return cost


@kernel
def _make_room(g, st, s, limit, dying, op, now, pol, scr):  # type: ignore[no-untyped-def]
    """Evict until at most `limit` bytes are live beside `dying` ones; False when that is impossible.

    Pinned tensors stay, except (when `op` >= 0) inputs of `op` that nothing else waits for: they die at
    its step. What was evicted needlessly, because something bigger had to go as well, is put back.
    """
    start = scr.cell[LOG_SIZE]
    chosen = np.empty(CANDIDATES, np.int64)
    cost = np.empty(CANDIDATES, np.float64)
    debt, live = st.tally[s, DEBT], st.tally[s, BYTES]
    if op >= 0:
        for a in range(g.in_ptr[op], g.in_ptr[op + 1]):
            scr.pin[g.in_idx[a]] -= 1
    enough = True
    while st.tally[s, BYTES] - dying > limit:
        held = 0
        for k in range(st.tally[s, N_LIVE]):
            x = st.live[s, k]
            if scr.pin[x] > 0 or g.size[x] == 0:
                continue
            if op >= 0 and st.need[s, x] == 1 and _reads(g, op, x):
                continue  # counted as dying already
            c = price(g, st, s, x, now, pol, scr)
            scr.cell[WORK] += 4
            if c == np.inf or (held == CANDIDATES and c >= cost[held - 1]):
                continue
            k2 = held if held < CANDIDATES else held - 1
            while k2 > 0 and cost[k2 - 1] > c:
                cost[k2] = cost[k2 - 1]
                chosen[k2] = chosen[k2 - 1]
                k2 -= 1
            cost[k2] = c
            chosen[k2] = x
            held = min(held + 1, CANDIDATES)
        if held == 0:
            enough = False
            break
        last = cost[held - 1]
        for k in range(held):
            if st.tally[s, BYTES] - dying <= limit:
                break
            c = cost[k] if k == 0 else price(g, st, s, chosen[k], now, pol, scr)
            if c > last:
                break
            _move(g, st, s, chosen[k], DEAD, pol, scr)
    if enough:
        for k in range(scr.cell[LOG_SIZE] - 2, start - 1, -1):  # dearest first; the last one had to go
            x = scr.log[k] >> 2
            if st.tally[s, BYTES] - dying + g.size[x] <= limit:
                _move(g, st, s, x, LIVE, pol, scr)
        if st.tally[s, DEBT] > debt:
            st.price[s] = (st.tally[s, DEBT] - debt) / (live - st.tally[s, BYTES])
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
            _move(g, st, s, x, DEAD, pol, scr)  # a fresh copy replaces it
    made = g.out_bytes[r]
    if g.reuse:
        if not _make_room(g, st, s, budget - g.workspace[r], 0, -1, now, pol, scr):
            return False
        before = st.tally[s, BYTES] + g.workspace[r]
        dying = _dying(g, st, s, r, scr.pin)
        while st.tally[s, BYTES] - dying + made > budget:
            if not _make_room(g, st, s, budget - made, dying, r, now, pol, scr):
                return False
            dying = _dying(g, st, s, r, scr.pin)  # an eviction may have made an input needed again
        here = max(before, st.tally[s, BYTES] - dying + made)
    else:
        if not _make_room(g, st, s, budget - made - g.workspace[r], 0, -1, now, pol, scr):
            return False
        here = st.tally[s, BYTES] + made + g.workspace[r]
    st.tally[s, PEAK] = max(st.tally[s, PEAK], here)
    _move(g, st, s, r, EXEC, pol, scr)
    for x in range(g.out_ptr[r], g.out_ptr[r + 1]):
        _move(g, st, s, x, LIVE, pol, scr)
    if not again:
        _move(g, st, s, r, RAN, pol, scr)
    for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
        z = g.in_idx[a]
        scr.pin[z] -= 1
        if st.need[s, z] == 0 and scr.pin[z] == 0 and st.live_at[s, z] >= 0 and (g.reuse or not pol.lazy):
            _move(g, st, s, z, DEAD, pol, scr)
    if not pol.lazy:
        for x in range(g.out_ptr[r], g.out_ptr[r + 1]):
            if st.need[s, x] == 0 and scr.pin[x] == 0:
                _move(g, st, s, x, DEAD, pol, scr)
    scr.cell[WORK] += 4 + g.in_ptr[r + 1] - g.in_ptr[r]
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
    outcome = DONE
    while top >= 0:
        r = scr.todo[top]
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
        if runs > max_runs or not _execute(g, st, s, r, budget, now, pol, scr):
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
            undo(g, st, s, scr.log[scr.cell[LOG_SIZE]], pol, scr)
        st.tally[s, PEAK], st.price[s] = peak, paid
    return outcome


@kernel
def follow(g, st, s, order, start, budget, pol, scr, max_runs, max_work):  # type: ignore[no-untyped-def]
    """Run the ops of `order` from index `start` for the first time, one step each, sources late.

    Returns (outcome, index of the next op): MORE_WORK after `max_work` counted units.
    """
    scr.cell[WORK] = 0
    for k in range(start, len(order)):
        if is_source(g, order[k]):
            continue  # runs with its first reader
        outcome = step(g, st, s, order[k], budget, pol, scr, max_runs)
        if outcome != DONE:
            return outcome, k
        if scr.cell[WORK] > max_work:
            return MORE_WORK, k + 1
    return DONE, len(order)


class Tree(NamedTuple):
    """The history of a beam: one node per step of a slot."""

    #: Node before each node (the root is its own) and number of steps to it, int32[capacity].
    parent: Int32Array
    depth: Int32Array
    #: Log entries first:last of each node, int64[capacity].
    first: IntArray
    last: IntArray
    #: State.tally[PEAK] and State.price at each node.
    peak: IntArray
    price: FloatArray
    #: Work space for a path, int32[capacity].
    path: Int32Array
    #: Number of nodes, int64[1].
    size: IntArray


class Front(NamedTuple):
    """The beam between two kernel calls."""

    #: Whether each slot holds a partial schedule, bool[width].
    active: BoolArray
    #: Candidate steps, best first: parent node, op, hash of the ops run after it, int64[candidates].
    node: IntArray
    op: IntArray
    hash: IntArray
    #: Rank of each candidate, int64[candidates, 4]: ticks, peak, needed bytes, urgency; less is better.
    rank: IntArray
    #: Longest time from the start of each op to the end of the graph in ticks, int64[n].
    urgency: IntArray
    #: Complete schedules: best node (-1: none), its ticks, its peak, int64[3].
    best: IntArray


@kernel
def _new_node(st, s, tree, first, scr):  # type: ignore[no-untyped-def]
    """Close a step of slot `s` whose log began at `first`."""
    node = tree.size[0]
    tree.size[0] += 1
    parent = st.tally[s, NODE]
    tree.parent[node] = parent
    tree.depth[node] = tree.depth[parent] + 1
    tree.first[node] = first
    tree.last[node] = scr.cell[LOG_SIZE]
    tree.peak[node] = st.tally[s, PEAK]
    tree.price[node] = st.price[s]
    st.tally[s, NODE] = node


@kernel
def _go_to(g, st, s, target, pol, scr, tree):  # type: ignore[no-untyped-def]
    """Move slot `s` to node `target`: undo up to the common ancestor, redo down."""
    a, b = st.tally[s, NODE], target
    top = 0
    while a != b:
        if tree.depth[a] >= tree.depth[b]:
            for k in range(tree.last[a] - 1, tree.first[a] - 1, -1):
                undo(g, st, s, scr.log[k], pol, scr)
            scr.cell[WORK] += tree.last[a] - tree.first[a]
            a = tree.parent[a]
        else:
            tree.path[top] = b
            top += 1
            b = tree.parent[b]
    while top:
        top -= 1
        b = tree.path[top]
        for k in range(tree.first[b], tree.last[b]):
            redo(g, st, s, scr.log[k], pol, scr)
        scr.cell[WORK] += tree.last[b] - tree.first[b]
    st.tally[s, NODE] = target
    st.tally[s, PEAK] = tree.peak[target]
    st.price[s] = tree.price[target]


@kernel
def _forecast(g, st, s, i, zobrist):  # type: ignore[no-untyped-def]
    """Bytes during and after the first run of `i`, whether all its inputs are live, hash after it.

    Needed bytes only: spare tensors can go. Of a dead input only its own bytes count, not those of the
    chain that makes it again.
    """
    brought, freed, kept = 0, 0, 0
    present = True
    after_hash = st.tally[s, HASH] ^ zobrist[i]
    for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
        z = g.in_idx[a]
        if st.live_at[s, z] < 0:
            brought += g.size[z]
            present = False
            p = g.producer[z]
            if not st.ran[s, p] and (a == g.in_ptr[i] or g.producer[g.in_idx[a - 1]] != p):
                after_hash ^= zobrist[p]
        if st.need[s, z] == 1:
            freed += g.size[z]
    for x in range(g.out_ptr[i], g.out_ptr[i + 1]):
        if st.need[s, x] > 0:
            kept += g.size[x]
    held = st.tally[s, NEEDED] + brought
    if g.reuse:
        during = max(held + g.workspace[i], held - freed + g.out_bytes[i])
    else:
        during = held + g.out_bytes[i] + g.workspace[i]
    return during, held - freed + kept, present, after_hash


@kernel
def _less(a, b):  # type: ignore[no-untyped-def]
    """Lexicographic comparison of two ranks."""
    for k in range(len(a)):
        if a[k] != b[k]:
            return a[k] < b[k]
    return False


@kernel
def _copy(front, a, b):  # type: ignore[no-untyped-def]
    """Copy candidate `a` to place `b`."""
    front.node[b], front.op[b], front.hash[b] = front.node[a], front.op[a], front.hash[a]
    front.rank[b] = front.rank[a]


@kernel
def _offer(front, held, node, op, after_hash, rank):  # type: ignore[no-untyped-def]
    """Insert a candidate among the `held` best, one per set of ops run; return their new number."""
    size = len(front.op)
    for k in range(held):
        if front.hash[k] == after_hash:
            if not _less(rank, front.rank[k]):
                return held
            for q in range(k, held - 1):
                _copy(front, q + 1, q)
            held -= 1
            break
    if held == size:
        if not _less(rank, front.rank[size - 1]):
            return held
        held -= 1
    k = held
    while k > 0 and _less(rank, front.rank[k - 1]):
        _copy(front, k - 1, k)
        k -= 1
    front.node[k], front.op[k], front.hash[k] = node, op, after_hash
    front.rank[k] = rank
    return held + 1


@kernel
def _run_dominant(g, st, s, budget, floor, pol, scr, max_runs):  # type: ignore[no-untyped-def]
    """Run ready ops that neither raise the peak nor grow memory, until there is none.

    Peaks of at most `floor` bytes are equally good. Returns DONE or LOG_FULL.
    """
    again = True
    while again:
        again = False
        k = 0
        while k < st.tally[s, N_READY]:
            i = st.ready[s, k]
            during, after, present, _ = _forecast(g, st, s, i, scr.zobrist)
            scr.cell[WORK] += 4
            if present and after <= st.tally[s, NEEDED] and during <= max(st.tally[s, PEAK], floor):
                outcome = step(g, st, s, i, budget, pol, scr, max_runs)
                if outcome == LOG_FULL:
                    return LOG_FULL
                if outcome == DONE:
                    again = True
                    continue  # another op took its place in the list
            k += 1
    return DONE


@kernel
def advance(g, st, budget, floor, pol, scr, tree, front, max_runs, max_work):  # type: ignore[no-untyped-def]
    """Carry the beam on until it is complete or `max_work` units are counted.

    Each round every slot first runs what dominates, then all ready ops of all slots are ranked, and the
    best become the slots of the next round. Complete schedules leave the beam; the best is kept. Peaks
    of at most `floor` bytes are equally good.

    Returns
    -------
    int
        DONE, MORE_WORK, or LOG_FULL (log or tree too small: start again with larger ones).
    """
    n = len(g.time)
    width = len(front.active)
    scr.cell[WORK] = 0
    rank = np.empty(4, np.int64)
    used = np.zeros(width, np.bool_)
    while True:
        if tree.size[0] + 2 * width + 2 > len(tree.parent):
            return LOG_FULL
        held = 0
        for s in range(width):
            if not front.active[s]:
                continue
            first = scr.cell[LOG_SIZE]
            outcome = _run_dominant(g, st, s, budget, floor, pol, scr, max_runs)
            if outcome == DONE and st.tally[s, N_READY] == 0:  # only sources that it reads are left
                outcome = step(g, st, s, n - 1, budget, pol, scr, max_runs)
            if outcome == LOG_FULL:
                return LOG_FULL
            if outcome == NO_ROOM:
                front.active[s] = False
            if scr.cell[LOG_SIZE] > first:
                _new_node(st, s, tree, first, scr)
            if st.tally[s, N_RAN] == n:
                front.active[s] = False
                done = np.array([st.tally[s, EXTRA], st.tally[s, PEAK]])
                if front.best[0] < 0 or _less(done, front.best[1:]):
                    front.best[0] = st.tally[s, NODE]
                    front.best[1:] = done
            if not front.active[s]:
                continue
            for k in range(st.tally[s, N_READY]):
                i = st.ready[s, k]
                during, after, _, after_hash = _forecast(g, st, s, i, scr.zobrist)
                scr.cell[WORK] += 4
                rank[0] = st.tally[s, EXTRA] + st.tally[s, DEBT]
                if during > budget:
                    rank[0] += np.int64((during - budget) * st.price[s])
                rank[1] = max(floor, st.tally[s, PEAK], min(during, budget))
                rank[2] = after
                rank[3] = -front.urgency[i]
                held = _offer(front, held, st.tally[s, NODE], i, after_hash, rank)
        if held == 0:
            return DONE
        used[:] = False
        kept = 0
        for k in range(held):
            if kept == width:
                break
            s = _slot_for(st, front, used, k, held)
            _go_to(g, st, s, front.node[k], pol, scr, tree)
            first = scr.cell[LOG_SIZE]
            outcome = step(g, st, s, front.op[k], budget, pol, scr, max_runs)
            if outcome == LOG_FULL:
                return LOG_FULL
            if outcome == DONE:
                _new_node(st, s, tree, first, scr)
                used[s] = True
                kept += 1
        front.active[:] = used
        if scr.cell[WORK] > max_work:
            return MORE_WORK


@kernel
def _slot_for(st, front, used, k, held):  # type: ignore[no-untyped-def]
    """An unused slot for candidate `k`: one at its node, else one no later candidate starts from."""
    choice, spare = -1, -1
    for s in range(len(used)):
        if used[s]:
            continue
        if st.tally[s, NODE] == front.node[k]:
            return s
        wanted = False
        for q in range(k + 1, held):
            wanted = wanted or front.node[q] == st.tally[s, NODE]
        if not wanted and spare < 0:
            spare = s
        choice = s
    return spare if spare >= 0 else choice


@kernel
def spell(node, tree, scr, out):  # type: ignore[no-untyped-def]
    """Write the ops executed on the way to `node`, the end last, into `out`; return their number."""
    top = 0
    while tree.depth[node] > 0:
        tree.path[top] = node
        top += 1
        node = tree.parent[node]
    length = 0
    while top:
        top -= 1
        node = tree.path[top]
        for k in range(tree.first[node], tree.last[node]):
            if scr.log[k] & 3 == EXEC:
                out[length] = scr.log[k] >> 2
                length += 1
    return length


@kernel
def post_order(g):  # type: ignore[no-untyped-def]
    """Depth-first post-order of all ops, int64[n]: first what leads to the end, the end, then the rest.

    The inputs of an op come largest first, so that small results are held while large ones are made.
    """
    n = len(g.time)
    order = np.empty(n, np.int64)
    placed = np.zeros(n, np.bool_)
    stack = np.empty(n + 1, np.int64)
    length = 0
    for root in range(n - 1, -1, -1):
        if placed[root] or (root < n - 1 and g.use_ptr[g.out_ptr[root]] < g.use_ptr[g.out_ptr[root + 1]]):
            continue
        stack[0] = root
        top = 1
        while top:
            r = stack[top - 1]
            child, heaviest = -1, -1
            for a in range(g.in_ptr[r], g.in_ptr[r + 1]):
                p = g.producer[g.in_idx[a]]
                if not placed[p] and g.out_bytes[p] > heaviest:
                    child, heaviest = p, g.out_bytes[p]
            if child >= 0:
                stack[top] = child
                top += 1
            else:
                order[length] = r
                length += 1
                placed[r] = True
                top -= 1
    return order
