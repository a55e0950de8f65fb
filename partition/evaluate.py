"""A cheap look at block trees, to choose among those of several partitioners without solving."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.partition._evaluate_kernel import block_hashes
from hremate.partition.pairing import GUEST
from hremate.partition.phases import split_position
from hremate.partition.registry import find_partitioner
from hremate.partition.tree import BlockTree

#: The partitioners that `best` tries, and how much lower a score must be to count as lower.
CANDIDATES = ("intervals", "repeat", "bottom-up", "sequence")
WORTHWHILE = 0.01


@dataclass(frozen=True)
class Evaluation:
    """What the blocks of one level are like."""

    n_blocks: int
    #: Number of blocks that differ by more than names.
    classes: int
    #: Sum over the blocks of the bytes of the tensors that a block shares with others.
    interface_bytes: int
    #: Bytes of forward tensors that backward parts read from the forward parts of other blocks; a little
    #: (`GUEST`) where their own forward part reads it too.
    foreign_bytes: float
    #: Bytes that lie within a block between its forward and its backward part: what its options can save.
    #: Without backward parts, all bytes that lie within a block.
    internal_bytes: int
    #: Largest share of one block in `internal_bytes`.
    largest_share: float

    @property
    def score(self) -> float:
        """Share of the bytes that no option of a block decides about, from 0 (best) to 1.

        It compares trees of the same number of blocks: fewer blocks share less, and decide less.
        """
        return self.interface_bytes / max(1, self.interface_bytes + self.internal_bytes)


def evaluate(graph: Graph, tree: BlockTree) -> Evaluation:
    """Look at the blocks of the first level of `tree`; near-linear in the size of the graph."""
    n_blocks = len(tree.blocks)
    block_of = blocks_of_ops(graph, tree)
    is_backward = np.zeros(graph.n_ops, np.bool_)
    for block in tree.blocks:
        is_backward[block.backward] = True
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    home = block_of[graph.producer]
    reader_block = block_of[graph.use_idx]
    away = reader_block != home[tensor]
    interface = shared_tensors(graph, block_of)
    # Distinct (tensor, block) pairs of readers in other blocks.
    guests = np.unique(tensor[away] * n_blocks + reader_block[away])
    shared = int(graph.size[interface].sum() + graph.size[guests // n_blocks].sum())

    late = is_backward[graph.use_idx] & ~is_backward[graph.producer[tensor]]
    early = ~is_backward[graph.use_idx]
    foreign = np.unique(tensor[late & away] * n_blocks + reader_block[late & away])
    known = np.isin(foreign, np.unique(tensor[early & away] * n_blocks + reader_block[early & away]))
    foreign_bytes = float((np.where(known, GUEST, 1.0) * graph.size[foreign // n_blocks]).sum())

    held = np.ones(graph.n_tensors, np.bool_)
    if is_backward.any():
        held[:] = False
        held[tensor[late]] = True
    held &= ~interface
    inside = np.bincount(home[held], weights=graph.size[held], minlength=n_blocks)
    return Evaluation(
        n_blocks=n_blocks,
        classes=len(np.unique(class_hashes(graph, tree))),
        interface_bytes=shared,
        foreign_bytes=foreign_bytes,
        internal_bytes=int(graph.size[held].sum()),
        largest_share=float(inside.max() / max(1.0, inside.sum())),
    )


def best(
    graph: Graph, n_blocks: int, *, split: int | None = None, candidates: Iterable[str] = CANDIDATES
) -> BlockTree:
    """The tree of least `Evaluation.score` among those of several partitioners.

    Of scores that differ by less than `WORTHWHILE`, the tree with fewer classes is better, else the one of
    the candidate listed first.

    Parameters
    ----------
    split : int, optional
        Where the backward part begins (default: `split_position`); `n_ops` for blocks without one.
    candidates : iterable of str
        Names of partitioners, at least one.

    Raises
    ------
    MethodError
        `n_blocks` is below 1, no such partitioner, or no candidates.
    """
    split = split_position(graph) if split is None else split
    chosen: tuple[Evaluation, BlockTree] | None = None
    for name in candidates:
        tree = find_partitioner(name).load()(graph, n_blocks, split=split)
        seen = evaluate(graph, tree)
        if chosen is not None:
            gain = chosen[0].score - seen.score
            if gain < -WORTHWHILE or (gain <= WORTHWHILE and seen.classes >= chosen[0].classes):
                continue
        chosen = seen, tree
    if chosen is None:
        raise MethodError("Expected at least one candidate.")
    return chosen[1]


def class_hashes(graph: Graph, tree: BlockTree) -> IntArray:
    """A hash of each block of the first level, uint64[J]: equal for blocks that are equal up to names.

    Types of ops count, scopes and phases do not.
    """
    ptr = np.concatenate([[0], np.cumsum([block.n_ops for block in tree.blocks])])
    block_of = blocks_of_ops(graph, tree)
    words = np.stack(
        [graph.time.view(np.int64), graph.workspace, graph.once.astype(np.int64), type_codes(graph)], axis=1
    )
    hashes: IntArray = block_hashes(
        ptr,
        np.concatenate([block.ops for block in tree.blocks]),
        np.array([len(block.forward) for block in tree.blocks]),
        words, graph.size, graph.in_ptr, graph.in_idx, graph.out_ptr, graph.producer, block_of,
        shared_tensors(graph, block_of),
    )  # fmt: skip
    return hashes


def blocks_of_ops(graph: Graph, tree: BlockTree) -> IntArray:
    """The block of the first level in which each op lies, int64[n]."""
    block_of = np.empty(graph.n_ops, np.int64)
    for j, block in enumerate(tree.blocks):
        block_of[block.forward] = j
        block_of[block.backward] = j
    return block_of


def shared_tensors(graph: Graph, block_of: IntArray) -> BoolArray:
    """Tensors needed outside the block that makes them (graph outputs too), bool[m]."""
    shared = graph.is_output.copy()
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    shared[tensor[block_of[graph.use_idx] != block_of[graph.producer[tensor]]]] = True
    return shared


def type_codes(graph: Graph) -> IntArray:
    """The type of each op as a number, int64[n], by first appearance."""
    known: dict[str, int] = {}
    return np.array([known.setdefault(name, len(known)) for name in graph.op_types], np.int64)
