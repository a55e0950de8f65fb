"""`solve`: a graph and a budget in, the checked answer of one method out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from hremate.bounds import MemoryBound, memory_lower_bound, time_lower_bound
from hremate.budget import format_bytes, parse_budget
from hremate.errors import BudgetError, MethodError, SolverError
from hremate.graph import Graph, IntArray
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import Simulation, base_peak, simulate
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.incumbent import OPTIMAL_GAP
from hremate.solvers.registry import Method, get_method, make_params

#: Seconds, and share of the time limit, that the bound on time may take.
BOUND_SECONDS, BOUND_SHARE = 20.0, 0.25


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
        Of everything random, >= 0. Equal seeds give equal results, whatever `n_jobs`, as long as
        `time_limit` does not cut the run short.
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
    run = Run(seed=_seed(seed), n_jobs=_jobs(n_jobs), deadline=Deadline(_limit(time_limit)))
    if progress is not None:
        run.progress = progress
    run.callback = callback
    given = np.arange(graph.n_ops)
    known = [given]
    if warm_start is not None:
        run.warm_start = warm_start if isinstance(warm_start, Schedule) else Schedule(warm_start)
        known.append(run.warm_start.order)
    costs = [simulate(graph, order) for order in known]
    limit = _budget(graph, budget)
    floor = memory_lower_bound(graph)

    result = _without_solver(graph, limit, run, entry.name, known, costs, floor)
    if result is None:
        # The bound comes first and takes a small share of the time, so that the deadline holds.
        seconds = min(BOUND_SECONDS, BOUND_SHARE * run.deadline.remaining)
        if lower_bound is None:
            bound = time_lower_bound(graph, limit, deadline=run.deadline.within(seconds), seed=run.seed)
            lower_bound, run.bounded, run.bound_order = bound.time, True, bound.order
        run.lower_bound = lower_bound
        run.stats.seconds["bound"] = run.deadline.elapsed
        result = entry.load().solve(graph, limit, run, params)
        result = _best_of(graph, result, run, known, costs)
        result = _with_bounds(result, floor, lower_bound)
    return replace(result, memory_lower_bound=_larger(result.memory_lower_bound, floor.bytes),
                   wall_time=run.deadline.elapsed)  # fmt: skip


def _without_solver(
    graph: Graph,
    budget: int,
    run: Run,
    method: str,
    known: list[IntArray],
    costs: list[Simulation],
    floor: MemoryBound,
) -> Result | None:
    """The answer where none needs to be searched: nothing can fit, or a schedule without recompute does."""
    if budget < floor.bytes:
        smallest = min(range(len(known)), key=lambda k: costs[k].peak)
        return finish(
            graph, budget, run, method, known[smallest],
            status=Status.INFEASIBLE, proof="any-order",
            reason=f"budget {_exact(budget)} is below the {_exact(floor.bytes)} that {floor.need}; no order "
            f"and no recomputation helps; the smallest peak known is {_exact(costs[smallest].peak)}",
        )  # fmt: skip
    for order, cost in zip(known, costs, strict=True):
        if cost.peak <= budget and cost.recomputes == 0:
            if run.callback is not None:
                run.callback(Schedule(order), cost.peak, cost.time)
            return finish(
                graph, budget, run, method, order,
                status=Status.OPTIMAL, proof="any-order", lower_bound=graph.total_time,
            )  # fmt: skip
    return None


def _best_of(
    graph: Graph, result: Result, run: Run, known: list[IntArray], costs: list[Simulation]
) -> Result:
    """`result`, or a schedule known beforehand where that is better: within the budget first, then time.

    `none` is a statement about the given order and is left alone.
    """
    if result.method == "none":
        return result
    if result.status is Status.INFEASIBLE and min(cost.peak for cost in costs) <= result.budget:
        raise SolverError(f"{result.method}: claims infeasible, yet a known schedule fits the budget")
    for order, cost in zip(known, costs, strict=True):
        if cost.peak <= result.budget:
            if result.solved and result.time is not None and result.time <= cost.time:
                continue
            status = Status.FEASIBLE
        elif result.solved or (result.peak is not None and result.peak <= cost.peak):
            continue
        else:
            status = result.status
        result = replace(
            finish(graph, result.budget, run, result.method, order, status=status),
            lower_bound=result.lower_bound,
            order_lower_bound=result.order_lower_bound,
            memory_lower_bound=result.memory_lower_bound,
            reason=result.reason if status is not Status.FEASIBLE else "",
            stats=result.stats,
        )
    return result


def _with_bounds(result: Result, floor: MemoryBound, bound: float) -> Result:
    """Add what holds for every method: the bound of the cut model, and a closed gap is optimality."""
    if result.status is not Status.INFEASIBLE:
        result = replace(result, lower_bound=_larger(result.lower_bound, bound))
    # Rounding up to a quantum may end an ulp above a time that is summed in floating point.
    if result.gap is not None and -OPTIMAL_GAP <= result.gap < 0:
        result = replace(result, lower_bound=result.time)
    if result.solved and result.gap is not None and result.gap <= OPTIMAL_GAP:
        result = replace(result, status=Status.OPTIMAL, proof="any-order")
    if result.status is Status.NO_SOLUTION:
        reached = (
            f"no schedule within {_exact(result.budget)} was found; the smallest peak reached is "
            f"{'unknown' if result.peak is None else _exact(result.peak)}; "
            f"none can stay below {_exact(floor.bytes)}"
        )
        result = replace(result, reason=f"{result.reason}; {reached}" if result.reason else reached)
    return result


def _budget(graph: Graph, budget: Any) -> int:
    if budget is None:
        if "budget" not in graph.metadata:
            raise BudgetError(f"no budget given, and graph {graph.name!r} carries none")
        budget = graph.metadata["budget"]
    return parse_budget(budget, base_peak(graph))


def _params(method: Method, options: dict[str, Any]) -> Any:
    try:
        return make_params(method, options)
    except (TypeError, ValueError) as error:
        raise MethodError(f"method {method.name!r}: {error}") from error


def _seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**31:
        raise MethodError(f"Expected seed to be an integer in 0 .. 2^31 - 1, not {seed!r}.")
    return int(seed)


def _jobs(n_jobs: Any) -> int:
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer)) or (n_jobs < 1 and n_jobs != -1):
        raise MethodError(f"Expected n_jobs >= 1, or -1 for all cores, not {n_jobs!r}.")
    if n_jobs == -1:
        import joblib  # takes a while to import and is needed here only

        return int(joblib.effective_n_jobs(-1))
    return int(n_jobs)


def _limit(time_limit: Any) -> float | None:
    if time_limit is None:
        return None
    if isinstance(time_limit, bool) or not isinstance(time_limit, (int, float, np.integer, np.floating)):
        raise MethodError(f"Expected time_limit in seconds, not {time_limit!r}.")
    if not time_limit >= 0:
        raise MethodError(f"Expected time_limit >= 0 seconds, not {time_limit!r}.")
    return float(time_limit) if math.isfinite(time_limit) else None


def _larger(a: Any, b: Any) -> Any:
    return b if a is None else max(a, b)


def _exact(nbytes: int) -> str:
    """Bytes for people, with the exact number where the unit hides it."""
    text = format_bytes(nbytes)
    return text if text.endswith(" B") else f"{text} ({nbytes} bytes)"
