"""The `intervals` partitioner: blocks are intervals of the given order, so every quotient is acyclic.

Forward cuts by a dynamic program over cut positions that weighs the bytes crossing a cut against even
sizes; the backward part of the order is cut likewise so that each interval reads what its own forward
part made.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.partition._intervals_kernel import forward_cuts
from hremate.partition.phases import split_position
from hremate.partition.tree import Block, BlockTree, Item
from hremate.simulate import base_peak

#: A block holds 0.4 to 1.7 times the average number of ops with a big output.
SMALLEST, LARGEST = 0.4, 1.7
#: How much more a crossing tensor costs that the backward part does not read: what is kept across such a
#: cut serves the forward part alone.
FORWARD_ONLY = 2.0
#: Weight of the squared relative deviation from the average size, against crossing bytes / peak.
SIZE_WEIGHT = 1e-4
#: Weights, against bytes that a backward part reads of tensors foreign to its block, of such bytes that
#: its forward part reads too, and of crossing gradient bytes.
GUEST = 0.05
GRADIENT_WEIGHT = 0.05
#: An output is big when it exceeds this share of the largest one.
BIG_OUTPUT = 1e-3


def intervals(graph: Graph, n_blocks: int, *, split: int | None = None) -> BlockTree:
    """Cut the given order into `n_blocks` blocks (fewer when the graph is too small).

    Parameters
    ----------
    split : int, optional
        Where the backward part begins (default: `split_position`); `n_ops` for blocks without one.

    Returns
    -------
    BlockTree
        Items F_1 .. F_J, then B_J .. B_1 (empty backward parts left out).

    Raises
    ------
    MethodError
        `n_blocks` is below 1.
    """
    if n_blocks < 1:
        raise MethodError("Expected n_blocks >= 1.")
    split = split_position(graph) if split is None else split
    peak = max(1, base_peak(graph))
    crossing = _crossing_bytes(graph, split)
    big = (graph.out_bytes[:split] > BIG_OUTPUT * graph.out_bytes.max(initial=1)).astype(np.float64)
    weight = np.concatenate([[0.0], np.cumsum(big)])
    if weight[-1] < n_blocks:
        weight = np.arange(split + 1, dtype=np.float64)
    n_blocks = min(n_blocks, int(weight[-1]))
    cuts = _forward_cuts(crossing / peak, weight, n_blocks)
    home = np.searchsorted(cuts[1:], np.arange(split), side="right")
    forward = [np.arange(a, b) for a, b in pairwise(cuts.tolist())]
    backward = [np.empty(0, np.int64)] * n_blocks
    items = [Item(j, False) for j in range(n_blocks)]
    if split < graph.n_ops:
        foreign = _foreign_reads(graph, split, home, n_blocks)
        ends = _backward_cuts(foreign, GRADIENT_WEIGHT * _gradient_bytes(graph, split))
        for k, (a, b) in enumerate(pairwise(ends.tolist())):
            backward[n_blocks - 1 - k] = np.arange(split + a, split + b)
        items += [Item(j, True) for j in range(n_blocks - 1, -1, -1) if len(backward[j])]
    return BlockTree(tuple(Block(f, b) for f, b in zip(forward, backward, strict=True)), tuple(items))


def _crossing_bytes(graph: Graph, split: int) -> FloatArray:
    """Bytes made before and read at or after each position of the forward part, float64[split + 1].

    Tensors that no op at or after `split` reads weigh `FORWARD_ONLY` times as much.
    """
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    inside = graph.use_idx < split
    last = np.full(graph.n_tensors, -1, np.int64)
    np.maximum.at(last, tensor[inside], graph.use_idx[inside])
    weight = FORWARD_ONLY * graph.size
    weight[tensor[~inside]] = graph.size[tensor[~inside]]
    change = np.zeros(split + 2)
    alive = np.flatnonzero(last >= 0)
    np.add.at(change, graph.producer[alive] + 1, weight[alive])
    np.add.at(change, last[alive] + 1, -weight[alive])
    crossing: FloatArray = np.cumsum(change)[: split + 1]
    return crossing


def _forward_cuts(cross: FloatArray, weight: FloatArray, n_blocks: int) -> IntArray:
    """Cut positions 0 = c_0 < .. < c_J = len(cross) - 1 of least total cost."""
    average = weight[-1] / n_blocks
    for smallest, largest in ((SMALLEST, LARGEST), (0.1, 4.0), (0.0, np.inf)):
        cuts: IntArray = forward_cuts(
            cross, weight, n_blocks, smallest * average, largest * average, average, SIZE_WEIGHT
        )
        if len(cuts):
            return cuts
    raise AssertionError("unbounded block sizes always leave a choice of cuts")


def _foreign_reads(graph: Graph, split: int, home: IntArray, n_blocks: int) -> FloatArray:
    """Bytes that each backward op reads of forward tensors that are foreign to a block.

    A tensor is at home in the block that makes it, foreign to blocks whose forward part has nothing to do
    with it, and a little so (`GUEST`) to those whose forward part reads it.

    Returns
    -------
    float64[J, n - split + 1]
        Row k for the block that runs k-th in the backward part; cumulative over positions.
    """
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    reader = graph.use_idx
    made_forward = graph.producer[tensor] < split
    late = np.flatnonzero(made_forward & (reader >= split))
    early = np.flatnonzero(made_forward & (reader < split))
    cost = np.zeros((n_blocks, graph.n_ops - split + 1))
    everywhere = np.zeros(graph.n_ops - split + 1)
    np.add.at(everywhere, reader[late] - split + 1, graph.size[tensor[late]])
    cost += everywhere
    # Blocks that know a tensor: its home, and those that read it forward.
    guests = np.unique(tensor[early] * n_blocks + home[reader[early]])
    for j in range(n_blocks):
        discount = np.zeros(graph.n_tensors)
        discount[guests[guests % n_blocks == j] // n_blocks] = 1.0 - GUEST
        discount[: graph.out_ptr[split]][home[graph.producer[: graph.out_ptr[split]]] == j] = 1.0
        np.subtract.at(
            cost[n_blocks - 1 - j],
            reader[late] - split + 1,
            discount[tensor[late]] * graph.size[tensor[late]],
        )
    cumulative: FloatArray = np.cumsum(cost, axis=1)
    return cumulative


def _gradient_bytes(graph: Graph, split: int) -> FloatArray:
    """Bytes made in the backward part that cross each of its positions, float64[n - split + 1]."""
    change = np.zeros(graph.n_ops - split + 2)
    used = np.flatnonzero((np.diff(graph.use_ptr) > 0) & (graph.producer >= split))
    last = graph.use_idx[graph.use_ptr[1:][used] - 1]
    np.add.at(change, graph.producer[used] - split + 1, graph.size[used])
    np.add.at(change, last - split + 1, -graph.size[used])
    gradients: FloatArray = np.cumsum(change)[:-1]
    return gradients


def _backward_cuts(foreign: FloatArray, cross: FloatArray) -> IntArray:
    """Cut positions of the backward part (parts may be empty): least foreign reads + crossing bytes."""
    n_blocks, positions = foreign.shape
    best = np.full(positions, np.inf)
    best[0] = 0.0
    back = np.zeros((n_blocks, positions), np.int64)
    for k in range(n_blocks):
        reach = best - foreign[k]
        prefix = np.minimum.accumulate(reach)
        source = np.maximum.accumulate(np.where(reach <= prefix, np.arange(positions), 0))
        back[k] = source
        best = reach[source] + foreign[k] + (cross if k < n_blocks - 1 else 0.0)
    cuts = np.empty(n_blocks + 1, np.int64)
    e = positions - 1
    for k in range(n_blocks - 1, -1, -1):
        cuts[k + 1] = e
        e = back[k, e]
    cuts[0] = e
    return cuts
