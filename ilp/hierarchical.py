"""The `hierarchical` method: blocks, options of each block, one hierarchical ILP that merges them.

1. Partition the given order into blocks (`hremate.partition`).
2. Price memory with the cut model of the whole graph (`hremate.solvers.cut`).
3. Draw the frontier of options of each class of equal blocks (`hremate.ilp.options`).
4. Choose menus by the price, solve the H-ILP, refine the menus around its answer, solve again.
5. Expand to a flat schedule, repair it, check it exactly; tighten and solve again if it does not fit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.ilp.leaf import Leaf, Option, make_leaf
from hremate.ilp.model import Choice, HierarchicalModel
from hremate.ilp.options import FrontierParams, frontier, menu, neighbours, projected
from hremate.ilp.program import Level, build_level, diagonal_choice, picks_of, translate_choice
from hremate.partition.intervals import intervals
from hremate.partition.tree import BlockTree, check_tree
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import simulate, step_memory
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.cut import Cut, moment_problem, solve_cut
from hremate.solvers.scip import MilpSolver

#: Interface tensors below this share of the base peak are always kept.
PINNED_SHARE = 1e-4


@dataclass(frozen=True)
class Params:
    """Parameters of the hierarchy."""

    #: Number of blocks; 0 tries two numbers that suit the size.
    blocks: int = 0
    #: Options per block in the H-ILP.
    menu: int = 8
    #: How often menus are refined around the answer and the H-ILP is solved again.
    refinements: int = 2
    #: Capacities at which the cut ILP of a leaf is solved, per pricing mode.
    grid: int = 24
    #: Branch-and-bound nodes of one H-ILP.
    node_limit: int = 2000
    #: Branch-and-bound nodes of the cut ILP of the whole graph.
    cut_nodes: int = 300

    def __post_init__(self) -> None:
        for name in ("blocks", "refinements", "grid"):
            if getattr(self, name) < 0:
                raise MethodError(f"Expected {name} >= 0.")
        for name in ("menu", "node_limit", "cut_nodes"):
            if getattr(self, name) < 1:
                raise MethodError(f"Expected {name} >= 1.")


@dataclass(frozen=True)
class Answer:
    """A flat schedule of the whole graph."""

    order: IntArray
    peak: int
    time: float


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Schedule `graph` within `budget` bytes by the hierarchy."""
    cut = price_memory(graph, budget, params)
    best: Answer | None = None
    for n_blocks in block_counts(graph, params):
        tree = intervals(graph, n_blocks)
        check_tree(graph, tree)
        answer = solve_tree(graph, tree, budget, cut, run, params)
        if answer is not None and (best is None or _rank(answer, budget) < _rank(best, budget)):
            best = answer
    return finish(graph, budget, run, "hierarchical", None if best is None else best.order)


def _rank(answer: Answer, budget: int) -> tuple[bool, float]:
    over = answer.peak > budget
    return over, answer.peak if over else answer.time


def block_counts(graph: Graph, params: Params) -> list[int]:
    """Numbers of blocks to try."""
    if params.blocks:
        return [params.blocks]
    return [6, 10] if graph.n_ops <= 900 else [8, 12]


def price_memory(graph: Graph, budget: int, params: Params) -> Cut | None:
    """The cut of the whole graph at its peak step, for the price of memory and the choice it suggests."""
    peak_step = int(np.argmax(step_memory(graph, np.arange(graph.n_ops))))
    problem, _, _, needed = moment_problem(graph, peak_step)
    return solve_cut(problem, budget - needed, node_limit=params.cut_nodes)


def solve_tree(
    graph: Graph, tree: BlockTree, budget: int, cut: Cut | None, run: Run, params: Params
) -> Answer | None:
    """The best schedule from one partition; None when the H-ILP finds none."""
    peak = int(step_memory(graph, np.arange(graph.n_ops)).max())
    pinned = graph.size < PINNED_SHARE * peak
    leaves = [make_leaf(graph, block, pinned) for block in tree.blocks]
    pinned_bytes = int(
        graph.size[np.unique(np.concatenate([leaf.tensors[leaf.pinned] for leaf in leaves]))].sum()
    )
    started = time.monotonic()
    frontiers = class_frontiers(leaves, params, run.deadline)
    run.progress(f"{len(tree.blocks)} blocks, options in {time.monotonic() - started:.1f} s")
    price = cut.price if cut is not None and cut.price > 0 else graph.total_time / max(1, peak)
    rerun = np.zeros(graph.n_ops, np.bool_)
    if cut is not None:
        rerun[: len(cut.rerun)] = cut.rerun
    wanted: list[list[Option]] = [[] for _ in leaves]
    best: Answer | None = None
    last: tuple[Level, Choice] | None = None
    for round_number in range(params.refinements + 1):
        menus = [
            menu(options, price, params.menu, wanted=chosen)
            for options, chosen in zip(frontiers, wanted, strict=True)
        ]
        level = build_level(graph, tree, leaves, menus, budget - pinned_bytes, forward_reruns=False)
        started = time.monotonic()
        answer, choice = solve_level(graph, level, budget, last, run, params)
        run.progress(
            f"round {round_number}: {sum(map(len, menus))} options, "
            + (f"overhead {answer.time / graph.total_time - 1:.3%}" if answer else "no answer")
            + f" in {time.monotonic() - started:.1f} s"
        )
        if answer is None or choice is None:
            break
        if best is None or _rank(answer, budget) < _rank(best, budget):
            best = answer
        last = (level, choice)
        picks = picks_of(level, choice)
        wanted = [
            [
                level.menus[j][picks[j]],
                projected(leaf, rerun),
                *neighbours(frontiers[j], level.menus[j][picks[j]], 3),
            ]
            for j, leaf in enumerate(leaves)
        ]
    return best


def class_frontiers(
    leaves: Sequence[Leaf], params: Params, deadline: Deadline
) -> list[list[Option]]:
    """The options of each leaf; equal leaves share them."""
    by_class: dict[str, list[Option]] = {}
    frontier_params = FrontierParams(grid=params.grid)
    for leaf in leaves:
        if leaf.signature not in by_class:
            by_class[leaf.signature] = frontier(leaf, frontier_params, deadline=deadline)
    return [by_class[leaf.signature] for leaf in leaves]


def solve_level(
    graph: Graph, level: Level, budget: int, last: tuple[Level, Choice] | None, run: Run, params: Params
) -> tuple[Answer | None, Choice | None]:
    """Solve the H-ILP of a level, expand its answer."""
    model = HierarchicalModel(level.program)
    starts = []
    if last is not None:
        old = translate_choice(last[0], level, last[1])
        if old is not None:
            starts.append(model.start(old))
    starts += [model.start(diagonal_choice(level, picks)) for picks in priced_picks(graph, level)]
    good = [x for x in starts if x is not None and model.milp.satisfied_by(x)]
    run.progress(
        f"H-ILP: {sum(len(v) for v in model.run.values())} binaries, {model.milp.n_vars} variables, "
        f"{model.milp.n_rows} rows, {len(model.milp.row_idx)} nonzeros, {len(good)}/{len(starts)} starts"
        + (f" best {min(map(model.milp.objective, good)):.3f}" if good else "")
    )
    result = MilpSolver(model.milp, seed=run.seed, name="H-ILP").solve(
        deadline=run.deadline.within(20), node_limit=params.node_limit, starts=good, gap_abs=1e-3
    )
    run.progress(f"SCIP {result.status} obj {result.objective} bound {result.bound} nodes {result.nodes} {result.seconds:.1f}s")
    if result.x is None:
        return None, None
    choice = model.choice(result.x)
    order = model.order(choice)
    simulation = simulate(graph, Schedule(order))
    return Answer(order, simulation.peak, simulation.time), choice


def priced_picks(graph: Graph, level: Level) -> list[list[int]]:
    """For a row of memory prices, the option of each block that is cheapest at that price."""
    base = level.program.time_unit * 100 / max(1, level.program.budget)
    result: list[list[int]] = []
    for exponent in np.arange(-4.0, 6.0, 0.5):
        price = base * 2.0**exponent
        picks = [
            int(np.argmin([o.time + price * (o.saved_bytes + o.read_bytes + 0.3 * o.backward.peak) for o in options]))
            for options in level.menus
        ]
        if picks not in result:
            result.append(picks)
    return result
