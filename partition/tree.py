"""Blocks: convex sets of ops, forward parts paired with backward parts.

A *block* is a convex set of forward ops and, on graphs with a backward phase, the convex set of backward
ops paired with it. The parts of all blocks, run whole one after another in the order of the tree's
`items`, make a valid order of the graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate.errors import GraphError
from hremate.graph import Graph, IntArray


@dataclass(frozen=True, eq=False)
class Block:
    """One block; ops are ascending indices of the graph."""

    #: Ops of the forward part, int64[], not empty.
    forward: IntArray
    #: Ops of the backward part, int64[]; may be empty.
    backward: IntArray

    @property
    def n_ops(self) -> int:
        return len(self.forward) + len(self.backward)


@dataclass(frozen=True)
class Item:
    """One part of a block, as the hierarchical ILP orders them."""

    block: int
    backward: bool


@dataclass(frozen=True, eq=False)
class BlockTree:
    """One level of blocks over a graph."""

    blocks: tuple[Block, ...]
    #: Every non-empty part once, in an order in which the parts can run.
    items: tuple[Item, ...]

    def part(self, item: Item) -> IntArray:
        """Ops of one item, ascending."""
        block = self.blocks[item.block]
        return block.backward if item.backward else block.forward


def check_tree(graph: Graph, tree: BlockTree) -> None:
    """Check the invariants: parts cover all ops once, are convex, and can run in the order of the items.

    Raises
    ------
    GraphError
        Names the op and the part that break an invariant.
    """
    seen = [(item.block, item.backward) for item in tree.items]
    for j, block in enumerate(tree.blocks):
        if not len(block.forward):
            raise GraphError(f"block {j} has no forward op")
        for backward, part in ((False, block.forward), (True, block.backward)):
            if seen.count((j, backward)) != (1 if len(part) else 0):
                raise GraphError(f"part ({j}, backward={backward}) is not listed exactly once")
    position = np.full(graph.n_ops, -1, np.int64)
    for k, item in enumerate(tree.items):
        part = tree.part(item)
        if (position[part] >= 0).any() or (np.diff(part) <= 0).any():
            op = part[np.argmax(position[part] >= 0)]
            raise GraphError(f"op {graph.op_names[op]!r} lies in two parts, or part {k} is not ascending")
        position[part] = k
    if (position < 0).any():
        raise GraphError(f"op {graph.op_names[int(np.argmin(position))]!r} lies in no part")
    # An arc that never goes back makes the quotient acyclic; with it every part is convex: a path that
    # leaves a part rises in `position` and cannot come back.
    reader = np.repeat(np.arange(graph.n_ops), np.diff(graph.in_ptr))
    maker = graph.producer[graph.in_idx]
    back = np.flatnonzero(position[maker] > position[reader])
    if len(back):
        a, b = maker[back[0]], reader[back[0]]
        raise GraphError(
            f"op {graph.op_names[b]!r} of part {position[b]} reads from op {graph.op_names[a]!r} "
            f"of the later part {position[a]}"
        )
