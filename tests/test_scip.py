"""The seam to SCIP: exact answers, honest bounds, deadlines and Ctrl-C."""

from __future__ import annotations

import itertools
import pickle
import signal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hremate.errors import SolverError
from hremate.solvers.base import Deadline
from hremate.solvers.scip import Milp, MilpBuilder, MilpResult, MilpSolver, MilpStatus, solve_milp


def knapsack(values: list[float], weights: list[float], limit: float) -> Milp:
    """Maximise value within one weight limit, as a minimisation; the last row."""
    builder = MilpBuilder()
    items = [builder.add_var(-value, integer=True) for value in values]
    builder.add_row(items, weights, upper=limit)
    return builder.build()


def hard_program(n: int = 300, rows: int = 200, seed: int = 0) -> Milp:
    """Many knapsack rows over shared items: far from proved within seconds."""
    rng = np.random.default_rng(seed)
    builder = MilpBuilder()
    items = [builder.add_var(-float(c), integer=True) for c in rng.integers(5, 50, n)]
    for _ in range(rows):
        weights = rng.integers(1, 30, 25).astype(float)
        chosen = rng.choice(n, 25, replace=False)
        builder.add_row([items[j] for j in chosen], weights.tolist(), upper=float(0.4 * weights.sum()))
    return builder.build()


def solution(result: MilpResult) -> np.ndarray:
    assert result.x is not None
    return result.x


def brute_force(milp: Milp) -> float:
    """Least cost over all 0/1 points, +inf when none is feasible."""
    points = (np.array(bits, float) for bits in itertools.product((0, 1), repeat=milp.n_vars))
    return min((milp.objective(x) for x in points if milp.satisfied_by(x)), default=np.inf)


@st.composite
def small_programs(draw: st.DrawFn) -> Milp:
    number = st.integers(-5, 5).map(float)
    builder = MilpBuilder()
    n = draw(st.integers(1, 6))
    for _ in range(n):
        builder.add_var(draw(number), integer=True)
    for _ in range(draw(st.integers(0, 5))):
        indices = draw(st.lists(st.integers(0, n - 1), max_size=n))
        lower = draw(st.sampled_from([-np.inf, -2.0, 0.0, 1.0]))
        upper = draw(st.sampled_from([np.inf, 1.0, 2.0, 4.0]))
        builder.add_row(indices, [draw(number) for _ in indices], lower, upper)
    return builder.build()


@settings(max_examples=80, deadline=None)
@given(small_programs())
def test_agrees_with_brute_force_and_bounds_from_below(milp: Milp) -> None:
    result = solve_milp(milp)
    best = brute_force(milp)
    if np.isinf(best):
        assert result.status is MilpStatus.INFEASIBLE
        assert result.x is None and result.objective == np.inf and result.bound == np.inf
    else:
        assert result.status is MilpStatus.OPTIMAL
        assert result.objective == best and milp.satisfied_by(solution(result))
        assert best - 1e-4 <= result.bound <= best


@settings(max_examples=30, deadline=None)
@given(small_programs(), st.lists(st.integers(-3, 3), min_size=6, max_size=6))
def test_a_changed_program_solves_like_a_fresh_one(milp: Milp, costs: list[int]) -> None:
    solver = MilpSolver(milp)
    solver.solve()
    builder = MilpBuilder()
    for j in range(milp.n_vars):
        solver.set_cost(j, float(costs[j]))
        builder.add_var(float(costs[j]), integer=True)
    for q in range(milp.n_rows):
        solver.set_row(q, -1.0, 3.0)
        row = slice(milp.row_ptr[q], milp.row_ptr[q + 1])
        builder.add_row(milp.row_idx[row].tolist(), milp.row_val[row].tolist(), -1.0, 3.0)
    assert solver.solve().objective == brute_force(builder.build())


def test_mixed_program_has_exact_integers_and_continuous_rest() -> None:
    builder = MilpBuilder()
    i = builder.add_var(-1.0, 0.0, 10.0, integer=True)
    c = builder.add_var(-1.0, 0.0, np.inf)
    builder.add_row([i, c], [2.0, 1.0], upper=7.5)
    builder.add_row([c], [1.0], upper=0.75)
    result = solve_milp(builder.build())
    assert result.x is not None and result.x[i] == 3.0 and result.x[c] == pytest.approx(0.75)


def test_a_repeated_variable_in_a_row_counts_with_the_sum() -> None:
    builder = MilpBuilder()
    x = builder.add_var(-1.0, 0.0, 10.0, integer=True)
    builder.add_row([x, x], [1.0, 2.0], upper=8.0)
    assert solve_milp(builder.build()).objective == -2.0


def test_the_built_program_survives_pickling() -> None:
    milp = pickle.loads(pickle.dumps(knapsack([3, 4, 5], [2, 3, 4], 5)))
    assert solve_milp(milp).objective == -7.0


def test_equal_seeds_and_node_limits_give_equal_answers() -> None:
    milp = hard_program(80, 60)
    first, second = (solve_milp(milp, seed=3, node_limit=5) for _ in range(2))
    assert np.array_equal(solution(first), solution(second))
    assert (first.bound, first.nodes) == (second.bound, second.nodes)


def test_the_deadline_stops_a_solve_and_keeps_the_incumbent() -> None:
    milp = hard_program()
    result = solve_milp(milp, deadline=Deadline(1.0))
    assert result.status is MilpStatus.FEASIBLE and milp.satisfied_by(solution(result))
    assert result.bound < result.objective < 0.0 and not result.interrupted


def test_without_time_the_best_start_comes_back() -> None:
    milp = hard_program()
    starts = [np.zeros(milp.n_vars), np.eye(milp.n_vars)[0]]
    result = solve_milp(milp, deadline=Deadline(0.0), starts=starts)
    assert result.status is MilpStatus.FEASIBLE and np.array_equal(solution(result), starts[1])
    assert result.bound == -np.inf
    assert solve_milp(milp, deadline=Deadline(0.0)).status is MilpStatus.NO_SOLUTION


def test_a_start_is_never_lost_and_a_bad_one_never_used() -> None:
    milp = hard_program()
    good = solution(solve_milp(milp, node_limit=1))
    bad = np.ones(milp.n_vars)
    assert not milp.satisfied_by(bad)
    result = solve_milp(milp, deadline=Deadline(0.2), starts=[bad, good])
    assert milp.satisfied_by(solution(result)) and result.objective <= milp.objective(good)


def test_incumbents_are_reported_as_they_improve() -> None:
    milp = hard_program(100, 80)
    seen: list[float] = []

    def note(x: np.ndarray, objective: float) -> None:
        assert milp.satisfied_by(x) and objective == milp.objective(x)
        seen.append(objective)

    result = solve_milp(milp, node_limit=1, on_incumbent=note)
    assert seen and seen == sorted(seen, reverse=True) and seen[-1] == result.objective


def test_what_the_incumbent_callback_raises_comes_out_of_solve() -> None:
    def fail(x: np.ndarray, objective: float) -> None:
        raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        solve_milp(hard_program(), on_incumbent=fail)


def test_ctrl_c_stops_scip_and_keeps_the_incumbent() -> None:
    milp = hard_program()
    timer = threading.Timer(1.0, signal.raise_signal, [signal.SIGINT])
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer.start()
        deadline = Deadline(60.0)
        result = solve_milp(milp, deadline=deadline)
    finally:
        timer.join()
        signal.signal(signal.SIGINT, previous)
    assert result.interrupted and not deadline.expired and milp.satisfied_by(solution(result))


def test_the_gap_ends_a_solve_early_and_counts_as_proved() -> None:
    milp = hard_program(60, 40)
    result = solve_milp(milp, gap_rel=10.0)
    assert result.status is MilpStatus.OPTIMAL and result.bound < result.objective


def test_nonsense_is_refused() -> None:
    builder = MilpBuilder()
    builder.add_var()
    builder.add_row([1], [1.0], upper=1.0)
    with pytest.raises(SolverError, match="does not exist"):
        builder.build()
    with pytest.raises(SolverError, match="2 variables and 1 coefficients"):
        builder.add_row([0, 0], [1.0])
    builder = MilpBuilder()
    builder.add_var(float("nan"))
    with pytest.raises(SolverError, match="not finite"):
        builder.build()
    builder = MilpBuilder()
    builder.add_var(-1.0, 0.0, np.inf)
    with pytest.raises(SolverError, match="unbounded"):
        solve_milp(builder.build())
