"""`solve`: what it decides without a solver, what it passes on, and what it never lets through."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import oracle
import pytest
from oracle import min_peak, optimal_order, random_graph

import hremate as hr
from hremate.solvers import registry
from hremate.solvers.base import Run, finish


def diamond(budget: Any = None) -> hr.Graph:
    """Base peak 14, least possible peak 12, which [0, 1, 2, 1, 3] reaches."""
    ops = [
        hr.Op("load", 1.0, (), (("x", 4),)),
        hr.Op("left", 2.0, ("x",), (("l", 3),)),
        hr.Op("right", 2.5, ("x",), (("r", 5),), workspace=2),
        hr.Op("join", 1.0, ("l", "r"), (("y", 1),)),
    ]
    return hr.Graph.from_ops(
        ops, ["y"], name="diamond", metadata={} if budget is None else {"budget": budget}
    )



def training() -> hr.Graph:
    """Base peak 50, largest working set 30; dropping x0 and running f0 twice reaches 40."""
    ops = [hr.Op("f0", 1.0, (), (("x0", 10),))]
    ops += [hr.Op(f"f{i}", 1.0, (f"x{i - 1}",), ((f"x{i}", 10),)) for i in (1, 2, 3)]
    ops += [hr.Op("b3", 1.0, ("x3",), (("g3", 10),))]
    ops += [hr.Op(f"b{i}", 1.0, (f"x{i}", f"g{i + 1}"), ((f"g{i}", 10),)) for i in (2, 1, 0)]
    return hr.Graph.from_ops(ops, name="training")


RERUN_F0 = [0, 1, 2, 3, 4, 5, 6, 0, 7]


@dataclass(frozen=True)
class _Params:
    width: int = 4

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("Expected width >= 1.")


Solve = Callable[[hr.Graph, int, Run, Any], hr.Result]


@pytest.fixture
def method(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Solve], None]]:
    """Registers a function as the method "fake", whose schedules are passed on as they are."""
    monkeypatch.setattr("hremate._answers.repair", lambda graph, schedule, budget: schedule.order)

    def register(solve: Solve) -> None:
        module = ModuleType("hremate_fake_method")
        module.Params, module.solve = _Params, solve  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        entry = registry.Method("fake", module.__name__, "for tests", False, "any graph", "-")
        monkeypatch.setitem(registry.METHODS, "fake", entry)

    yield register


def returns(order: Any, **known: Any) -> Solve:
    return lambda graph, budget, run, params: finish(graph, budget, run, "fake", order, **known)


def never(graph: hr.Graph, budget: int, run: Run, params: Any) -> hr.Result:
    raise AssertionError("the solver must not be asked")


def test_a_budget_that_holds_the_given_order_is_optimal_at_once(method: Any) -> None:
    method(never)
    result = hr.solve(diamond(), "100%", "fake")
    assert (result.status, result.proof) == (hr.Status.OPTIMAL, "any-order")
    assert (result.overhead, result.gap) == (0, 0)
    assert result.schedule == hr.Schedule([0, 1, 2, 3])
    assert result.memory_lower_bound == 12


def test_a_budget_below_the_working_set_is_infeasible_and_names_the_op(method: Any) -> None:
    method(never)
    result = hr.solve(training(), 29, "fake", warm_start=RERUN_F0)
    assert result.status is hr.Status.INFEASIBLE
    assert "budget 29 B is below the 30 B that op 'b2' needs by itself" in result.reason
    assert "smallest peak known is 40 B" in result.reason
    assert (result.peak, result.time, result.memory_lower_bound) == (40, 9.0, 30)
    assert (result.lower_bound, result.gap, result.solved) == (None, None, False)


def test_infeasible_is_never_claimed_where_brute_force_finds_a_schedule() -> None:
    for seed in range(100):
        graph = random_graph(seed, max_ops=6)
        least = min_peak(graph)
        assert hr.solve(graph, least, "none").status is not hr.Status.INFEASIBLE, seed
        if least:
            assert not hr.solve(graph, least - 1, "none").solved


def test_a_budget_that_is_not_reached_says_no_solution_and_the_smallest_peak(method: Any) -> None:
    method(returns(None))
    result = hr.solve(training(), 35, "fake")
    assert result.status is hr.Status.NO_SOLUTION
    assert "smallest peak reached is 50 B" in result.reason
    assert result.peak == 50
    assert 8.0 <= result.lower_bound <= oracle.optimal_time(training(), 35)
    method(returns(RERUN_F0, reason="gave up"))
    result = hr.solve(training(), 35, "fake")
    assert (result.status, result.peak) == (hr.Status.NO_SOLUTION, 40)
    assert result.reason == (
        "gave up; no schedule within 35 B was found; the smallest peak reached is 40 B; "
        "none can stay below 30 B"
    )


def test_the_base_time_is_a_lower_bound_and_a_better_one_stays(method: Any) -> None:
    method(returns([0, 1, 2, 1, 3]))
    result = hr.solve(diamond(), 13, "fake")
    assert (result.status, result.lower_bound, result.gap) == (hr.Status.FEASIBLE, 6.5, 2.0 / 6.5)
    method(returns([0, 1, 2, 1, 3], lower_bound=7.0))
    assert hr.solve(diamond(), 13, "fake").lower_bound == 7.0


def test_a_schedule_that_meets_its_bound_is_optimal(method: Any) -> None:
    method(returns([0, 1, 2, 1, 3], lower_bound=8.5))
    result = hr.solve(diamond(), 13, "fake")
    assert (result.status, result.proof) == (hr.Status.OPTIMAL, "any-order")


def test_a_staged_proof_is_kept(method: Any) -> None:
    method(returns([0, 1, 2, 1, 3], status=hr.Status.OPTIMAL, proof="staged", order_lower_bound=8.5))
    result = hr.solve(diamond(), 13, "fake")
    assert (result.status, result.proof, result.order_lower_bound) == (hr.Status.OPTIMAL, "staged", 8.5)


def test_the_result_is_never_worse_than_a_warm_start_that_fits(method: Any) -> None:
    method(returns([0, 1, 2, 1, 1, 3]))
    result = hr.solve(diamond(), 13, "fake", warm_start=[0, 1, 2, 1, 3])
    assert (result.status, result.time) == (hr.Status.FEASIBLE, 8.5)
    method(returns(None))
    result = hr.solve(diamond(), 13, "fake", warm_start=hr.Schedule([0, 1, 2, 1, 3]))
    assert (result.status, result.time, result.reason) == (hr.Status.FEASIBLE, 8.5, "")


def test_a_warm_start_that_is_not_valid_is_refused() -> None:
    with pytest.raises(hr.ScheduleError):
        hr.solve(diamond(), "90%", "none", warm_start=[0, 3])


def test_none_returns_the_given_order_whatever_its_peak() -> None:
    result = hr.solve(diamond(), 12, "none", warm_start=[0, 1, 2, 1, 3])
    assert (result.status, result.peak, result.recomputes) == (hr.Status.NO_SOLUTION, 14, 0)


def test_a_false_claim_of_a_solver_is_an_error_and_not_a_result(method: Any) -> None:
    method(returns([0, 1, 2, 3], status=hr.Status.OPTIMAL))
    with pytest.raises(hr.SolverError, match="claims optimal"):
        hr.solve(diamond(), 13, "fake")
    method(returns(None, status=hr.Status.INFEASIBLE))
    with pytest.raises(hr.SolverError, match="claims infeasible"):
        hr.solve(diamond(), 13, "fake", warm_start=[0, 1, 2, 1, 3])


def test_everything_asked_for_reaches_the_method(method: Any) -> None:
    seen: list[Any] = []
    told: list[str] = []

    def solve(graph: hr.Graph, budget: int, run: Run, params: Any) -> hr.Result:
        run.progress("half way")
        assert run.callback is not None and run.warm_start is not None
        run.callback(run.warm_start, 14, 6.5)
        seen.append((budget, run.seed, run.n_jobs, params.width, run.deadline.remaining))
        return finish(graph, budget, run, "fake", [0, 1, 2, 1, 3])

    method(solve)
    found: list[Any] = []
    hr.solve(
        diamond(), "90%", "fake", seed=3, n_jobs=2, time_limit=50, width=7, warm_start=[0, 1, 2, 3],
        progress=told.append, callback=lambda *answer: found.append(answer),
    )  # fmt: skip
    assert seen[0][:4] == (12, 3, 2, 7) and 0 < seen[0][4] <= 50
    assert told == ["half way"]
    assert found == [(hr.Schedule([0, 1, 2, 3]), 14, 6.5)]


def test_an_answer_without_search_is_also_called_back() -> None:
    found: list[Any] = []
    hr.solve(diamond(), 14, "none", callback=lambda *answer: found.append(answer))
    assert found == [(hr.Schedule([0, 1, 2, 3]), 14, 6.5)]


def test_the_budget_of_the_file_is_the_default() -> None:
    assert hr.solve(diamond(budget=13), method="none").budget == 13
    assert hr.solve(diamond(budget="50%"), method="none").budget == 7
    assert hr.solve(diamond(budget=13), 14, "none").budget == 14
    with pytest.raises(hr.BudgetError, match="no budget given"):
        hr.solve(diamond(), method="none")
    with pytest.raises(hr.BudgetError):
        hr.solve(diamond(budget=[1]), method="none")


@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "no such"},
        {"seed": -1},
        {"seed": 1.5},
        {"seed": True},
        {"n_jobs": 0},
        {"n_jobs": "2"},
        {"time_limit": -1},
        {"time_limit": float("nan")},
        {"time_limit": "10"},
        {"width": 0},
        {"width": "x"},
        {"depth": 1},
    ],
)
def test_bad_arguments_are_method_errors_before_anything_runs(method: Any, arguments: dict[str, Any]) -> None:
    method(never)
    with pytest.raises(hr.MethodError):
        hr.solve(diamond(), 13, **{"method": "fake", **arguments})


def test_ctrl_c_that_escapes_a_solver_goes_on(method: Any) -> None:
    def interrupted(*_: Any) -> hr.Result:
        raise KeyboardInterrupt

    method(interrupted)
    with pytest.raises(KeyboardInterrupt):
        hr.solve(diamond(), 13, "fake")


def test_an_interrupted_result_is_passed_on(method: Any) -> None:
    def interrupted(graph: hr.Graph, budget: int, run: Run, params: Any) -> hr.Result:
        run.stats.interrupted = True
        return finish(graph, budget, run, "fake", [0, 1, 2, 1, 3])

    method(interrupted)
    assert hr.solve(diamond(), 13, "fake").stats.interrupted


def test_optimal_schedules_survive_as_warm_starts(method: Any) -> None:
    method(returns(None))
    for seed in range(60):
        graph = random_graph(seed, max_ops=6)
        least = min_peak(graph)
        order = optimal_order(graph, least)
        assert order is not None
        result = hr.solve(graph, least, "fake", warm_start=order)
        assert result.solved, seed
        assert hr.validate(graph, result.schedule or [], least).time == result.time


def test_the_summary_shows_peak_budget_and_reason() -> None:
    text = str(hr.solve(training(), 29, "none"))
    assert "infeasible" in text and "needs by itself" in text and "|" in text
    text = str(hr.solve(diamond(), 14, "none"))
    assert "optimal (any-order)" in text and "100.0% of the budget" in text
