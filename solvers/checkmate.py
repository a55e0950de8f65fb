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
from hremate.errors import MethodError, SolverError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result, Status
from hremate.solvers.base import Run, finish
from hremate.solvers.checkmate_model import CheckmateModel, build_checkmate_model, counts_exactly
from hremate.solvers.incumbent import Incumbent, announcer
from hremate.solvers.memory_milp import Outcome, solve_within
from hremate.solvers.scip import MilpSolver, MilpStatus
from hremate.solvers.staged import stage_runs


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

    Where there is no time to build the program, or SCIP fails, the best schedule known stands.

    Raises
    ------
    MethodError
        The graph is too large for the program.
    """
    model = build_checkmate_model(
        graph, budget, tight=params.tight, integer=True, deadline=run.deadline
    )
    best = Incumbent(graph, budget, announcer(run, "checkmate"), run.lower_bound)
    known = [np.arange(graph.n_ops)] + ([] if run.warm_start is None else [run.warm_start.order])
    for order in known:
        if stage_runs(order.tolist(), graph.n_ops) is not None:
            best.offer(order)
    outcome = Outcome(MilpStatus.NO_SOLUTION, -math.inf, False, 0, False)
    time_unit = 1.0
    if model is not None:
        run.stats.counts.update(milp_variables=model.milp.n_vars, milp_rows=model.milp.n_rows)
        time_unit = model.time_unit
        try:
            outcome = _search(model, budget, run, params, best, known)
        except SolverError as error:
            run.stats.degraded.append(f"checkmate: {error}")
            if run.bound_order is not None:
                best.offer(run.bound_order)
    bound = max(graph.total_time, graph.total_time + outcome.bound * time_unit)
    run.stats.interrupted |= outcome.interrupted
    run.stats.timed_out |= model is None or run.deadline.expired
    run.stats.counts["milp_nodes"] = outcome.nodes

    exact = counts_exactly(graph)
    order_bound = bound if exact and math.isfinite(bound) else None
    if best.order is None:
        if run.stats.degraded:
            reason = f"no schedule within the budget was found: {run.stats.degraded[-1]}"
        elif outcome.status is MilpStatus.INFEASIBLE:
            reason = f"the Checkmate program has no schedule within {format_bytes(budget)}" + (
                ": none staged along the given order fits; others may" if exact else "; others may fit"
            )
        else:
            reason = "no schedule within the budget was found in the time given"
        return finish(
            graph, budget, run, "checkmate", best.smallest, order_lower_bound=order_bound, reason=reason
        )
    proved = outcome.proved or best.time <= bound
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


def _search(
    model: CheckmateModel, budget: int, run: Run, params: Params, best: Incumbent, known: list[IntArray]
) -> Outcome:
    """Solve the program from the schedules in `known` that are staged, offering what is found."""

    def offer(x: FloatArray) -> int:
        return best.offer(np.nonzero(model.runs_of(x))[1])

    starts = [x for x in (model.solution_of(order.tolist()) for order in known) if x is not None]
    for x in starts:
        offer(x)
    solver = MilpSolver(
        model.milp, seed=run.seed, name=f"checkmate on {model.graph.name!r}", deadline=run.deadline
    )
    return solve_within(
        solver, budget, model.budget_rows, lambda _, nbytes: model.memory_limit(nbytes), offer,
        deadline=run.deadline, node_limit=params.node_limit, starts=starts,
    )  # fmt: skip
