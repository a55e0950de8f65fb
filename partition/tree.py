"""Blocks: convex sets of ops, forward parts paired with backward parts, in one level or several.

A *block* is a convex set of forward ops and, on graphs with a backward phase, the convex set of backward
ops paired with it. The parts of all blocks, run whole one after another in the order of the tree's
`items`, make a valid order of the graph. The children of a block split its two parts in the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

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
    #: The next level: blocks that split `forward` and `backward`; None for a leaf.
    children: BlockTree | None = None

    @property
    def n_ops(self) -> int:
        return len(self.forward) + len(self.backward)

    @property
    def ops(self) -> IntArray:
        """The ops of the forward part, then those of the backward part."""
        return np.concatenate([self.forward, self.backward])


@dataclass(frozen=True)
class Item:
    """One part of a block, as the hierarchical ILP orders them."""

    block: int
    backward: bool


@dataclass(frozen=True, eq=False)
class BlockTree:
    """Blocks over a graph, or over the ops of one block."""

    blocks: tuple[Block, ...]
    #: Every non-empty part once, in an order in which the parts can run. Below the first level, where the
    #: forward and the backward part of the parent run apart, all forward parts come first.
    items: tuple[Item, ...]

    def part(self, item: Item) -> IntArray:
        """Ops of one item, ascending."""
        block = self.blocks[item.block]
        return block.backward if item.backward else block.forward

    @property
    def depth(self) -> int:
        """Number of levels, 1 without children."""
        return 1 + max((b.children.depth for b in self.blocks if b.children is not None), default=0)

    def leaves(self) -> Iterator[Block]:
        """The blocks without children, in the order of the blocks."""
        for block in self.blocks:
            if block.children is None:
                yield block
            else:
                yield from block.children.leaves()

    def parts(self, level: int, backward: bool | None = None) -> Iterator[IntArray]:
        """The parts after `level` splits, or as far as they were split, in the order they run in.

        Parameters
        ----------
        level : int
            0 for the parts of the blocks of this tree.
        backward : bool, optional
            Only forward parts, or only backward parts.
        """
        for item in self.items:
            if backward is not None and item.backward != backward:
                continue
            children = self.blocks[item.block].children
            if level == 0 or children is None:
                yield self.part(item)
            else:
                yield from children.parts(level - 1, item.backward)


def check_tree(graph: Graph, tree: BlockTree) -> None:
    """Check the invariants at every level.

    The parts cover all ops once, are convex, and can run in the order of the items; children cover the
    parts of their block, forward parts first.

    Raises
    ------
    GraphError
        Names the op and the part that break an invariant.
    """
    _check_items(tree, "")
    reader = np.repeat(np.arange(graph.n_ops), np.diff(graph.in_ptr))
    maker = graph.producer[graph.in_idx]
    for level in range(tree.depth):
        where = f" of level {level + 1}" if level else ""
        position = np.full(graph.n_ops, -1, np.int64)
        for k, part in enumerate(tree.parts(level)):
            if (position[part] >= 0).any() or (np.diff(part) <= 0).any():
                op = part[np.argmax(position[part] >= 0)]
                raise GraphError(
                    f"op {graph.op_names[op]!r} lies in two parts{where}, or part {k} is not ascending"
                )
            position[part] = k
        if (position < 0).any():
            raise GraphError(f"op {graph.op_names[int(np.argmin(position))]!r} lies in no part{where}")
        # An arc that never goes back makes the quotient acyclic; with it every part is convex: a path
        # that leaves a part rises in `position` and cannot come back.
        back = np.flatnonzero(position[maker] > position[reader])
        if len(back):
            a, b = maker[back[0]], reader[back[0]]
            raise GraphError(
                f"op {graph.op_names[b]!r} of part {position[b]}{where} reads from op {graph.op_names[a]!r} "
                f"of the later part {position[a]}"
            )


def _check_items(tree: BlockTree, path: str) -> None:
    """Check that items list every part once and that children cover their block, at every level."""
    listed = Counter((item.block, item.backward) for item in tree.items)
    for j, block in enumerate(tree.blocks):
        name = f"{path}{j}"
        if not len(block.forward):
            raise GraphError(f"block {name} has no forward op")
        for backward, part in ((False, block.forward), (True, block.backward)):
            if listed.pop((j, backward), 0) != (1 if len(part) else 0):
                raise GraphError(f"part ({name}, backward={backward}) is not listed exactly once")
        if block.children is None:
            continue
        _check_items(block.children, f"{name}.")
        if any(a.backward and not b.backward for a, b in pairwise(block.children.items)):
            raise GraphError(f"a forward part of the children of block {name} follows a backward part")
        for backward, part in ((False, block.forward), (True, block.backward)):
            below = [part[:0], *block.children.parts(0, backward)]
            if not np.array_equal(np.sort(np.concatenate(below)), part):
                raise GraphError(f"the children of block {name} do not cover its part backward={backward}")
    if listed:
        raise GraphError(f"item {next(iter(listed))} is of no block")
