"""What `solve` and `improve` do around a search: answers that need none, repair, polish, bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hremate.bounds import MemoryBound, time_lower_bound
from hremate.budget import format_bytes
from hremate.errors import SolverError
from hremate.graph import Graph, IntArray
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import Simulation, simulate
from hremate.solvers.base import Run, finish
from hremate.solvers.incumbent import OPTIMAL_GAP, meets
from hremate.solvers.polish import PolishParams, polish
from hremate.solvers.repair import repair
from hremate.solvers.time_bound import compile_kernels

#: Seconds, and share of the time limit, that the bound on time may take.
BOUND_SECONDS, BOUND_SHARE = 20.0, 0.25


@dataclass(frozen=True)
class Polishing:
    """How long to polish."""

    #: Seconds at most; None for no limit but that of the run.
    seconds: float | None
    params: PolishParams


def without_search(
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


def bound_time(graph: Graph, budget: int, run: Run, known: float | None) -> float:
    """The bound on time, `known` or computed, noted in `run` with what the search for it came by.

    It comes before the search and takes a small share of the time, so that the deadline holds. Without one
    its seconds are for a bound, not for compilation, so that the answer is that of later runs.
    """
    if known is None:
        if run.deadline.end is None:
            compile_kernels()
        seconds = min(BOUND_SECONDS, BOUND_SHARE * run.deadline.remaining)
        bound = time_lower_bound(graph, budget, deadline=run.deadline.within(seconds), seed=run.seed)
        known, run.bounded, run.bound_order = bound.time, True, bound.order
    run.lower_bound = known
    run.stats.seconds["bound"] = run.deadline.elapsed
    return known


def best_of(
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


def refined(graph: Graph, result: Result, run: Run, polishing: Polishing | None) -> Result:
    """`result` after `repair`, and after polish where that is asked for; never worse.

    What is proved best is left alone, by polish only if the proof is for any order. So is `none`, a
    statement about the given order. `stats.stage_time` gets the time after each stage.
    """
    optimal = result.solved and result.time is not None and meets(graph, result.time, run.lower_bound)
    settled = optimal or result.status in (Status.OPTIMAL, Status.INFEASIBLE)
    if result.schedule is None or result.method == "none":
        return result
    if result.solved and result.time is not None and not run.stats.stage_time:
        run.stats.stage_time[result.method] = result.time
    try:
        if not settled:
            order = repair(graph, result.schedule, result.budget)
            before = result
            result = best_of(graph, result, run, [order], [simulate(graph, order)])
            if result is not before or "repair" not in run.stats.stage_time:
                _note(result, run, "repair")
        final = optimal or (settled and result.proof == "any-order")
        if polishing is not None and not (final or run.stats.interrupted or run.deadline.expired):
            result = _polished(graph, result, run, polishing)
    except KeyboardInterrupt:
        run.stats.interrupted = True
    return result


def _polished(graph: Graph, result: Result, run: Run, polishing: Polishing) -> Result:
    assert result.schedule is not None
    deadline, start = run.deadline, run.deadline.elapsed
    if polishing.seconds is not None:
        run.deadline = deadline.shortened(polishing.seconds)
    try:
        order = polish(graph, result.schedule.order, result.budget, run, polishing.params)
    finally:
        run.deadline = deadline
        run.stats.seconds["polish"] = deadline.elapsed - start
    result = best_of(graph, result, run, [order], [simulate(graph, order)])
    _note(result, run, "polish")
    return result


def _note(result: Result, run: Run, stage: str) -> None:
    """Keep what a stage reached."""
    if result.solved and result.time is not None:
        times = run.stats.stage_time
        times[stage] = min(result.time, times.get(stage, result.time))
        run.record(result.time)


def with_bounds(result: Result, floor: MemoryBound, bound: float) -> Result:
    """Add what holds for every method: the bound of the cut model, and a closed gap is optimality."""
    if result.status is not Status.INFEASIBLE:
        result = replace(result, lower_bound=larger(result.lower_bound, bound))
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


def larger(a: Any, b: Any) -> Any:
    return b if a is None else max(a, b)


def _exact(nbytes: int) -> str:
    """Bytes for people, with the exact number where the unit hides it."""
    text = format_bytes(nbytes)
    return text if text.endswith(" B") else f"{text} ({nbytes} bytes)"
