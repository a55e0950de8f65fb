"""Cutting a sequence of forward ops into blocks: the dynamic program that all partitioners share."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.partition._cuts_kernel import forward_cuts
from hremate.simulate import base_peak

#: A block holds 0.4 to 1.7 times the average number of ops with a big output; where no choice of cuts
#: allows that, the next of these ranges is tried.
SIZES = ((0.4, 1.7), (0.1, 4.0), (0.0, np.inf))
#: How much more a crossing tensor costs that the backward part does not read: what is kept across such a
#: cut serves the forward part alone.
FORWARD_ONLY = 2.0
#: Weight of the squared relative deviation from the average size, against crossing bytes / peak.
SIZE_WEIGHT = 1e-4
#: An output is big when it exceeds this share of the largest one.
BIG_OUTPUT = 1e-3
#: The dynamic program takes quadratic time; of more positions than this, the cheapest nearby ones stay.
MOST_POSITIONS = 4096


def cut_sequence(
    graph: Graph,
    order: IntArray,
    n_blocks: int,
    allowed: IntArray | None = None,
    sizes: tuple[tuple[float, float], ...] = SIZES,
) -> IntArray | None:
    """Cut the forward ops into blocks at positions of little traffic, evenly in size.

    Parameters
    ----------
    order : int64[split]
        The forward ops (those below `split`) in a topological order.
    n_blocks : int
        Fewer blocks are made when there are fewer ops.
    allowed : int64[], optional
        Positions at which a cut may be made, ascending, in 1 .. split - 1; default all.
    sizes : tuple of (float, float)
        Least and largest size of a block in units of the average; the next pair is tried when one
        allows no cuts.

    Returns
    -------
    int64[J + 1] or None
        Positions 0 = c_0 < .. < c_J = split; None when the allowed positions leave no choice.

    Raises
    ------
    MethodError
        `n_blocks` is below 1.
    """
    if n_blocks < 1:
        raise MethodError("Expected n_blocks >= 1.")
    split = len(order)
    cross = crossing_bytes(graph, order) / max(1, base_peak(graph))
    big = (graph.out_bytes[order] > BIG_OUTPUT * graph.out_bytes.max(initial=1)).astype(np.float64)
    weight = np.concatenate([[0.0], np.cumsum(big)])
    if weight[-1] < n_blocks:
        weight = np.arange(split + 1, dtype=np.float64)
    n_blocks = min(n_blocks, int(weight[-1]))
    if allowed is None:
        allowed = np.arange(1, split)
    positions = np.concatenate([[0], _thinned(allowed, cross), [split]])
    average = weight[-1] / n_blocks
    for smallest, largest in sizes:
        cuts = forward_cuts(
            cross[positions], weight[positions], n_blocks,
            smallest * average, largest * average, average, SIZE_WEIGHT,
        )  # fmt: skip
        if len(cuts):
            result: IntArray = positions[cuts]
            return result
    return None


def homes(order: IntArray, cuts: IntArray) -> IntArray:
    """The block of each forward op, int64[split], for a sequence cut at `cuts`."""
    home = np.empty(len(order), np.int64)
    for j, (a, b) in enumerate(pairwise(cuts.tolist())):
        home[order[a:b]] = j
    return home


def crossing_bytes(graph: Graph, order: IntArray) -> FloatArray:
    """Bytes made before and read at or after each position of the forward sequence, float64[split + 1].

    Tensors that no backward op reads weigh `FORWARD_ONLY` times as much.
    """
    split = len(order)
    position = np.empty(split, np.int64)
    position[order] = np.arange(split)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    inside = graph.use_idx < split
    last = np.full(graph.n_tensors, -1, np.int64)
    np.maximum.at(last, tensor[inside], position[graph.use_idx[inside]])
    weight = FORWARD_ONLY * graph.size
    weight[tensor[~inside]] = graph.size[tensor[~inside]]
    alive = np.flatnonzero(last >= 0)
    change = np.zeros(split + 2)
    np.add.at(change, position[graph.producer[alive]] + 1, weight[alive])
    np.add.at(change, last[alive] + 1, -weight[alive])
    crossing: FloatArray = np.cumsum(change)[: split + 1]
    return crossing


def _thinned(allowed: IntArray, cross: FloatArray) -> IntArray:
    """Of every run of neighbouring positions the one with least traffic, at most `MOST_POSITIONS` in all."""
    if len(allowed) <= MOST_POSITIONS:
        return allowed
    run = np.arange(len(allowed)) * MOST_POSITIONS // len(allowed)
    by_traffic = np.lexsort((cross[allowed], run))
    first = np.flatnonzero(np.diff(run[by_traffic], prepend=-1))
    result: IntArray = allowed[by_traffic[first]]
    return result
