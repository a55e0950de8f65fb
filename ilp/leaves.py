"""Solving classes of blocks: one job each, in parallel where it pays."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import joblib
import numpy as np

from hremate.graph import Graph, Op
from hremate.ilp.inner import InnerParams, Inside, inner_options
from hremate.ilp.leaf import Leaf, Option, make_leaf
from hremate.ilp.leaf_graph import low_peak_options
from hremate.ilp.options import FrontierParams, frontier
from hremate.partition.tree import Block
from hremate.result import Stats
from hremate.solvers.base import Deadline, Run

#: Below this many ops in all jobs together, starting workers costs more than it saves.
PARALLEL_OPS = 400


@dataclass(frozen=True)
class LeafTask:
    """How to solve a block."""

    frontier: FrontierParams
    #: Also look for options of low peak, by beam search of this width; 0 for not.
    low_peak_width: int
    #: Branch-and-bound nodes of the segment-alive MILP of one small leaf.
    exact_nodes: int = 200
    #: For blocks of blocks.
    inner: InnerParams | None = None
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Job:
    """A block to solve: arrays and numbers only, so that it can go to another process."""

    leaf: Leaf
    #: For people.
    name: str
    task: LeafTask
    #: Its children with their options, for a block of blocks.
    inside: Inside | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a job gives."""

    options: list[Option]
    #: Whether time sufficed for all that the task asks for.
    complete: bool
    #: Failures survived on the way.
    degraded: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    #: CPU seconds of its process.
    seconds: float = 0.0


def solve_jobs(jobs: Sequence[Job], seconds: float, run: Run) -> list[Outcome]:
    """The outcome of each job, by joblib with `run.n_jobs` workers, largest block first.

    `run.stats.seconds["leaves"]` gets their CPU seconds, whichever processes they ran in.

    Without time pressure the answer does not depend on the number of workers. When the pool breaks (a worker
    is killed), what finished is kept, the rest is solved in this process, and `run.stats.degraded` says so.

    Parameters
    ----------
    seconds : float
        For all jobs together, shared out by their numbers of ops; may be infinite.
    """
    results: dict[int, Outcome] = {}
    order = sorted(range(len(jobs)), key=lambda k: (-jobs[k].leaf.n_ops, k))
    work = sum(job.leaf.n_ops for job in jobs)
    if run.n_jobs != 1 and len(jobs) > 1 and work >= PARALLEL_OPS:
        compile_kernels(jobs[0].task)
        workers = joblib.effective_n_jobs(run.n_jobs)
        shares = {k: min(1.0, workers * jobs[k].leaf.n_ops / work) * seconds for k in order}
        try:
            # Handed over as they finish, so that those of a broken pool are not lost.
            parallel = joblib.Parallel(n_jobs=run.n_jobs, return_as="generator_unordered")
            for k, outcome in parallel(joblib.delayed(_numbered)(k, jobs[k], shares[k]) for k in order):
                results[k] = outcome
        except Exception as error:  # whatever the user's joblib backend raises when it breaks
            missing = ", ".join(jobs[k].name for k in order if k not in results)
            run.stats.degraded.append(
                f"the pool broke ({type(error).__name__}); solved in this process: {missing}"
            )
    here = Deadline(seconds if seconds < float("inf") else None)
    left = sum(job.leaf.n_ops for k, job in enumerate(jobs) if k not in results)
    for k in order:
        if k not in results:
            results[k] = solve_job(jobs[k], here.remaining * jobs[k].leaf.n_ops / max(1, left))
            left -= jobs[k].leaf.n_ops
    outcomes = [results[k] for k in range(len(jobs))]
    spent = run.stats.seconds.get("leaves", 0.0)
    run.stats.seconds["leaves"] = spent + sum(outcome.seconds for outcome in outcomes)
    for outcome in outcomes:
        run.stats.degraded += outcome.degraded
        for name, count in outcome.counts.items():
            run.stats.counts[name] = run.stats.counts.get(name, 0) + count
    return outcomes


def compile_kernels(task: LeafTask) -> None:
    """Solve a block of four ops, so that workers find all kernels compiled."""
    a, b, c, d = ("a", 8), ("b", 8), ("c", 8), ("d", 8)
    ops = [Op("0", 1.0, (), (a,)), Op("1", 1.0, ("a",), (b,)), Op("2", 1.0, ("a", "b"), (c,))]
    graph = Graph.from_ops([*ops, Op("3", 1.0, ("a", "c"), (d,))], ["d"])
    leaf = make_leaf(graph, Block(np.arange(2), np.arange(2, 4)), np.zeros(4, np.bool_))
    solve_job(Job(leaf, "of four ops", task), float("inf"))


def _numbered(k: int, job: Job, seconds: float) -> tuple[int, Outcome]:
    return k, solve_job(job, seconds)


def solve_job(job: Job, seconds: float) -> Outcome:
    """The options of one block: what a worker does.

    A block that cannot be solved gets its simplest options, and the outcome says so.

    Parameters
    ----------
    seconds : float
        After which the options are handed in as far as they were found; may be infinite.
    """
    deadline = Deadline(seconds if seconds < float("inf") else None)
    run = Run(seed=job.task.seed, deadline=deadline)
    start = time.process_time()
    try:
        options = _options(job, run)
    except Exception as error:  # a fault in one block must not end the whole solve
        simplest = replace(job.task.frontier, grid=0)
        options = frontier(job.leaf, simplest, deadline=Deadline())
        run.stats.degraded.append(f"{type(error).__name__}: {error}")
    if run.stats.interrupted:
        raise KeyboardInterrupt
    stats: Stats = run.stats
    return Outcome(
        options,
        not deadline.expired and not stats.degraded,
        [f"block {job.name}: {event}" for event in stats.degraded],
        stats.counts,
        time.process_time() - start,
    )


def _options(job: Job, run: Run) -> list[Option]:
    task = job.task
    options = frontier(job.leaf, task.frontier, deadline=run.deadline)
    if job.inside is not None and task.inner is not None:
        options = inner_options(job.leaf, job.inside, options, task.inner, run)
    elif task.low_peak_width:
        options = low_peak_options(
            job.leaf,
            options,
            width=task.low_peak_width,
            node_limit=task.exact_nodes,
            seed=task.seed,
            deadline=run.deadline,
            degraded=run.stats.degraded,
        )
    return options
