"""The method `exact`: the segment-alive MILP in SCIP.

Its optimum, and its proof that there is none, hold for schedules staged along the given order (see
`hremate.solvers.segments`). Other orders are tried as well: what is found there may beat every schedule
staged along the given order, and is then not proved best, unless it meets a bound that holds for any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hremate.budget import format_bytes
from hremate.errors import MethodError, SolverError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result, Status
from hremate.simulate import Simulation, base_peak, simulate
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.beam import beam_search
from hremate.solvers.incumbent import Incumbent, announcer
from hremate.solvers.memory_milp import solve_within
from hremate.solvers.scip import MilpSolver, MilpStatus
from hremate.solvers.segments import build_staged_model
from hremate.solvers.staged import depth_first_order, first_runs, reordered, stage_runs, threshold_orders

#: This heuristic has spent ten seconds in LPs of these programs without finding anything.
_SETTINGS = {"heuristics/farkasdiving/freq": -1}
#: The rows of the program grow with the cube of the ops; beyond this they take gigabytes.
MAX_OPS = 400
#: Seconds to build the program and to load it into SCIP, for each cubed op.
_BUILD_SECONDS = 1e-6
#: Shares of the time left for the beam search, and then for the given order when there are others.
_BEAM_SHARE, _GIVEN_SHARE = 0.2, 0.5
#: Branch-and-bound nodes that another order gets at least, when the given order is proved in fewer.
_LEAST_NODES = 10


@dataclass(frozen=True)
class Params:
    """Parameters of the exact method."""

    #: Branch-and-bound nodes of a solve, for results that repeat on any machine; None for no limit.
    node_limit: int | None = None
    #: Width of the beam search that finds the first schedules, >= 1.
    width: int = 8

    def __post_init__(self) -> None:
        if self.node_limit is not None and self.node_limit < 1:
            raise MethodError(f"node_limit is {self.node_limit}; expected >= 1")
        if self.width < 1:
            raise MethodError(f"width is {self.width}; expected >= 1")


@dataclass(frozen=True)
class StagedAnswer:
    """What is known about the schedules staged along the given order."""

    #: The best one found within the budget, or None.
    order: IntArray | None
    #: OPTIMAL: `order` is the best. INFEASIBLE: there is none.
    status: MilpStatus
    #: No staged schedule takes less time (time units of the graph); +inf when there is none.
    bound: float
    #: Ctrl-C arrived.
    interrupted: bool = False
    #: The deadline left no time for more.
    timed_out: bool = False
    n_vars: int = 0
    n_rows: int = 0
    nodes: int = 0


def solve_staged(
    graph: Graph,
    budget: int,
    *,
    deadline: Deadline | None = None,
    seed: int = 0,
    node_limit: int | None = None,
    start: IntArray | None = None,
    lower_bound: float = 0.0,
    cutoff: float = np.inf,
    on_improved: Callable[[IntArray, Simulation], object] | None = None,
) -> StagedAnswer:
    """The best schedule of `graph` within `budget` bytes among those staged along the given order.

    Parameters
    ----------
    deadline : Deadline, optional
        The best so far is handed in when it passes.
    seed, node_limit
        As in `MilpSolver`.
    start : int64[L], optional
        A schedule to start from; of use when its first runs follow the given order and it fits the budget.
        Cheap schedules are tried in any case.
    lower_bound : float
        Time that no schedule beats, as far as is known: reason to stop.
    cutoff : float
        Only schedules that take less time are looked for, and INFEASIBLE says that there are none.
    on_improved : callable, optional
        Called, also from SCIP's thread, with each improved order within the budget and its simulation.

    Raises
    ------
    SolverError
        SCIP failed.
    """
    deadline = deadline or Deadline()
    best = Incumbent(graph, budget, on_improved, lower_bound)
    if best.offer(np.arange(graph.n_ops)) <= 0:
        return StagedAnswer(best.order, MilpStatus.OPTIMAL, graph.total_time)
    cheap = [*threshold_orders(graph), *([] if start is None else [start])]
    staged = [order for order in cheap if stage_runs(order.tolist(), graph.n_ops) is not None]
    for order in staged:
        best.offer(order)
    if best.meets_bound:
        return StagedAnswer(best.order, MilpStatus.OPTIMAL, min(best.lower_bound, best.time))
    if deadline.remaining < _BUILD_SECONDS * graph.n_ops**3:
        status = MilpStatus.NO_SOLUTION if best.order is None else MilpStatus.FEASIBLE
        return StagedAnswer(best.order, status, best.lower_bound, timed_out=True)

    model = build_staged_model(graph, budget)

    def offer(x: FloatArray) -> int:
        return best.offer(model.order_of(x))

    starts, least = [], np.inf
    for order in staged:
        solution = model.solution_of(order.tolist())
        if solution is not None and offer(solution) <= 0 and model.milp.objective(solution) < least:
            starts, least = [solution], model.milp.objective(solution)
    outcome = solve_within(
        MilpSolver(
            model.milp, seed=seed, name=f"exact on {graph.name!r}", settings=_SETTINGS, deadline=deadline
        ),
        budget, model.memory_rows, model.memory_limit, offer,
        deadline=deadline, node_limit=node_limit, starts=starts,
        cutoff=(cutoff - graph.total_time) / model.time_unit, enough=lambda: best.meets_bound,
    )  # fmt: skip
    bound = max(best.lower_bound, graph.total_time + outcome.bound * model.time_unit)
    if best.order is None:
        infeasible = outcome.status is MilpStatus.INFEASIBLE
        status = MilpStatus.INFEASIBLE if infeasible else MilpStatus.NO_SOLUTION
    elif outcome.proved or best.time <= bound:
        status, bound = MilpStatus.OPTIMAL, best.time
    else:
        status = MilpStatus.FEASIBLE
    proved = status in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE)
    return StagedAnswer(
        best.order, status, bound, outcome.interrupted, deadline.expired and not proved,
        model.milp.n_vars, model.milp.n_rows, outcome.nodes,
    )  # fmt: skip


def solve_sweep(
    graph: Graph,
    budgets: Sequence[int],
    *,
    deadline: Deadline | None = None,
    seed: int = 0,
    node_limit: int | None = None,
) -> list[StagedAnswer]:
    """`solve_staged` at several budgets, each a number of bytes; one answer for each, in their order.

    From the largest budget down, so that an answer is reused where it fits the next budget as well, and so
    that its bound carries over. The time left is shared out equally.
    """
    deadline = deadline or Deadline()
    answers: dict[int, StagedAnswer] = {}
    last: StagedAnswer | None = None
    descending = sorted(set(budgets), reverse=True)
    for k, budget in enumerate(descending):
        fits = (
            last is not None and last.order is not None and simulate(graph, last.order).peak <= budget
        )
        settled = last is not None and (
            last.status is MilpStatus.INFEASIBLE or (fits and last.status is MilpStatus.OPTIMAL)
        )
        if last is None or not settled:
            answer = solve_staged(
                graph, budget, seed=seed, node_limit=node_limit,
                deadline=deadline.within(deadline.remaining / (len(descending) - k)),
                start=last.order if last is not None and fits else None,
                lower_bound=0.0 if last is None else last.bound,
            )  # fmt: skip
        else:
            answer = replace(last, nodes=0)
        answers[budget] = last = answer
    return [answers[budget] for budget in budgets]


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Solve `graph` along the given order, then along others, from the warm start and a beam search.

    Stops as soon as a schedule meets `run.lower_bound`. The given order gets half of the time, where there
    are others; these get no more branch-and-bound nodes than it took to prove it. `run.progress` and
    `run.callback` are also called from SCIP's thread. Where SCIP fails, the best schedule known stands.

    Raises
    ------
    MethodError
        More than `MAX_OPS` ops.
    """
    if graph.n_ops > MAX_OPS:
        raise MethodError(f"exact takes graphs of at most {MAX_OPS} ops; {graph.name!r} has {graph.n_ops}")
    best = Incumbent(graph, budget, announcer(run, "exact"), run.lower_bound)
    best.offer(np.arange(graph.n_ops))
    if run.warm_start is not None:
        best.offer(run.warm_start.order)
    if not best.meets_bound:
        share = run.deadline.within(_BEAM_SHARE * run.deadline.remaining)
        beam = beam_search(graph, budget, width=params.width, seed=run.seed, deadline=share)
        run.stats.interrupted |= beam.interrupted
        best.offer(beam.smallest)
        if beam.order is not None:
            best.offer(beam.order)
    answer = StagedAnswer(None, MilpStatus.NO_SOLUTION, best.lower_bound)
    if not best.meets_bound and not run.stats.interrupted:
        answer = _search(graph, budget, run, params, best)
    run.stats.timed_out |= answer.timed_out or run.deadline.expired

    bound = answer.bound if np.isfinite(answer.bound) else None
    if best.order is None:
        reason = "no schedule within the budget was found in the time given"
        if run.stats.degraded:
            reason = f"no schedule within the budget was found: {run.stats.degraded[-1]}"
        if answer.status is MilpStatus.INFEASIBLE:
            reason = f"no schedule staged along the given order fits {format_bytes(budget)}; others may"
        return finish(graph, budget, run, "exact", best.smallest, order_lower_bound=bound, reason=reason)
    staged = answer.status is MilpStatus.OPTIMAL and best.time == answer.bound
    proof = "any-order" if best.meets_bound else "staged" if staged else None
    return finish(
        graph, budget, run, "exact", answer.order if proof == "staged" else best.order,
        status=Status.FEASIBLE if proof is None else Status.OPTIMAL,
        proof=proof,
        lower_bound=best.lower_bound,
        order_lower_bound=bound,
    )  # fmt: skip


def _search(graph: Graph, budget: int, run: Run, params: Params, best: Incumbent) -> StagedAnswer:
    """Solve the program along each order, offering what is found; returns the answer for the given order."""
    others = list(_other_orders(graph, best))
    start = best.order
    if run.warm_start is not None and (start is None or stage_runs(start.tolist(), graph.n_ops) is None):
        start = run.warm_start.order
    try:
        given = solve_staged(
            graph, budget, seed=run.seed, node_limit=params.node_limit, start=start,
            deadline=run.deadline.within((_GIVEN_SHARE if others else 1.0) * run.deadline.remaining),
            lower_bound=best.lower_bound, on_improved=lambda found, _: best.offer(found),
        )  # fmt: skip
    except SolverError as error:
        run.stats.degraded.append(f"exact: {error}")
        return StagedAnswer(None, MilpStatus.NO_SOLUTION, best.lower_bound)
    run.stats.interrupted |= given.interrupted
    run.stats.counts.update(
        milp_variables=given.n_vars, milp_rows=given.n_rows, milp_nodes=given.nodes, orders=1
    )
    node_limit = params.node_limit
    if node_limit is None and given.status in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE):
        node_limit = max(given.nodes, _LEAST_NODES)
    for k, order in enumerate(others):
        if best.meets_bound or run.stats.interrupted or run.deadline.expired:
            break
        place = np.argsort(order)
        try:
            other = solve_staged(
                reordered(graph, order), budget, seed=run.seed, node_limit=node_limit,
                start=None if best.order is None else place[best.order],
                deadline=run.deadline.within(run.deadline.remaining / (len(others) - k)),
                lower_bound=best.lower_bound, cutoff=best.time,
                on_improved=_offer_renumbered(best, order),
            )  # fmt: skip
        except SolverError as error:
            run.stats.degraded.append(f"exact along another order: {error}")
            break
        run.stats.interrupted |= other.interrupted
        run.stats.counts["milp_nodes"] += other.nodes
        run.stats.counts["orders"] += 1
    return given


def _offer_renumbered(best: Incumbent, order: IntArray) -> Callable[[IntArray, Simulation], object]:
    """Offers schedules whose op k stands for op `order[k]`."""
    return lambda found, _: best.offer(order[found])


def _other_orders(graph: Graph, best: Incumbent) -> Iterator[IntArray]:
    """Orders beside the given one: of the best schedule so far; depth-first where that needs less memory."""
    seen = [np.arange(graph.n_ops)]
    candidates = []
    if best.best is not None:
        candidates.append(first_runs(best.best))
    depth_first = depth_first_order(graph)
    if simulate(graph, depth_first).peak < base_peak(graph):
        candidates.append(depth_first)
    for order in candidates:
        if not any(np.array_equal(order, other) for other in seen):
            seen.append(order)
            yield order
