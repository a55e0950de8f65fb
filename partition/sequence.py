"""The `sequence` partitioner: cuts at articulation tensors of the forward part."""

from __future__ import annotations

import numpy as np

from hremate.graph import Graph, IntArray
from hremate.partition.cuts import SIZES, cut_sequence, homes
from hremate.partition.intervals import intervals
from hremate.partition.pairing import paired
from hremate.partition.phases import split_position
from hremate.partition.tree import BlockTree

#: Tensors below this share of the largest one do not count as crossing a cut.
SMALL = 1e-3


def sequence(graph: Graph, n_blocks: int, *, split: int | None = None) -> BlockTree:
    """Cut the given order where a single tensor connects the forward ops before and after.

    Such an articulation tensor separates the forward part, so that the blocks form a chain. Where there
    are not enough of them for `n_blocks` blocks of even size, positions that two tensors cross are
    allowed too, then three, and so on. Small tensors do not count. Where no such cuts are even, all
    positions are allowed.

    Parameters
    ----------
    split : int, optional
        Where the backward part begins (default: `split_position`); `n_ops` for blocks without one.

    Returns
    -------
    BlockTree
        Items F_1 .. F_J, then B_J .. B_1 (empty backward parts left out); fewer than `n_blocks` blocks
        where the graph is too small.

    Raises
    ------
    MethodError
        `n_blocks` is below 1.
    """
    split = split_position(graph) if split is None else split
    order = np.arange(split)
    count = crossing_tensors(graph, split)[1:split]
    # Ever wider cuts at even sizes, each try allowing twice as many widths; then cuts anywhere.
    widths = np.unique(count)
    for tries in range(len(widths).bit_length()):
        allowed = 1 + np.flatnonzero(count <= widths[2**tries - 1])
        cuts = cut_sequence(graph, order, n_blocks, allowed, SIZES[:1])
        if cuts is not None:
            return paired(graph, homes(order, cuts))
    return intervals(graph, n_blocks, split=split)


def crossing_tensors(graph: Graph, split: int) -> IntArray:
    """Number of tensors made before and read by forward ops at or after each position, int64[split + 1].

    Tensors smaller than `SMALL` times the largest one are left out.
    """
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    inside = graph.use_idx < split
    last = np.full(graph.n_tensors, -1, np.int64)
    np.maximum.at(last, tensor[inside], graph.use_idx[inside])
    alive = np.flatnonzero((last >= 0) & (graph.size >= SMALL * graph.size.max(initial=0)))
    change = np.bincount(graph.producer[alive] + 1, minlength=split + 1)
    change -= np.bincount(last[alive] + 1, minlength=split + 1)[: split + 1]
    result: IntArray = np.cumsum(change)
    return result
