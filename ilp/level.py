"""One level of the hierarchy: menus, the H-ILP over them, and menus refined around its answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import SolverError
from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.ilp.leaf import Leaf, Option
from hremate.ilp.model import Choice, HierarchicalModel, Unsatisfiable
from hremate.ilp.options import menu, neighbours, projected
from hremate.ilp.program import Level, Reruns, build_level, diagonal_choice, picks_of, translate_choice
from hremate.partition.tree import BlockTree
from hremate.simulate import simulate
from hremate.solvers.base import Run
from hremate.solvers.scip import MilpSolver
from hremate.solvers.shift import shift_and_repair

#: Solves with a smaller budget after an answer that exceeds it (rounding, pinned tensors).
TIGHTENINGS = 3
#: Options on either side of the one used that a refined menu offers.
REACH = 3


class Stopped(Exception):
    """The deadline passed or Ctrl-C arrived: hand in what there is."""


@dataclass(frozen=True)
class LevelParams:
    """How hard a level is worked on."""

    #: Options per block.
    menu: int
    #: How often menus are refined around the answer and the H-ILP is solved again.
    refinements: int
    #: Branch-and-bound nodes of one H-ILP.
    node_limit: int
    #: Seconds after which one H-ILP hands in the best it has.
    seconds: float
    #: Gap at which a H-ILP is solved, as a share of the base time.
    gap: float = 2e-5
    #: Whether menus look for low peaks.
    tight: bool = False


class LevelSearch:
    """Schedules of a graph from one level of blocks.

    Parameters
    ----------
    leaves, options : for each block of `tree`
        The block in local arrays, and its options.
    budget : int
        Bytes.
    price : float
        Time units per byte, for the menus.
    rerun : bool[ops of the graph], optional
        Ops to run again if memory were short at one moment only; its share of each block is offered.
    offer : callable
        Given an order and the name of the stage that found it, whatever its peak; whether it is the best yet.
    """

    def __init__(
        self, graph: Graph, tree: BlockTree, leaves: Sequence[Leaf], options: Sequence[Sequence[Option]],
        budget: int, run: Run, params: LevelParams, *,
        price: float, reruns: Reruns, rerun: BoolArray | None, offer: Callable[[IntArray, str], bool],
    ) -> None:  # fmt: skip
        self.graph = graph
        self.tree = tree
        self.leaves = leaves
        self.options = options
        self.budget = budget
        self.run = run
        self.params = params
        self.price = price
        self.reruns = reruns
        self.rerun = rerun
        self.offer = offer
        pinned = [leaf.tensors[leaf.pinned] for leaf in leaves]
        self.pinned_bytes = int(graph.size[np.unique(np.concatenate(pinned))].sum())
        #: The level and its choice that were solved last.
        self.last: tuple[Level, Choice] | None = None

    def search(self) -> None:
        """Solve the H-ILP, then again with menus refined around its answer, as long as that helps.

        Raises
        ------
        Stopped
            Out of time, or interrupted.
        """
        for round_number in range(self.params.refinements + 1):
            menus = [
                menu(known, self.price, self.params.menu, wanted=chosen, tight=self.params.tight)
                for known, chosen in zip(self.options, self.wanted(), strict=True)
            ]
            improved = self.solve(menus)
            if improved is None or (round_number and not improved):
                break

    def wanted(self) -> list[list[Option]]:
        """Options that the next menu of each block must hold: those used, their neighbours, the cut's."""
        if self.last is None:
            return [[] for _ in self.leaves]
        level, choice = self.last
        result = []
        for j, (leaf, pick) in enumerate(zip(self.leaves, picks_of(level, choice), strict=True)):
            used = level.menus[j][pick]
            shares = [] if self.rerun is None else [projected(leaf, self.rerun)]
            result.append([used, *shares, *neighbours(self.options[j], used, REACH)])
        return result

    def solve(self, menus: Sequence[Sequence[Option]]) -> bool | None:
        """Solve the H-ILP of the menus and offer its answer; whether that was the best yet, None without."""
        graph, run = self.graph, self.run
        room = self.budget - self.pinned_bytes
        improved = False
        for _ in range(1 + TIGHTENINGS):
            self.check_time()
            with timed(run, "model"):
                level = build_level(graph, self.tree, self.leaves, menus, room, reruns=self.reruns)
                try:
                    model = HierarchicalModel(level.program)
                except Unsatisfiable:
                    return None
                starts = list(self.starts(level, model))
            with timed(run, "h-ilp"):
                try:
                    result = MilpSolver(model.milp, seed=run.seed, name="H-ILP").solve(
                        deadline=run.deadline.within(self.params.seconds),
                        node_limit=self.params.node_limit,
                        starts=starts,
                        gap_abs=100 * self.params.gap,
                    )
                except SolverError as error:
                    run.stats.degraded.append(f"H-ILP of {len(self.leaves)} blocks: {error}")
                    return None
            binaries = sum(map(len, model.run.values()))
            counts = run.stats.counts
            counts["h-ilp solves"] = counts.get("h-ilp solves", 0) + 1
            counts["h-ilp nodes"] = counts.get("h-ilp nodes", 0) + result.nodes
            counts |= {
                "h-ilp binaries": binaries, "h-ilp variables": model.milp.n_vars,
                "h-ilp rows": model.milp.n_rows,
            }  # fmt: skip
            if result.x is None:
                run.progress(f"{len(self.leaves)} blocks, {binaries} binaries: {result.status.value}")
                self.check_time(result.interrupted)
                return None
            choice = model.choice(result.x)
            self.last = level, choice
            order = model.order(choice)
            excess = simulate(graph, order).peak - self.budget
            run.progress(
                f"{len(self.leaves)} blocks, {binaries} binaries: overhead "
                f"{graph.time[order].sum() / (graph.total_time or 1.0) - 1:.3%}, {result.nodes} nodes, "
                f"{result.seconds:.1f} s"
            )
            improved |= self.offer(order, "h-ilp")
            with timed(run, "repair"):
                improved |= self.offer(shift_and_repair(graph, order, self.budget), "repair")
            self.check_time(result.interrupted)
            if excess <= 0:
                break
            room -= excess
        return improved

    def starts(self, level: Level, model: HierarchicalModel) -> Iterator[FloatArray]:
        """Complete solutions of the H-ILP to start from."""
        choices = [diagonal_choice(level, picks) for picks in priced_picks(level)]
        if self.last is not None:
            old = translate_choice(self.last[0], level, self.last[1])
            choices += [] if old is None else [old]
        for choice in choices:
            solution = model.start(choice)
            if solution is not None:
                yield solution

    def check_time(self, interrupted: bool = False) -> None:
        self.run.stats.interrupted |= interrupted
        if interrupted or self.run.deadline.expired:
            raise Stopped


class timed:
    """Adds the seconds of a `with` block to a named stage of a run."""

    def __init__(self, run: Run, stage: str) -> None:
        self.seconds, self.stage = run.stats.seconds, stage

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + time.monotonic() - self.start


def priced_picks(level: Level) -> list[list[int]]:
    """For a row of memory prices, the option of each block that is cheapest at that price."""
    base = level.program.time_unit * 100 / max(1, level.program.budget)
    result: list[list[int]] = []
    for exponent in np.arange(-4.0, 6.0, 0.5):
        price = base * 2.0**exponent
        picks = [int(np.argmin([_weight(option, price) for option in options])) for options in level.menus]
        if picks not in result:
            result.append(picks)
    return result


def _weight(option: Option, price: float) -> float:
    return option.time + price * (option.saved_bytes + option.read_bytes + 0.3 * option.backward.peak)
