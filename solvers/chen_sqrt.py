"""The method `chen-sqrt`: evenly spaced checkpoints, about sqrt(n) of them.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016), section 4.1: n steps in k segments need
O(n/k + k) memory, least at k = sqrt(n), for one more forward pass. With costs that are not uniform other
numbers of segments fit better, so they are tried too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.solvers.base import Run, finish
from hremate.solvers.chain import training_split
from hremate.solvers.chen import candidate_positions, check_points, kept_tensors
from hremate.solvers.expand import Expansion, Sweep, recompute_once


@dataclass(frozen=True)
class Params:
    """Parameters of chen-sqrt."""

    #: Number of segments; 0 tries sqrt(n) and a row of others.
    segments: int = 0
    #: Where segments may be cut: "articulation", "linear" or "both".
    points: str = "both"

    def __post_init__(self) -> None:
        if self.segments < 0:
            raise MethodError("Expected segments >= 0.")
        check_points(self.points)


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest of the schedules with evenly spaced checkpoints that fits `budget`.

    Raises
    ------
    MethodError
        The graph has no backward part.
    """
    split = training_split(graph, "chen-sqrt")
    expansion = Expansion(graph)
    orders = (
        recompute_once(expansion, split, kept_tensors(graph, split, even_cuts(positions, segments)))
        for positions in candidate_positions(graph, split, params.points)
        for segments in segment_counts(len(positions) + 1, params.segments)
    )
    return finish(graph, budget, run, "chen-sqrt", Sweep(graph, budget, run).offer_all(orders))


def segment_counts(n: int, wanted: int) -> list[int]:
    """Numbers of segments to try on n steps: the one wanted, else sqrt(n) and a geometric row, up to n."""
    if wanted:
        return [min(wanted, n)]
    counts = {1, 2, 3, n, max(1, round(math.sqrt(n)))}
    value = 3.0
    while value < n:
        counts.add(round(value))
        value *= 1.25
    return sorted(c for c in counts if c <= n)


def even_cuts(positions: IntArray, segments: int) -> list[int]:
    """The `segments` - 1 of the `positions` that cut their steps most evenly."""
    steps = len(positions) + 1
    return [int(positions[steps * k // segments - 1]) for k in range(1, segments)]
