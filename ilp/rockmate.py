"""The method `rockmate`: a chain of blocks, options from small exact models, rotor on top.

Zhao, Le Hellard, Eyraud-Dubois, Gusak and Beaumont, Rockmate: an Efficient, Fast, Automatic and Generic
Tool for Re-materialization in PyTorch (ICML 2023), section 3: the graph is cut into a sequence of blocks,
each block gets options of different saved bytes, equal blocks share them, and the dynamic program of
`hremate.solvers.rotor` chooses among them. The options come from the cut model of the block here
(`hremate.ilp.options`), solved to integers at a row of capacities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph
from hremate.ilp.chains import block_options
from hremate.ilp.leaf import Option
from hremate.ilp.options import FrontierParams
from hremate.result import Result
from hremate.solvers.base import Run, finish
from hremate.solvers.chain_cuts import build_chain
from hremate.solvers.expand import Sweep
from hremate.solvers.rotor import solve_chain


@dataclass(frozen=True)
class Params:
    """Parameters of rockmate."""

    #: Slots of memory in the dynamic program.
    slots: int = 500
    #: Largest number of blocks.
    blocks: int = 100
    #: Options per block.
    options: int = 16
    #: Capacities at which the cut model of a block is solved, per pricing mode.
    grid: int = 24

    def __post_init__(self) -> None:
        for name in ("slots", "options"):
            if getattr(self, name) < 1:
                raise MethodError(f"Expected {name} >= 1.")
        if self.blocks < 2:
            raise MethodError("Expected blocks >= 2.")
        if self.grid < 0:
            raise MethodError("Expected grid >= 0.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest schedule of the chain that fits `budget`.

    Blocks that the backward part ties together are merged until the graph is a chain.

    Raises
    ------
    MethodError
        The graph has no backward part, or becomes a single block; the tensor at fault is named.
    """
    sweep = Sweep(graph, budget, run)
    frontier = FrontierParams(grid=params.grid)
    for fine in (False, True):
        chain = build_chain(graph, "rockmate", most=params.blocks, grow=True, fine=fine)
        run.stats.counts["blocks"] = len(chain.blocks)
        options = block_options(chain, run, frontier, lambda found: spread(found, params.options))
        run.stats.counts["options"] = sum(map(len, options))
        solve_chain(chain, options, sweep, params.slots)
        run.stats.timed_out = run.deadline.expired
        if sweep.fits or run.stats.timed_out:
            break
    return finish(graph, budget, run, "rockmate", sweep.order)


def spread(options: Sequence[Option], number: int) -> list[Option]:
    """At most `number` of the options, spread evenly over saved bytes, both ends among them."""
    ordered = sorted(options, key=lambda o: (o.saved_bytes, o.time, o.key))
    if len(ordered) <= number:
        return ordered
    saved = np.array([o.saved_bytes for o in ordered], np.float64)
    marks = np.linspace(saved[0], saved[-1], number)
    chosen = {int(np.argmin(np.abs(saved - mark))) for mark in marks}
    return [ordered[k] for k in sorted(chosen)]
