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

# Log entries are id * 4 + kind. As numpy scalars numba does not compile kernels anew for each of them.
LIVE, DEAD, RAN, EXEC = np.arange(4)
# Outcome of a step, and of a kernel call.
DONE, NO_ROOM, LOG_FULL, MORE_WORK = range(4)
# Columns of State.tally.
BYTES, NEEDED, PEAK, N_LIVE, N_READY, N_RAN, NODE, HASH, EXTRA, DEBT, N_POOL, STALE = range(12)
# Cells of Scratch.cell.
STAMP, LOG_SIZE, WORK = range(3)
#: State.wait of ops that are never ready by themselves; more than the inputs of any op.
NEVER = 2**30


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
    #: int64[width, 12]: live bytes, needed live bytes, peak, lengths of the lists live and ready, ops that
    #: have run, node of the history tree, hash of the ops that have run, ticks recomputed, ticks of debt,
    #: length of the pool, tensors priced since it was filled.
    tally: IntArray
    #: Ticks of debt per byte at the last eviction, float64[width].
    price: FloatArray
    #: The pool: a heap of tensors, live when they were priced, by that price; capacity 2m + 64.
    pool: Int32Array
    pool_price: FloatArray


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
    #: Candidates that start at each node of the history tree, int32[nodes], zero between rounds.
    wanted: Int32Array


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
                _miss(g, st, s, z, np.int64(position[i]), stack)
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
def move(g, st, s, item, kind, pol, scr):  # type: ignore[no-untyped-def]
    """Apply a move and log it (the caller has checked the capacity of the log)."""
    entry = item * 4 + kind
    scr.log[scr.cell[LOG_SIZE]] = entry
    scr.cell[LOG_SIZE] += 1
    scr.cell[WORK] += 16
    redo(g, st, s, entry, pol, scr)


