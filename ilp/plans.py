"""What the hierarchy tries, in which order, and on which blocks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hremate.errors import MethodError
from hremate.graph import Graph
from hremate.ilp.program import Reruns
from hremate.partition.nested import Limits, deepened
from hremate.partition.registry import find_partitioner
from hremate.partition.tree import BlockTree

#: Partitioner by default, and on graphs of more ops than so many, where trying them all takes too long.
DEFAULT_PARTITION, LARGE_PARTITION, MOST_OPS = "best", "intervals", 20_000
#: Trees of up to this many parts get every re-run when memory is tight.
SMALL_TREE = 8
#: Graphs of up to this many ops get few, large blocks and options of low peak from searches on these.
SMALL_GRAPH = 900
#: Small graphs are also cut into blocks of about so many ops, whose options the exact model finds.
EXACT_BLOCK = 25
#: Graphs of more ops than this get a further level when memory is tight.
SMALLEST_NESTED = 200
#: Size of leaves that further levels aim at.
NESTED_LEAF = 100
#: Blocks that a block is split into, and the size up to which it is not.
CHILDREN, SMALLEST_SPLIT = 6, 23


@dataclass(frozen=True)
class Params:
    """Parameters of the hierarchy."""

    #: Number of blocks; 0 tries a few numbers that suit the size.
    blocks: int = 0
    #: Options per block in the H-ILP.
    menu: int = 8
    #: How often menus are refined around the answer and the H-ILP is solved again.
    refinements: int = 2
    #: Capacities at which the cut ILP of a leaf is solved, per pricing mode.
    grid: int = 24
    #: Width of the beam that looks for options of low peak.
    width: int = 1
    #: Branch-and-bound nodes of one H-ILP.
    node_limit: int = 2000
    #: Seconds after which one H-ILP hands in the best it has.
    milp_seconds: float = 15.0
    #: Branch-and-bound nodes of the cut ILP of the whole graph.
    cut_nodes: int = 300
    #: Take the schedule of the flat method `cut` where it is better than that of the hierarchy.
    flat_start: bool = True
    #: Levels, the one of the leaves included; None for as many as suit the size.
    depth: int | None = None
    #: Folder in which options of solved blocks are kept for later runs; None for not.
    cache_dir: str | Path | None = None
    #: Partitioner (`hremate.partition.registry`); None for the one that suits most graphs.
    partition: str | None = None
    #: Blocks to work on, in place of a partition.
    tree: BlockTree | None = None

    @property
    def particular(self) -> bool:
        """Whether certain blocks are asked for, so that the hierarchy runs whatever flat methods found."""
        asked = (self.depth, self.cache_dir, self.partition, self.tree)
        return self.blocks > 0 or any(value is not None for value in asked)

    def __post_init__(self) -> None:
        for name in ("blocks", "refinements", "grid"):
            if getattr(self, name) < 0:
                raise MethodError(f"Expected {name} >= 0.")
        for name in ("menu", "width", "node_limit", "cut_nodes"):
            if getattr(self, name) < 1:
                raise MethodError(f"Expected {name} >= 1.")
        if not self.milp_seconds > 0:
            raise MethodError("Expected milp_seconds > 0.")
        if self.depth is not None and self.depth < 2:
            raise MethodError("Expected depth >= 2.")
        if self.partition is not None:
            find_partitioner(self.partition)
        if self.tree is not None and not isinstance(self.tree, BlockTree):
            raise MethodError("Expected tree: a hremate.partition.tree.BlockTree.")


@dataclass(frozen=True)
class Plan:
    """One attempt: how many blocks, and how hard to look for memory."""

    blocks: int
    #: Offer options of low peak, and re-runs in the forward phase.
    tight: bool
    #: Levels below the first one.
    inner: int


def plans(graph: Graph, params: Params) -> list[Plan]:
    """What to try, in order: few large blocks first, then more, then with more ways to save memory."""
    if params.tree is not None:
        return [Plan(len(params.tree.blocks), tight, params.tree.depth - 1) for tight in (False, True)]
    if params.blocks:
        counts = [params.blocks]
    elif graph.n_ops <= SMALL_GRAPH:
        counts = [6, 10, 15]
    else:
        counts = [8, 12]
    largest = max(1, graph.n_ops // 4)
    counts = sorted({min(count, largest) for count in counts})
    tight = counts[::-1]
    few = max(2, -(-graph.n_ops // EXACT_BLOCK))
    if few < counts[0] and not params.blocks:
        tight.insert(0, few)
    if params.depth is not None:
        inner = params.depth - 2
        return [Plan(count, False, inner) for count in counts] + [Plan(count, True, inner) for count in tight]
    below = max(1, inner_levels(graph.n_ops, counts[0]))
    flat = [Plan(count, False, 0) for count in counts]
    if graph.n_ops <= SMALL_GRAPH:
        flat += [Plan(count, True, 0) for count in tight]
    # The H-ILP is larger when memory is tight: few blocks, the rest is up to the levels below.
    deep = [Plan(counts[0], True, inner) for inner in sorted({1, below})]
    return flat + (deep if graph.n_ops > SMALLEST_NESTED else [])


def inner_levels(n_ops: int, blocks: int) -> int:
    """Levels below the first that give leaves of at most `NESTED_LEAF` ops."""
    levels = 0
    while n_ops > NESTED_LEAF * blocks * CHILDREN**levels:
        levels += 1
    return levels


def reruns_of(tree: BlockTree, plan: Plan) -> Reruns:
    """Which re-runs a plan offers on a tree."""
    if not plan.tight and any(item.backward for item in tree.items):
        return Reruns.BACKWARD
    return Reruns.ALL if len(tree.items) <= SMALL_TREE else Reruns.WANTED


def tree_of(graph: Graph, params: Params, plan: Plan) -> BlockTree:
    """The blocks of a plan."""
    if params.tree is not None:
        return params.tree
    usual = DEFAULT_PARTITION if graph.n_ops <= MOST_OPS else LARGE_PARTITION
    cut = find_partitioner(params.partition or usual).load()
    tree = cut(graph, plan.blocks)
    if plan.inner < 1:
        return tree
    return deepened(graph, tree, Limits(CHILDREN, SMALLEST_SPLIT, plan.inner, even=False), cut)
