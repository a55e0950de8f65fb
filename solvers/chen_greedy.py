"""The method `chen-greedy`: a segment ends when its bytes exceed b, for a row of values of b.

Chen et al., Training Deep Nets with Sublinear Memory Cost (2016), section 4.3 and algorithm 3 (memory
planning with budget), with its grid search over b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.solvers.base import Run, finish
from hremate.solvers.chain import training_split
from hremate.solvers.chen import candidate_positions, check_points, kept_tensors
from hremate.solvers.expand import Expansion, Sweep, recompute_once


@dataclass(frozen=True)
class Params:
    """Parameters of chen-greedy."""

    #: Bytes of a segment; 0 tries `grid` values.
    segment_bytes: int = 0
    #: Values of b between the bytes of the whole forward part and those of its largest op.
    grid: int = 30
    #: Where segments may be cut: "articulation", "linear" or "both".
    points: str = "both"

    def __post_init__(self) -> None:
        if self.segment_bytes < 0:
            raise MethodError("Expected segment_bytes >= 0.")
        if self.grid < 1:
            raise MethodError("Expected grid >= 1.")
        check_points(self.points)


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest of the schedules with greedy checkpoints that fits `budget`.

    Raises
    ------
    MethodError
        The graph has no backward part.
    """
    split = training_split(graph, "chen-greedy")
    expansion = Expansion(graph)
    held = backward_bytes(graph, split)
    if params.segment_bytes:
        limits = [params.segment_bytes]
    else:
        low, high = max(1, int(held.max())), max(1, int(held.sum()))
        limits = [int(b) for b in np.geomspace(high, low, params.grid)]
    cuts = {  # in this order, each once
        tuple(greedy_cuts(held, positions, b)): None
        for positions in candidate_positions(graph, split, params.points)
        for b in limits
    }
    orders = (recompute_once(expansion, split, kept_tensors(graph, split, cut)) for cut in cuts)
    return finish(graph, budget, run, "chen-greedy", Sweep(graph, budget, run).offer_all(orders))


def backward_bytes(graph: Graph, split: int) -> IntArray:
    """Bytes that each forward op makes for the backward part, int64[split]."""
    read = np.zeros(graph.n_tensors, np.bool_)
    read[graph.in_idx[graph.in_ptr[split] :]] = True
    made = np.flatnonzero(read & (graph.producer < split))
    held = np.zeros(split, np.int64)
    np.add.at(held, graph.producer[made], graph.size[made])
    return held


def greedy_cuts(held: IntArray, positions: IntArray, b: int) -> list[int]:
    """Cut at the first of the `positions` at which the bytes since the last cut exceed `b`."""
    total = np.concatenate([[0], np.cumsum(held)])
    cuts: list[int] = []
    start = 0
    for position in positions.tolist():
        if total[position] - total[start] > b:
            cuts.append(position)
            start = position
    return cuts
