"""Which moments to bound at: round after round those that the last answer overlooked.

The program of `hremate.solvers.moments` at a few moments suggests a schedule. Where that fits the budget it
is the answer; where it does not, the first run at which it needs most memory becomes a moment too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from hremate.errors import SolverError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.simulate import step_memory
from hremate.solvers._moment_kernel import mark_relatives
from hremate.solvers.base import Deadline
from hremate.solvers.moments import MomentsModel, build_moments, emit_moments
from hremate.solvers.repair import repair
from hremate.solvers.scip import FINE_FEASTOL, MilpResult, MilpSolver, MilpStatus

#: The base time in the programs: so large that the solver's tolerance of costs is far below 1e-9 of it.
COST_SCALE = 1e4
#: Branch-and-bound nodes that even the largest program gets.
LEAST_NODES = 20
#: Of the first runs that need too much memory so many are looked at, the worst first.
LOOKED_AT = 32


@dataclass
class Found:
    """What a search has found."""

    #: Time that every schedule within the budget must add to the sum of all times; time units.
    extra: float
    #: The ops at whose first runs that shows.
    moments: tuple[int, ...]
    #: The fastest schedule within the budget met on the way; None when there was none.
    order: IntArray | None = None


def search_moments(
    graph: Graph,
    budget: int,
    first: int,
    *,
    deadline: Deadline,
    rounds: int,
    round_work: int,
    proof_work: int,
    seed: int = 0,
) -> Found:
    """Bound from below what must run again, at more and more moments, until a schedule meets it.

    Parameters
    ----------
    first : int
        The op at whose first run to begin.
    rounds : int
        At most so many programs are solved, >= 1.
    round_work, proof_work : int
        Branch-and-bound nodes times variables of each program, and of the last one when it is taken up
        again to close its gap.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C arrived inside SCIP.
    """
    found = Found(0.0, (first,))
    unit = max(graph.total_time, 1e-300) / COST_SCALE
    moments = [first]
    for number in range(1, rounds + 1):
        model = build_moments(graph, budget, moments, unit)
        if model is None or deadline.expired:
            break
        solver = MilpSolver(model.milp, seed=seed, name="moments", feastol=FINE_FEASTOL, deadline=deadline)
        try:
            result, order = _weigh(graph, budget, model, solver, found, deadline, round_work)
        except SolverError:
            break  # a weaker bound is a bound
        if result.x is None or order is None:
            break
        new = _overlooked(graph, order, budget, model) if number < rounds else None
        if new is None:
            if result.status is not MilpStatus.OPTIMAL and not deadline.expired:
                with suppress(SolverError):
                    _weigh(graph, budget, model, solver, found, deadline, proof_work, [result.x])
            break
        moments = sorted([*moments, new])
    return found


def _weigh(
    graph: Graph,
    budget: int,
    model: MomentsModel,
    solver: MilpSolver,
    found: Found,
    deadline: Deadline,
    work: int,
    starts: Sequence[FloatArray] = (),
) -> tuple[MilpResult, IntArray | None]:
    """Solve a program and keep what it tells; its result, and the schedule that this suggests."""
    result = solver.solve(
        deadline=deadline, node_limit=max(LEAST_NODES, work // model.milp.n_vars), starts=starts
    )
    if result.interrupted:
        raise KeyboardInterrupt
    extra = (result.bound - model.first_runs) * model.unit
    if np.isfinite(extra) and extra > found.extra:
        found.extra, found.moments = extra, tuple(model.moments.tolist())
    if result.x is None:
        return result, None
    order = emit_moments(graph, model, result.x)
    twice = graph.once & (np.bincount(order, minlength=graph.n_ops) > 1)
    if not twice.any() and step_memory(graph, order).max() <= budget:
        repaired = repair(graph, order, budget)
        if found.order is None or graph.time[repaired].sum() < graph.time[found.order].sum():
            found.order = repaired
    return result, order


def _overlooked(graph: Graph, order: IntArray, budget: int, model: MomentsModel) -> int | None:
    """The first run to add: far over the budget, its op before or after nearly all others in any order."""
    over = step_memory(graph, order) - budget
    if over.max() <= 0:
        return None
    runs, first_step = np.unique(order, return_index=True)
    candidates = runs[(over[first_step] > 0) & (model.by - model.after == 1)[runs]]
    excess = np.zeros(graph.n_ops)
    excess[runs] = over[first_step]
    candidates = candidates[np.argsort(-excess[candidates], kind="stable")][:LOOKED_AT]
    before_v, after_v = np.empty((2, graph.n_ops), np.bool_)
    best, best_value = None, 0.0
    for v in candidates.tolist():
        mark_relatives(
            v, graph.in_ptr, graph.in_idx, graph.use_ptr, graph.use_idx, graph.out_ptr, graph.producer,
            before_v, after_v,
        )  # fmt: skip
        value = excess[v] * float(before_v.sum() + after_v.sum()) ** 2
        if value > best_value:
            best, best_value = v, value
    return best
