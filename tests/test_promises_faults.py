"""What is promised when something else fails: SCIP, the disk, the cache of compiled kernels, a worker."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_graph

import hremate as hr
from hremate.cli import main
from hremate.solvers import checkmate, checkmate_lp, exact, scip
from hremate.solvers.base import Deadline, Run
from hremate.solvers.scip import MilpBuilder, MilpResult, MilpSolver, MilpStatus

ROOT = Path(__file__).resolve().parents[1]


# -- SCIP -----------------------------------------------------------------------------------------


def raising(self: MilpSolver, **_: Any) -> MilpResult:
    raise hr.SolverError(f"{self.name}: SCIP failed: SCIP: unspecified error!")


def empty_handed(self: MilpSolver, **_: Any) -> MilpResult:
    return MilpResult(MilpStatus.NO_SOLUTION, None, np.inf, -np.inf, 0, 0.0, False)


def using_up_the_time(self: MilpSolver, *, deadline: Deadline | None = None, **_: Any) -> MilpResult:
    while deadline is not None and deadline.remaining > 0 and deadline.end is not None:
        time.sleep(0.01)
    return empty_handed(self)


FAULTS = [raising, empty_handed, using_up_the_time]
SCIP_METHODS = ["exact", "checkmate", "checkmate-lp"]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(
    ("kind", "ops"), [("unet", 60), pytest.param("transformer", 160, marks=pytest.mark.slow)]
)
def test_without_scip_the_hierarchy_still_answers_and_tells(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., MilpResult], kind: str, ops: int
) -> None:
    graph = hr.generate(kind, ops=ops, seed=1)
    monkeypatch.setattr(MilpSolver, "solve", fault)
    result = hr.solve(graph, "60%", time_limit=2.0 if fault is using_up_the_time else None, polish=0)
    assert result.solved and result.schedule is not None
    hr.validate(graph, result.schedule, result.budget)
    if fault is raising:
        assert any("unspecified error" in event for event in result.stats.degraded)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", SCIP_METHODS)
def test_without_scip_its_methods_still_answer(
    monkeypatch: pytest.MonkeyPatch, fault: Callable[..., MilpResult], method: str
) -> None:
    graph = hr.generate("unet", ops=40, seed=1)
    monkeypatch.setattr(MilpSolver, "solve", fault)
    result = hr.solve(graph, "60%", method, time_limit=1.0 if fault is using_up_the_time else 20.0)
    assert result.status is not hr.Status.INFEASIBLE
    assert result.proof is None or result.lower_bound == result.time
    assert (fault is raising) == any("unspecified error" in event for event in result.stats.degraded)


def out_of_memory(*_: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("step", ["_load", "_optimize"])
@pytest.mark.parametrize("method", SCIP_METHODS)
def test_a_method_whose_scip_fails_keeps_the_schedule_it_knows_and_tells(
    monkeypatch: pytest.MonkeyPatch, method: str, step: str
) -> None:
    graph = hr.generate("unet", ops=40, seed=1)
    start = hr.solve(graph, "60%", "greedy", lower_bound=0.0)
    assert start.solved and start.schedule is not None and start.time is not None
    monkeypatch.setattr(scip, step, out_of_memory)
    result = hr.solve(graph, "60%", method, warm_start=start.schedule, lower_bound=0.0)
    assert result.status is hr.Status.FEASIBLE and result.schedule is not None and result.time is not None
    assert hr.validate(graph, result.schedule, result.budget).time == result.time <= start.time
    (event,) = result.stats.degraded
    assert event.startswith(f"{method}: ") and "MemoryError" in event


@pytest.mark.parametrize(("method", "module"), [("checkmate", checkmate), ("checkmate-lp", checkmate_lp)])
def test_a_method_whose_scip_fails_falls_back_on_the_schedule_of_the_bound(
    monkeypatch: pytest.MonkeyPatch, method: str, module: Any
) -> None:
    graph = hr.generate("unet", ops=40, seed=1)
    found = hr.solve(graph, "60%", "greedy", lower_bound=0.0)
    assert found.schedule is not None
    monkeypatch.setattr(scip, "_load", out_of_memory)
    run = Run(bound_order=found.schedule.order)
    result = module.solve(graph, found.budget, run, module.Params())
    assert result.status is hr.Status.FEASIBLE and result.time == found.time
    result = module.solve(graph, found.budget, Run(), module.Params())
    assert result.status is hr.Status.NO_SOLUTION
    assert "MemoryError" in result.reason and [result.reason.split(": ", 1)[1]] == result.stats.degraded


def test_a_failure_along_another_order_leaves_the_proof_along_the_given_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, budget = random_graph(5, max_ops=9, min_ops=7), 13
    solved = exact.solve_staged
    calls: list[Any] = []

    def once(*arguments: Any, **options: Any) -> exact.StagedAnswer:
        if calls:
            raise hr.SolverError("SCIP failed")
        calls.append(solved(*arguments, **options))
        return calls[0]

    monkeypatch.setattr(exact, "solve_staged", once)
    result = hr.solve(graph, budget, "exact", lower_bound=0.0)
    assert result.stats.degraded == ["exact along another order: SCIP failed"]
    assert result.solved and result.order_lower_bound == calls[0].bound


def knapsack() -> MilpSolver:
    build = MilpBuilder()
    items = [build.add_var(cost=-1.0 - k, upper=1.0, integer=True) for k in range(3)]
    build.add_row(items, [1.0, 2.0, 3.0], upper=4.0)
    return MilpSolver(build.build(), name="knapsack")


def test_memory_that_scip_does_not_get_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimize(model: Any, deadline: Deadline) -> bool:
        raise MemoryError

    monkeypatch.setattr(scip, "_optimize", optimize)
    with pytest.raises(hr.SolverError, match="knapsack: SCIP failed: MemoryError"):
        knapsack().solve()


class _Deaf:
    """A model that does not end when it is asked to."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0

    def getStage(self) -> int:
        return int(scip.PY_SCIP_STAGE.SOLVING)

    def optimizeNogil(self) -> None:
        self.release.wait(60.0)

    def interruptSolve(self) -> None:
        self.asked += 1


def test_a_scip_that_does_not_end_is_given_up_and_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = _Deaf()
    optimize = scip._optimize
    monkeypatch.setattr(scip, "_PATIENCE", 0.1)
    monkeypatch.setattr(scip, "_optimize", lambda model, deadline: optimize(deaf, deadline))
    solver = knapsack()
    with pytest.raises(hr.SolverError, match=r"did not end within 0\.1 s of being asked to"):
        solver.solve(deadline=Deadline(0.05))
    with pytest.raises(hr.SolverError, match="still hangs"):
        solver.set_cost(0, 2.0)
    with pytest.raises(hr.SolverError, match="still hangs"):
        solver.solve()
    assert deaf.asked > 1
    deaf.release.set()


def test_scip_is_not_asked_to_stop_while_it_sets_itself_up() -> None:
    deaf = _Deaf()
    stages = iter([scip.PY_SCIP_STAGE.INITSOLVE, scip.PY_SCIP_STAGE.SOLVING])
    deaf.getStage = lambda: next(stages)  # type: ignore[method-assign]
    scip._interrupt(deaf)
    assert deaf.asked == 0
    scip._interrupt(deaf)
    assert deaf.asked == 1


def test_a_program_that_there_is_no_time_to_hand_over_gives_its_best_start() -> None:
    build = MilpBuilder()
    item = build.add_var(cost=-1.0, upper=1.0, integer=True)
    build.add_row([item], [1.0], upper=0.0)
    solver = MilpSolver(build.build(), deadline=Deadline(0.0))
    solver.set_row(0, -np.inf, 1.0)
    solver.set_cost(0, -2.0)
    result = solver.solve(starts=[np.zeros(1), np.ones(1)])
    assert (result.status, result.objective, result.bound) == (MilpStatus.FEASIBLE, -2.0, -np.inf)


# -- the disk -------------------------------------------------------------------------------------


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["open", "chmod", "fsync", "replace"])
@pytest.mark.parametrize("name", ["file.json", "file.json.gz"])
@pytest.mark.parametrize("kind", ["graph", "schedule"])
def test_a_full_disk_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, name: str, kind: str
) -> None:
    graph = random_graph(5)
    path = tmp_path / name

    def write() -> None:
        if kind == "graph":
            hr.write_graph(graph, path)
        else:
            hr.write_schedule(hr.Schedule(range(graph.n_ops)), path, graph)

    write()
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            write()
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("existing", [True, False])
def test_solve_on_a_full_disk_still_prints_its_answer_and_exits_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, existing: bool
) -> None:
    graph = hr.generate("chain", ops=20, seed=1)
    hr.write_graph(graph, tmp_path / "g.json")
    target = tmp_path / "s.json"
    if existing:
        target.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    words = ["solve", str(tmp_path / "g.json"), "--budget", "80%", "--method", "greedy", "--json"]
    assert main([*words, "-o", str(target)]) == 2
    written = capsys.readouterr()
    assert json.loads(written.out)["status"] in ("feasible", "optimal")
    assert written.err.count("\n") == 1 and "No space left" in written.err
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert target.read_text() == "old" if existing else not target.exists()


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
from hremate.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX")
def test_where_no_file_may_grow_nothing_is_written_and_kernels_still_run(tmp_path: Path) -> None:
    """A real failure of `write`, in the cache of compiled kernels and in the answer."""
    graph = hr.generate("chain", ops=20, seed=1)
    hr.write_graph(graph, tmp_path / "g.json")
    target = tmp_path / "s.json"
    target.write_text("old")
    cache = tmp_path / "cache"
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "solve", str(tmp_path / "g.json"), "--budget", "100%",
         "--method", "none", "-o", str(target)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_CACHE_DIR": str(cache)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "File too large" in done.stderr
    assert "optimal" in done.stdout
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "g.json", "s.json"]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no folder in which nobody can write")
def test_a_folder_that_turns_out_unwritable_is_told_in_one_line(tmp_path: Path, capsys: Any) -> None:
    hr.write_graph(hr.generate("chain", ops=20, seed=1), tmp_path / "g.json")
    words = ["solve", str(tmp_path / "g.json"), "--budget", "80%", "--method", "greedy", "--json"]
    assert main([*words, "-o", "/proc/self/s.json"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- the cache of compiled kernels ----------------------------------------------------------------

USE = """
import sys
import numpy as np
import hremate as hr
from hremate.simulate import memory_kernel
graph = hr.Graph.from_ops([hr.Op("a", 1.0, (), (("x", 8),)), hr.Op("b", 1.0, ("x",), (("y", 4),))], ["y"])
assert hr.simulate(graph, [0, 1]).peak == 12
print(hr.__file__, memory_kernel.stats.cache_path)
"""


#: Root writes anywhere, unless it drops (PR_CAPBSET_DROP, 24) CAP_DAC_OVERRIDE (1) for what it executes.
WITHOUT_PRIVILEGE = """
import ctypes, os, sys
if os.geteuid() == 0 and ctypes.CDLL(None).prctl(24, 1, 0, 0, 0):
    sys.exit("root keeps its privileges")
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def use(root: Path, launch: list[str], **environment: str) -> str:
    """Simulate in a fresh process; where the package lies and where its kernels are kept."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME")}
    done = subprocess.run(
        [sys.executable, *launch, "-c", USE], env={**kept, "PYTHONPATH": str(root), **environment}, cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "keeps its privileges" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def installation() -> Iterator[Path]:
    """A copy of the package that nobody but root may write to."""
    folder = Path(tempfile.mkdtemp(prefix="hremate-installed-"))
    for name in ("hremate", "partition", "solvers", "ilp"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        yield folder
    finally:
        for path in (folder, *(p for p in folder.rglob("*") if p.is_dir())):
            path.chmod(0o755)
        shutil.rmtree(folder)


@pytest.mark.skipif(sys.platform != "linux", reason="privileges of Linux")
def test_a_read_only_installation_without_a_home_compiles_anew(installation: Path) -> None:
    told = use(installation, ["-c", WITHOUT_PRIVILEGE], HOME="/dev/null/nowhere")
    assert told == f"{installation / 'hremate' / '__init__.py'} None"


def test_a_damaged_cache_of_kernels_is_made_anew(tmp_path: Path) -> None:
    where = use(ROOT, [], NUMBA_CACHE_DIR=str(tmp_path)).split()[1]
    kept = sorted(Path(where).iterdir())
    assert any(path.suffix == ".nbi" for path in kept) and any(path.suffix == ".nbc" for path in kept)
    for path in kept:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    damaged = {path.name: path.read_bytes() for path in kept}
    use(ROOT, [], NUMBA_CACHE_DIR=str(tmp_path))
    index = [path for path in kept if path.suffix == ".nbi" and "memory_kernel" in path.name]
    assert index and all(path.read_bytes() != damaged[path.name] for path in index)


# -- workers --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_a_worker_killed_at_any_moment_does_not_change_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    import joblib
    from joblib.externals.loky import reusable_executor

    graph = hr.generate("unet", ops=420, seed=1)

    def answer(jobs: int) -> tuple[float, int]:
        """What the workers' options lead to."""
        result = hr.solve(
            graph, "50%", n_jobs=jobs, polish=0, lower_bound=0.0, blocks=6, refinements=0, node_limit=10,
            milp_seconds=600.0,
        )  # fmt: skip
        return result.stats.stage_time["h-ilp"], result.stats.counts["options"]

    expected = answer(1)
    call = joblib.Parallel.__call__
    killed: list[float] = []

    def kill(delay: float) -> None:
        end = time.monotonic() + 30.0
        while time.monotonic() < end:
            workers = getattr(reusable_executor._executor, "_processes", None)
            if workers:
                time.sleep(delay)
                os.kill(min(workers), signal.SIGKILL)
                killed.append(delay)
                return
            time.sleep(0.01)

    for delay in (0.0, 0.1, 0.5, 1.0, 3.0):

        def parallel(self: Any, jobs: Any, delay: float = delay) -> Any:
            threading.Thread(target=kill, args=(delay,), daemon=True).start()
            return call(self, jobs)

        monkeypatch.setattr(joblib.Parallel, "__call__", parallel)
        assert answer(2) == expected, f"killed after {delay} s"
    assert killed
