"""Programs with rows of memory: exact bytes, cutoffs, and searches that end early."""

from __future__ import annotations

import numpy as np
import pytest

from hremate.solvers.base import Deadline
from hremate.solvers.memory_milp import solve_within
from hremate.solvers.milp import Milp, MilpBuilder
from hremate.solvers.scip import MilpSolver, MilpStatus, solve_milp

#: Bytes that differ by less than the tolerance of SCIP.
SIZES = [10**9 + 1, 10**9 + 2, 10**9 + 3, 10**9 + 4]


def cheapest(budget: int, count: int = 2) -> Milp:
    """Keep `count` of the tensors of `SIZES`, best the largest, within a budget; memory is row 1."""
    builder = MilpBuilder()
    items = [builder.add_var(-float(k), integer=True) for k in range(len(SIZES))]
    builder.add_row(items, [1.0] * len(items), lower=count, upper=count)
    builder.add_row(items, [size / budget for size in SIZES], upper=1.0)
    return builder.build()


@pytest.mark.parametrize(("excess", "best"), [(0, -5.0), (1, -4.0)])
def test_an_excess_below_the_tolerance_is_seen_and_no_false_proof_is_given(excess: int, best: float) -> None:
    budget = SIZES[2] + SIZES[3] - excess
    fitting: list[float] = []

    def offer(x: np.ndarray) -> int:
        over = int(sum(size for size, kept in zip(SIZES, x, strict=True) if kept == 1.0)) - budget
        if over <= 0:
            fitting.append(-float(x @ np.arange(len(SIZES))))
        return over

    outcome = solve_within(
        MilpSolver(cheapest(budget)), budget, [1], lambda _, nbytes: nbytes / budget, offer,
        deadline=Deadline(),
    )  # fmt: skip
    assert outcome.bound <= best
    assert all(value >= best for value in fitting)
    assert outcome.proved == (excess == 0)


@pytest.mark.parametrize("difference", [1e-8, 2.5e-9, 1e-9, 2.5e-10])
def test_nearly_equal_coefficients_do_not_mislead_presolving(difference: float) -> None:
    """SCIP 10's presolver of dominated columns proves -3, -4 and infeasibility here; the optimum is -5."""
    builder = MilpBuilder()
    items = [builder.add_var(-float(k), integer=True) for k in range(4)]
    builder.add_row(items, [1.0] * 4, lower=2.0, upper=2.0)
    builder.add_row(items, [0.25 + k * difference for k in range(4)], upper=1.0)
    result = solve_milp(builder.build())
    assert (result.status, result.objective) == (MilpStatus.OPTIMAL, -5.0)


def test_a_cutoff_leaves_only_what_costs_less() -> None:
    milp = cheapest(4 * 10**9)
    assert solve_milp(milp).objective == -5.0
    assert solve_milp(milp, cutoff=-4.5).objective == -5.0
    beyond = solve_milp(milp, cutoff=-5.5)
    assert beyond.status is MilpStatus.INFEASIBLE and beyond.bound == -5.5
    assert solve_milp(milp, cutoff=-5.5, starts=[np.array([0.0, 0.0, 1.0, 1.0])]).x is None


def test_a_cutoff_holds_for_one_solve_only() -> None:
    solver = MilpSolver(cheapest(4 * 10**9))
    assert solver.solve(cutoff=-5.5).x is None
    assert solver.solve().objective == -5.0


def test_the_first_solution_ends_the_search_when_it_is_enough() -> None:
    rng = np.random.default_rng(0)
    builder = MilpBuilder()
    items = [builder.add_var(-float(c), integer=True) for c in rng.integers(5, 50, 200)]
    for _ in range(150):
        chosen = rng.choice(200, 25, replace=False)
        weights = rng.integers(1, 30, 25).astype(float)
        builder.add_row([items[j] for j in chosen], weights.tolist(), upper=float(0.4 * weights.sum()))
    outcome = solve_within(
        MilpSolver(builder.build()), 0, [], lambda _, nbytes: 0.0, lambda x: 0,
        deadline=Deadline(60.0), enough=lambda: True,
    )  # fmt: skip
    assert outcome.status is MilpStatus.FEASIBLE and not outcome.proved and not outcome.interrupted
