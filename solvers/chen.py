"""Checkpoints of Chen et al., shared by `chen_sqrt` and `chen_greedy`.

Training Deep Nets with Sublinear Memory Cost (2016): the forward chain is cut into segments, only what
crosses the cuts is kept, and the backward part runs each segment again, the last one excepted. On DAGs,
as Checkmate does (Jain et al., MLSys 2020, section 6.1): cuts at articulation points ("articulation"), or
anywhere in the linearised order ("linear"), where everything that crosses the cut is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.solvers.chain import articulation_positions, crossing, last_forward_read, side_tensors

#: Where segments may be cut.
POINTS = ("articulation", "linear", "both")


def check_points(points: str) -> None:
    """Raises MethodError unless `points` is one of `POINTS`."""
    if points not in POINTS:
        raise MethodError(f"Expected points in {', '.join(POINTS)}.")


def candidate_positions(graph: Graph, split: int, points: str) -> list[IntArray]:
    """The sets of positions to choose cuts from: one, or two for "both"."""
    found = []
    if points in ("articulation", "both"):
        found.append(articulation_positions(graph, split, side_tensors(graph, split)))
    if points in ("linear", "both") and not (found and len(found[0]) == split - 1):
        found.append(np.arange(1, split))
    return found


def kept_tensors(graph: Graph, split: int, cuts: Sequence[int]) -> BoolArray:
    """What is kept for the backward part with the forward part cut at `cuts`, bool[m].

    The tensors that cross a cut, and all that the last segment makes: its backward part comes next.
    """
    last = last_forward_read(graph, split)
    kept: BoolArray = graph.producer >= (cuts[-1] if len(cuts) else 0)
    for position in cuts:
        kept[crossing(graph, last, position)] = True
    return kept
