"""What `hremate solve` promises of Ctrl-C and SIGTERM: the best so far, soon, and no process left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import hremate as hr

pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")

ROOT = Path(__file__).resolve().parents[1]
#: The command line, which tells on stderr when it enters a stage.
TELLING = """
import functools, importlib, sys
import hremate.bounds
from hremate.solvers.base import Deadline

STAGES = {
    "reading": ("hremate.io", "read_graph"),
    "bound": ("hremate.bounds", "time_lower_bound"),
    "scip": ("hremate.solvers.scip", "MilpSolver.solve"),
    "jobs": ("joblib", "Parallel.__call__"),
    "polish": ("hremate.solvers.polish", "polish"),
}
module, path = STAGES[sys.argv[1]]
holder = importlib.import_module(module)
*outer, name = path.split(".")
for part in outer:
    holder = getattr(holder, part)
function = getattr(holder, name)

@functools.wraps(function)
def telling(*args, **kwargs):
    print("entered", file=sys.stderr, flush=True)
    return function(*args, **kwargs)

setattr(holder, name, telling)
if sys.argv[1] not in ("reading", "bound"):  # get there soon
    bound = hremate.bounds.time_lower_bound
    hremate.bounds.time_lower_bound = lambda *args, deadline, **kw: bound(*args, deadline=Deadline(0.1), **kw)
from hremate.cli import main
if __name__ == "__main__":  # workers import this module again
    sys.exit(main(sys.argv[2:]))
"""
SIGNALS = [signal.SIGINT, signal.SIGTERM]
#: Seconds after which a process hangs.
HANGING = 60.0


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A graph that takes much longer than a test, with some seconds in every stage."""
    path = str(tmp_path_factory.mktemp("signals") / "unet.json")
    hr.write_graph(hr.generate("unet", ops=500, seed=1), path)
    yield path


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def group_is_gone(group: int) -> bool:
    """Whether no process of the group is left; a helper of joblib ends a moment after its parent."""
    end = time.monotonic() + HANGING
    while time.monotonic() < end:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


class Ended:
    """A process that was sent a signal, after its end."""

    def __init__(self, command: list[str], stage: bool, after: float, number: int, whole_group: bool) -> None:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(),
            start_new_session=True,
        )  # fmt: skip
        try:
            told = ""
            assert process.stderr is not None
            while stage and "entered" not in told:
                line = process.stderr.readline()
                assert line, told
                told += line
            time.sleep(after)
            sent = time.monotonic()
            if whole_group:  # as a terminal does
                os.killpg(process.pid, number)
            else:
                process.send_signal(number)
            self.out, err = process.communicate(timeout=HANGING)
            #: Wall seconds from the signal to the end.
            self.seconds = time.monotonic() - sent
            self.err = told + err
            self.code = process.returncode
            self.alone = group_is_gone(process.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def check(ended: Ended, graph_file: str, target: Path, early: tuple[int, ...] = ()) -> None:
    """130 with a valid schedule, or 130 without one and without a file; no traceback, no process left.

    `early` holds the exit codes of a signal that comes before the command line listens.
    """
    assert ended.alone, "a process is left"
    if ended.code in early:
        assert not target.exists()
        return
    assert ended.code == 130, ended.err
    assert "Traceback" not in ended.err and "interrupted" in ended.err
    assert [path.name for path in target.parent.iterdir() if path.suffix == ".tmp"] == []
    document = json.loads(ended.out) if ended.out else None
    if target.exists():
        assert document is not None and document["stats"]["interrupted"]
        file = hr.read_schedule(target)
        assert hr.validate(hr.read_graph(graph_file), file.schedule, file.budget).peak == document["peak"]
    else:
        assert document is None or document["status"] == "no_solution"


@pytest.mark.parametrize(
    ("stage", "after", "jobs", "number", "whole_group"),
    [
        ("reading", 0.0, 1, signal.SIGINT, False),
        ("bound", 0.0, 1, signal.SIGTERM, False),
        ("bound", 0.5, 1, signal.SIGINT, False),
        ("scip", 0.5, 1, signal.SIGTERM, False),
        pytest.param("jobs", 0.5, 2, signal.SIGTERM, False, marks=pytest.mark.slow),
        pytest.param("jobs", 4.0, 2, signal.SIGINT, True, marks=pytest.mark.slow),
        pytest.param("jobs", 0.0, 2, signal.SIGINT, False, marks=pytest.mark.slow),
        pytest.param("polish", 1.0, 1, signal.SIGTERM, False, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_signal_in_any_stage_gives_the_best_so_far_or_nothing_and_leaves_no_process(
    graph_file: str, tmp_path: Path, stage: str, after: float, jobs: int, number: int, whole_group: bool
) -> None:
    target = tmp_path / "s.json"
    script = tmp_path / "telling.py"
    script.write_text(TELLING)
    words = ["solve", graph_file, "--budget", "40%", "--jobs", str(jobs), "--json", "-o", str(target)]
    ended = Ended([sys.executable, str(script), stage, *words], True, after, number, whole_group)
    check(ended, graph_file, target)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("after", [0.02, 0.1, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0, 4.0, 8.0, 15.0])
def test_a_signal_at_any_moment_ends_the_process_within_two_seconds(
    graph_file: str, tmp_path: Path, after: float, number: int
) -> None:
    target = tmp_path / "s.json"
    words = ["solve", graph_file, "--budget", "40%", "--json", "-o", str(target)]
    ended = Ended([sys.executable, "-m", "hremate", *words], False, after, number, False)
    # Before the command line listens, Python and the system do as they always do.
    check(ended, graph_file, target, early=(-number, 1))
    assert ended.seconds <= 2.0
