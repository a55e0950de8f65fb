"""Equal seeds give equal answers to the byte: whatever the number of jobs, the hash seed, and the run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hremate as hr

ROOT = Path(__file__).resolve().parents[1]
#: Limits of work in place of those of time.
WORK = "node_limit=50 milp_seconds=10000"
#: What differs between runs that are otherwise equal: wall times.
TIMES = {"wall_time", "seconds", "trajectory"}
#: Solves each graph by each method in one process, and prints the answers of `--json` with the orders.
SOLVE = """
import contextlib, io, json, math, sys
from hremate import _answers
from hremate.cli import main
_answers.BOUND_SECONDS = math.inf  # a busy machine cuts nothing short
plan, jobs = json.loads(sys.argv[1]), sys.argv[2]
for words in plan:
    target = words[words.index("-o") + 1]
    code = main([*words, "--jobs", jobs, "--json"])
    print(json.dumps(json.load(open(target))["order"]) if code == 0 else code)
"""


def without_times(value: Any) -> Any:
    """The document less its wall times; (time, cost) pairs keep the cost."""
    if isinstance(value, dict):
        kept = {k: without_times(v) for k, v in value.items() if k not in TIMES}
        if "trajectory" in value:
            kept["trajectory"] = [cost for _, cost in value["trajectory"]]
        return kept
    return value


def answers(plan: list[list[str]], *, jobs: int, hash_seed: int) -> str:
    """What a fresh process prints for `plan`, without wall times, key order included."""
    done = subprocess.run(
        [sys.executable, "-c", SOLVE, json.dumps(plan), str(jobs)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2 * len(plan)
    return "\n".join(json.dumps(without_times(json.loads(line))) for line in done.stdout.splitlines())


def planned(folder: Path, cases: list[tuple[str, int, list[str]]]) -> list[list[str]]:
    """Command lines for (kind of graph, ops, methods with options) at half the base peak."""
    plan = []
    for kind, ops, methods in cases:
        path = str(folder / f"{kind}-{ops}.json.gz")
        hr.write_graph(hr.generate(kind, ops=ops, seed=1), path)
        for method in methods:
            name, *options = method.split()
            words = ["solve", path, "--budget", "60%", "--method", name, "-o", str(folder / "answer.json")]
            plan.append(words + [word for option in options for word in ("--option", option)])
    return plan


def test_answers_are_equal_to_the_byte_for_any_hash_seed_and_number_of_jobs(tmp_path: Path) -> None:
    flat = [
        "beam", "greedy", "cut", "anneal proposals=20000", "exact node_limit=20", "mincut", "chen-sqrt",
        "rotor", "twremat", "checkmate-lp",
    ]  # fmt: skip
    plan = planned(
        tmp_path, [("unet", 50, flat), ("layered", 40, ["beam", "cut", f"hierarchical {WORK}"]),
                   ("transformer", 150, [f"hierarchical blocks=4 refinements=1 {WORK}"])],
    )  # fmt: skip
    first = answers(plan, jobs=1, hash_seed=0)
    assert answers(plan, jobs=2, hash_seed=1) == first
    assert answers(plan, jobs=1, hash_seed=12345) == first


@pytest.mark.slow
def test_workers_and_runs_do_not_matter_on_graphs_that_use_the_pool(tmp_path: Path) -> None:
    plan = planned(tmp_path, [("unet", 420, [f"hierarchical refinements=1 {WORK}"])])
    for words in plan:
        words += ["--polish", "0"]
    first = answers(plan, jobs=1, hash_seed=0)
    assert answers(plan, jobs=1, hash_seed=0) == first
    assert answers(plan, jobs=2, hash_seed=1) == first
