"""Options of a block from its children: their H-ILP under budgets for the peak and for what is saved.

The block becomes a graph of its own with a *gap* between its parts (`hremate.ilp.leaf_graph`), its children
the blocks of that graph and the gap one more, which runs once. A schedule of the graph within the peak budget
is an option of the block that saves no more than the save budget. Children may be blocks of blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hremate.graph import IntArray
from hremate.ilp.bundles import bundles
from hremate.ilp.leaf import Leaf, Option, make_leaf, make_option
from hremate.ilp.leaf_graph import largest_need, leaf_graph, split_at_gap
from hremate.ilp.level import LevelParams, LevelSearch, Stopped
from hremate.ilp.options import pareto
from hremate.ilp.program import Reruns
from hremate.partition.tree import Block, BlockTree, Item
from hremate.simulate import simulate
from hremate.solvers.base import Run

#: Peak budgets of an inner block, as shares of the way from what a single op needs to the lowest known peak.
PEAK_SHARES = (1.0, 0.6, 0.3, 0.1)
#: Save budgets, as places in the row of known options by saved bytes.
SAVE_PLACES = (0.0, 0.25, 0.5)
#: A known time this close to that of the fastest option under the same budgets is not worth a H-ILP.
NEGLIGIBLE = 1e-3
#: Slack of the save budget: the peak budget divided by this power of 2.
SLACK_BITS = 15

#: The forward and the backward sequence of an option, local ops.
Sequences = tuple[IntArray, IntArray]


@dataclass(frozen=True, eq=False)
class Inside:
    """The children of a block, in its local op numbers."""

    tree: BlockTree
    #: Options of each child, in the local op numbers of the child.
    options: tuple[tuple[Sequences, ...], ...]


@dataclass(frozen=True)
class InnerParams:
    """How options of a block of blocks are looked for."""

    level: LevelParams


def inner_options(
    leaf: Leaf, inside: Inside, known: list[Option], params: InnerParams, run: Run
) -> list[Option]:
    """`known` and the options that the H-ILP of the children gives.

    Save budgets are spread over the known options, peak budgets descend from what is known for each; a
    budget that finds nothing ends the row. What happened is told in `run.stats`.
    """
    found = list(known)
    floor = largest_need(leaf)
    saves = sorted({o.saved_bytes for o in known})
    for save in sorted({saves[int(place * (len(saves) - 1))] for place in SAVE_PLACES}):
        top = min(_peak(o) for o in known if o.saved_bytes <= save)
        for share in PEAK_SHARES:
            peak = int(floor + share * max(0, top - floor))
            best = min((o.time for o in found if o.saved_bytes <= save and _peak(o) <= peak), default=np.inf)
            if best <= (1 + NEGLIGIBLE) * float(leaf.time.sum()):
                continue
            order = _solve(leaf, inside, peak, min(save, peak), _price(known, save), params, run)
            if order is None:
                break
            found.append(make_option(leaf, *split_at_gap(leaf, order)))
            if run.deadline.expired or run.stats.interrupted:
                return pareto(found)
    return pareto(found)


def _peak(option: Option) -> int:
    return max(option.forward.peak, option.backward.peak)


def _price(options: Sequence[Option], save: int) -> float:
    """Time units per byte between the fastest option and the fastest that saves `save` bytes or less."""
    fastest = min(options, key=lambda o: (o.time, o.saved_bytes))
    lean = min((o for o in options if o.saved_bytes <= save), key=lambda o: o.time)
    price = (lean.time - fastest.time) / max(1, fastest.saved_bytes - lean.saved_bytes)
    return price or 1.0 / max(1, int(lean.saved_bytes + lean.backward.peak))


def _solve(
    leaf: Leaf, inside: Inside, peak: int, save: int, price: float, params: InnerParams, run: Run
) -> IntArray | None:
    """The fastest schedule of the leaf graph within the budgets that the H-ILP of the children finds."""
    # The H-ILP rounds bytes up: without some slack nothing would fit a save budget that is met exactly.
    graph = leaf_graph(leaf, peak, min(peak, save + (peak >> SLACK_BITS)))
    tree = with_gap(leaf, inside.tree)
    nothing = graph.size == 0
    names = bundles(graph, tree, nothing, peak)
    leaves = [make_leaf(graph, block, nothing, names) for block in tree.blocks]
    options = [
        [make_option(child, *sequences) for sequences in known]
        for child, known in zip(leaves, inside.options, strict=False)
    ]
    if len(tree.blocks) > len(inside.tree.blocks):
        options.append([make_option(leaves[-1], np.zeros(1, np.int64), np.empty(0, np.int64))])
    best: list[tuple[float, IntArray]] = []

    def offer(order: IntArray, stage: str) -> bool:
        simulation = simulate(graph, order)
        if simulation.peak > peak or (best and simulation.time >= best[-1][0]):
            return False
        best.append((simulation.time, order))
        return True

    alone = Run(seed=run.seed, deadline=run.deadline)
    level = LevelSearch(
        graph, tree, leaves, options, peak, alone, params.level,
        price=price, reruns=Reruns.WANTED, rerun=None, offer=offer,
    )  # fmt: skip
    try:
        level.search()
    except Stopped:
        run.stats.interrupted |= alone.stats.interrupted
    run.stats.degraded += alone.stats.degraded
    for name in ("h-ilp solves", "h-ilp nodes"):
        key = f"inner {name}"
        run.stats.counts[key] = run.stats.counts.get(key, 0) + alone.stats.counts.get(name, 0)
    return best[-1][1] if best else None


def with_gap(leaf: Leaf, tree: BlockTree) -> BlockTree:
    """The blocks of `tree` (local op numbers) in the numbers of the leaf graph, the gap in their midst."""
    gap = leaf.n_forward
    if gap == leaf.n_ops:
        return tree
    blocks = [replace(block, backward=block.backward + 1, children=None) for block in tree.blocks]
    blocks.append(Block(np.array([gap]), np.empty(0, np.int64)))
    items = [item for item in tree.items if not item.backward]
    items.append(Item(len(blocks) - 1, False))
    items += [item for item in tree.items if item.backward]
    return BlockTree(tuple(blocks), tuple(items))
