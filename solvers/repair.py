"""Repair: make a valid schedule cheaper without searching.

Useless executions go, copies are kept instead of made again where the memory profile has room, and
recomputations run as late as they can. Every step keeps the schedule valid, its time from growing, and
its peak within the larger of the budget and the peak it came with.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hremate.graph import Graph, IntArray
from hremate.schedule import Schedule
from hremate.simulate import simulate, step_memory
from hremate.solvers._repair_kernel import Net, Runs, build, drop_useless, keep, late_keys, savings


def repair(graph: Graph, order: Schedule | Iterable[int], budget: int) -> IntArray:
    """A schedule at least as good as `order`, int64[steps].

    Repeated until nothing changes:

    1. executions whose outputs nobody reads are dropped, with those that only served them;
    2. a repeated execution is removed, most time saved first, where keeping the copy before it fits;
    3. repeated executions move to just before their first reader where that shrinks the memory profile.

    Each round takes O(L log L) for L reads. A repaired schedule is left as it is.

    Parameters
    ----------
    order : Schedule or iterable of int
        A valid schedule of `graph`, of any peak.
    budget : int
        Bytes. The result's peak is at most max(budget, peak of `order`).

    Raises
    ------
    ScheduleError
        `order` is not valid.
    """
    schedule = order if isinstance(order, Schedule) else Schedule(order)
    limit = max(budget, simulate(graph, schedule).peak)
    net = Net(
        graph.time,
        graph.workspace,
        graph.size,
        graph.producer,
        graph.out_ptr,
        graph.in_ptr,
        graph.in_idx,
        graph.is_output,
        graph.memory_model == "reuse",
    )
    current = schedule.order
    while len(current) > graph.n_ops:
        kept = _keep(net, current, limit)
        late = _run_late(net, graph, kept, limit)
        if len(late) == len(current) and late is kept:
            return kept
        current = late
    return current


def _build(net: Net, order: IntArray) -> Runs:
    cells = len(order) * (2 if net.reuse else 1) + 2
    reads = int(np.diff(net.in_ptr)[order].sum())
    copies = int(np.diff(net.out_ptr)[order].sum())
    runs: Runs = build(net, order.copy(), reads, copies, 1 << (cells - 1).bit_length())
    return runs


def _keep(net: Net, order: IntArray, limit: int) -> IntArray:
    """Steps 1 and 2, until no more execution can be removed."""
    runs = _build(net, order)
    drop_useless(net, runs)
    while True:
        saved = savings(net, runs)
        candidates = np.flatnonzero(saved >= 0)
        candidates = candidates[np.argsort(-saved[candidates], kind="stable")]
        if not keep(net, runs, candidates, limit):
            return order if runs.stands.all() else order[runs.stands]


def _run_late(net: Net, graph: Graph, order: IntArray, limit: int) -> IntArray:
    """Step 3; returns `order` itself when nothing is gained."""
    area = int(step_memory(graph, order).sum())
    runs = _build(net, order)
    for pure in (False, True):
        moved = order[np.argsort(late_keys(net, runs, pure), kind="stable")]
        memory = step_memory(graph, moved)
        if memory.max() <= limit and int(memory.sum()) < area:
            return moved
    return order
