"""Kernels of the order beam: orders of small peak without recomputation, built forwards or backwards.

Backwards, the last op is placed first: an op can be placed once all that read its outputs are, it ends
the lives of its outputs and begins those of the inputs that no placed op reads. In both directions
placing an op changes the bytes held by a sum that is kept up to date op by op, so that a ready op is
ranked in constant time. A slot holds one partial order; placing an op has an exact inverse, and slots
move along the history tree by undoing and placing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hremate._jit import kernel
from hremate.graph import BoolArray, IntArray
from hremate.solvers._front_kernel import (
    Int32Array,
    choose,
    clear,
    common_node,
    less,
    new_node,
    offer,
    path_down,
    slot_for,
)

# Signs of placing an op and of taking it back. As numpy scalars numba does not compile kernels anew for
# each of them.
PUT, TAKE, ZERO = np.int64(1), np.int64(-1), np.int64(0)
# Outcome of a kernel call.
DONE, LOG_FULL, MORE_WORK = range(3)
# Columns of Orders.tally.
HELD, PEAK, N_READY, N_CALM, N_PLACED, NODE, HASH = range(7)
#: Orders.wait of forward sources, which are placed with their first reader; more than any op waits for.
NEVER = 2**30


class Flow(NamedTuple):
    """The graph as seen in one direction; arrays as in `hremate.graph.Graph` where not said otherwise."""

    size: IntArray
    producer: IntArray
    out_ptr: IntArray
    in_ptr: IntArray
    in_idx: IntArray
    use_ptr: IntArray
    use_idx: IntArray
    is_output: BoolArray
    workspace: IntArray
    out_bytes: IntArray
    reuse: bool
    backward: bool
    #: Bytes of the outputs of each op that are read or final, int64[n].
    kept: IntArray
    #: Ops without inputs that somebody reads, bool[n]; none backwards, where they come late by themselves.
    source: BoolArray
    #: Rank of ops that are alike otherwise, less is better, int64[n].
    urgency: IntArray
    #: Random 62-bit number of each op, int64[n].
    zobrist: IntArray


class Orders(NamedTuple):
    """`width` partial orders; first axis: slot."""

    #: Whether each op is placed, bool[width, n].
    placed: BoolArray
    #: Arcs that keep each op from being ready, int32[width, n].
    wait: Int32Array
    #: Readers of each tensor: those not placed and the end (forwards), or those placed and the end
    #: (backwards), int32[width, m].
    readers: Int32Array
    #: Bytes by which placing each op changes those held, int64[width, n].
    change: IntArray
    #: Bytes of the inputs that placing the op makes live: from sources (forwards), all (backwards).
    brought: IntArray
    #: Ready ops, and the ready ops that do not grow memory ("calm"); place of each op in the two lists
    #: (-1: not in it), int32[width, n].
    ready: Int32Array
    ready_at: Int32Array
    calm: Int32Array
    calm_at: Int32Array
    #: int64[width, 7]: bytes held, peak, lengths of the lists ready and calm, ops placed, node of the
    #: history tree, hash of the ops placed.
    tally: IntArray


@kernel
def _insert(items, place, item, length):  # type: ignore[no-untyped-def]
    items[length] = item
    place[item] = length


@kernel
def _remove(items, place, item, length):  # type: ignore[no-untyped-def]
    at = place[item]
    last = items[length - 1]
    items[at] = last
    place[last] = at
    place[item] = -1


@kernel
def _list(o, s, i, sign):  # type: ignore[no-untyped-def]
    """Op `i` becomes ready (sign 1) or leaves the ready ops (-1)."""
    t = o.tally[s]
    if sign > 0:
        _insert(o.ready[s], o.ready_at[s], i, t[N_READY])
        t[N_READY] += 1
        if o.change[s, i] <= 0:
            _insert(o.calm[s], o.calm_at[s], i, t[N_CALM])
            t[N_CALM] += 1
    else:
        _remove(o.ready[s], o.ready_at[s], i, t[N_READY])
        t[N_READY] -= 1
        if o.calm_at[s, i] >= 0:
            _remove(o.calm[s], o.calm_at[s], i, t[N_CALM])
            t[N_CALM] -= 1


@kernel
def _shift(o, s, i, change, brought):  # type: ignore[no-untyped-def]
    """Add to what placing op `i` would change and bring."""
    o.brought[s, i] += brought
    o.change[s, i] += change
    if o.ready_at[s, i] >= 0 and (o.change[s, i] <= 0) != (o.calm_at[s, i] >= 0):
        if o.change[s, i] <= 0:
            _insert(o.calm[s], o.calm_at[s], i, o.tally[s, N_CALM])
            o.tally[s, N_CALM] += 1
        else:
            _remove(o.calm[s], o.calm_at[s], i, o.tally[s, N_CALM])
            o.tally[s, N_CALM] -= 1


@kernel
def start(g, o, s):  # type: ignore[no-untyped-def]
    """Set slot `s` to the empty order."""
    n = len(g.workspace)
    o.placed[s] = False
    o.ready_at[s] = -1
    o.calm_at[s] = -1
    o.tally[s] = 0
    for x in range(len(g.size)):
        readers = 0 if g.backward else g.use_ptr[x + 1] - g.use_ptr[x]
        o.readers[s, x] = readers + g.is_output[x]
        if g.backward and g.is_output[x]:
            o.tally[s, HELD] += g.size[x]
    for i in range(n):
        wait, freed, brought = 0, 0, 0
        for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
            x = g.in_idx[a]
            if g.backward:
                brought += 0 if g.is_output[x] else g.size[x]
            else:
                freed += g.size[x] if o.readers[s, x] == 1 else 0
                if g.source[g.producer[x]]:
                    brought += g.size[x]
                else:
                    wait += 1
        if g.backward:
            wait = g.use_ptr[g.out_ptr[i + 1]] - g.use_ptr[g.out_ptr[i]]
            o.change[s, i] = brought - g.kept[i]
        else:
            o.change[s, i] = brought - freed + g.kept[i]
        o.brought[s, i] = brought
        o.wait[s, i] = NEVER if g.source[i] else wait
        if o.wait[s, i] == 0:
            _list(o, s, i, PUT)


@kernel
def _place_forward(g, o, s, i, sign):  # type: ignore[no-untyped-def]
    """Place op `i` after the others (sign 1), or take it back (-1)."""
    if not g.source[i]:
        _list(o, s, i, -sign)
    o.placed[s, i] = sign > 0
    held = g.kept[i]
    for x in range(g.out_ptr[i], g.out_ptr[i + 1]):
        for a in range(g.use_ptr[x], g.use_ptr[x + 1]):
            j = g.use_idx[a]
            if g.source[i]:
                _shift(o, s, j, -sign * g.size[x], -sign * g.size[x])
            else:
                if o.wait[s, j] == 0:
                    _list(o, s, j, TAKE)
                o.wait[s, j] -= sign
                if o.wait[s, j] == 0:
                    _list(o, s, j, PUT)
    for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
        z = g.in_idx[a]
        left = min(o.readers[s, z], o.readers[s, z] - sign)
        o.readers[s, z] -= sign
        if left == 0:
            held -= g.size[z]
        elif left == 1:
            for b in range(g.use_ptr[z], g.use_ptr[z + 1]):
                j = g.use_idx[b]
                if not o.placed[s, j] and j != i:
                    _shift(o, s, j, -sign * g.size[z], ZERO)
    o.tally[s, HELD] += sign * held


@kernel
def _place_backward(g, o, s, i, sign):  # type: ignore[no-untyped-def]
    """Place op `i` before the others (sign 1), or take it back (-1)."""
    _list(o, s, i, -sign)
    o.placed[s, i] = sign > 0
    held = -g.kept[i]
    for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
        z = g.in_idx[a]
        p = g.producer[z]
        if o.wait[s, p] == 0:
            _list(o, s, p, TAKE)
        o.wait[s, p] -= sign
        if o.wait[s, p] == 0:
            _list(o, s, p, PUT)
        readers = min(o.readers[s, z], o.readers[s, z] + sign)
        o.readers[s, z] += sign
        if readers == 0:
            held += g.size[z]
            for b in range(g.use_ptr[z], g.use_ptr[z + 1]):
                j = g.use_idx[b]
                if j != i:
                    _shift(o, s, j, -sign * g.size[z], -sign * g.size[z])
    o.tally[s, HELD] += sign * held


@kernel
def _place(g, o, s, i, sign):  # type: ignore[no-untyped-def]
    """Place op `i` next (sign 1), or take back the last one placed (-1); return the work done."""
    if g.backward:
        _place_backward(g, o, s, i, sign)
    else:
        _place_forward(g, o, s, i, sign)
    o.tally[s, HASH] ^= g.zobrist[i]
    o.tally[s, N_PLACED] += sign
    return 2 + g.in_ptr[i + 1] - g.in_ptr[i] + g.use_ptr[g.out_ptr[i + 1]] - g.use_ptr[g.out_ptr[i]]


@kernel
def _during(g, o, s, i):  # type: ignore[no-untyped-def]
    """Bytes while op `i` runs, if placed next."""
    held, unread = o.tally[s, HELD], g.out_bytes[i] - g.kept[i]
    if not g.reuse:
        made = unread if g.backward else g.out_bytes[i]
        return held + o.brought[s, i] + made + g.workspace[i]
    if g.backward:
        return held + max(o.change[s, i] + g.workspace[i], unread)
    return held + max(o.brought[s, i] + g.workspace[i], o.change[s, i] + unread)


@kernel
def _run(g, o, s, i, log, at):  # type: ignore[no-untyped-def]
    """Place ready op `i` and the sources it reads; return the new length of `log` and the work done."""
    work = 0
    for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
        p = g.producer[g.in_idx[a]]
        if g.source[p] and not o.placed[s, p]:
            o.tally[s, PEAK] = max(o.tally[s, PEAK], _during(g, o, s, p))
            work += _place(g, o, s, p, PUT)
            log[at] = p
            at += 1
    o.tally[s, PEAK] = max(o.tally[s, PEAK], _during(g, o, s, i))
    work += _place(g, o, s, i, PUT)
    log[at] = i
    return at + 1, work


@kernel
def _run_calm(g, o, s, floor, log, at):  # type: ignore[no-untyped-def]
    """Place ready ops that neither raise the peak (or `floor`) nor grow memory, until there is none."""
    k = 0
    work = 0
    while k < o.tally[s, N_CALM]:
        i = np.int64(o.calm[s, k])
        work += 2
        if _during(g, o, s, i) <= max(o.tally[s, PEAK], floor):
            at, done = _run(g, o, s, i, log, at)
            work += done
            k = 0
        else:
            k += 1
    return at, work


@kernel
def _go_to(g, o, s, target, log, tree):  # type: ignore[no-untyped-def]
    """Move slot `s` to node `target`; return the work done."""
    work = 0
    top = common_node(tree, o.tally[s, NODE], target)
    node = o.tally[s, NODE]
    while node != top:
        for k in range(tree.last[node] - 1, tree.first[node] - 1, -1):
            work += _place(g, o, s, np.int64(log[k]), TAKE)
        node = tree.parent[node]
    for q in range(path_down(tree, target, top) - 1, -1, -1):
        node = tree.path[q]
        for k in range(tree.first[node], tree.last[node]):
            work += _place(g, o, s, np.int64(log[k]), PUT)
    o.tally[s, NODE] = target
    o.tally[s, PEAK] = tree.peak[target]
    return work


@kernel
def advance(  # type: ignore[no-untyped-def]
    g, o, floor, reach, log, tree, front, active, wanted, best, max_work
):
    """Carry the order beam on until it is complete or `max_work` units are counted.

    Each round every slot first places what is calm and fits below its peak, then the ready ops of all
    slots are ranked by peak, bytes after, and urgency; the best become the slots of the next round.

    Parameters
    ----------
    floor : int, bytes; peaks of at most this are equally good.
    reach : int, steps back to a common node with the best candidate; others that share less are dropped,
        so that beams of long schedules stay together and slots never move far.
    log : int32[capacity], ops placed, node by node; its length in `best[2]`.
    active : bool[width], slots that hold a partial order.
    wanted : int32[nodes of the tree], zero.
    best : int64[4], best complete order: node (-1: none) and peak; log length; work counted.

    Returns
    -------
    int
        DONE, MORE_WORK, or LOG_FULL (log or tree too small: start again with larger ones).
    """
    n, width = len(g.workspace), len(active)
    used = np.zeros(width, np.bool_)
    nodes = o.tally[:, NODE]
    work = 0
    while work <= max_work:
        if tree.size[0] + 2 * width + 2 > len(tree.parent):
            return LOG_FULL
        clear(front)
        held = np.int64(0)
        for s in range(width):
            if not active[s]:
                continue
            if best[2] + n > len(log):
                return LOG_FULL
            first = best[2]
            best[2], done = _run_calm(g, o, s, floor, log, first)
            work += done
            if best[2] > first:
                nodes[s] = new_node(tree, nodes[s], first, best[2], o.tally[s, PEAK], 0.0)
            if o.tally[s, N_PLACED] == n:
                active[s] = False
                if best[0] < 0 or o.tally[s, PEAK] < best[1]:
                    best[0], best[1] = nodes[s], o.tally[s, PEAK]
                continue
            for k in range(o.tally[s, N_READY]):
                i = np.int64(o.ready[s, k])
                peak = max(floor, o.tally[s, PEAK], _during(g, o, s, i))
                after = o.tally[s, HELD] + o.change[s, i]
                if peak >= best[1] or (
                    held == len(front.sorted)
                    and not less(peak, after, g.urgency[i], ZERO, front.rank[front.sorted[held - 1]])
                ):
                    continue
                after_hash = o.tally[s, HASH] ^ g.zobrist[i]
                for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
                    p = g.producer[g.in_idx[a]]
                    if g.source[p] and not o.placed[s, p] and (
                        a == g.in_ptr[i] or g.producer[g.in_idx[a - 1]] != p
                    ):
                        after_hash ^= g.zobrist[p]
                held = offer(front, held, nodes[s], i, after_hash, peak, after, g.urgency[i], ZERO)
                work += 8
            work += o.tally[s, N_READY]
        if held == 0:
            best[3] += work
            return DONE
        used[:] = False
        held = choose(front, held, width, tree, reach, wanted)
        for k in range(held):
            s = slot_for(nodes, used, front, k, wanted)
            c = front.sorted[k]
            wanted[front.node[c]] -= 1
            if best[2] + n > len(log):
                return LOG_FULL
            work += _go_to(g, o, s, front.node[c], log, tree) + width // 4
            first = best[2]
            best[2], done = _run(g, o, s, front.op[c], log, first)
            work += done
            nodes[s] = new_node(tree, nodes[s], first, best[2], o.tally[s, PEAK], 0.0)
            used[s] = True
        active[:] = used
    best[3] += work
    return MORE_WORK
