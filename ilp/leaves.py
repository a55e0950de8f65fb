"""Solving the leaves: one task per class of equal blocks, in parallel where it pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import joblib

from hremate.ilp.leaf import Leaf, Option
from hremate.ilp.leaf_graph import low_peak_options
from hremate.ilp.options import FrontierParams, frontier
from hremate.solvers.base import Deadline, Run

if TYPE_CHECKING:
    from hremate.ilp.hierarchical import Params

#: Below this many ops in all leaves together, starting workers costs more than it saves.
PARALLEL_OPS = 400
#: Branch-and-bound nodes of the segment-alive MILP of one small leaf.
EXACT_NODES = 200


def solve_leaves(leaves: Sequence[Leaf], params: Params, tight: bool, run: Run) -> list[list[Option]]:
    """The options of each leaf, by joblib with `run.n_jobs` workers, largest leaf first.

    The answer does not depend on the number of workers. When the pool breaks (a worker is killed), what is
    missing is solved in this process, and `run.stats.degraded` says so.

    Parameters
    ----------
    tight : bool
        Also look for options of low peak.
    """
    tasks = [(leaf, params, tight, run.seed, run.deadline.remaining) for leaf in leaves]
    if run.n_jobs == 1 or len(leaves) < 2 or sum(leaf.n_ops for leaf in leaves) < PARALLEL_OPS:
        return [solve_leaf(*task) for task in tasks]
    order = sorted(range(len(leaves)), key=lambda k: (-leaves[k].n_ops, k))
    results: dict[int, list[Option]] = {}
    try:
        # The generator hands results over as they finish, so that those of a broken pool are not lost.
        parallel = joblib.Parallel(n_jobs=run.n_jobs, return_as="generator")
        for k, options in zip(order, parallel(joblib.delayed(solve_leaf)(*tasks[k]) for k in order), strict=True):
            results[k] = options
    except Exception as error:  # whatever the user's joblib backend raises when it breaks
        run.stats.degraded.append(f"leaves: the pool broke ({type(error).__name__}); solved in this process")
    return [results[k] if k in results else solve_leaf(*tasks[k]) for k in range(len(leaves))]


def solve_leaf(leaf: Leaf, params: Params, tight: bool, seed: int, seconds: float) -> list[Option]:
    """The options of one leaf; the task of a worker.

    Parameters
    ----------
    seconds : float
        After which the frontier is handed in as far as it is drawn.
    """
    deadline = Deadline(seconds if seconds < float("inf") else None)
    options = frontier(leaf, FrontierParams(grid=params.grid), deadline=deadline)
    if tight:
        options = low_peak_options(
            leaf, options, width=params.width, node_limit=EXACT_NODES, seed=seed, deadline=deadline
        )
    return options
