"""Solving the leaves: one task per class of equal blocks, in parallel where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import joblib

from hremate.ilp.leaf import Leaf, Option
from hremate.ilp.leaf_graph import low_peak_options
from hremate.ilp.options import FrontierParams, frontier
from hremate.solvers.base import Deadline, Run

#: Share of the remaining time that the leaves of one partition may take.
LEAF_SHARE = 0.3
#: Below this many ops in all leaves together, starting workers costs more than it saves.
PARALLEL_OPS = 400


@dataclass(frozen=True)
class LeafTask:
    """How to solve a leaf."""

    frontier: FrontierParams
    #: Also look for options of low peak, by beam search of this width; 0 for not.
    low_peak_width: int
    #: Branch-and-bound nodes of the segment-alive MILP of one small leaf.
    exact_nodes: int = 200
    seed: int = 0


def solve_leaves(leaves: Sequence[Leaf], task: LeafTask, run: Run) -> list[list[Option]]:
    """The options of each leaf, by joblib with `run.n_jobs` workers, largest leaf first.

    The answer does not depend on the number of workers. When the pool breaks (a worker is killed), what is
    missing is solved in this process, and `run.stats.degraded` says so.
    """
    seconds = LEAF_SHARE * run.deadline.remaining
    results: dict[int, tuple[list[Option], list[str]]] = {}
    if run.n_jobs != 1 and len(leaves) > 1 and sum(leaf.n_ops for leaf in leaves) >= PARALLEL_OPS:
        order = sorted(range(len(leaves)), key=lambda k: (-leaves[k].n_ops, k))
        try:
            # The generator hands results over as they finish, so that those of a broken pool are not lost.
            parallel = joblib.Parallel(n_jobs=run.n_jobs, return_as="generator")
            handed = parallel(joblib.delayed(solve_leaf)(leaves[k], task, seconds) for k in order)
            for k, result in zip(order, handed, strict=True):
                results[k] = result
        except Exception as error:  # whatever the user's joblib backend raises when it breaks
            run.stats.degraded.append(
                f"leaves: the pool broke ({type(error).__name__}); solved in this process"
            )
    options = []
    here = Deadline(seconds if seconds < float("inf") else None)
    missing = len(leaves) - len(results)
    for k, leaf in enumerate(leaves):
        if k not in results:
            results[k] = solve_leaf(leaf, task, here.remaining / missing)
            missing -= 1
        found, degraded = results[k]
        options.append(found)
        run.stats.degraded += degraded
    return options


def solve_leaf(leaf: Leaf, task: LeafTask, seconds: float) -> tuple[list[Option], list[str]]:
    """The options of one leaf, and the failures survived on the way: what a worker does.

    Parameters
    ----------
    seconds : float
        After which the frontier is handed in as far as it is drawn; may be infinite.
    """
    deadline = Deadline(seconds if seconds < float("inf") else None)
    options = frontier(leaf, task.frontier, deadline=deadline)
    degraded: list[str] = []
    if task.low_peak_width:
        options = low_peak_options(
            leaf,
            options,
            width=task.low_peak_width,
            node_limit=task.exact_nodes,
            seed=task.seed,
            deadline=deadline,
            degraded=degraded,
        )
    return options, degraded
