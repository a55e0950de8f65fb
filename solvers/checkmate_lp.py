"""The method `checkmate-lp`: Checkmate's LP relaxation with two-phase rounding.

Jain et al., MLSys 2020, section 5. The relaxation is solved under a budget deflated by a share eps; S is
rounded at several thresholds, and R is then the least that such an S needs. The best schedule whose simulated
peak fits the budget counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hremate.budget import format_bytes
from hremate.errors import MethodError, SolverError
from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.result import Result, Status
from hremate.solvers.base import Run, finish
from hremate.solvers.checkmate_model import CheckmateModel, build_checkmate_model, counts_exactly
from hremate.solvers.incumbent import Incumbent, announcer
from hremate.solvers.scip import MilpSolver, MilpStatus


@dataclass(frozen=True)
class Params:
    """Parameters of the rounded relaxation."""

    #: Shares by which the budget is deflated, each in 0 .. 1 (1 excluded); one LP each, in this order.
    deflations: tuple[float, ...] = (0.1, 0.05, 0.02, 0.0)
    #: S above a threshold is rounded up, each in 0 .. 1.
    thresholds: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    #: The equivalent program with one row per hazard, whose relaxation is stronger, instead of the published.
    tight: bool = False

    def __post_init__(self) -> None:
        if not self.deflations or not all(0.0 <= eps < 1.0 for eps in self.deflations):
            raise MethodError(f"deflations is {self.deflations}. Expected numbers in 0 <= eps < 1.")
        if not self.thresholds or not all(0.0 <= level <= 1.0 for level in self.thresholds):
            raise MethodError(f"thresholds is {self.thresholds}. Expected numbers in 0 .. 1.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Round the relaxation of `graph` under each deflated budget; keep the best that fits.

    The relaxation under the whole budget bounds all staged schedules, where the Checkmate program counts
    memory exactly. Where there is no time to build the program, or SCIP fails, the best schedule known
    stands.

    Raises
    ------
    MethodError
        The graph is too large for the program.
    """
    model = build_checkmate_model(
        graph, budget, tight=params.tight, integer=False, deadline=run.deadline
    )
    best = Incumbent(graph, budget, announcer(run, "checkmate-lp"), run.lower_bound)
    run.stats.counts["relaxations"] = 0
    bound, infeasible = -math.inf, False
    if model is not None:
        run.stats.counts.update(milp_variables=model.milp.n_vars, milp_rows=model.milp.n_rows)
        try:
            bound, infeasible = _search(model, budget, run, params, best)
        except SolverError as error:
            run.stats.degraded.append(f"checkmate-lp: {error}")
            if run.bound_order is not None:
                best.offer(run.bound_order)
    run.stats.timed_out |= model is None or run.deadline.expired
    order_bound = bound if math.isfinite(bound) else None
    reason = ""
    if best.order is None:
        if run.stats.degraded:
            reason = f"no schedule within the budget was found: {run.stats.degraded[-1]}"
        elif infeasible:
            reason = f"no schedule staged along the given order fits {format_bytes(budget)}; others may"
        elif not run.stats.counts["relaxations"] and (run.stats.timed_out or run.stats.interrupted):
            reason = "no relaxation was solved in the time given"
        else:
            reason = "no rounding of the relaxation fits the budget"
    any_order = best.time <= graph.total_time
    staged = order_bound is not None and best.time <= order_bound
    return finish(
        graph, budget, run, "checkmate-lp", best.best,
        status=Status.OPTIMAL if any_order or staged else None,
        proof="any-order" if any_order else "staged" if staged else None,
        lower_bound=graph.total_time,
        order_lower_bound=order_bound,
        reason=reason,
    )  # fmt: skip


def _search(
    model: CheckmateModel, budget: int, run: Run, params: Params, best: Incumbent
) -> tuple[float, bool]:
    """Offer the roundings under each deflated budget.

    Returns
    -------
    float
        Time that no staged schedule within the budget beats; -inf where nothing is known.
    bool
        No staged schedule fits the budget.
    """
    graph = model.graph
    solver = MilpSolver(
        model.milp, seed=run.seed, name=f"checkmate-lp on {graph.name!r}", deadline=run.deadline
    )
    bound, infeasible = -math.inf, False
    for eps in params.deflations:
        limit = math.floor((1.0 - eps) * budget)
        for row in model.budget_rows:
            solver.set_row(row, -np.inf, model.memory_limit(limit))
        result = solver.solve(deadline=run.deadline)
        run.stats.interrupted |= result.interrupted
        if limit == budget and counts_exactly(graph):
            infeasible = result.status is MilpStatus.INFEASIBLE
            if math.isfinite(result.bound):
                bound = max(graph.total_time, graph.total_time + result.bound * model.time_unit)
        if result.x is not None:
            run.stats.counts["relaxations"] += 1
            for order in _rounded(model, result.x, params.thresholds):
                best.offer(order)
                if run.deadline.expired:
                    break
        if run.stats.interrupted or run.deadline.expired:
            break
    return bound, infeasible


def _rounded(model: CheckmateModel, x: FloatArray, thresholds: tuple[float, ...]) -> Iterator[IntArray]:
    """The schedules of the distinct roundings of a relaxed solution, one at a time."""
    n = model.graph.n_ops
    kept = np.zeros((n, n))
    at = model.keep_var >= 0
    kept[at] = x[model.keep_var[at]]
    last: BoolArray | None = None
    for level in sorted(set(thresholds)):
        keep = kept > level
        if last is None or not np.array_equal(keep, last):
            yield np.nonzero(least_runs(model.graph, keep))[1]
        last = keep


def least_runs(graph: Graph, keep: BoolArray) -> BoolArray:
    """The least R that a rounded S needs ("phase two").

    Parameters
    ----------
    keep : bool[n, n]
        What is kept into each stage. The results of `once` ops are kept in any case.

    Returns
    -------
    bool[n, n] : which op runs in which stage.
    """
    n = graph.n_ops
    ptr, idx = graph.predecessors
    keep = np.vstack([keep, np.zeros(n, np.bool_)])
    keep[n, graph.producer[graph.outputs]] = True
    keep |= graph.once & (np.arange(n + 1)[:, None] > np.arange(n))
    runs = np.eye(n, dtype=np.bool_)
    for t in range(n):
        runs[t, :t] = keep[t + 1, :t] & ~keep[t, :t]
        for j in range(t, 0, -1):
            if runs[t, j]:
                read = idx[ptr[j] : ptr[j + 1]]
                runs[t, read[~keep[t, read]]] = True
    return runs
