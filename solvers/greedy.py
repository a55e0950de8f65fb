"""A beam of width 1 without seeds: one pass that picks the next op by rank, as a baseline."""

from __future__ import annotations

from dataclasses import dataclass

from hremate.graph import Graph
from hremate.result import Result
from hremate.solvers.base import Run, finish
from hremate.solvers.beam import greedy_search


@dataclass(frozen=True)
class Params:
    """No parameters."""


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Run the greedy pass; when it runs out of room, the order of the smallest peak it reaches."""
    found = greedy_search(graph, budget, deadline=run.deadline)
    run.stats.timed_out |= found.timed_out
    run.stats.interrupted |= found.interrupted
    return finish(graph, budget, run, "greedy", found.best)
