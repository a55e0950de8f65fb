"""What the hierarchy asks of flat methods over the whole graph: the price of memory, and annealing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hremate.graph import Graph, IntArray
from hremate.result import Stats
from hremate.schedule import Schedule
from hremate.solvers import anneal
from hremate.solvers.base import Deadline, Run
from hremate.solvers.cut_model import Cut, peak_problem, solve_cut

#: Branch-and-bound nodes times ops and arcs of the cut of the whole graph.
CUT_WORK = 4 * 10**5
#: Proposals of annealing without a time limit: so many per op, on large graphs so many over the root of ops.
PROPOSALS_PER_OP, PROPOSALS = 8000, 24_000_000


def price_memory(
    graph: Graph, budget: int, node_limit: int, deadline: Deadline | None = None
) -> Cut | None:
    """The cut of the whole graph at its peak step: the price of memory and what to run again."""
    problem, needed = peak_problem(graph)
    nodes = max(1, min(node_limit, CUT_WORK // (len(problem.time) + len(problem.in_idx))))
    return solve_cut(problem, budget - needed, node_limit=nodes, deadline=deadline)


def annealed(
    graph: Graph, budget: int, run: Run, start: IntArray | None, offer: Callable[[IntArray, str], object]
) -> bool:
    """Anneal until the deadline, or a fixed amount without one, from the usual starts and `start`, if any.

    Parameters
    ----------
    offer : callable
        Given each improved order and "anneal".

    Returns
    -------
    bool
        Whether Ctrl-C ended it.
    """
    n = graph.n_ops
    proposals = None
    if run.deadline.end is None:
        proposals = int(min(PROPOSALS_PER_OP * n, PROPOSALS / n**0.5))

    def improved(schedule: Schedule, peak: int, time: float) -> None:
        offer(schedule.order, "anneal")

    warm = None if start is None else Schedule(start)
    alone = replace(run, warm_start=warm, stats=Stats(), callback=improved)
    found = anneal.solve(graph, budget, alone, anneal.Params(proposals))
    if found.schedule is not None:
        offer(found.schedule.order, "anneal")
    run.stats.degraded += alone.stats.degraded
    for name, count in alone.stats.counts.items():
        run.stats.counts[name] = run.stats.counts.get(name, 0) + count
    return alone.stats.interrupted
