"""`solve`: a graph and a budget in, the checked answer of one method out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hremate._answers import Polishing, best_of, bound_time, larger, refined, with_bounds, without_search
from hremate._arguments import budget_bytes, new_run, seconds_or_none
from hremate.bounds import memory_lower_bound
from hremate.errors import MethodError
from hremate.graph import Graph
from hremate.partition.phases import split_position
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solvers.base import Deadline, Run
from hremate.solvers.polish import PolishParams
from hremate.solvers.registry import Method, get_method, make_params

#: Methods that are polished by default; the share of the time left that is the method's, and of graphs of
#: more than so many ops, on which polish does more; its share without phases, where it anneals as well,
#: unless the user says how long to polish; and what is done where there is no time limit.
POLISHED = ("hierarchical",)
METHOD_SHARE, LARGE_GRAPH, LARGE_METHOD_SHARE = 0.6, 20_000, 0.45
PHASELESS_METHOD_SHARE = 0.9
FIXED_WORK = PolishParams(rounds=4, patience=2, windows=4)


def solve(
    graph: Graph,
    budget: int | str | None = None,
    method: str = "hierarchical",
    *,
    seed: int = 0,
    n_jobs: int = 1,
    time_limit: float | None = None,
    warm_start: Schedule | Iterable[int] | None = None,
    progress: Callable[[str], None] | None = None,
    callback: Callable[[Schedule, int, float], None] | None = None,
    lower_bound: float | None = None,
    polish: float | None = None,
    **options: Any,
) -> Result:
    """Find a schedule of `graph` whose peak fits `budget` and whose time is as small as possible.

    Parameters
    ----------
    graph : Graph
    budget : int or str, optional
        Bytes, "12GiB" (2^30), "800MB" (10^6) or "60%" of the peak of the given order. Default:
        `graph.metadata["budget"]`, the limit that some file formats carry.
    method : str
        One of `hremate.solvers.registry.METHODS`.
    seed : int
        Of everything random, >= 0. Equal seeds give equal results, whatever `n_jobs`, as long as neither
        `time_limit` nor the 20 seconds of the bound, nor one of the method, cuts the run short.
    n_jobs : int
        Processes, >= 1; -1 for one per core.
    time_limit : float, optional
        Seconds of wall time, > 0. The best schedule found by then is returned.
    warm_start : Schedule or sequence of int, optional
        A valid schedule of any peak to start from. Where it fits the budget, the result is never worse.
    progress : callable, optional
        Called with one line of text when something worth telling happens.
    callback : callable, optional
        Called with (schedule, peak in bytes, time) for each improved schedule within the budget.
    lower_bound : float, optional
        A total time that no schedule within the budget can beat, where it is known beforehand (from
        `time_lower_bound`); else it is computed, within a quarter of the time limit and 20 seconds.
    polish : float, optional
        Seconds at most, >= 0, to improve what the method found (see `hremate.improve`), within the time
        limit; 0 for not at all. Default: for `hierarchical` what is left of the time limit, and at least
        two fifths of it (a tenth for graphs without phases, which the method itself anneals), or a fixed
        amount of work without a time limit; 0 for the other methods.
    **options
        Fields of the method's `Params`.

    Returns
    -------
    Result
        Checked by `hremate.validate`. A budget that cannot be met raises nothing: the status is then
        `infeasible` (proved for any order; `reason` names the op and its bytes) or `no_solution` (not
        found), and the schedule is the one with the smallest peak known.

    Raises
    ------
    MethodError
        Unknown method, unknown option, or an argument out of range.
    BudgetError
        `budget` cannot be read, or there is none.
    ScheduleError
        `warm_start` is not a valid schedule of the graph.
    KeyboardInterrupt
        Ctrl-C before the method had anything to return; afterwards it returns its best schedule, with
        `stats.interrupted` set.

    Examples
    --------
    >>> from hremate import Op
    >>> g = Graph.from_ops([Op("a", 1.0, (), (("x", 8),)), Op("b", 2.0, ("x",), (("y", 4),))], ["y"])
    >>> solve(g, 12, method="none").status
    <Status.OPTIMAL: 'optimal'>
    """
    entry = get_method(method)
    params = _params(entry, options)
    run = new_run(seed, n_jobs, time_limit, progress, callback)
    polish = seconds_or_none(polish, "polish")
    polishing = _polishing(entry.name, polish, run)
    given = np.arange(graph.n_ops)
    known = [given]
    if warm_start is not None:
        run.warm_start = warm_start if isinstance(warm_start, Schedule) else Schedule(warm_start)
        known.append(run.warm_start.order)
    costs = [simulate(graph, order) for order in known]
    limit = budget_bytes(graph, budget)
    floor = memory_lower_bound(graph)

    result = without_search(graph, limit, run, entry.name, known, costs, floor)
    if result is None:
        lower_bound = bound_time(graph, limit, run, lower_bound)
        deadline = run.deadline
        run.deadline = deadline.shortened(_method_seconds(graph, deadline, polish, polishing))
        result = entry.load().solve(graph, limit, run, params)
        run.deadline = deadline
        result = best_of(graph, result, run, known, costs)
        result = refined(graph, result, run, polishing)
        result = with_bounds(result, floor, lower_bound)
    return replace(result, memory_lower_bound=larger(result.memory_lower_bound, floor.bytes),
                   wall_time=run.deadline.elapsed)  # fmt: skip


def _polishing(method: str, polish: float | None, run: Run) -> Polishing | None:
    """How long to polish after a method, None for not at all."""
    if polish == 0 or (polish is None and method not in POLISHED):
        return None
    limited = polish is not None or run.deadline.end is not None
    return Polishing(polish, PolishParams() if limited else FIXED_WORK)


def _method_seconds(
    graph: Graph, deadline: Deadline, polish: float | None, polishing: Polishing | None
) -> float:
    """Seconds that the method gets of the time left."""
    if polishing is None:
        return deadline.remaining
    share = METHOD_SHARE if graph.n_ops <= LARGE_GRAPH else LARGE_METHOD_SHARE
    if polish is None and split_position(graph) == graph.n_ops:
        share = PHASELESS_METHOD_SHARE
    least = share * deadline.remaining
    return least if polish is None else max(least, deadline.remaining - polish)


def _params(method: Method, options: dict[str, Any]) -> Any:
    try:
        return make_params(method, options)
    except (TypeError, ValueError) as error:
        raise MethodError(f"method {method.name!r}: {error}") from error
