"""Claims about the examples: each runs as its first lines say, and does what they say."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hremate as hr

ROOT = Path(__file__).resolve().parent.parent
GRAPHS = ROOT / "examples" / "graphs"
#: What each example runs with here, so that it takes seconds, and the packages it needs.
CASES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "capture_huggingface": (
        ["--layers", "2", "--width", "64", "--batch", "1", "--length", "32", "-o", "out.json.gz"],
        ("torch", "transformers"),
    ),
    "follow": ([str(GRAPHS / "mlp-8.json.gz"), "--time-limit", "2", "-o", "out.json"], ()),
    "frontier": ([str(GRAPHS / "mlp-8.json.gz"), "--points", "3", "--time-limit", "2", "-o", "out.csv"], ()),
    "own_graph": ([], ()),
    "plot_memory": (
        [str(GRAPHS / "mlp-8.json.gz"), "--budget", "60%", "--method", "cut", "-o", "out.svg"],
        ("matplotlib",),
    ),
    "train_gpt": (
        ["--budget", "80%", "--layers", "2", "--width", "32", "--length", "32", "--steps", "2"],
        ("torch",),
    ),
}


def run(name: str, folder: Path) -> str:
    """Run an example in a folder; what it prints."""
    arguments, packages = CASES[name]
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_run_here() -> None:
    assert sorted(CASES) == sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", sorted(set(CASES) - {"follow", "frontier", "own_graph"}))
def test_the_example_runs(name: str, tmp_path: Path) -> None:
    assert run(name, tmp_path)


def test_a_graph_built_by_hand_needs_no_recomputation_at_its_base_peak_alone(tmp_path: Path) -> None:
    lines = run("own_graph", tmp_path).splitlines()
    budgets = [line for line in lines if " bytes: " in line]
    assert budgets[-1].endswith("optimal overhead   0.0%, 0 recomputed")
    assert all(not line.endswith(" 0 recomputed") for line in budgets[:-1])
    assert lines[-1].startswith("checked: Check(")


def test_the_frontier_is_printed_and_written_with_a_line_for_each_point(tmp_path: Path) -> None:
    assert "Smallest budget" in run("frontier", tmp_path)
    with (tmp_path / "out.csv").open(encoding="utf-8") as file:
        points = list(csv.DictReader(file))
    times = [float(point["time"]) for point in points]
    assert len(points) == 3 and times == sorted(times, reverse=True)


def test_a_solve_goes_on_from_the_schedule_that_it_kept(tmp_path: Path) -> None:
    run("follow", tmp_path)
    first = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    run("follow", tmp_path)
    graph, again = hr.read_graph(GRAPHS / "mlp-8.json.gz"), hr.read_schedule(tmp_path / "out.json")
    assert hr.validate(graph, again.schedule, first["budget"]).time <= first["time"]
