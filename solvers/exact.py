"""The method `exact`: the segment-alive MILP in SCIP.

Its optimum, and its proof that there is none, hold for schedules staged along the given order (see
`hremate.solvers.segments`); a few budgets need other schedules.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hremate.budget import format_bytes
from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import base_peak, simulate
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.scip import FEASTOL, MilpSolver, MilpStatus
from hremate.solvers.segments import StagedModel, build_staged_model

#: This heuristic has spent ten seconds in LPs of these programs without finding anything.
_SETTINGS = {"heuristics/farkasdiving/freq": -1}
#: Solves with a tightened budget before a solution that exceeds the budget is given up.
_TIGHTENINGS = 3
#: How many thresholds `threshold_orders` tries.
_THRESHOLDS = 16


@dataclass(frozen=True)
class Params:
    """Parameters of the exact method."""

    #: Branch-and-bound nodes of a solve, for results that repeat on any machine; None for no limit.
    node_limit: int | None = None

    def __post_init__(self) -> None:
        if self.node_limit is not None and self.node_limit < 1:
            raise MethodError(f"node_limit is {self.node_limit}; expected >= 1")


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
    on_improved: Callable[[IntArray], None] | None = None,
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
    on_improved : callable, optional
        Called from SCIP's thread with each improved order within the budget.

    Raises
    ------
    SolverError
        SCIP failed.
    """
    deadline = deadline or Deadline()
    given = np.arange(graph.n_ops)
    if base_peak(graph) <= budget:
        return StagedAnswer(given, MilpStatus.OPTIMAL, graph.total_time)
    model = build_staged_model(graph, budget)
    best = _Incumbent(graph, budget, model, on_improved)
    starts = []
    for order in [*threshold_orders(graph), *([] if start is None else [start])]:
        solution = model.solution_of(order.tolist())
        if solution is not None and best.offer(solution) <= 0:
            starts = [solution]
    solver = MilpSolver(model.milp, seed=seed, name=f"exact on {graph.name!r}", settings=_SETTINGS)

    limit, bound, proved, nodes, interrupted = budget, graph.total_time, False, 0, False
    status = MilpStatus.NO_SOLUTION
    for attempt in range(1 + _TIGHTENINGS):
        result = solver.solve(
            deadline=deadline,
            node_limit=node_limit,
            starts=starts,
            on_incumbent=best.note,
        )
        nodes += result.nodes
        interrupted = result.interrupted
        if attempt == 0:
            # Only the first program contains every schedule within the budget.
            status = result.status
            bound = max(bound, graph.total_time + result.bound * model.time_unit)
        if result.x is None:
            break
        excess = best.offer(result.x)
        if excess <= 0:
            proved = attempt == 0 and result.status is MilpStatus.OPTIMAL
            break
        if interrupted or deadline.expired:
            break
        # SCIP does not see an excess below its tolerance: from the second time on, stay clear of it.
        limit = min(limit - excess, budget - math.ceil(2 * attempt * FEASTOL * budget))
        for q, row in enumerate(model.memory_rows):
            solver.set_row(row, -np.inf, model.memory_limit(q, limit))

    if best.order is None:
        if status is not MilpStatus.INFEASIBLE:
            status = MilpStatus.NO_SOLUTION
    elif proved or best.time <= bound:
        status, bound = MilpStatus.OPTIMAL, best.time
    else:
        status = MilpStatus.FEASIBLE
    return StagedAnswer(
        best.order, status, bound, interrupted, model.milp.n_vars, model.milp.n_rows, nodes
    )


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Solve `graph` along the given order, from the warm start where it is staged along that order.

    `run.progress` and `run.callback` are called from SCIP's thread.
    """

    def improved(order: IntArray) -> None:
        schedule = Schedule(order)
        simulation = simulate(graph, schedule)
        run.progress(f"exact: time {simulation.time:.6g}, without recomputation {graph.total_time:.6g}")
        if run.callback is not None:
            run.callback(schedule, simulation.peak, simulation.time)

    answer = solve_staged(
        graph,
        budget,
        deadline=run.deadline,
        seed=run.seed,
        node_limit=params.node_limit,
        start=None if run.warm_start is None else run.warm_start.order,
        on_improved=improved,
    )
    run.stats.interrupted |= answer.interrupted
    if answer.status not in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE):
        run.stats.timed_out |= run.deadline.expired
    run.stats.counts.update(
        milp_variables=answer.n_vars, milp_rows=answer.n_rows, milp_nodes=answer.nodes
    )
    bound = answer.bound if np.isfinite(answer.bound) else None
    order = answer.order
    if order is not None:
        proved = answer.status is MilpStatus.OPTIMAL
        # Nothing takes less than the sum of all op times, in any order.
        any_order = proved and simulate(graph, order).time <= graph.total_time
        return finish(
            graph,
            budget,
            run,
            "exact",
            order,
            status=Status.OPTIMAL if proved else Status.FEASIBLE,
            proof="any-order" if any_order else "staged" if proved else None,
            lower_bound=graph.total_time,
            order_lower_bound=bound,
        )
    if answer.status is MilpStatus.INFEASIBLE:
        reason = f"no schedule staged along the given order fits {format_bytes(budget)}; others may"
    else:
        reason = "no schedule within the budget was found in the time given"
    order = np.arange(graph.n_ops)
    if run.warm_start is not None and simulate(graph, run.warm_start).peak < base_peak(graph):
        order = run.warm_start.order
    return finish(graph, budget, run, "exact", order, order_lower_bound=bound, reason=reason)


def threshold_orders(graph: Graph) -> list[IntArray]:
    """Cheap staged schedules, from keeping everything to keeping little.

    From one stage to the next a tensor is kept while its bytes times the stages until its next first use
    stay within a threshold; what is missing is computed again just in time.
    """
    n = graph.n_ops
    users = [graph.users_of(x).tolist() for x in range(graph.n_tensors)]
    inputs = [graph.inputs_of(i).tolist() for i in range(n)]
    producer, size = graph.producer.tolist(), graph.size.tolist()
    pinned = (graph.is_output | graph.once[graph.producer]).tolist()
    longest = [size[x] * (users[x][-1] - producer[x]) for x in range(graph.n_tensors) if users[x]]
    levels = np.quantile(longest or [0], np.linspace(0.0, 1.0, _THRESHOLDS))
    orders = []
    for threshold in np.unique(levels)[::-1]:
        order: list[int] = []
        kept: set[int] = set()
        for t in range(n):
            stage = {t}
            missing = [x for x in inputs[t] if x not in kept]
            while missing:
                i = producer[missing.pop()]
                if i not in stage:
                    stage.add(i)
                    missing += [x for x in inputs[i] if x not in kept]
            order += sorted(stage)
            kept.update(x for i in stage for x in graph.outputs_of(i))
            for x in sorted(kept):
                following = bisect.bisect_right(users[x], t)
                wait = users[x][following] - t if following < len(users[x]) else None
                if not pinned[x] and (wait is None or size[x] * wait > threshold):
                    kept.remove(x)
        orders.append(np.array(order, np.int64))
    return orders


class _Incumbent:
    """The best schedule within the budget among the solutions seen, checked in exact bytes."""

    def __init__(
        self,
        graph: Graph,
        budget: int,
        model: StagedModel,
        on_improved: Callable[[IntArray], None] | None,
    ) -> None:
        self._graph = graph
        self._budget = budget
        self._model = model
        self._on_improved = on_improved
        self.order: IntArray | None = None
        self.time = float("inf")

    def note(self, x: FloatArray, _: float) -> None:
        self.offer(x)

    def offer(self, x: FloatArray) -> int:
        """Consider a solution; return by how many bytes it exceeds the budget."""
        order = self._model.order_of(x)
        simulation = simulate(self._graph, order)
        excess = simulation.peak - self._budget
        if excess <= 0 and simulation.time < self.time:
            self.order, self.time = order, simulation.time
            if self._on_improved is not None:
                self._on_improved(order)
        return excess
