"""`compare` with several runs of each cell, and what a killed comparison leaves for the next one."""

from __future__ import annotations

import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from small_training import RERUN_F0, RERUN_F1, Params, Solve, register, training

import hremate as hr
from hremate.solvers.base import Run, finish

CALLS: list[tuple[str, int, int]] = []


def by_seed(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
    """9, 10, nothing, 9, 10, nothing, ... by the seed."""
    CALLS.append((graph.name, budget, run.seed))
    return finish(graph, budget, run, "by-seed", [RERUN_F0, RERUN_F1, None][run.seed % 3])


def never(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
    CALLS.append((graph.name, budget, run.seed))
    return finish(graph, budget, run, "never", None)


def broken(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
    CALLS.append((graph.name, budget, run.seed))
    raise hr.SolverError("nothing usable")


@pytest.fixture(autouse=True)
def methods(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    solves: dict[str, Solve] = {"by-seed": by_seed, "never": never, "broken": broken}
    for name, solve in solves.items():
        register(monkeypatch, name, solve)


# -- seeds and repetitions ------------------------------------------------------------------------


def test_each_cell_has_a_row_for_each_seed_and_repetition() -> None:
    found = hr.compare(training(), [40, 45], ["by-seed", "never"], seeds=[1, 0], repetitions=2)
    assert [(row.budget, row.method, row.seed) for row in found.rows] == [
        (budget, method, seed)
        for budget in (40, 45) for method in ("by-seed", "never") for seed in (1, 1, 0, 0)
    ]  # fmt: skip
    assert [row.to_dict()["time"] for row in found.rows[:4]] == [10.0, 10.0, 9.0, 9.0]


def test_the_summary_has_medians_in_which_failures_are_infinitely_slow() -> None:
    found = hr.compare(training(), 40, ["by-seed", "never", "broken"], seeds=range(6))
    some, none, failed = found.summary()
    assert (some.method, some.budget, some.runs, some.solved) == ("by-seed", 40, 6, 4)
    # Overheads 1/8, 1/8, 2/8, 2/8, inf, inf.
    assert (some.overhead_median, some.overhead_min, some.overhead_max) == (0.25, 0.125, 0.25)
    assert (some.time_median, some.lower_bound) == (10.0, 9.0)
    for entry in (none, failed):
        assert (entry.runs, entry.solved, entry.overhead_median, entry.overhead_min) == (6, 0, None, None)
    assert failed.lower_bound is None and failed.wall_time_median >= 0


def test_half_of_the_runs_failing_leaves_no_median() -> None:
    (entry,) = hr.compare(training(), 40, "by-seed", seeds=[0, 2]).summary()
    assert (entry.solved, entry.time_median, entry.overhead_max) == (1, None, 0.125)


def test_the_summary_is_in_the_document_only_where_there_are_several_runs() -> None:
    assert list(hr.compare(training(), 40, "by-seed").to_dict()) == ["rows"]
    document = json.loads(hr.compare(training(), 40, "by-seed", seeds=[0, 1]).to_json())
    assert list(document) == ["rows", "summary"]
    assert document["summary"][0]["overhead_median"] == 0.1875


def test_the_table_shows_medians_with_best_and_worst() -> None:
    methods = ["by-seed", "never", "broken", "none"]
    text = hr.compare(training(), "80%", methods, seeds=range(3)).to_markdown()
    cells = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    rows = {method.strip(): cell.strip() for method, cell in cells}
    assert rows["by-seed"].startswith("**25.000** [12.500, 25.000] 2/3, ")
    assert rows["never"].startswith("not met: peak 100.0%, ") and rows["broken"].startswith("failed [1], ")
    assert rows["*lower bound*"] == "12.500"
    assert "seeds 0, 1, 2, 1 process" in text and "median of 3 runs" in text


def test_runs_that_agree_show_one_number() -> None:
    text = hr.compare(training(), 40, "by-seed", seeds=[0, 3], repetitions=2).to_markdown()
    assert "| **12.500** opt, 0.0 s |" in text and "seeds 0, 3 2 times" in text


@pytest.mark.parametrize(
    "arguments", [{"seeds": []}, {"seeds": [-1]}, {"seeds": [0.5]}, {"repetitions": 0}, {"repetitions": 1.5}]
)
def test_bad_seeds_and_repetitions_are_errors(arguments: dict[str, Any]) -> None:
    with pytest.raises(hr.MethodError):
        hr.compare(training(), 40, "by-seed", **arguments)
    assert CALLS == []


def test_after_ctrl_c_the_summary_has_what_is_there() -> None:
    def tell(message: str) -> None:
        if message.startswith("3/"):
            raise KeyboardInterrupt

    found = hr.compare(training(), 40, ["by-seed", "never"], seeds=[0, 1], progress=tell)
    assert (len(found.rows), found.interrupted) == (3, True)
    assert [(entry.method, entry.runs) for entry in found.summary()] == [("by-seed", 2), ("never", 1)]
    assert "by-seed" in found.to_markdown()


# -- DataFrame ------------------------------------------------------------------------------------


def test_a_dataframe_has_the_rows() -> None:
    pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    found = hr.compare(training(), [40, 45], ["by-seed", "broken"], seeds=[0, 1])
    frame = found.to_dataframe()
    rows = found.to_dict()["rows"]
    assert list(frame.columns) == [key for key in rows[0] if key != "stats"]
    assert frame["budget"].tolist() == [row["budget"] for row in rows]
    assert frame[frame.method == "by-seed"]["time"].tolist() == [9.0, 10.0, 9.0, 10.0]
    assert frame[frame.method == "broken"]["time"].isna().all()


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(hr.MissingExtraError, match="pip install pandas"):
        hr.compare(training(), 40, "by-seed").to_dataframe()


# -- resume ---------------------------------------------------------------------------------------


def resumed(path: Path, **arguments: Any) -> hr.Comparison:
    defaults: dict[str, Any] = {"budgets": [40, 45], "methods": ["by-seed", "never"], "seeds": [0, 1]}
    return hr.compare(training(), **{**defaults, **arguments}, resume=path)


def test_a_comparison_that_was_killed_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "partial.jsonl"

    def kill(message: str) -> None:
        if message.startswith("3/"):
            raise KeyboardInterrupt

    first = resumed(path, progress=kill)
    assert first.interrupted and len(CALLS) == 3
    CALLS.clear()
    told: list[str] = []
    second = resumed(path, progress=told.append)
    assert len(CALLS) == 5 and len(second.rows) == 8
    assert [message.endswith(", from the file") for message in told] == [True] * 3 + [False] * 5
    CALLS.clear()
    third = resumed(path)
    assert CALLS == [] and third.to_dict() == second.to_dict()
    assert [row.schedule for row in third.rows if isinstance(row, hr.Result)] == [
        row.schedule for row in second.rows if isinstance(row, hr.Result)
    ]


def test_a_last_line_cut_short_is_computed_again(tmp_path: Path) -> None:
    path = tmp_path / "partial.jsonl"
    whole = resumed(path)
    lines = path.read_bytes().splitlines(keepends=True)
    for cut in (1, len(lines[-1]) // 2, len(lines[-1]) - 1):
        CALLS.clear()
        path.write_bytes(b"".join(lines[:-1]) + lines[-1][:cut])
        again = resumed(path)
        assert len(CALLS) == 1 and len(path.read_bytes().splitlines()) == len(lines)
        assert [row.to_dict()["time"] for row in again.rows] == [row.to_dict()["time"] for row in whole.rows]


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "partial.jsonl"
    path.write_text("")
    resumed(path)
    assert json.loads(path.read_text().splitlines()[0]) == {"format": "hremate-comparison/1"}


@pytest.mark.parametrize(
    "changed",
    [{"budgets": [41, 46]}, {"seeds": [3, 4]}, {"time_limit": 30.0}, {"n_jobs": 2},
     {"options": {"by-seed": {"width": 9}, "never": {"width": 9}}}],
)  # fmt: skip
def test_cells_with_other_arguments_are_computed(changed: dict[str, Any], tmp_path: Path) -> None:
    resumed(tmp_path / "partial.jsonl")
    CALLS.clear()
    resumed(tmp_path / "partial.jsonl", **changed)
    assert len(CALLS) == 8
    CALLS.clear()
    resumed(tmp_path / "partial.jsonl")
    assert CALLS == []


def test_graphs_are_told_apart_by_content_not_by_name(tmp_path: Path) -> None:
    path = tmp_path / "partial.jsonl"
    hr.compare(training(), 35, "by-seed", resume=path)
    hr.compare(training().with_memory_model("reuse"), 35, "by-seed", resume=path)
    hr.compare(training(), 35, "by-seed", resume=path, repetitions=2)
    assert len(CALLS) == 3


def test_failures_and_interrupted_results_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        CALLS.append((graph.name, budget, run.seed))
        run.stats.interrupted = True
        return finish(graph, budget, run, "cut-short", RERUN_F1)

    register(monkeypatch, "cut-short", cut_short)
    for _ in range(2):
        hr.compare(training(), 40, ["broken", "cut-short"], resume=tmp_path / "partial.jsonl")
    assert len(CALLS) == 4


def test_the_bound_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "partial.jsonl"
    hr.compare(training(), 40, "by-seed", resume=path)
    monkeypatch.setattr(
        sys.modules["hremate.compare"], "time_lower_bound", lambda *_, **__: pytest.fail("computed again")
    )
    (row,) = hr.compare(training(), 40, "never", resume=path).rows
    assert row.to_dict()["lower_bound"] == 9.0


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda lines: ['{"format": "hremate-comparison/2"}', *lines[1:]], hr.VersionError, "line 1"),
        (lambda lines: ['{"format": "hremate-graph/1"}', *lines[1:]], hr.FormatError, "line 1"),
        (lambda lines: ["[]", *lines[1:]], hr.FormatError, "line 1"),
        (lambda lines: [lines[0], "{", *lines[1:]], hr.FormatError, "line 2: not JSON"),
        (lambda lines: [lines[0], '{"value": 1}', *lines[1:]], hr.FormatError, "line 2"),
        (lambda lines: [*lines[:-1], lines[-1].replace('"peak":40', '"peak":39')], hr.FormatError, "peak or"),
        (lambda lines: [*lines[:-1], lines[-1].replace("[0,1,2", "[2,1,0")], hr.FormatError, "InvalidSched"),
        (lambda lines: [*lines[:-1], lines[-1].replace('"method":"by-seed",', "")], None, ""),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it(
    change: Any, error: Any, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "partial.jsonl"
    hr.compare(training(), 40, "by-seed", resume=path)
    path.write_text("".join(line + "\n" for line in change(path.read_text().splitlines())))
    if error is None:  # a line whose key no longer matches is of another comparison
        hr.compare(training(), 40, "by-seed", resume=path)
        return
    with pytest.raises(error, match=f"partial.jsonl: .*{message}"):
        hr.compare(training(), 40, "by-seed", resume=path)


def test_a_file_that_cannot_be_made_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        hr.compare(training(), 40, "by-seed", resume=tmp_path / "no folder" / "partial.jsonl")
    assert CALLS == []


def test_a_disk_that_fills_up_costs_the_file_not_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import os

    path = tmp_path / "partial.jsonl"
    hr.compare(training(), 40, "by-seed", resume=path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level(logging.WARNING, "hremate"):
        found = resumed(path, budgets=[45])
    assert len(found.rows) == 4 and caplog.text.count("No space left") == 1
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_infinite_figures_survive_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def odd(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        run.stats.seconds["never"] = math.inf
        return finish(graph, budget, run, "odd", RERUN_F0)

    register(monkeypatch, "odd", odd)
    for _ in range(2):
        (row,) = hr.compare(training(), 40, "odd", resume=tmp_path / "p.jsonl").to_dict()["rows"]
        assert row["stats"]["seconds"]["never"] is None
