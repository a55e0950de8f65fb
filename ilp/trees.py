"""Which blocks the hierarchy works on: a partition of the graph, split again for every further level."""

from __future__ import annotations

from dataclasses import replace

from hremate.graph import Graph
from hremate.partition.registry import PartitionFunction
from hremate.partition.subgraph import subgraph
from hremate.partition.tree import Block, BlockTree

#: Blocks of up to so many ops are not split further.
SMALLEST_SPLIT = 24
#: Blocks that a block is split into.
CHILDREN = 6


def split_blocks(graph: Graph, tree: BlockTree, levels: int, partition: PartitionFunction) -> BlockTree:
    """`tree` with `levels` more levels below each block that is large enough, cut by `partition`."""
    if levels < 1:
        return tree
    return replace(tree, blocks=tuple(_split(graph, block, levels, partition) for block in tree.blocks))


def _split(graph: Graph, block: Block, levels: int, partition: PartitionFunction) -> Block:
    if block.children is not None:
        return replace(block, children=split_blocks(graph, block.children, levels - 1, partition))
    if block.n_ops < SMALLEST_SPLIT:
        return block
    ops = block.ops
    inner = partition(subgraph(graph, ops), CHILDREN, split=len(block.forward))
    if len(inner.blocks) < 2:
        return block
    children = BlockTree(
        tuple(Block(ops[child.forward], ops[child.backward]) for child in inner.blocks), inner.items
    )
    return replace(block, children=split_blocks(graph, children, levels - 1, partition))
