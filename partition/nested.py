"""Trees of several levels: a partitioner applied to the graph, then to each block, and so on."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.partition.evaluate import type_codes
from hremate.partition.phases import split_position
from hremate.partition.registry import PartitionFunction, find_partitioner
from hremate.partition.subgraph import subgraph
from hremate.partition.tree import Block, BlockTree

#: Leaves are aimed at this share of their limit: blocks are uneven, and one that is a little too large
#: costs a level.
AIM = 0.7


@dataclass(frozen=True)
class Limits:
    """How far a graph is split."""

    #: Most blocks of a level, and most children of a block.
    blocks: int = 10
    #: A block of at most this many ops is a leaf.
    leaf_ops: int = 100
    #: Most levels; leaves are larger than `leaf_ops` where it ends the splitting.
    depth: int = 20
    #: Whether blocks have as few children as reach leaves of that size in as few levels; else `blocks` each.
    even: bool = True

    def __post_init__(self) -> None:
        if self.blocks < 2:
            raise MethodError("Expected blocks >= 2.")
        for name in ("leaf_ops", "depth"):
            if getattr(self, name) < 1:
                raise MethodError(f"Expected {name} >= 1.")

    def children(self, n_ops: int, levels: int) -> int:
        """Number of children of a block of `n_ops` ops with `levels` levels to go, 1 for a leaf.

        Levels are as few as the limits allow, and branch evenly if `even` says so.
        """
        if levels < 1 or n_ops <= self.leaf_ops:
            return 1
        if not self.even:
            return self.blocks
        leaves = n_ops / (AIM * self.leaf_ops)
        needed = min(levels, math.ceil(math.log(leaves) / math.log(self.blocks) - 1e-9))
        return min(self.blocks, max(2, math.ceil(leaves ** (1 / max(1, needed)) - 1e-9)))


def nested(
    graph: Graph,
    limits: Limits | None = None,
    partitioner: str | PartitionFunction = "intervals",
    *,
    split: int | None = None,
) -> BlockTree:
    """Split `graph` into blocks, the blocks into children, down to leaves of `limits.leaf_ops` ops.

    The children of a block split its forward and its backward part, each as the partitioner pairs them in
    the graph of the block alone. Blocks that are equal up to names are split once, so that equal blocks
    have equal children.

    Parameters
    ----------
    limits : Limits, optional
    partitioner : str or function
        A name of `hremate.partition.registry`, or a function of that kind.
    split : int, optional
        Where the backward part begins (default: `split_position`).

    Returns
    -------
    BlockTree
        `check_tree` holds at every level.

    Raises
    ------
    MethodError
        No such partitioner.

    Examples
    --------
    >>> import hremate as hr
    >>> nested(hr.generate("transformer", 2000), Limits(blocks=8, leaf_ops=80)).depth
    2
    """
    limits = Limits() if limits is None else limits
    split = split_position(graph) if split is None else split
    return _Splitter(graph, limits, partitioner).split(graph, np.arange(graph.n_ops), split, limits.depth)


def deepened(
    graph: Graph, tree: BlockTree, limits: Limits, partitioner: str | PartitionFunction = "intervals"
) -> BlockTree:
    """`tree` with at most `limits.depth` further levels below its blocks, as in `nested`.

    Parameters
    ----------
    tree : BlockTree
        Over `graph`; blocks that have children keep them as they are.
    limits : Limits
    partitioner : str or function

    Raises
    ------
    MethodError
        No such partitioner.
    """
    splitter = _Splitter(graph, limits, partitioner)
    ops = np.arange(graph.n_ops)
    blocks = [
        splitter.with_children(graph, ops, block, limits.depth) if block.children is None else block
        for block in tree.blocks
    ]
    return BlockTree(tuple(blocks), tree.items)


class _Splitter:
    """Splits blocks and remembers the trees of blocks it has seen."""

    def __init__(self, graph: Graph, limits: Limits, partitioner: str | PartitionFunction) -> None:
        self.limits = limits
        if isinstance(partitioner, str):
            partitioner = find_partitioner(partitioner).load()
        self.partitioner = partitioner
        self.codes = type_codes(graph)
        #: Trees in ops of the block alone, by a digest of the block.
        self.known: dict[bytes, BlockTree] = {}

    def split(self, graph: Graph, ops: IntArray, split: int, levels: int) -> BlockTree:
        """The tree of a block, in its own ops.

        Parameters
        ----------
        graph : Graph
            The block alone; its op k is op `ops[k]` of the whole graph.
        split : int
            Number of forward ops.
        levels : int
            Levels the tree may have, >= 1.
        """
        key = self.digest(graph, ops, split, levels)
        if key not in self.known:
            n_blocks = min(self.limits.children(graph.n_ops, levels), split)
            tree = self.partitioner(graph, n_blocks, split=split)
            blocks = [self.with_children(graph, ops, block, levels - 1) for block in tree.blocks]
            self.known[key] = BlockTree(tuple(blocks), tree.items)
        return self.known[key]

    def with_children(self, graph: Graph, ops: IntArray, block: Block, levels: int) -> Block:
        """`block` with its children, in the ops of `graph`."""
        n_blocks = min(self.limits.children(block.n_ops, levels), len(block.forward))
        if n_blocks < 2 or block.n_ops == graph.n_ops:
            return block
        inner = block.ops
        children = self.split(subgraph(graph, inner), ops[inner], len(block.forward), levels)
        if len(children.blocks) < 2:
            return block
        return Block(block.forward, block.backward, translated(children, inner))

    def digest(self, graph: Graph, ops: IntArray, split: int, levels: int) -> bytes:
        """Equal for blocks that are equal up to names."""
        digest = hashlib.sha256()
        for value in (
            np.array([split, levels]), graph.time, graph.workspace, graph.once, graph.size, graph.in_ptr,
            graph.in_idx, graph.out_ptr, graph.outputs, self.codes[ops],
        ):  # fmt: skip
            digest.update(np.int64(len(value)).tobytes())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.digest()


def translated(tree: BlockTree, ops: IntArray) -> BlockTree:
    """`tree` over the ops `ops[k]` instead of k."""
    blocks = tuple(
        Block(
            ops[block.forward],
            ops[block.backward],
            None if block.children is None else translated(block.children, ops),
        )
        for block in tree.blocks
    )
    return BlockTree(blocks, tree.items)
