"""`improve`: a schedule in, a better one out, whatever made it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from hremate._answers import Polishing, best_of, bound_time, larger, refined, with_bounds, without_search
from hremate._arguments import budget_bytes, new_run
from hremate.bounds import memory_lower_bound
from hremate.graph import Graph
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solvers.base import finish
from hremate.solvers.polish import PolishParams

#: What is done where there is no time limit.
FIXED_WORK = PolishParams(rounds=12, patience=4)


def improve(
    graph: Graph,
    schedule: Schedule | Iterable[int],
    budget: int | str | None = None,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    lower_bound: float | None = None,
    progress: Callable[[str], None] | None = None,
    callback: Callable[[Schedule, int, float], None] | None = None,
) -> Result:
    """Make a schedule of `graph` faster within `budget`, by repair, exact windows and annealing in turn.

    Stops at the time limit, when the schedule is proved optimal, or when nothing has helped for a while.

    Parameters
    ----------
    graph : Graph
    schedule : Schedule or sequence of int
        A valid schedule. If its peak exceeds the budget, a schedule within it is looked for from there.
    budget, time_limit, seed, n_jobs, lower_bound, progress, callback
        As in `hremate.solve`. Without a time limit a fixed amount of work is done.

    Returns
    -------
    Result
        Checked by `hremate.validate`, of method "improve". Never worse than `schedule`, nor than the given
        order: within the budget if one of them is, and then not slower. Else the status is `infeasible` or
        `no_solution`, with the smallest peak that was reached. `stats.trajectory` tells how time fell.

    Raises
    ------
    ScheduleError
        `schedule` is not valid.
    BudgetError
        `budget` cannot be read, or there is none.
    MethodError
        An argument out of range.

    Examples
    --------
    >>> from hremate import Op
    >>> g = Graph.from_ops([Op("a", 1.0, (), (("x", 8),)), Op("b", 2.0, ("x",), (("y", 4),))], ["y"])
    >>> improve(g, [0, 0, 1], 12).schedule
    <Schedule of 2 steps: 0, 1>
    """
    run = new_run(seed, n_jobs, time_limit, progress, callback)
    given = Schedule(schedule) if not isinstance(schedule, Schedule) else schedule
    known = [np.arange(graph.n_ops), given.order]
    costs = [simulate(graph, order) for order in known]
    limit = budget_bytes(graph, budget)
    floor = memory_lower_bound(graph)
    result = without_search(graph, limit, run, "improve", known, costs, floor)
    if result is None:
        lower_bound = bound_time(graph, limit, run, lower_bound)
        if run.bound_order is not None:
            known.append(run.bound_order)
            costs.append(simulate(graph, run.bound_order))
        result = best_of(graph, finish(graph, limit, run, "improve", given.order), run, known, costs)
        if result.solved and result.time is not None:
            run.record(result.time)
        limited = run.deadline.end is not None
        result = refined(graph, result, run, Polishing(None, PolishParams() if limited else FIXED_WORK))
        result = with_bounds(result, floor, lower_bound)
    return replace(result, memory_lower_bound=larger(result.memory_lower_bound, floor.bytes),
                   wall_time=run.deadline.elapsed)  # fmt: skip
