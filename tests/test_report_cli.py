"""The commands `frontier` and `report`: JSON with the keys of solve, files by their names, exit codes."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from small_training import RERUN_F0, Params, register, training

import hremate as hr
from hremate._report_cli import add_parsers
from hremate.cli import main
from hremate.solvers.base import Run, finish


def run(*arguments: object) -> int:
    """Parse and run one command, with parent parsers like those of the command line."""
    graph = argparse.ArgumentParser(add_help=False)
    graph.add_argument("graph")
    graph.add_argument("--memory-model")
    graph.add_argument("--keep-all", action="store_true")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", type=int, default=0)
    common.add_argument("--jobs", type=int, default=1)
    common.add_argument("--verbose", action="store_true")
    parser = argparse.ArgumentParser()
    add_parsers(parser.add_subparsers(required=True), graph, common)
    parsed = parser.parse_args([str(argument) for argument in arguments])
    code: int = parsed.run(parsed)
    return code


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    hr.write_graph(training(), tmp_path / "graph.json")
    return tmp_path / "graph.json"


def test_frontier_prints_points_with_the_keys_of_solve(
    graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("frontier", graph, "--points", 3, "--method", "beam", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["points"]
    assert [point["budget"] for point in document["points"]] == [30, 40, 50]
    assert list(document["points"][0]) == list(hr.solve(training(), 40, "beam").to_dict())


def test_frontier_prints_and_writes_tables(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = graph.with_name("f.csv")
    arguments = ["frontier", graph, "--points", 2, "--method", "beam", "--smallest", "80%"]
    assert run(*arguments, "-o", output, "--verbose") == 0
    told = capsys.readouterr()
    assert told.out.startswith("**training**: 8 ops, beam") and "2/2 50 B" in told.err
    assert output.read_text().count("\n") == 3
    assert run(*arguments, "--csv") == 0
    assert capsys.readouterr().out.splitlines()[1].split(",")[3] == "40"


def test_frontier_draws(graph: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'hremate[plot]'")
    picture = graph.with_name("f.png")
    assert run("frontier", graph, "--points", 2, "--method", "beam", "--plot", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_frontier_prints_what_is_known(
    graph: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        if budget > 40:
            raise KeyboardInterrupt
        return finish(graph, budget, run, "stopped", RERUN_F0)

    register(monkeypatch, "stopped", stopped)
    arguments: list[Any] = ["--points", 3, "--method", "stopped", "--smallest", 40, "--json"]
    assert run("frontier", graph, *arguments) == 130
    told = capsys.readouterr()
    assert len(json.loads(told.out)["points"]) == 3 and "interrupted" in told.err


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_a_target_that_cannot_be_written_is_told_before_the_work(graph: Path, option: str) -> None:
    with pytest.raises(OSError):
        run("frontier", graph, "--points", 2, "--method", "no such", option, graph.with_name("no") / "f.png")


def test_report_writes_a_page(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schedule, page = graph.with_name("s.json"), graph.with_name("r.html")
    hr.write_schedule(hr.Schedule(RERUN_F0), schedule, training(), budget=40, method="beam")
    assert run("report", graph, schedule, schedule, "-o", page, "--blocks", 2) == 0
    assert "beam, 40 B (2)" in page.read_text() and '"Block"' in page.read_text()
    told = capsys.readouterr()
    assert told.out == "" and "r.html: 2 schedules of training" in told.err


# -- the whole command line -----------------------------------------------------------------------


def test_solve_draws_and_traces_what_it_found(graph: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'hremate[plot]'")
    picture, trace = graph.with_name("p.svg"), graph.with_name("t.json.gz")
    arguments = ["solve", str(graph), "--method", "beam", "--plot", str(picture), "--trace", str(trace)]
    assert main([*arguments, "--budget", "40"]) == 0
    assert "<svg" in picture.read_text() and gzip.decompress(trace.read_bytes()).startswith(b'{"displayTime')
    picture.unlink()
    assert main([*arguments, "--budget", "20"]) == 1
    assert not picture.exists() and "p.svg is not written" in capsys.readouterr().err


def test_a_picture_that_cannot_be_drawn_is_told_before_the_work(
    graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["solve", str(graph)], ["compare", str(graph)], ["frontier", str(graph)]):
        assert main([*command, "--plot", str(graph.with_name("p.txt"))]) == 2
        assert capsys.readouterr().out == ""


def test_compare_takes_seeds_repetitions_and_a_file_to_go_on_from(
    graph: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = graph.with_name("partial.jsonl")
    arguments = ["compare", str(graph), "--budgets", "40", "--methods", "beam", "--seeds", "0,2",
                 "--repetitions", "2", "--resume", str(partial), "--json"]  # fmt: skip
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert [row["seed"] for row in document["rows"]] == [0, 0, 2, 2]
    assert document["summary"][0]["runs"] == 4
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == document
    assert main(["compare", str(graph), "--budgets", "40", "--seeds", "one"]) == 2
