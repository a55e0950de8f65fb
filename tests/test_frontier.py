"""`frontier` and `min_budget`: monotone by construction, every point valid, bounds never above it."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from small_training import RERUN_F0, Params, register, training

import hremate as hr
from hremate.frontier import frontier, min_budget
from hremate.solvers.base import Run, finish


def random_graph(seed: int) -> hr.Graph:
    return hr.generate("layered", 10, seed=seed)


def checked(graph: hr.Graph, points: tuple[hr.Result, ...]) -> None:
    """Every point fits its budget, times and bounds never rise with the budget, the last is the base peak."""
    for point in points:
        assert point.schedule is not None and point.solved
        check = hr.validate(graph, point.schedule, budget=point.budget)
        assert (check.peak, check.time) == (point.peak, point.time)
        assert point.lower_bound is not None and point.time is not None
        assert point.lower_bound <= point.time + 1e-9 * point.base_time
    budgets = [point.budget for point in points]
    times = [point.time or 0.0 for point in points]
    bounds = [point.lower_bound or 0.0 for point in points]
    assert budgets == sorted(set(budgets)) and budgets[-1] == hr.base_peak(graph)
    assert times == sorted(times, reverse=True) and bounds == sorted(bounds, reverse=True)
    assert points[-1].overhead == 0 and points[-1].status is hr.Status.OPTIMAL


# -- min_budget -----------------------------------------------------------------------------------


def test_the_smallest_budget_lies_between_bound_and_base_peak_and_is_met() -> None:
    for seed in range(4):
        graph = random_graph(seed)
        found = min_budget(graph)
        assert found.lower_bound == hr.memory_lower_bound(graph).bytes
        assert found.lower_bound <= found.budget <= found.base_peak == hr.base_peak(graph)
        assert hr.validate(graph, found.schedule).peak == found.budget


def test_where_the_bound_is_met_the_budget_is_proved() -> None:
    found = min_budget(training())
    assert (found.budget, found.lower_bound, found.optimal) == (30, 30, True)
    assert "the smallest possible: what op" in str(found)


def test_a_method_that_finds_nothing_leaves_the_base_peak() -> None:
    found = min_budget(training(), "none")
    assert (found.budget, found.optimal) == (50, False)
    assert str(found).startswith("50 B (100.0% of the base peak) found; none below 30 B")


def test_the_search_halves_until_it_is_precise_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that meets budgets of 41 and more: the answer is 41, asked for at ever closer budgets."""
    asked: list[int] = []

    def stubborn(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        asked.append(budget)
        return finish(graph, budget, run, "stubborn", RERUN_F0 if budget >= 41 else None)

    register(monkeypatch, "stubborn", stubborn)
    found = min_budget(training(), "stubborn", precision=0.02)
    assert found.budget == 40  # what was found at 41 or above has this peak
    assert asked[0] == 30 and all(30 <= budget < 50 for budget in asked) and len(asked) <= 6


def test_the_next_method_is_asked_where_the_first_finds_nothing() -> None:
    assert min_budget(training(), ["none", "beam"]).budget == 30


@pytest.mark.parametrize("arguments", [{"precision": 0}, {"method": "no such"}, {"method": ()}, {"seed": -1},
                                       {"n_jobs": 0}, {"time_limit": -1}])  # fmt: skip
def test_bad_arguments_of_min_budget_are_errors(arguments: dict[str, Any]) -> None:
    with pytest.raises(hr.MethodError):
        min_budget(training(), **arguments)


# -- frontier -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["beam", "cut", "chen-sqrt"])
def test_points_are_valid_and_monotone(method: str) -> None:
    graph = hr.generate("chain", 40)
    found = frontier(graph, 6, method=method, time_limit=1)
    checked(graph, found.points)
    assert len(found.points) == 6
    assert found.points[0].budget == found.min_budget.budget
    assert {point.method for point in found.points} == {method}


def test_points_are_monotone_on_random_graphs() -> None:
    for seed in range(4):
        graph = random_graph(seed)
        checked(graph, frontier(graph, 5, method="greedy").points)


def test_the_exact_frontier_of_a_small_chain_is_proved() -> None:
    found = frontier(training(), 3, method="exact")
    assert [point.budget for point in found.points] == [30, 40, 50]
    assert [point.time for point in found.points[1:]] == [9.0, 8.0]
    assert all(point.status is hr.Status.OPTIMAL for point in found.points)


def test_a_method_that_is_lucky_at_one_budget_serves_all_that_it_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It finds the best schedule only at 45 bytes; that has a peak of 40."""

    def lucky(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        return finish(graph, budget, run, "lucky", RERUN_F0 if budget == 45 else None)

    register(monkeypatch, "lucky", lucky)
    found = frontier(training(), 3, method="lucky", smallest=40)
    assert [(point.budget, point.time) for point in found.points] == [(40, 9.0), (45, 9.0), (50, 8.0)]
    assert found.points[0].status is hr.Status.OPTIMAL  # by the bound


def test_a_graph_that_cannot_do_better_has_one_point() -> None:
    graph = hr.Graph.from_ops([hr.Op("a", 1.0, (), (("x", 8),)), hr.Op("b", 1.0, ("x",), (("y", 4),))])
    (point,) = frontier(graph, 5, method="beam").points
    assert (point.budget, point.time) == (12, 2.0)


def test_it_may_begin_higher_but_not_below_what_is_known() -> None:
    assert frontier(training(), 2, method="beam", smallest="90%").points[0].budget == 45
    assert frontier(training(), 2, method="beam", smallest=3).points[0].budget == 30


@pytest.mark.parametrize(
    "arguments",
    [{"n": 1}, {"n": True}, {"method": "none"}, {"method": "no such"}, {"depth": 3}, {"polish": -1},
     {"seed": -1}, {"time_limit": "long"}],
)  # fmt: skip
def test_bad_arguments_are_errors_before_anything_runs(arguments: dict[str, Any]) -> None:
    told: list[str] = []
    with pytest.raises(hr.MethodError):
        frontier(training(), **{"method": "beam", **arguments}, progress=told.append)
    assert told == []


def test_a_budget_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(hr.BudgetError):
        frontier(training(), smallest="much")


def test_ctrl_c_keeps_the_points_so_far_and_fills_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        if budget >= 42:
            raise KeyboardInterrupt
        return finish(graph, budget, run, "stopped", RERUN_F0)

    register(monkeypatch, "stopped", stopped)
    found = frontier(training(), 4, method="stopped", smallest=40)
    assert found.interrupted
    checked(training(), found.points)
    assert [point.time for point in found.points] == [9.0, 9.0, 9.0, 8.0]


def test_equal_arguments_give_equal_points() -> None:
    def points() -> list[dict[str, Any]]:
        rows = frontier(hr.generate("chain", 30), 4, method="beam", seed=1).to_dict()["points"]
        return [{k: v for k, v in row.items() if k not in ("wall_time", "stats")} for row in rows]

    assert points() == points()


# -- tables ---------------------------------------------------------------------------------------


def test_points_have_the_keys_of_solve() -> None:
    found = frontier(training(), 3, method="beam")
    document = json.loads(found.to_json())
    assert list(document) == ["points"] and len(document["points"]) == 3
    for point in document["points"]:
        assert list(point) == list(hr.solve(training(), 40, "beam").to_dict())


def test_tables_have_a_row_for_each_point() -> None:
    found = frontier(training(), 3, method="beam")
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [int(row["budget"]) for row in rows] == [30, 40, 50] and "stats" not in rows[0]
    text = found.to_markdown()
    assert "| 40 B   | 80.0%        | 40 B " in text and "12.500 opt" in text
    assert text.startswith("**training**: 8 ops, beam, seed 0\n")
    assert text.endswith("Smallest budget: 30 B (60.0% of the base peak), the smallest possible: "
                         f"what {found.min_budget.need}.\n")  # fmt: skip
    assert str(found) == text.rstrip("\n")
