"""Blocks within blocks, solved from the inside out: one job per class of equal blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hremate.graph import BoolArray, Graph, IntArray
from hremate.ilp.cache import OptionCache
from hremate.ilp.classes import Form, group, translate
from hremate.ilp.inner import Inside
from hremate.ilp.leaf import Leaf, Option, make_leaf
from hremate.ilp.leaves import Job, LeafTask, solve_jobs
from hremate.ilp.options import thinned
from hremate.partition.tree import Block, BlockTree
from hremate.solvers.base import Run

#: Options of a child that the H-ILPs of its parent choose from.
CHILD_OPTIONS = 40


@dataclass(frozen=True, eq=False)
class Nest:
    """A block with all that is inside it."""

    leaf: Leaf
    #: Where it stands in the tree, for people.
    name: str
    children: tuple[Nest, ...] = ()
    #: The children's blocks in local op numbers; None for a leaf.
    tree: BlockTree | None = None

    @property
    def height(self) -> int:
        """0 for a leaf."""
        return 1 + max(child.height for child in self.children) if self.children else 0

    def walk(self) -> Iterator[Nest]:
        """This block and all blocks inside it."""
        yield self
        for child in self.children:
            yield from child.walk()


def make_nest(
    graph: Graph, block: Block, pinned: BoolArray, name: str, bundles: IntArray | None = None
) -> Nest:
    """Cut a block and all blocks inside it out of `graph` (see `make_leaf`)."""
    leaf = make_leaf(graph, block, pinned, bundles)
    if block.children is None:
        return Nest(leaf, name)
    inside = block.children
    children = tuple(
        make_nest(graph, child, pinned, f"{name}.{j}") for j, child in enumerate(inside.blocks)
    )
    place = np.full(graph.n_ops, -1, np.int64)
    place[leaf.ops] = np.arange(leaf.n_ops)
    local = [
        replace(child, forward=place[child.forward], backward=place[child.backward], children=None)
        for child in inside.blocks
    ]
    return Nest(leaf, name, children, BlockTree(tuple(local), inside.items))


@dataclass(frozen=True, eq=False)
class _Known:
    """A block that was solved, and its options."""

    leaf: Leaf
    form: Form
    options: list[Option]


class Solver:
    """Options of nests; what was solved once is not solved again as long as this lives.

    `cache` : options of earlier runs.
    """

    def __init__(self, run: Run, cache: OptionCache | None) -> None:
        self.run = run
        self.cache = cache
        self.known: dict[str, _Known] = {}
        #: Blocks of all levels, and their classes, of the call of `options_of` before.
        self.n_blocks = self.n_classes = 0

    def options_of(self, nests: Sequence[Nest], task: LeafTask, seconds: float) -> list[list[Option]]:
        """The options of each nest, within about `seconds` in all."""
        nodes = [node for nest in nests for node in nest.walk()]
        found: dict[int, list[Option]] = {}
        keys: dict[int, str] = {}
        heights = [node.height for node in nodes]
        work = sum(node.leaf.n_ops for node in nodes) or 1
        for height in range(max(heights, default=-1) + 1):
            level = [node for node, h in zip(nodes, heights, strict=True) if h == height]
            share = sum(node.leaf.n_ops for node in level) / work
            self._solve_level(level, task, seconds * share, keys, found)
        self.n_blocks, self.n_classes = len(nodes), len(set(keys.values()))
        return [found[id(nest)] for nest in nests]

    def _solve_level(
        self, nodes: Sequence[Nest], task: LeafTask, seconds: float,
        keys: dict[int, str], found: dict[int, list[Option]],
    ) -> None:  # fmt: skip
        """Options of blocks whose children are all in `found`."""
        labels = [_child_of_ops(node) for node in nodes]
        forms = group([node.leaf for node in nodes], labels).forms
        jobs: dict[str, Job] = {}
        recipe = repr(task)
        for node, form, label in zip(nodes, forms, labels, strict=True):
            inner = [keys[id(node.children[c])] for c in dict.fromkeys(label[form.ops].tolist()) if c >= 0]
            key = hashlib.sha256("\n".join([recipe, form.digest, *inner]).encode()).hexdigest()
            keys[id(node)] = key
            if key in self.known or key in jobs:
                continue
            stored = None if self.cache is None else self.cache.load(node.leaf, form, key)
            if stored is not None:
                self.known[key] = _Known(node.leaf, form, stored)
                continue
            jobs[key] = Job(node.leaf, node.name, task, _inside(node, found))
        for key, outcome in zip(jobs, solve_jobs(list(jobs.values()), seconds, self.run), strict=True):
            first = next(k for k, node in enumerate(nodes) if keys[id(node)] == key)
            self.known[key] = _Known(nodes[first].leaf, forms[first], outcome.options)
            if outcome.complete:
                self._store(forms[first], key, outcome.options)
        for node, form in zip(nodes, forms, strict=True):
            known = self.known[keys[id(node)]]
            found[id(node)] = translate(known.options, known.leaf, known.form, node.leaf, form)

    def _store(self, form: Form, key: str, options: Sequence[Option]) -> None:
        if self.cache is None:
            return
        try:
            self.cache.store(form, key, options)
        except OSError as error:
            self.run.stats.degraded.append(f"options are not kept in {self.cache.folder}: {error}")
            self.cache = None


def _child_of_ops(node: Nest) -> IntArray:
    """The child that each local op belongs to, -1 in a leaf."""
    label = np.full(node.leaf.n_ops, -1, np.int64)
    if node.tree is not None:
        for c, block in enumerate(node.tree.blocks):
            label[block.ops] = c
    return label


def _inside(node: Nest, found: dict[int, list[Option]]) -> Inside | None:
    if node.tree is None:
        return None
    return Inside(
        node.tree,
        tuple(
            tuple((o.forward.sequence, o.backward.sequence) for o in thinned(found[id(child)], CHILD_OPTIONS))
            for child in node.children
        ),
    )
