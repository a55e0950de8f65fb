"""Claims about the H-ILP: exact on trees of single ops, never below what really runs, starts accepted."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

import hremate as hr
from hremate.ilp.leaf import make_leaf
from hremate.ilp.model import HierarchicalModel, Unsatisfiable
from hremate.ilp.options import FrontierParams, frontier, menu
from hremate.ilp.program import Level, Reruns, build_level, diagonal_choice, picks_of, translate_choice
from hremate.partition.intervals import intervals
from hremate.partition.tree import Block, BlockTree, Item
from hremate.simulate import base_peak, simulate
from hremate.solvers.base import Deadline
from hremate.solvers.scip import MilpSolver, MilpStatus


def level_of(graph: hr.Graph, tree: BlockTree, budget: int, reruns: Reruns, size: int = 8) -> Level:
    pinned = np.zeros(graph.n_tensors, np.bool_)
    leaves = [make_leaf(graph, block, pinned) for block in tree.blocks]
    menus = [
        menu(frontier(leaf, FrontierParams(grid=6), deadline=Deadline()), 1e-6, size) for leaf in leaves
    ]
    return build_level(graph, tree, leaves, menus, budget, reruns=reruns)


def singles(graph: hr.Graph) -> BlockTree:
    nothing = np.empty(0, np.int64)
    return BlockTree(
        tuple(Block(np.array([i]), nothing) for i in range(graph.n_ops)),
        tuple(Item(i, False) for i in range(graph.n_ops)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_blocks_of_one_op_give_the_staged_optimum(seed: int) -> None:
    graph = oracle.random_graph(seed)
    for budget in oracle.breakpoints(graph, staged=True):
        best = oracle.optimal_staged(graph, budget)
        try:
            model = HierarchicalModel(level_of(graph, singles(graph), budget, Reruns.ALL).program)
        except Unsatisfiable:
            assert best is None
            continue
        result = MilpSolver(model.milp).solve()
        if best is None:
            assert result.status is MilpStatus.INFEASIBLE
            continue
        assert result.x is not None
        simulation = simulate(graph, model.order(model.choice(result.x)))
        assert simulation.peak <= budget
        assert simulation.time == pytest.approx(best)


CASES = [
    (kind, blocks, reruns, memory_model)
    for kind, blocks in [("chain", 4), ("unet", 3), ("transformer", 3), ("resnet", 4), ("encdec", 3)]
    for reruns in (Reruns.BACKWARD, Reruns.WANTED)
    for memory_model in ("coexist", "reuse")
]


@pytest.mark.parametrize(("kind", "blocks", "reruns", "memory_model"), CASES)
def test_what_the_rows_allow_fits_when_it_runs(
    kind: str, blocks: int, reruns: Reruns, memory_model: str
) -> None:
    graph = hr.generate(kind, 90, 2).with_memory_model(memory_model)
    tree = intervals(graph, blocks)
    peak = base_peak(graph)
    solved = 0
    for percent in (80, 60):
        budget = peak * percent // 100
        level = level_of(graph, tree, budget, reruns, size=4)
        model = HierarchicalModel(level.program)
        result = MilpSolver(model.milp).solve(node_limit=5)
        if result.x is None:
            continue
        solved += 1
        choice = model.choice(result.x)
        simulation = simulate(graph, model.order(choice))
        assert simulation.peak <= budget
        assert simulation.time == pytest.approx(result.objective * level.program.time_unit)
        start = model.start(choice)
        assert start is not None
        assert model.milp.satisfied_by(start)
        assert translate_choice(level, level, choice) == choice
        if reruns is Reruns.BACKWARD:
            diagonal = diagonal_choice(level, picks_of(level, choice))
            for t, item in enumerate(tree.items):
                # A forward part may save what its backward part then leaves unused.
                assert not item.backward or diagonal[t, t] == choice[t, t]
    assert solved


def test_a_start_without_its_reads_is_refused() -> None:
    graph = hr.generate("chain", 80, 0)
    level = level_of(graph, intervals(graph, 4), base_peak(graph), Reruns.BACKWARD)
    model = HierarchicalModel(level.program)
    choice = diagonal_choice(level, [0] * 4)
    assert model.start(choice) is not None
    del choice[0, 0]
    assert model.start(choice) is None
