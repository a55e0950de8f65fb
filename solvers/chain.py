"""The forward part of a training graph as a chain: where it can be cut, and what crosses a cut."""

from __future__ import annotations

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.partition.phases import split_position
from hremate.simulate import base_peak

#: A tensor below this share of the base peak is small: it does not keep a chain from being one.
SMALL_SHARE = 1e-4
#: A tensor read over more than this share of the forward part (an attention mask, the output of an encoder)
#: does not either, as long as all of them together stay below a share of the base peak.
SHARED_SPAN, SHARED_BYTES = 0.25, 0.03


def training_split(graph: Graph, method: str) -> int:
    """Position at which the backward part begins.

    Raises
    ------
    MethodError
        The graph has no backward part; `method` is named.
    """
    split = split_position(graph)
    if not 0 < split < graph.n_ops:
        raise MethodError(
            f"{method} needs a training graph; {graph.name!r} has no backward part: no op has the phase "
            "'backward', and its memory does not rise and fall like that of a forward and a backward pass"
        )
    return split


def last_forward_read(graph: Graph, split: int) -> IntArray:
    """The last op before `split` that reads each tensor, -1 when none does, int64[m]."""
    last = np.full(graph.n_tensors, -1, np.int64)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    inside = graph.use_idx < split
    last[tensor[inside]] = graph.use_idx[inside]  # readers ascend, so the last one stays
    return last


def side_tensors(graph: Graph, split: int) -> BoolArray:
    """Tensors that run beside the chain and are cheap to keep, bool[m]: small ones and shared ones."""
    peak = base_peak(graph)
    side: BoolArray = graph.size < SMALL_SHARE * peak
    span = last_forward_read(graph, split) - graph.producer
    far = np.flatnonzero((span > SHARED_SPAN * split) & (graph.producer < split) & ~side)
    far = far[np.argsort(-span[far], kind="stable")]
    side[far[np.cumsum(graph.size[far]) <= SHARED_BYTES * peak]] = True
    return side


def crossing(graph: Graph, last: IntArray, position: int) -> IntArray:
    """Tensors made before `position` and read by a forward op at or after it, ascending.

    last : what `last_forward_read` returned.
    """
    return np.flatnonzero((graph.producer < position) & (last >= position))


def articulation_positions(graph: Graph, split: int, free: BoolArray) -> IntArray:
    """Positions 0 < p < split that a single tensor crosses, those in `free` (bool[m]) not counted."""
    last = last_forward_read(graph, split)
    counted = np.flatnonzero((last >= 0) & ~free)
    change = np.zeros(split + 1, np.int64)
    np.add.at(change, graph.producer[counted] + 1, 1)
    np.add.at(change, last[counted] + 1, -1)
    number = np.cumsum(change)[:split]
    return np.flatnonzero(number[1:] == 1) + 1
