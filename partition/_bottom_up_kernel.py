"""Kernels of the `bottom-up` partitioner: merging groups of ops, and ordering the groups.

`lists`, `cells`, `groups`, `tensors` and `clock` are those of `_lists_kernel`.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from hremate._jit import kernel
from hremate.partition._lists_kernel import (
    LENGTH,
    OPS,
    PARENT,
    SIZE,
    TOUCHING,
    fill_lists,
    find,
    interface_bytes,
    join,
    neighbours,
    settle_tensors,
)

#: Arcs of a group in one direction, above which it starts no flow group and looks for no pairs.
MOST_ARCS = 64
#: A list with more entries than this, repeats counted, is not read.
MOST_LISTED = 512
#: Members of a flow group, its ends left out.
MOST_FLOW = 32
#: A candidate whose members touch more tensors than this is left out: its interface is wide anyway.
MOST_TOUCHED = 1024


@kernel
def flow_group(start, ascending, lists, cells, groups, clock, most_ops, members):  # type: ignore[no-untyped-def]
    """Everything between a group and where its flow reconverges.

    Groups are expanded by name until all arcs that leave the expanded ones lead to a single group, the
    end. Any order of expansion gives a valid answer; this one mostly the smallest.

    Parameters
    ----------
    start : int, a group.
    ascending : bool, whether the flow runs along the arcs, else against them; `lists` to fit.
    most_ops : int, ops of the inner groups.
    members : int64[MOST_FLOW + 2], receives the start, the inner groups, the end.

    Returns
    -------
    int, number of members, 0 when the flow does not reconverge within the limits.
    """
    out = np.empty(MOST_ARCS, np.int64)
    members[0] = start
    # The first `done` members are expanded, those up to `count` wait.
    done, count = 1, 1
    ops = 0
    g = start
    while True:
        if lists[g, LENGTH] > MOST_LISTED:
            return 0
        found = neighbours(g, lists, cells, groups, clock, out)
        if found == 0 or found > MOST_ARCS:
            return 0
        for k in range(found):
            other = out[k]
            known = False
            for i in range(count):
                if members[i] == other:
                    known = True
                    break
            if not known:
                if count == len(members):
                    return 0
                members[count] = other
                count += 1
        if count == done + 1:
            return count
        nearest = done
        for i in range(done + 1, count):
            if (members[i] < members[nearest]) == ascending:
                nearest = i
        g = members[nearest]
        members[nearest] = members[done]
        members[done] = g
        done += 1
        ops += groups[g, OPS]
        if ops > most_ops:
            return 0


@kernel
def cost_of(members, touch, touch_cells, groups, tensors, clock, most_ops):  # type: ignore[no-untyped-def]
    """Interface bytes of the union of `members` x its ops^0.5; infinite above `most_ops` ops."""
    ops = 0
    for g in members:
        ops += groups[g, OPS]
    if ops > most_ops:
        return np.inf
    return interface_bytes(members, touch, touch_cells, tensors, clock, MOST_TOUCHED) * np.sqrt(ops)


@kernel
def candidate_along(  # type: ignore[no-untyped-def]
    g, direction, arcs, arc_cells, touch, touch_cells, groups, tensors, clock, most_ops, least, best
):
    """The best merge of group `g` with groups that its arcs of one direction lead to.

    Parameters
    ----------
    direction : int, 0 along the arcs, 1 against them.
    arcs, arc_cells : lists of successors, then of predecessors, int32[2, n, 3] and int32[2, c, 2].
    least : float, cost to stay below.
    best : int64[MOST_FLOW + 2], receives the members.

    Returns
    -------
    (float, int), cost and number of members; (`least`, 0) when nothing is cheaper.
    """
    chosen = 0
    lists, cells = arcs[direction], arc_cells[direction]
    back_lists, back_cells = arcs[1 - direction], arc_cells[1 - direction]
    if lists[g, LENGTH] > MOST_LISTED:
        return least, chosen
    around = np.empty(MOST_ARCS, np.int64)
    found = neighbours(g, lists, cells, groups, clock, around)
    if found == 0 or found > MOST_ARCS:
        return least, chosen
    members = np.empty(MOST_FLOW + 2, np.int64)
    members[0] = g
    nothing = np.empty(0, np.int64)
    for k in range(found):
        other = around[k]
        # A pair stays convex when the arc is the only one of the one, or of the other.
        if found > 1:
            if back_lists[other, LENGTH] > MOST_ARCS:
                continue
            if neighbours(other, back_lists, back_cells, groups, clock, nothing) != 1:
                continue
        members[1] = other
        cost = cost_of(members[:2], touch, touch_cells, groups, tensors, clock, most_ops)
        if cost < least:
            least, chosen = cost, 2
            best[0], best[1] = g, other
    if found == 1:
        return least, chosen
    count = flow_group(g, direction == 0, lists, cells, groups, clock, most_ops, members)
    if count < 4:
        return least, chosen
    for variant in range(4):
        # As it is, without the start, without the end, without both.
        flow = members[variant & 1 : count - (variant >> 1)]
        cost = cost_of(flow, touch, touch_cells, groups, tensors, clock, most_ops)
        if cost < least:
            least, chosen = cost, len(flow)
            for k in range(chosen):
                best[k] = flow[k]
    return least, chosen


@kernel
def merge_groups(  # type: ignore[no-untyped-def]
    succ_ptr, succ_idx, pred_ptr, pred_idx, touch_ptr, touch_idx, size, outside, most_ops, fewest
):
    """Merge single ops into convex groups, always the candidate of least interface bytes x ops^0.5.

    Candidates are pairs joined by the only arc of one of them in its direction, and flow groups with or
    without their ends. Each remains convex whatever else is merged before it, as long as its members are
    groups still. A group offers its best candidate to a heap; an entry that is no longer its current
    offer is skipped, and one that has become dearer is put back (lazy deletion).

    Parameters
    ----------
    succ_ptr, succ_idx, pred_ptr, pred_idx : CSR of distinct arcs between ops.
    touch_ptr, touch_idx : CSR of the tensors that each op reads or makes.
    size : int64[m]; outside : bool[m], tensors that something other than these ops needs.
    most_ops : int, ops of a group; fewest : int, number of groups at which merging ends.

    Returns
    -------
    int64[n], the group of each op, named by its earliest op.
    """
    n = len(succ_ptr) - 1
    arcs = np.empty((2, n, 3), np.int32)
    arc_cells = np.empty((2, len(succ_idx), 2), np.int32)
    fill_lists(succ_ptr, succ_idx, arcs[0], arc_cells[0])
    fill_lists(pred_ptr, pred_idx, arcs[1], arc_cells[1])
    touch = np.empty((n, 3), np.int32)
    touch_cells = np.empty((len(touch_idx), 2), np.int32)
    fill_lists(touch_ptr, touch_idx, touch, touch_cells)
    groups = np.zeros((n, 3), np.int64)
    groups[:, PARENT] = np.arange(n)
    groups[:, OPS] = 1
    tensors = np.zeros((len(size), 4), np.int64)
    tensors[:, SIZE] = size
    tensors[:, TOUCHING] = outside
    for x in touch_idx:
        tensors[x, TOUCHING] += 1
    clock = np.zeros(1, np.int64)
    offered = np.full(n, np.inf)
    best = np.empty(MOST_FLOW + 2, np.int64)
    around = np.empty(MOST_ARCS, np.int64)
    heap = [(0.0, 0) for _ in range(0)]
    # Groups that are to make an offer: all at first, then the neighbourhood of each merge.
    todo = [g for g in range(n - 1, -1, -1)]
    left = n
    merges = 0
    while left > fewest:
        if len(todo) == 0 and len(heap) == 0:
            # Merges further off may have made new candidates.
            if merges == 0:
                break
            merges = 0
            for g in range(n - 1, -1, -1):
                if groups[g, PARENT] == g:
                    todo.append(g)
        fresh = len(todo) > 0
        if fresh:
            g = todo.pop()
            if groups[g, PARENT] != g:
                continue
        else:
            cost, g = heappop(heap)
            if groups[g, PARENT] != g or cost != offered[g]:
                continue
        least, chosen = np.inf, 0
        for direction in range(2):
            cost, count = candidate_along(
                g, direction, arcs, arc_cells, touch, touch_cells, groups, tensors, clock, most_ops, least,
                best,
            )
            if count > 0:
                least, chosen = cost, count
        if fresh or least > offered[g]:
            if least < np.inf and not (fresh and least == offered[g]):
                heappush(heap, (least, g))
            offered[g] = least
            continue
        target = best[0]
        for k in range(1, chosen):
            target = min(target, best[k])
        for k in range(chosen):
            other = best[k]
            offered[other] = np.inf
            if other != target:
                groups[other, PARENT] = target
                groups[target, OPS] += groups[other, OPS]
                join(target, other, arcs[0], arc_cells[0])
                join(target, other, arcs[1], arc_cells[1])
                join(target, other, touch, touch_cells)
        settle_tensors(target, touch, touch_cells, tensors, clock)
        left -= chosen - 1
        merges += 1
        for direction in range(2):
            if arcs[direction, target, LENGTH] > MOST_LISTED:
                continue
            found = neighbours(target, arcs[direction], arc_cells[direction], groups, clock, around)
            if found <= MOST_ARCS:
                for k in range(found):
                    todo.append(around[k])
        todo.append(target)
    group = np.empty(n, np.int64)
    for i in range(n):
        group[i] = find(i, groups)
    return group


@kernel
def order_of_groups(succ_ptr, succ_idx, group):  # type: ignore[no-untyped-def]
    """Number the groups in a topological order, the one of the earliest op first where there is a choice.

    Parameters
    ----------
    succ_ptr, succ_idx : CSR of arcs between ops.
    group : int64[n], from `merge_groups`.

    Returns
    -------
    int64[n], rank of the group of each op; -1 where the groups form a cycle.
    """
    n = len(group)
    waiting = np.zeros(n, np.int64)
    ptr = np.zeros(n + 1, np.int64)
    for i in range(n):
        ptr[group[i] + 1] += 1
        for j in succ_idx[succ_ptr[i] : succ_ptr[i + 1]]:
            if group[j] != group[i]:
                waiting[group[j]] += 1
    ptr = np.cumsum(ptr)
    place = ptr[:-1].copy()
    ops = np.empty(n, np.int64)
    for i in range(n):
        ops[place[group[i]]] = i
        place[group[i]] += 1
    ready = [g for g in range(n) if ptr[g + 1] > ptr[g] and waiting[g] == 0]
    rank = np.full(n, -1, np.int64)
    done = 0
    while len(ready) > 0:
        g = heappop(ready)
        for i in ops[ptr[g] : ptr[g + 1]]:
            rank[i] = done
            for j in succ_idx[succ_ptr[i] : succ_ptr[i + 1]]:
                if group[j] != g:
                    waiting[group[j]] -= 1
                    if waiting[group[j]] == 0:
                        heappush(ready, group[j])
        done += 1
    return rank
