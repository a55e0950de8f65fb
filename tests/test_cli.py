"""The command line: exit codes, what goes to stdout and stderr, and files that are written or not."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import hremate as hr
from hremate.cli import main

ROOT = Path(__file__).resolve().parents[1]
KEYS = [
    "graph", "method", "status", "budget", "base_peak", "peak", "time", "base_time", "overhead",
    "lower_bound", "order_lower_bound", "proof", "memory_lower_bound", "gap", "wall_time", "ops", "steps",
    "recomputes", "seed",
]  # fmt: skip
HUAWEI = "Z 35\n0 A 0 0 10 1\n7 B 1 0 0 10 2\n3 Z 2 0 7 0 10 3\n4 dead 1 3 0 1 1\n"

#: A process in which the method "slow" finds one schedule and then works until it is interrupted.
SLOW = """
import sys, time, types
import numpy as np
from dataclasses import dataclass
from hremate.cli import main
from hremate.schedule import Schedule
from hremate.solvers import registry
from hremate.solvers.base import finish

@dataclass(frozen=True)
class Params:
    mode: str = "return"
    width: int = 1
    rate: float = 0.5
    deep: bool = False
    limit: int | None = 3

def solve(graph, budget, run, params):
    order = np.array([*range(graph.n_ops - 1), 0, graph.n_ops - 1])
    if params.mode == "show":
        run.progress(repr(params))
        return finish(graph, budget, run, "slow", order)
    if params.mode != "nothing" and run.callback is not None:
        run.callback(Schedule(order), 40, 9.0)
    print("working", file=sys.stderr, flush=True)
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        if params.mode != "return":
            raise
    run.stats.interrupted = True
    return finish(graph, budget, run, "slow", order)

module = types.ModuleType("hremate_slow_method")
module.Params, module.solve = Params, solve
sys.modules[module.__name__] = module
registry.METHODS["slow"] = registry.Method("slow", module.__name__, "for tests", False, "any graph", "-")
sys.exit(main(sys.argv[1:]))
"""


def training() -> hr.Graph:
    """Base peak 50, largest working set 30; dropping x0 and running f0 twice reaches 40."""
    ops = [hr.Op("f0", 1.0, (), (("x0", 10),), phase="forward", type="linear")]
    ops += [hr.Op(f"f{i}", 1.0, (f"x{i - 1}",), ((f"x{i}", 10),), phase="forward") for i in (1, 2, 3)]
    ops += [hr.Op("b3", 1.0, ("x3",), (("g3", 10),), phase="loss")]
    for i in (2, 1, 0):
        ops.append(hr.Op(f"b{i}", 1.0, (f"x{i}", f"g{i + 1}"), ((f"g{i}", 10),), phase="backward"))
    return hr.Graph.from_ops(ops, name="training")


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    hr.write_graph(training(), tmp_path / "graph.json")
    return str(tmp_path / "graph.json")


@pytest.fixture
def huawei_file(tmp_path: Path) -> str:
    (tmp_path / "case.txt").write_text(HUAWEI)
    return str(tmp_path / "case.txt")


def one_object(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    document = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert isinstance(document, dict)
    return document


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def slow(*arguments: str, send: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line with the method "slow", and interrupt it once it works."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
    )  # fmt: skip
    before = ""
    if send is not None:
        assert process.stderr is not None
        while "working" not in before:
            line = process.stderr.readline()
            assert line, before
            before += line
        time.sleep(0.1)  # into the sleep
        process.send_signal(send)
    out, err = process.communicate(timeout=60)
    return subprocess.CompletedProcess(process.args, process.returncode, out, before + err)


# -- solve ----------------------------------------------------------------------------------------


def test_solve_prints_peak_budget_overhead_and_time_per_phase(graph_file: str, capsys: Any) -> None:
    assert main(["solve", graph_file, "--budget", "100%", "--method", "none"]) == 0
    out = capsys.readouterr().out
    for words in ("training: none, optimal (any-order)", "100.0% of the budget", "overhead   0.000%",
                  "forward", "loss", "backward", "recomputed 0 of 8 steps"):  # fmt: skip
        assert words in out


def test_solve_shows_what_is_recomputed(graph_file: str) -> None:
    done = slow("solve", graph_file, "--budget", "40", "--method", "slow", "--option", "mode=show")
    assert done.returncode == 0, done.stderr
    assert "recomputed 1 of 9 steps" in done.stdout
    assert "most recomputed op type" in done.stdout and "linear" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["forward", "4", "4", "1", "1", "12.50%"] in rows
    assert ["backward", "3", "3", "0", "0", "0.00%"] in rows


def test_json_is_one_object_with_the_promised_keys(graph_file: str, capsys: Any) -> None:
    assert main(["solve", graph_file, "--budget", "50", "--method", "none", "--json", "--seed", "3"]) == 0
    document = one_object(capsys.readouterr().out)
    assert set(KEYS) <= set(document)
    assert (document["status"], document["peak"], document["seed"]) == ("optimal", 50, 3)
    assert document["order_lower_bound"] is None
    assert isinstance(document["overhead"], float) and isinstance(document["budget"], int)


def test_infeasible_and_not_found_exit_with_1_and_write_no_schedule(
    graph_file: str, tmp_path: Path, capsys: Any
) -> None:
    target = tmp_path / "s.json"
    for budget, status in (("29", "infeasible"), ("30", "no_solution")):
        words = ["solve", graph_file, "--budget", budget, "--method", "none", "--json"]
        code = main([*words, "-o", str(target)])
        captured = capsys.readouterr()
        assert (code, one_object(captured.out)["status"]) == (1, status)
        assert "is not written" in captured.err
        assert not target.exists()
    main(["solve", graph_file, "--budget", "29", "--method", "none"])
    assert "op 'b2' needs by itself" in capsys.readouterr().out


def test_the_schedule_written_by_solve_is_valid(graph_file: str, tmp_path: Path, capsys: Any) -> None:
    target = str(tmp_path / "s.json.gz")
    assert main(["solve", graph_file, "--budget", "50B", "--method", "none", "-o", target]) == 0
    file = hr.read_schedule(target)
    assert (file.graph, file.graph_sha256, file.budget, file.peak) == ("training", training().sha256, 50, 50)
    capsys.readouterr()
    assert main(["validate", graph_file, target]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("valid within the budget of 50 B") and captured.err == ""


def test_a_huawei_file_brings_its_budget(huawei_file: str, capsys: Any) -> None:
    assert main(["solve", huawei_file, "--method", "none", "--json"]) == 0
    captured = capsys.readouterr()
    document = one_object(captured.out)
    assert (document["budget"], document["ops"], document["base_peak"]) == (35, 3, 30)
    assert "dropped 1 of 4 ops" in captured.err
    main(["solve", huawei_file, "--method", "none", "--json", "--keep-all", "--memory-model", "reuse"])
    document = one_object(capsys.readouterr().out)
    assert (document["ops"], document["base_peak"]) == (4, 20)


def test_options_are_typed_by_the_parameters_of_the_method(graph_file: str) -> None:
    words = ["solve", graph_file, "--budget", "40", "--method", "slow", "--verbose", "--option", "mode=show"]
    settings = ["width=7", "rate=2", "deep=yes", "limit=none"]
    done = slow(*words, *[word for setting in settings for word in ("--option", setting)])
    assert "Params(mode='show', width=7, rate=2.0, deep=True, limit=None)" in done.stderr
    for option, complaint in (
        ("width=x", "cannot read 'x' as int"), ("color=red", "no option 'color'"), ("width", "KEY=VALUE"),
    ):  # fmt: skip
        done = slow(*words, "--option", option)
        assert done.returncode == 2
        assert complaint in done.stderr and "Traceback" not in done.stderr


def test_progress_is_silent_unless_asked_for(graph_file: str) -> None:
    done = slow("solve", graph_file, "--budget", "40", "--method", "slow", "--option", "mode=show")
    assert done.stderr == ""


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("mode", ["return", "escape"])
def test_an_interrupt_writes_the_best_schedule_and_exits_with_130(
    graph_file: str, tmp_path: Path, signal_number: int, mode: str
) -> None:
    target = tmp_path / "s.json"
    done = slow(
        "solve", graph_file, "--budget", "40", "--method", "slow", "--option", f"mode={mode}", "--json",
        "-o", str(target), send=signal_number,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    document = one_object(done.stdout)
    assert document["status"] in ("feasible", "optimal")
    assert (document["peak"], document["stats"]["interrupted"]) == (40, True)
    assert hr.validate(training(), hr.read_schedule(target).schedule, 40).recomputes == 1
    assert "interrupted" in done.stderr and "Traceback" not in done.stderr


def test_an_interrupt_before_any_schedule_exits_with_130(graph_file: str, tmp_path: Path) -> None:
    target = tmp_path / "s.json"
    done = slow(
        "solve", graph_file, "--budget", "40", "--method", "slow", "--option", "mode=nothing",
        "-o", str(target), send=signal.SIGINT,
    )  # fmt: skip
    assert (done.returncode, done.stdout, target.exists()) == (130, "", False)
    assert "Traceback" not in done.stderr


# -- compare --------------------------------------------------------------------------------------


def compared(*words: str) -> list[str]:
    return ["compare", *words, "--budgets", "100%, 60%", "--methods", "none,greedy", "--time-limit", "10"]


def test_compare_prints_a_table_per_graph(graph_file: str, capsys: Any) -> None:
    assert main(compared(graph_file, graph_file)) == 0
    captured = capsys.readouterr()
    assert captured.out.count("| method ") == 2 and captured.err == ""
    assert "| 100% (50 B)" in captured.out and "at most 10 s each" in captured.out
    assert main([*compared(graph_file), "--markdown", "--verbose"]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("| method ") == 1
    assert "4/4 training at 60% (30 B): greedy, " in captured.err


def test_compare_as_json_is_one_object_with_the_keys_of_solve(graph_file: str, capsys: Any) -> None:
    assert main([*compared(graph_file), "--json", "--seed", "3"]) == 0
    rows = one_object(capsys.readouterr().out)["rows"]
    main(["solve", graph_file, "--budget", "60%", "--method", "none", "--json"])
    solved = one_object(capsys.readouterr().out)
    assert [(row["budget"], row["method"]) for row in rows] == [
        (50, "none"), (50, "greedy"), (30, "none"), (30, "greedy"),
    ]  # fmt: skip
    assert all(list(row) == list(solved) and row["seed"] == 3 for row in rows)


def test_compare_writes_the_format_that_the_file_name_asks_for(
    graph_file: str, tmp_path: Path, capsys: Any
) -> None:
    for name, start in (("t.csv", "graph,method,"), ("t.json", '{"rows": ['), ("t.md", "**training**")):
        assert main([*compared(graph_file), "-o", str(tmp_path / name)]) == 0
        assert (tmp_path / name).read_text().startswith(start)
        assert capsys.readouterr().out.startswith("**training**")
    assert main([*compared(graph_file), "--csv", "-o", str(tmp_path / "table")]) == 0
    out = capsys.readouterr().out
    assert out == (tmp_path / "table").read_text() and out.startswith("graph,method,")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no file that is always full")
def test_results_are_printed_even_if_the_file_cannot_be_written(graph_file: str, capsys: Any) -> None:
    assert main([*compared(graph_file), "-o", "/dev/full"]) == 2
    captured = capsys.readouterr()
    assert "| method " in captured.out and "No space left" in captured.err
    assert main(["solve", graph_file, "--budget", "100%", "--method", "none", "-o", "/dev/full"]) == 2
    captured = capsys.readouterr()
    assert "overhead" in captured.out and "No space left" in captured.err


def test_a_folder_that_is_missing_is_told_before_the_work(
    graph_file: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.setattr(importlib.import_module("hremate.solve"), "solve", None)  # must not be reached
    target = tmp_path / "no" / "s.json"
    assert main(["solve", graph_file, "--budget", "40", "-o", str(target)]) == 2
    assert str(target) in capsys.readouterr().err


def test_compare_takes_refusals_as_answers_and_failures_not(
    graph_file: str, monkeypatch: Any, capsys: Any
) -> None:
    from hremate.solvers import branch_and_bound, greedy

    words = ["compare", graph_file, "--budgets", "40", "--methods", "none,greedy,branch-and-bound"]

    def raises(error: Exception) -> Any:
        def solve(*_: Any) -> None:
            raise error

        return solve

    monkeypatch.setattr(branch_and_bound, "solve", raises(hr.MethodError("too large")))
    assert main(words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(greedy, "solve", raises(RuntimeError("broken")))
    assert main(words) == 1
    captured = capsys.readouterr()
    assert "failed" in captured.err and "RuntimeError: broken" in captured.out


def test_compare_refuses_bad_input_with_2(graph_file: str, tmp_path: Path, capsys: Any) -> None:
    for words in (
        [graph_file, "--budgets", "much"], [graph_file, "--budgets", "40", "--methods", "no such"],
        [graph_file], [str(tmp_path / "none.json"), "--budgets", "40"], [graph_file, "--budgets", ","],
    ):  # fmt: skip
        assert main(["compare", *words]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and "error: " in captured.err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", graph_file, "--budgets", "40", "--json", "--csv"])


def test_compare_reads_a_huawei_file_with_its_limit_and_flags(huawei_file: str, capsys: Any) -> None:
    words = ["compare", huawei_file, "--methods", "none", "--json", "--keep-all", "--memory-model", "reuse"]
    assert main(words) == 0
    (row,) = one_object(capsys.readouterr().out)["rows"]
    assert (row["budget"], row["ops"], row["base_peak"]) == (35, 4, 20)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_compare_prints_what_it_has_and_exits_with_130(
    graph_file: str, signal_number: int
) -> None:
    done = slow(
        "compare", graph_file, "--budgets", "40", "--methods", "none,slow,greedy", "--json",
        send=signal_number,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    none, last = one_object(done.stdout)["rows"]
    assert (none["method"], none["stats"]["interrupted"]) == ("none", False)
    assert (last["method"], last["stats"]["interrupted"]) == ("slow", True)
    assert "interrupted" in done.stderr and "Traceback" not in done.stderr


# -- validate, info, generate, convert, methods -----------------------------------------------------


def test_validate_says_what_is_wrong_and_exits_with_1(graph_file: str, tmp_path: Path, capsys: Any) -> None:
    schedule = tmp_path / "s.json"
    schedule.write_text(json.dumps({"format": "hremate-schedule/1", "order": [0, 1, 2, 3, 4, 5, 6]}))
    assert main(["validate", graph_file, str(schedule)]) == 1
    assert "not valid: op 'b0' never runs" in capsys.readouterr().out
    schedule.write_text(json.dumps({"format": "hremate-schedule/1", "order": [0, 1, 2, 3, 4, 5, 6, 0, 7]}))
    for budget, code in (("39", 1), ("40", 0), ("80%", 0), ("70%", 1)):
        assert main(["validate", graph_file, str(schedule), "--budget", budget]) == code
    assert main(["validate", graph_file, str(schedule)]) == 0
    assert "overhead 12.500%, 1 of 9 steps recompute" in capsys.readouterr().out


def test_validate_warns_when_graph_or_header_differ(graph_file: str, tmp_path: Path, capsys: Any) -> None:
    schedule = tmp_path / "s.json"
    header = {
        "format": "hremate-schedule/1", "graph": "other", "graph_sha256": "0" * 64, "peak": 3, "time": 8.0,
    }  # fmt: skip
    schedule.write_text(json.dumps({**header, "order": list(range(8))}))
    assert main(["validate", graph_file, str(schedule)]) == 0
    err = capsys.readouterr().err
    assert "another graph" in err and "says peak 3, it is 50" in err and "time" not in err


def test_validate_holds_a_schedule_to_the_budget_it_was_written_for(
    graph_file: str, tmp_path: Path, capsys: Any
) -> None:
    schedule = tmp_path / "s.json"
    schedule.write_text(json.dumps({"format": "hremate-schedule/1", "budget": 49, "order": list(range(8))}))
    assert main(["validate", graph_file, str(schedule)]) == 1
    assert "1 above the budget of 49 bytes" in capsys.readouterr().out


def test_info_describes_the_graph(graph_file: str, huawei_file: str, capsys: Any) -> None:
    assert main(["info", graph_file, "--json"]) == 0
    facts = one_object(capsys.readouterr().out)
    assert (facts["ops"], facts["tensors"], facts["base_peak"], facts["base_time"]) == (8, 8, 50, 8.0)
    assert (facts["memory_lower_bound"], facts["memory_lower_bound_op"]) == (30, "b2")
    assert facts["phases"] == {"forward": 4, "loss": 1, "backward": 3}
    assert main(["info", graph_file]) == 0
    assert "what op 'b2' needs by itself" in capsys.readouterr().out
    assert main(["info", huawei_file]) == 0
    out = capsys.readouterr().out
    assert "35 B (35 bytes), from the file" in out and "no phase" in out


def test_info_survives_a_budget_field_that_means_nothing(tmp_path: Path, capsys: Any) -> None:
    graph = hr.Graph.from_ops([hr.Op("a", 0.0)], name="half\ud800", metadata={"budget": ["?"]})
    hr.write_graph(graph, tmp_path / "g.json")
    assert main(["info", str(tmp_path / "g.json")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("half\\ud800\n") and "from the file" not in out


def test_convert_writes_the_effective_graph(huawei_file: str, tmp_path: Path, capsys: Any) -> None:
    target = str(tmp_path / "g.json.gz")
    assert main(["convert", huawei_file, target, "--memory-model", "reuse"]) == 0
    graph = hr.read_graph(target)
    assert (graph.n_ops, graph.memory_model, graph.metadata["budget"]) == (3, "reuse", 35)
    assert capsys.readouterr().out == ""


def test_generate_writes_equal_graphs_for_equal_seeds(tmp_path: Path, capsys: Any) -> None:
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        words = ["generate", "layered", "--ops", "40", "--seed", seed]
        assert main([*words, "-o", f"{tmp_path}/{name}.json"]) == 0
    a, b, c = ((tmp_path / f"{name}.json").read_bytes() for name in "abc")
    assert a == b != c
    assert hr.read_graph(tmp_path / "a.json").n_ops == 40
    assert main(["generate", "no-such-kind", "--ops", "40", "-o", f"{tmp_path}/d.json"]) == 2
    assert "layered" in capsys.readouterr().err  # the known kinds are listed


def test_methods_lists_every_method(capsys: Any) -> None:
    assert main(["methods"]) == 0
    assert "hierarchical" in capsys.readouterr().out
    assert main(["methods", "--json"]) == 0
    names = [m["name"] for m in one_object(capsys.readouterr().out)["methods"]]
    assert {"hierarchical", "none"} <= set(names)


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["solve", "GRAPH", "--budget", "lots", "--method", "none"],
        ["solve", "GRAPH", "--method", "none"],
        ["solve", "GRAPH", "--budget", "50%", "--method", "magic"],
        ["solve", "GRAPH", "--budget", "50%", "--method", "none", "--time-limit", "-1"],
        ["solve", "GRAPH", "--budget", "50%", "--method", "none", "--jobs", "0"],
        ["solve", "GRAPH", "--budget", "50%", "--method", "none", "--seed", "-1"],
        ["solve", "GRAPH", "--budget", "100%", "--method", "none", "-o", "/no/such/folder/s.json"],
        ["solve", "GRAPH", "--budget", "100%", "--method", "none", "-o", "/"],
        ["solve", "/no/such/graph.json", "--budget", "50%"],
        ["info", "/"],
        ["validate", "GRAPH", "GRAPH"],
        ["validate", "GRAPH", "/no/such/schedule.json"],
        ["compare", "GRAPH", "--budgets", "50%", "--methods", "none", "-o", "/no/such/folder/t.csv"],
        ["convert", "GRAPH", "/no/such/folder/g.json"],
        ["generate", "layered", "--ops", "0", "-o", "/dev/null"],
        ["generate", "layered", "--ops", "10", "-o", "/no/such/folder/g.json"],
    ],
)
def test_bad_input_exits_with_2_and_one_line(graph_file: str, words: list[str], capsys: Any) -> None:
    assert main([graph_file if word == "GRAPH" else word for word in words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("hremate: error: ") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        [], ["solve"], ["compare"], ["frontier"], ["report"], ["capture"],
        ["solve", "g.json", "--polish", "soon"], ["info", "g", "-o", "f"],
        ["info", "g.json", "--memory-model", "other"], ["generate", "layered", "--ops", "ten", "-o", "f"],
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2(words: list[str], capsys: Any) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_a_reader_that_goes_away_is_no_error(graph_file: str) -> None:
    command = f"{sys.executable} -m hremate methods | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, env=environment(), cwd="/", check=True
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_error(graph_file: str, tmp_path: Path, closed: str) -> None:
    target = tmp_path / "s.json"
    solve = f"-m hremate solve {graph_file} --budget 100% --method none -o {target}"
    done = subprocess.run(["bash", "-c", f"{sys.executable} {solve} {closed}"], env=environment(), cwd="/")
    assert done.returncode == 0
    assert hr.read_schedule(target).peak == 50


def test_it_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hremate", "--version"],
        capture_output=True, text=True, env=environment(), cwd="/", check=True,
    )  # fmt: skip
    assert done.stdout == f"hremate {hr.__version__}\n"
