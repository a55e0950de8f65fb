"""Claims about solving blocks in parallel: same answers, and no failure of a worker or a block is the end."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

import hremate as hr
from hremate.ilp import leaves
from hremate.ilp.leaf import Leaf, make_leaf
from hremate.ilp.leaves import Job, LeafTask, Outcome, solve_job, solve_jobs
from hremate.ilp.options import FrontierParams
from hremate.partition.intervals import intervals
from hremate.solvers.base import Run

TASK = LeafTask(FrontierParams(grid=4), low_peak_width=0)


def jobs(blocks: int = 5, kind: str = "chain", ops: int = 120) -> list[Job]:
    graph = hr.generate(kind, ops, 1)
    nothing = np.zeros(graph.n_tensors, np.bool_)
    tree = intervals(graph, blocks)
    return [Job(make_leaf(graph, b, nothing), str(j), TASK) for j, b in enumerate(tree.blocks)]


def keys(outcomes: list[Outcome]) -> list[list[tuple[bytes, bytes]]]:
    return [[option.key for option in outcome.options] for outcome in outcomes]


def fake_parallel(finished: int, error: Exception | None) -> type:
    """A `joblib.Parallel` that runs in this process, last job first, and breaks after `finished` jobs."""

    class Parallel:
        def __init__(self, **options: object) -> None:
            assert options.pop("n_jobs") == 2
            # No backend is named: the user chooses it.
            assert set(options) == {"return_as"}

        def __call__(self, tasks: Iterator[tuple]) -> Iterator[object]:
            for count, (function, args, kwargs) in enumerate(list(tasks)[::-1]):
                if count == finished and error is not None:
                    raise error
                yield function(*args, **kwargs)

    return Parallel


def test_largest_blocks_go_first_and_answers_come_back_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = jobs()
    sizes: list[int] = []
    real = leaves.joblib.delayed

    def delayed(function: object) -> object:
        return lambda k, job, seconds: sizes.append(job.leaf.n_ops) or real(function)(k, job, seconds)

    monkeypatch.setattr(leaves, "PARALLEL_OPS", 0)
    monkeypatch.setattr(leaves.joblib, "delayed", delayed)
    monkeypatch.setattr(leaves.joblib, "Parallel", fake_parallel(99, None))
    together = solve_jobs(todo, float("inf"), Run(n_jobs=2))
    assert keys(together) == keys(solve_jobs(todo, float("inf"), Run()))
    assert sizes == sorted((job.leaf.n_ops for job in todo), reverse=True)


def test_small_jobs_stay_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaves.joblib, "Parallel", None)
    assert len(solve_jobs(jobs(ops=100), float("inf"), Run(n_jobs=2))) == 5


def test_what_finished_before_the_pool_broke_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = jobs()
    expected = keys(solve_jobs(todo, float("inf"), Run()))
    solved: list[str] = []

    def counted(job: Job, seconds: float) -> Outcome:
        solved.append(job.name)
        return solve_job(job, seconds)

    monkeypatch.setattr(leaves, "PARALLEL_OPS", 0)
    monkeypatch.setattr(leaves, "solve_job", counted)
    monkeypatch.setattr(leaves, "compile_kernels", lambda task: None)
    monkeypatch.setattr(leaves.joblib, "Parallel", fake_parallel(2, RuntimeError("a worker was killed")))
    run = Run(n_jobs=2)
    assert keys(solve_jobs(todo, float("inf"), run)) == expected
    assert sorted(solved) == sorted(job.name for job in todo)
    assert len(run.stats.degraded) == 1
    assert "the pool broke (RuntimeError)" in run.stats.degraded[0]
    # Two by the pool; the rest is named.
    for name in solved[2:]:
        assert name in run.stats.degraded[0].split(": ")[1].split(", ")


def test_a_block_that_fails_gets_its_simplest_options_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = jobs()
    real = leaves.frontier

    def fail(leaf: Leaf, params: FrontierParams, **rest: object) -> list:
        if leaf is todo[2].leaf and params.grid:
            raise hr.SolverError("numbers without sense")
        return real(leaf, params, **rest)

    monkeypatch.setattr(leaves, "frontier", fail)
    run = Run()
    outcomes = solve_jobs(todo, float("inf"), run)
    assert all(outcome.options for outcome in outcomes)
    assert [outcome.complete for outcome in outcomes] == [True, True, False, True, True]
    assert run.stats.degraded == ["block 2: SolverError: numbers without sense"]


def test_no_time_still_gives_saving_all_and_running_all_again() -> None:
    for job in jobs(3):
        outcome = solve_job(job, 0.0)
        assert not outcome.complete
        assert min(o.saved_bytes for o in outcome.options) == 0
        assert min(o.time for o in outcome.options) == pytest.approx(float(job.leaf.time.sum()))


def test_ctrl_c_in_a_block_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(leaves, "frontier", interrupt)
    with pytest.raises(KeyboardInterrupt):
        solve_jobs(jobs(3), float("inf"), Run())


class Bomb(str):
    """A name that kills any other process that unpacks it."""

    def __reduce__(self) -> tuple:
        return _explode, (os.getpid(),)


def _explode(home: int) -> str:
    if os.getpid() != home:
        os._exit(1)
    return "bomb"


@pytest.mark.slow
def test_a_killed_worker_is_survived_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    todo = jobs()
    expected = keys(solve_jobs(todo, float("inf"), Run()))
    monkeypatch.setattr(leaves, "PARALLEL_OPS", 0)
    todo[2] = Job(todo[2].leaf, Bomb("bomb"), TASK)
    run = Run(n_jobs=2)
    assert keys(solve_jobs(todo, float("inf"), run)) == expected
    assert any("the pool broke" in event and "bomb" in event for event in run.stats.degraded)


@pytest.mark.slow
def test_workers_of_dask_give_the_same_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    import joblib

    monkeypatch.setattr(leaves, "PARALLEL_OPS", 0)
    todo = jobs()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config(backend="dask"),
    ):
        run = Run(n_jobs=2)
        outcomes = solve_jobs(todo, float("inf"), run)
    assert not run.stats.degraded
    assert keys(outcomes) == keys(solve_jobs(todo, float("inf"), Run()))
