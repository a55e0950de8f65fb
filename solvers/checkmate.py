"""The method `checkmate`: the published Checkmate MILP in SCIP, for comparison with `exact`.

Jain et al., "Checkmate: Breaking the memory wall with optimal tensor rematerialization", MLSys 2020. The
program is in `hremate.solvers.checkmate_model`, with what had to be added for the model of hremate. Its
schedules are staged along the given order. Where it counts memory exactly, its proof holds for all staged
schedules. Where it counts too much (several outputs per op that die at different times, memory model
`reuse`), a better staged schedule may exist: the status then stays `feasible`, and the reason says what was
proved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hremate.budget import format_bytes
from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solvers.base import Run, finish
from hremate.solvers.checkmate_model import CheckmateModel, build_checkmate_model, counts_exactly
from hremate.solvers.scip import MilpSolver, MilpStatus

#: Solves with a tightened budget before a solution that exceeds the budget is given up.
_TIGHTENINGS = 3


@dataclass(frozen=True)
class Params:
    """Parameters of the Checkmate MILP."""

    #: The equivalent program with one row per hazard instead of the published rows for FREE.
    tight: bool = False
    #: Branch-and-bound nodes of a solve, for results that repeat on any machine; None for no limit.
    node_limit: int | None = None

    def __post_init__(self) -> None:
        if self.node_limit is not None and self.node_limit < 1:
            raise MethodError(f"node_limit is {self.node_limit}. Expected node_limit >= 1.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Solve the Checkmate program of `graph`, from the warm start where it is staged along the given order.

    Raises
    ------
    MethodError
        The graph is too large for the program.
    SolverError
        SCIP failed.
    """
    model = build_checkmate_model(graph, budget, tight=params.tight, integer=True)
    run.stats.counts.update(milp_variables=model.milp.n_vars, milp_rows=model.milp.n_rows)
    best = _Incumbent(graph, budget, run, model)
    starts = []
    given = np.arange(graph.n_ops)
    for order in [given] + ([] if run.warm_start is None else [run.warm_start.order]):
        solution = model.solution_of(order.tolist())
        if solution is not None:
            starts.append(solution)
            best.offer(solution)

    solver = MilpSolver(model.milp, seed=run.seed, name=f"checkmate on {graph.name!r}")
    limit, bound, nodes, status = budget, graph.total_time, 0, MilpStatus.NO_SOLUTION
    for attempt in range(1 + _TIGHTENINGS):
        result = solver.solve(
            deadline=run.deadline,
            node_limit=params.node_limit,
            starts=starts,
            on_incumbent=best.watch,
        )
        nodes += result.nodes
        run.stats.interrupted |= result.interrupted
        if attempt == 0:
            # Only the first program contains every schedule within the budget.
            status = result.status
            bound = max(bound, graph.total_time + result.bound * model.time_unit)
        excess = 0 if result.x is None else best.offer(result.x)
        if excess <= 0 or result.interrupted or run.deadline.expired:
            break
        limit -= excess
        for row in model.budget_rows:
            solver.set_row(row, -np.inf, model.memory_limit(limit))
    run.stats.timed_out |= run.deadline.expired
    run.stats.counts["milp_nodes"] = nodes

    exact = counts_exactly(graph)
    order_bound = bound if exact and math.isfinite(bound) else None
    if best.order is None:
        if status is MilpStatus.INFEASIBLE:
            reason = f"the Checkmate program has no schedule within {format_bytes(budget)}" + (
                ": none staged along the given order fits; others may" if exact else "; others may fit"
            )
        else:
            reason = "no schedule within the budget was found in the time given"
        return finish(
            graph, budget, run, "checkmate", best.smallest, order_lower_bound=order_bound, reason=reason
        )
    proved = (status is MilpStatus.OPTIMAL and limit == budget) or best.time <= bound
    any_order = best.time <= graph.total_time
    reason = ""
    if proved and not exact and not any_order:
        reason = "proved best under the memory accounting of Checkmate, which counts too much for this graph"
    return finish(
        graph, budget, run, "checkmate", best.order,
        status=Status.OPTIMAL if any_order or (proved and exact) else Status.FEASIBLE,
        proof="any-order" if any_order else "staged" if proved and exact else None,
        lower_bound=graph.total_time,
        order_lower_bound=best.time if proved and exact else order_bound,
        reason=reason,
    )  # fmt: skip


class _Incumbent:
    """The best schedule within the budget among the solutions seen, checked in exact bytes."""

    def __init__(self, graph: Graph, budget: int, run: Run, model: CheckmateModel) -> None:
        self._graph = graph
        self._budget = budget
        self._run = run
        self._model = model
        self.order: IntArray | None = None
        self.time = math.inf
        self.smallest: IntArray | None = None
        self._peak: float = math.inf

    def watch(self, x: FloatArray, _: float) -> None:
        self.offer(x)

    def offer(self, x: FloatArray) -> int:
        """Consider a solution; return by how many bytes it exceeds the budget."""
        order = np.nonzero(self._model.runs_of(x))[1]
        simulation = simulate(self._graph, order)
        if simulation.peak < self._peak:
            self.smallest, self._peak = order, simulation.peak
        excess = simulation.peak - self._budget
        if excess <= 0 and simulation.time < self.time:
            self.order, self.time = order, simulation.time
            self._run.progress(f"checkmate: time {simulation.time:.6g}")
            if self._run.callback is not None:
                self._run.callback(Schedule(order), simulation.peak, simulation.time)
        return excess
