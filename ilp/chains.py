"""The hierarchy as a chain: many small blocks, their options, and dynamic programming in place of the H-ILP.

The H-ILP decides freely, but about a dozen blocks. Where memory is scarce all along a deep graph, what
counts is to run long stretches again and again from few states; the dynamic program of
`hremate.solvers.rotor` does that over hundreds of blocks. Blocks are intervals of the given order with
everything that crosses between them as their states (`hremate.solvers.chain_cuts.build_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.ilp.leaf import Option, make_leaf
from hremate.ilp.options import FrontierParams, frontier, thinned
from hremate.partition.phases import split_position
from hremate.partition.subgraph import subgraph
from hremate.partition.tree import Block
from hremate.simulate import simulate
from hremate.solvers.base import Run
from hremate.solvers.blocks import Chain, ChainOption
from hremate.solvers.chain_cuts import build_chain, build_states
from hremate.solvers.expand import Sweep
from hremate.solvers.orders import smallest_peak_order
from hremate.solvers.rotor import solve_chain

#: Numbers of blocks that are tried, coarse ones first, where that makes blocks of at most so many ops; the
#: time of the dynamic program grows with the cube of the last one.
BLOCKS, LARGEST_BLOCK = (12, 40, 160), 600
#: Graphs of up to so many ops are also cut at each of their articulation tensors, if they have any.
ARTICULATED = 5_000
#: Slots of memory in the dynamic program.
SLOTS = 500
#: Options per block, and capacities at which the cut ILP of a block is solved.
OPTIONS = 12
FRONTIER = FrontierParams(grid=8, node_limit=50)


def chain_orders(graph: Graph, budget: int, run: Run) -> Iterator[IntArray]:
    """The best schedule of each of several chains of blocks, int64[steps].

    Within `budget` where one was found, else of the smallest peak. Blocks are intervals of the given order;
    where that does not lead within the budget, of one of small peak. Graphs without a backward part, and
    those whose backward part ties all blocks together, give none.
    """
    found = False
    for order in _chains_of(graph, budget, run):
        found |= simulate(graph, order).peak <= budget
        yield order
    if found or run.deadline.expired:
        return
    lean = smallest_peak_order(graph, 1, seed=run.seed)
    if not np.array_equal(lean, np.arange(graph.n_ops)):
        for order in _chains_of(subgraph(graph, lean), budget, run):
            yield lean[order]


def _chains_of(graph: Graph, budget: int, run: Run) -> Iterator[IntArray]:
    split = split_position(graph)
    if not 0 < split < graph.n_ops:
        return
    tried: list[int] = []
    for chain in _chains(graph, split, budget):
        if chain is None or len(chain.blocks) in tried:
            continue
        tried.append(len(chain.blocks))
        sweep = Sweep(graph, budget, run)
        options = block_options(chain, run, FRONTIER, lambda found: thinned(found, OPTIONS))
        solve_chain(chain, options, sweep, SLOTS)
        if sweep.order is not None:
            yield sweep.order
        if run.deadline.expired:
            return


def _chains(graph: Graph, split: int, budget: int) -> Iterator[Chain | None]:
    """The chains to try."""
    least = min(max(BLOCKS), graph.n_ops // LARGEST_BLOCK)
    for most in sorted({max(least, count) for count in BLOCKS}):
        yield build_states(graph, split, budget, most=most)
    if graph.n_ops <= ARTICULATED:
        try:
            yield build_chain(graph, "hierarchical", most=max(BLOCKS), grow=True)
        except MethodError:  # no tensor that all goes through
            return


def block_options(
    chain: Chain, run: Run, params: FrontierParams, choose: Callable[[list[Option]], list[Option]]
) -> list[list[ChainOption]]:
    """The options of each block that `choose` takes of its frontier, equal blocks solved once."""
    solved: dict[str, list[Option]] = {}
    result = []
    for i, block in enumerate(chain.blocks):
        leaf = make_leaf(chain.graph, Block(block.forward, block.backward), chain.stays)
        if leaf.signature not in solved:
            solved[leaf.signature] = choose(frontier(leaf, params, deadline=run.deadline))
        sequences = [leaf.ops[option.backward.sequence] for option in solved[leaf.signature]]
        result.append([chain.measure(i, sequence) for sequence in sequences])
    return result
