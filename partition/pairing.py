"""Pairing: given the blocks of the forward ops, the backward part of each block."""

from __future__ import annotations

import numpy as np

from hremate.graph import FloatArray, Graph, IntArray
from hremate.partition._pairing_kernel import backward_labels
from hremate.partition.tree import Block, BlockTree, Item

#: Weights, against bytes that a backward part reads of tensors foreign to its block, of such bytes that
#: its forward part reads too, and of crossing gradient bytes.
GUEST = 0.05
GRADIENT_WEIGHT = 0.05


def paired(graph: Graph, home: IntArray) -> BlockTree:
    """The tree whose forward parts are given by `home`, with backward parts to match.

    Two ways are tried. The backward part of the given order is cut into one interval a block, the last
    block first, so that intervals read little of tensors foreign to their block and few gradient bytes
    cross the cuts. Or each backward op goes to the block whose forward tensors it reads, or whose scope it
    has, as far as the arcs between backward ops allow: better where the given order is not the reverse of
    the forward part. Intervals are kept unless they cost more.

    Parameters
    ----------
    home : int64[split]
        Block of each forward op; every block 0 .. J-1 occurs, and no op reads from a later block.

    Returns
    -------
    BlockTree
        Items F_1 .. F_J, then B_J .. B_1 (empty backward parts left out).
    """
    split = len(home)
    n_blocks = int(home.max()) + 1
    label = np.empty(0, np.int64)
    if split < graph.n_ops:
        foreign = _foreign_reads(graph, home, n_blocks)
        ends = _backward_cuts(foreign, GRADIENT_WEIGHT * _gradient_bytes(graph, split))
        label = np.repeat(np.arange(n_blocks - 1, -1, -1), np.diff(ends))
        structural = backward_labels(
            graph.in_ptr, graph.in_idx, graph.out_ptr, graph.use_ptr, graph.use_idx, graph.producer,
            _wishes(graph, home), split, n_blocks,
        )  # fmt: skip
        if _cost(graph, foreign, structural) < _cost(graph, foreign, label):
            label = structural
    forward = _members(home, n_blocks)
    backward = [split + part for part in _members(label, n_blocks)]
    items = [Item(j, False) for j in range(n_blocks)]
    items += [Item(j, True) for j in range(n_blocks - 1, -1, -1) if len(backward[j])]
    return BlockTree(tuple(Block(f, b) for f, b in zip(forward, backward, strict=True)), tuple(items))


def _members(label: IntArray, n_blocks: int) -> list[IntArray]:
    """The ascending places at which each of the blocks occurs in `label`."""
    by_block = np.argsort(label, kind="stable")
    return np.split(by_block, np.searchsorted(label[by_block], np.arange(1, n_blocks)))


def _wishes(graph: Graph, home: IntArray) -> IntArray:
    """The block that suits each backward op best, int64[n - split]; -1 where nothing tells.

    The home of the forward tensors it reads, by bytes, or the next block if that is their only other
    reader: too late a block only shifts the op, too early a one takes all that follow along. Tensors
    that several blocks read do not tell. Else the last block with an op of its scope.
    """
    split, n_blocks = len(home), int(home.max()) + 1
    scopes: dict[str, int] = {}
    for scope, block in zip(graph.op_scopes, home.tolist(), strict=False):
        if scope:
            scopes[scope] = block
    wish = np.array([scopes.get(scope, -1) for scope in graph.op_scopes[split:]], np.int64)
    made = int(graph.out_ptr[split])
    first = home[graph.producer[:made]]
    tensor = np.repeat(np.arange(made), np.diff(graph.use_ptr[: made + 1]))
    early = graph.use_idx[: len(tensor)] < split
    readers = home[graph.use_idx[: len(tensor)][early]]
    touching = np.unique(
        np.concatenate([np.arange(made) * n_blocks + first, tensor[early] * n_blocks + readers])
    )
    blocks = np.bincount(touching // n_blocks, minlength=made)
    last = first.copy()
    np.maximum.at(last, touching // n_blocks, touching % n_blocks)
    suits = np.where(last == first + 1, last, first)
    suits[blocks > 2] = -1

    reader = np.repeat(np.arange(graph.n_ops - split), np.diff(graph.in_ptr[split:]))
    read = graph.in_idx[graph.in_ptr[split] :]
    tells = np.flatnonzero(read < made)
    tells = tells[suits[read[tells]] >= 0]
    pair, where = np.unique(reader[tells] * n_blocks + suits[read[tells]], return_inverse=True)
    nbytes = np.bincount(where, weights=graph.size[read[tells]], minlength=len(pair))
    # The last pair of each reader is the one of most bytes.
    by_bytes = np.lexsort((nbytes, pair // n_blocks))
    wish[pair[by_bytes] // n_blocks] = pair[by_bytes] % n_blocks
    return wish


def _cost(graph: Graph, foreign: FloatArray, label: IntArray) -> float:
    """Foreign bytes that backward parts read + weighted gradient bytes times the parts they cross."""
    n_blocks = len(foreign)
    split = graph.n_ops - len(label)
    reads = np.diff(foreign, axis=1)[n_blocks - 1 - label, np.arange(len(label))].sum()
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    inside = graph.producer[tensor] >= split
    last = np.full(graph.n_tensors, n_blocks)
    np.minimum.at(last, tensor[inside], label[graph.use_idx[inside] - split])
    used = np.flatnonzero(last < n_blocks)
    crossed = label[graph.producer[used] - split] - last[used]
    return float(reads + GRADIENT_WEIGHT * (graph.size[used] * crossed).sum())


def _foreign_reads(graph: Graph, home: IntArray, n_blocks: int) -> FloatArray:
    """Bytes that each backward op reads of forward tensors that are foreign to a block.

    A tensor is at home in the block that makes it, foreign to blocks whose forward part has nothing to do
    with it, and a little so (`GUEST`) to those whose forward part reads it. Its bytes are shared out over
    the backward ops that read it, so that one read all along does not draw all its readers together.

    Returns
    -------
    float64[J, n - split + 1]
        Row k for the block that runs k-th in the backward part; cumulative over positions.
    """
    split = len(home)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    reader = graph.use_idx
    made_forward = graph.producer[tensor] < split
    late = np.flatnonzero(made_forward & (reader >= split))
    early = np.flatnonzero(made_forward & (reader < split))
    cost = np.zeros((n_blocks, graph.n_ops - split + 1))
    everywhere = np.zeros(graph.n_ops - split + 1)
    share = graph.size / np.maximum(1, np.bincount(tensor[late], minlength=graph.n_tensors))
    np.add.at(everywhere, reader[late] - split + 1, share[tensor[late]])
    cost += everywhere
    # Blocks that know a tensor: its home, and those that read it forward.
    guests = np.unique(tensor[early] * n_blocks + home[reader[early]])
    made_home = home[graph.producer[: graph.out_ptr[split]]]
    for j in range(n_blocks):
        discount = np.zeros(graph.n_tensors)
        discount[guests[guests % n_blocks == j] // n_blocks] = 1.0 - GUEST
        discount[: graph.out_ptr[split]][made_home == j] = 1.0
        np.subtract.at(
            cost[n_blocks - 1 - j],
            reader[late] - split + 1,
            discount[tensor[late]] * share[tensor[late]],
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
