"""`compare`: every planned cell has its row, whatever a method does, and the tables say what happened."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from small_training import RERUN_F0, RERUN_F1, Params, Solve, register, training

import hremate as hr
from hremate.compare import EXACT_OPS
from hremate.solvers import registry
from hremate.solvers.base import Run, finish


def good(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
    run.stats.counts["width"] = params.width
    return finish(graph, budget, run, "good", RERUN_F0)


def worse(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
    return finish(graph, budget, run, "worse", RERUN_F1)


def raises(error: BaseException) -> Solve:
    def solve(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        raise error

    return solve


def cut_short(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
    run.stats.interrupted = True
    return finish(graph, budget, run, "cut-short", RERUN_F0)


METHODS: dict[str, Solve] = {
    "good": good,
    "worse": worse,
    "chains": raises(hr.MethodError("chains takes chains only")),
    "extra": raises(hr.MissingExtraError("needs pip install extra")),
    "broken": raises(hr.SolverError("nothing usable")),
    "buggy": raises(ZeroDivisionError("division | by\nzero")),
    "ctrl-c": raises(KeyboardInterrupt()),
    "cut-short": cut_short,
}


@pytest.fixture(autouse=True)
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers `METHODS`, whose schedules are passed on as they are."""
    monkeypatch.setattr("hremate._answers.repair", lambda graph, schedule, budget: schedule.order)
    for name, solve in METHODS.items():
        register(monkeypatch, name, solve)


def cells(comparison: hr.Comparison, graph: int = 0) -> list[list[str]]:
    """The words of the cells of one Markdown table, header first, rule left out."""
    tables: list[list[list[str]]] = []
    for line in comparison.to_markdown().splitlines():
        if line.startswith("| method"):
            tables.append([])
        if line.startswith("|") and not line.startswith("|-"):
            tables[-1].append([cell.strip() for cell in line.strip("|").split(" | ")])
    return tables[graph]


# -- rows -----------------------------------------------------------------------------------------


def test_there_is_a_row_for_each_cell_by_graph_then_budget_then_method() -> None:
    graphs = [training("one"), training("two")]
    rows = hr.compare(graphs, [40, "90%"], ["worse", "good"]).rows
    assert [(row.graph, row.budget, row.method) for row in rows] == [
        (graph, budget, method)
        for graph in ("one", "two") for budget in (40, 45) for method in ("worse", "good")
    ]  # fmt: skip
    assert [row.status for row in rows] == [hr.Status.FEASIBLE, hr.Status.OPTIMAL] * 4


def test_one_graph_budget_and_method_need_no_lists() -> None:
    (row,) = hr.compare(training(), 40, "good", seed=3).rows
    assert isinstance(row, hr.Result)
    assert (row.budget, row.method, row.time, row.seed) == (40, "good", 9.0, 3)


@pytest.mark.parametrize(
    ("method", "status", "reason"),
    [
        ("chains", "refused", "chains takes chains only"),
        ("extra", "refused", "needs pip install extra"),
        ("broken", "failed", "SolverError: nothing usable"),
        ("buggy", "failed", "ZeroDivisionError: division | by\nzero"),
    ],
)
def test_a_refusal_or_failure_is_a_row_with_its_reason(method: str, status: str, reason: str) -> None:
    comparison = hr.compare(training(), 40, [method, "good"])
    row, after = comparison.rows
    assert isinstance(row, hr.Unanswered) and not row.solved
    assert (row.graph, row.method, row.status, row.reason) == ("training", method, status, reason)
    assert (row.budget, row.base_peak, row.memory_lower_bound, row.ops) == (40, 50, 30, 8)
    assert after.solved
    assert (comparison.failed, comparison.interrupted) == (status == "failed", False)


def test_all_rows_have_the_keys_of_solve_and_plain_values() -> None:
    solved = hr.solve(training(), 40, "good").to_dict()
    document = json.loads(hr.compare(training(), [29, 40], list(METHODS)[:6]).to_json())
    assert list(document) == ["rows"]
    assert len(document["rows"]) == 12
    for row in document["rows"]:
        assert list(row) == list(solved)
        assert list(row["stats"]) == list(solved["stats"])
    refused = document["rows"][8]
    assert (refused["status"], refused["peak"], refused["time"], refused["gap"]) == ("refused", *[None] * 3)


def test_infinity_becomes_null() -> None:
    comparison = hr.compare(training(), 40, "good")
    assert isinstance(comparison.rows[0], hr.Result)
    comparison.rows[0].stats.seconds["never"] = float("inf")
    assert comparison.to_dict()["rows"][0]["stats"]["seconds"]["never"] is None


def test_a_budget_below_the_working_set_asks_no_method() -> None:
    rows = hr.compare(training(), 29, ["buggy", "chains"]).rows
    assert [row.status for row in rows] == [hr.Status.INFEASIBLE] * 2


def test_a_method_that_overruns_its_limit_shows_the_time_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    def late(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        time.sleep(0.2)
        raise hr.SolverError("too late")

    monkeypatch.setattr(sys.modules["hremate_method_broken"], "solve", late)
    assert hr.compare(training(), 40, "broken", time_limit=0.01).rows[0].wall_time >= 0.2


# -- arguments ------------------------------------------------------------------------------------


def test_options_go_to_their_method_only() -> None:
    rows = hr.compare(training(), 40, ["good", "worse"], options={"good": {"width": 9}}).rows
    assert [row.to_dict()["stats"]["counts"].get("width") for row in rows] == [9, None]


def test_the_limit_of_each_graph_is_the_default_budget() -> None:
    rows = hr.compare([training(budget=40), training(budget="90%")], methods="good").rows
    assert [row.budget for row in rows] == [40, 45]


def test_graphs_may_be_paths(tmp_path: Path) -> None:
    hr.write_graph(training("filed"), tmp_path / "graph.json")
    for path in (tmp_path / "graph.json", str(tmp_path / "graph.json")):
        assert [row.graph for row in hr.compare([path, training()], 40, "good").rows] == ["filed", "training"]
    assert hr.compare(tmp_path / "graph.json", 40, "good").rows[0].graph == "filed"


def test_all_means_every_method_of_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: registry.METHODS[name] for name in ("none", "good", "chains")}
    for module in (registry, sys.modules["hremate.compare"]):
        monkeypatch.setattr(module, "METHODS", few)
    assert [row.method for row in hr.compare(training(), 40, "all").rows] == ["none", "good", "chains"]


def test_by_default_the_heuristics_run_and_exact_on_small_graphs() -> None:
    large = hr.generate("chain", 2 * EXACT_OPS)
    small, large_grid = hr.compare([training(), large], "100%").grids
    heuristics = [name for name, method in registry.METHODS.items() if not method.exact]
    assert [name for name in small.methods if name != "exact"] == heuristics
    assert "exact" in small.methods
    assert list(large_grid.methods) == heuristics


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"methods": ["buggy", "no such"]}, hr.MethodError),
        ({"methods": []}, hr.MethodError),
        ({"budgets": []}, hr.MethodError),
        ({"graphs": []}, hr.MethodError),
        ({"budgets": [40, "much"]}, hr.BudgetError),
        ({"budgets": 0.5}, hr.BudgetError),
        ({"budgets": None}, hr.BudgetError),
        ({"graphs": "no such file"}, hr.FormatError),
        ({"seed": -1}, hr.MethodError),
        ({"n_jobs": 0}, hr.MethodError),
        ({"time_limit": -1}, hr.MethodError),
        ({"options": {"buggy": {"width": 0}}}, hr.MethodError),
        ({"options": {"buggy": {"depth": 1}}}, hr.MethodError),
        ({"options": {"good": {"width": 1}}}, hr.MethodError),
        ({"options": {"no such": {}}}, hr.MethodError),
    ],
)
def test_bad_arguments_are_errors_before_anything_runs(arguments: dict[str, Any], error: Any) -> None:
    told: list[str] = []
    defaults: dict[str, Any] = {"graphs": training(), "budgets": 40, "methods": "buggy"}
    with pytest.raises(error):
        hr.compare(**{**defaults, **arguments}, progress=told.append)
    assert told == []


def test_each_cell_is_told() -> None:
    told: list[str] = []
    hr.compare(training(), "80%", ["good", "chains"], progress=told.append)
    assert told[0].startswith("1/2 training at 80% (40 B): good, optimal, overhead 12.500%, ")
    assert told[1].startswith("2/2 training at 80% (40 B): chains, refused (chains takes chains only), ")


# -- interrupts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "status"), [("ctrl-c", "interrupted"), ("cut-short", "optimal")])
def test_ctrl_c_keeps_the_rows_and_marks_the_one_it_hit(method: str, status: str) -> None:
    comparison = hr.compare(training(), [45, 40], ["good", method, "worse"])
    assert comparison.interrupted and not comparison.failed
    assert [row.method for row in comparison.rows] == ["good", method]
    last = comparison.rows[-1].to_dict()
    assert last["status"] == status
    table = {row[0]: row[1:] for row in cells(comparison)}
    assert "interrupted" in table[method][0]
    assert (table["good"][1], table[method][1], table["worse"]) == ("-", "-", ["-", "-"])
    assert table["*lower bound*"][1] == "-"


def test_ctrl_c_between_two_cells_keeps_the_rows() -> None:
    def tell(message: str) -> None:
        if message.startswith("2/"):
            raise KeyboardInterrupt

    comparison = hr.compare(training(), 40, ["good", "worse", "chains"], progress=tell)
    assert (len(comparison.rows), comparison.interrupted) == (2, True)


# -- tables ---------------------------------------------------------------------------------------


def test_markdown_has_a_table_per_graph_with_methods_as_rows_and_budgets_as_columns() -> None:
    comparison = hr.compare([training("one"), training("two")], ["80%", 29], ["worse", "good", "none"])
    for k in range(2):
        table = cells(comparison, k)
        assert table[0] == ["method", "80% (40 B)", "29 B"]
        assert [row[0] for row in table[1:]] == ["worse", "good", "none", "*lower bound*"]
        assert all(len(row) == 3 for row in table)
        assert table[1][1].startswith("25.000, ")
        assert table[2][1].startswith("**12.500** opt, ")
        assert table[3][1].startswith("not met: peak 100.0%, ")
        assert table[4][1:] == ["12.500", "infeasible"]
        assert all(row[2].startswith("infeasible [1]") for row in table[1:4])
    text = comparison.to_markdown()
    assert "**one**: 8 ops, base peak 50 B, base time 8" in text and "**two**" in text
    assert text.count("needs by itself") == 2  # one note per graph, not per cell
    assert str(comparison) == text.rstrip("\n")


def test_notes_hold_the_reasons_on_one_line_each() -> None:
    comparison = hr.compare(training(), [40, 45], ["chains", "buggy"])
    _, refused, failed, _ = cells(comparison)
    assert refused[1:] == ["refused [1]", "refused [1]"]
    assert all(text.startswith("failed [2], ") and text.endswith(" s") for text in failed[1:])
    text = comparison.to_markdown()
    assert "- [1] chains takes chains only\n- [2] ZeroDivisionError: division | by zero\n" in text


def test_what_one_method_proves_is_marked_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def proves(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        return finish(
            graph, budget, run, "worse", RERUN_F1, status=hr.Status.OPTIMAL, proof="staged",
            order_lower_bound=10.0, lower_bound=9.0,
        )  # fmt: skip

    monkeypatch.setattr(sys.modules["hremate_method_worse"], "solve", proves)
    table = cells(hr.compare(training(), 40, ["worse", "good"]))
    assert table[1][1].startswith("25.000 staged, ")
    assert table[2][1].startswith("**12.500** opt, ")


def test_csv_parses_back_into_the_rows() -> None:
    comparison = hr.compare(training(), [40, 45], ["good", "buggy", "none"])
    rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    for row, document in zip(rows, comparison.to_dict()["rows"], strict=True):
        assert list(row) == [key for key in document if key != "stats"]
        for key, text in row.items():
            value = document[key]
            assert text == ("" if value is None else str(value))
            if isinstance(value, float):
                assert float(text) == value


def test_a_graph_without_time_or_bytes_has_a_table_too() -> None:
    graph = hr.Graph.from_ops([hr.Op("a", 0.0, (), (("x", 0),))], name="two\nlines")
    comparison = hr.compare(graph, 0, "none")
    _, none, bound = cells(comparison)
    assert none[1].startswith("**0.000** opt, ") and bound == ["*lower bound*", "0.000"]
    assert comparison.to_markdown().startswith("**two lines**")


def test_equal_arguments_give_equal_rows() -> None:
    def rows() -> list[dict[str, Any]]:
        found = hr.compare(training(), ["80%", "70%"], ["good", "beam", "rotor", "chains"]).to_dict()["rows"]
        return [{k: v for k, v in row.items() if k not in ("wall_time", "stats")} for row in found]

    assert rows() == rows()
