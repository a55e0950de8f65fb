"""Kernels of the beam with recomputation, which chooses the order of first runs as it goes."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel
from hremate.solvers._beam_state_kernel import (
    DEAD,
    DEBT,
    DONE,
    EXEC,
    EXTRA,
    HASH,
    LIVE,
    LOG_FULL,
    LOG_SIZE,
    MORE_WORK,
    N_RAN,
    N_READY,
    NEEDED,
    NODE,
    PEAK,
    WORK,
    redo,
    undo,
)
from hremate.solvers._beam_step_kernel import step, suggest
from hremate.solvers._front_kernel import (
    choose,
    clear,
    common_node,
    new_node,
    offer,
    path_down,
    slot_for,
)


@kernel
def _go_to(g, st, s, target, pol, scr, tree):  # type: ignore[no-untyped-def]
    """Move slot `s` to node `target`: undo up to the common ancestor, redo down."""
    node = st.tally[s, NODE]
    top = common_node(tree, node, target)
    while node != top:
        for k in range(tree.last[node] - 1, tree.first[node] - 1, -1):
            entry = np.int64(scr.log[k])
            undo(g, st, s, entry, pol, scr)
            if entry & 3 == DEAD:
                suggest(g, st, s, entry >> 2)
        scr.cell[WORK] += 16 * (tree.last[node] - tree.first[node])
        node = tree.parent[node]
    for q in range(path_down(tree, target, top) - 1, -1, -1):
        node = tree.path[q]
        for k in range(tree.first[node], tree.last[node]):
            entry = np.int64(scr.log[k])
            redo(g, st, s, entry, pol, scr)
            if entry & 3 == LIVE:
                suggest(g, st, s, entry >> 2)
        scr.cell[WORK] += 16 * (tree.last[node] - tree.first[node])
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
def _run_dominant(g, st, s, budget, floor, pol, scr, max_runs):  # type: ignore[no-untyped-def]
    """Run ready ops that neither raise the peak nor grow memory, until there is none.

    Peaks of at most `floor` bytes are equally good. Returns DONE or LOG_FULL.
    """
    again = True
    while again:
        again = False
        k = 0
        while k < st.tally[s, N_READY]:
            i = np.int64(st.ready[s, k])
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
def _close(st, s, first, scr, tree):  # type: ignore[no-untyped-def]
    """End a step of slot `s` whose log began at `first`, if it did anything."""
    if scr.cell[LOG_SIZE] > first:
        st.tally[s, NODE] = new_node(
            tree, st.tally[s, NODE], first, scr.cell[LOG_SIZE], st.tally[s, PEAK], st.price[s]
        )


@kernel
def _offer_ready(g, st, s, budget, floor, scr, front, urgency, held):  # type: ignore[no-untyped-def]
    """Rank the ready ops of slot `s`; return the number of candidates held.

    In order: ticks recomputed, owed, and to be expected from evictions at the last price; peak; needed
    bytes after the op; urgency.
    """
    t = st.tally[s]
    for k in range(t[N_READY]):
        i = np.int64(st.ready[s, k])
        during, after, _, after_hash = _forecast(g, st, s, i, scr.zobrist)
        ticks = t[EXTRA] + t[DEBT]
        if during > budget:
            ticks += np.int64((during - budget) * st.price[s])
        peak = max(floor, t[PEAK], min(during, budget))
        held = offer(front, held, t[NODE], i, after_hash, ticks, peak, after, -urgency[i])
    scr.cell[WORK] += 16 * t[N_READY]
    return held


@kernel
def advance(  # type: ignore[no-untyped-def]
    g, st, budget, floor, reach, pol, scr, tree, front, active, urgency, best, max_runs, max_work
):
    """Carry the beam on until it is complete or `max_work` units are counted.

    Each round every slot first runs what dominates, then all ready ops of all slots are ranked, and the
    best become the slots of the next round. Complete schedules leave the beam; the best is kept.

    Parameters
    ----------
    floor : int, bytes; peaks of at most this are equally good.
    reach : int, steps back to a common node with the best candidate; others that share less are dropped.
    active : bool[width], slots that hold a partial schedule.
    urgency : int64[n], longest time from the start of each op to the end of the graph in ticks.
    best : int64[3], best complete schedule: node (-1: none), its ticks, its peak.
    max_runs : int, ops run before a step is given up; schedules that recompute more than best[1] ticks
        are given up too.

    Returns
    -------
    int
        DONE, MORE_WORK, or LOG_FULL (log or tree too small: start again with larger ones).
    """
    n, width = len(g.time), len(active)
    used = np.zeros(width, np.bool_)
    scr.cell[WORK] = 0
    while scr.cell[WORK] <= max_work:
        if tree.size[0] + 2 * width + 2 > len(tree.parent):
            return LOG_FULL
        clear(front)
        held = np.int64(0)
        for s in range(width):
            if not active[s]:
                continue
            first = scr.cell[LOG_SIZE]
            outcome = _run_dominant(g, st, s, budget, floor, pol, scr, max_runs)
            if outcome == DONE and st.tally[s, N_READY] == 0:  # only sources that the end reads are left
                outcome = step(g, st, s, n - 1, budget, pol, scr, max_runs)
            if outcome == LOG_FULL:
                return LOG_FULL
            _close(st, s, first, scr, tree)
            extra, peak = st.tally[s, EXTRA], st.tally[s, PEAK]
            active[s] = outcome == DONE and extra <= best[1] and st.tally[s, N_RAN] < n
            if st.tally[s, N_RAN] == n and (extra < best[1] or (extra == best[1] and peak < best[2])):
                best[0], best[1], best[2] = st.tally[s, NODE], extra, peak
            if active[s]:
                held = _offer_ready(g, st, s, budget, floor, scr, front, urgency, held)
        if held == 0:
            return DONE
        used[:] = False
        kept = 0
        held = choose(front, held, held, tree, reach, scr.wanted)
        for k in range(held):
            c = front.sorted[k]
            if kept < width:
                s = slot_for(st.tally[:, NODE], used, front, k, scr.wanted)
                _go_to(g, st, s, front.node[c], pol, scr, tree)
                first = scr.cell[LOG_SIZE]
                outcome = step(g, st, s, front.op[c], budget, pol, scr, max_runs)
                if outcome == LOG_FULL:
                    return LOG_FULL
                if outcome == DONE:
                    _close(st, s, first, scr, tree)
                    used[s] = True
                    kept += 1
            scr.wanted[front.node[c]] -= 1
        active[:] = used
    return MORE_WORK


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
