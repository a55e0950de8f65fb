"""The arguments that `solve` and `improve` share, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hremate.budget import parse_budget
from hremate.errors import BudgetError, MethodError
from hremate.graph import Graph
from hremate.schedule import Schedule
from hremate.simulate import base_peak
from hremate.solvers.base import Deadline, Run


def new_run(
    seed: Any,
    n_jobs: Any,
    time_limit: Any,
    progress: Callable[[str], None] | None,
    callback: Callable[[Schedule, int, float], None] | None,
) -> Run:
    """A run that begins now."""
    run = Run(
        seed=seed_number(seed),
        n_jobs=job_count(n_jobs),
        deadline=Deadline(seconds_or_none(time_limit, "time_limit")),
    )
    if progress is not None:
        run.progress = progress
    run.listen(callback)
    return run


def budget_bytes(graph: Graph, budget: Any) -> int:
    """`budget` in bytes; by default the one that the graph carries."""
    if budget is None:
        if "budget" not in graph.metadata:
            raise BudgetError(f"no budget given, and graph {graph.name!r} carries none")
        budget = graph.metadata["budget"]
    return parse_budget(budget, base_peak(graph))


def seed_number(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**31:
        raise MethodError(f"Expected seed to be an integer in 0 .. 2^31 - 1, not {seed!r}.")
    return int(seed)


def job_count(n_jobs: Any) -> int:
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, (int, np.integer)) or (n_jobs < 1 and n_jobs != -1):
        raise MethodError(f"Expected n_jobs >= 1, or -1 for all cores, not {n_jobs!r}.")
    if n_jobs == -1:
        import joblib  # takes a while to import and is needed here only

        return int(joblib.effective_n_jobs(-1))
    return int(n_jobs)


def seconds_or_none(seconds: Any, name: str) -> float | None:
    """A number of seconds >= 0; None for no limit."""
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float, np.integer, np.floating)):
        raise MethodError(f"Expected {name} in seconds, not {seconds!r}.")
    if not seconds >= 0:
        raise MethodError(f"Expected {name} >= 0 seconds, not {seconds!r}.")
    return float(seconds) if math.isfinite(seconds) else None
