"""Claims about several levels: options of inner blocks run as they say, trees of any depth are solved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracle
import pytest

import hremate as hr
from hremate.ilp import hierarchical, nest
from hremate.ilp.cache import runs
from hremate.ilp.inner import InnerParams, Inside, inner_options, with_gap
from hremate.ilp.leaf import make_leaf
from hremate.ilp.leaf_graph import EXACT_OPS, leaf_graph
from hremate.ilp.leaves import LeafTask
from hremate.ilp.level import LevelParams
from hremate.ilp.nest import Solver, make_nest
from hremate.ilp.options import FrontierParams, frontier
from hremate.ilp.plans import Params, inner_levels, plans
from hremate.partition.intervals import intervals
from hremate.partition.nested import Limits, deepened
from hremate.partition.registry import PARTITIONERS
from hremate.partition.tree import Block, BlockTree, Item, check_tree
from hremate.simulate import simulate
from hremate.solvers.base import Deadline, Run
from hremate.solvers.exact import solve_staged

QUICK = {"grid": 4, "refinements": 0, "node_limit": 5, "menu": 4, "milp_seconds": 3.0}
INNER = InnerParams(LevelParams(menu=4, refinements=0, node_limit=1, seconds=1e9, gap=1e-2, tight=True))


@pytest.fixture(autouse=True)
def _little_work_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchical, "INNER_LEVEL", INNER.level)


def task(inner: InnerParams | None = INNER) -> LeafTask:
    return LeafTask(FrontierParams(grid=4), low_peak_width=0, inner=inner)


def two_level_tree(graph: hr.Graph, blocks: int, levels: int = 1) -> BlockTree:
    return deepened(graph, intervals(graph, blocks), Limits(6, 23, levels, even=False))


def first_nest(kind: str, ops: int, blocks: int, index: int, levels: int = 1) -> nest.Nest:
    graph = hr.generate(kind, ops, 1)
    tree = two_level_tree(graph, blocks, levels)
    check_tree(graph, tree)
    return make_nest(graph, tree.blocks[index], np.zeros(graph.n_tensors, np.bool_), "0")


@pytest.mark.parametrize("kind", ["chain", "transformer", "unet", "rnn"])
def test_inner_options_run_and_reach_lower_peaks_than_cuts_alone(kind: str) -> None:
    node = first_nest(kind, 150, 3, 1)
    assert node.children
    alone = frontier(node.leaf, FrontierParams(grid=4), deadline=Deadline())
    found = Solver(Run(), None).options_of([node], task(), float("inf"))[0]
    for option in found:
        assert runs(node.leaf, option.forward.sequence, option.backward.sequence)

    def lowest(options: list) -> int:
        return min(max(o.forward.peak, o.backward.peak) for o in options)

    assert lowest(found) <= lowest(alone)
    if kind == "chain":
        assert lowest(found) < lowest(alone)


def test_inner_options_of_single_ops_never_beat_the_exact_model() -> None:
    found = 0
    for seed in range(40):
        graph = oracle.random_graph(seed)
        half = graph.n_ops // 2
        if half < 2 or graph.n_ops % 2:
            continue
        whole = Block(np.arange(half), np.arange(half, graph.n_ops))
        leaf = make_leaf(graph, whole, np.zeros(graph.n_tensors, np.bool_))
        # Child j runs op j forward, and the backward op as far from the gap as j.
        blocks = [Block(np.array([j]), np.array([graph.n_ops - 1 - j])) for j in range(half)]
        items = [Item(j, False) for j in range(half)] + [Item(j, True) for j in range(half - 1, -1, -1)]
        known = frontier(leaf, FrontierParams(grid=4), deadline=Deadline())
        options = []
        for block in blocks:
            child = make_leaf(graph, block, np.zeros(graph.n_tensors, np.bool_))
            options.append(
                tuple(
                    (o.forward.sequence, o.backward.sequence)
                    for o in frontier(child, FrontierParams(grid=0), deadline=Deadline())
                )
            )
        inside = Inside(BlockTree(tuple(blocks), tuple(items)), tuple(options))
        for option in inner_options(leaf, inside, known, INNER, Run()):
            assert runs(leaf, option.forward.sequence, option.backward.sequence)
            peak = max(option.forward.peak, option.backward.peak)
            if peak == 0:
                continue
            inner = leaf_graph(leaf, peak, option.saved_bytes)
            exact = solve_staged(inner, peak, deadline=Deadline(10.0))
            assert exact.order is not None
            assert option.time >= simulate(inner, exact.order).time - 1e-9
            found += 1
    assert found > 20


def test_gap_stands_between_the_parts() -> None:
    node = first_nest("transformer", 150, 3, 1)
    assert node.tree is not None
    tree = with_gap(node.leaf, node.tree)
    check_tree(leaf_graph(node.leaf, 10, 5), tree)
    assert tree.blocks[-1].forward.tolist() == [node.leaf.n_forward]


def test_equal_blocks_are_solved_once_across_levels() -> None:
    graph = hr.generate("rnn", 1500, 0)
    tree = two_level_tree(graph, 6)
    pinned = np.zeros(graph.n_tensors, np.bool_)
    nests = [make_nest(graph, block, pinned, str(j)) for j, block in enumerate(tree.blocks)]
    solver = Solver(Run(), None)
    options = solver.options_of(nests, task(None), float("inf"))
    assert solver.n_blocks == sum(1 for n in nests for _ in n.walk())
    assert solver.n_classes < solver.n_blocks
    for node, found in zip(nests, options, strict=True):
        for option in found:
            assert runs(node.leaf, option.forward.sequence, option.backward.sequence)


@pytest.mark.parametrize("kind", ["chain", "encdec", "layered"])
def test_three_levels_give_a_schedule_within_the_budget(kind: str) -> None:
    graph = hr.generate(kind, 100, 1)
    budget = max(hr.base_peak(graph) * 2 // 3, hr.memory_lower_bound(graph).bytes * 5 // 4)
    result = hr.solve(graph, budget, blocks=3, depth=3, polish=0, **QUICK)
    assert result.solved
    assert result.stats.counts["levels"] == 3


def test_two_and_three_levels_are_comparable() -> None:
    graph = hr.generate("transformer", 150, 1)
    two = hr.solve(graph, "60%", blocks=3, depth=2, flat_start=False, polish=0, **QUICK)
    three = hr.solve(graph, "60%", blocks=3, depth=3, flat_start=False, polish=0, **QUICK)
    assert abs(two.overhead - three.overhead) < 0.01


@pytest.mark.parametrize("name", sorted(PARTITIONERS))
def test_any_partitioner_may_be_named(name: str) -> None:
    graph = hr.generate("transformer", 150, 1)
    assert hr.solve(graph, "60%", blocks=3, partition=name, polish=0, **QUICK).solved


def test_unknown_partitioner_is_refused() -> None:
    with pytest.raises(hr.MethodError, match="unknown partitioner"):
        hr.solve(hr.generate("chain", 60, 1), "60%", partition="nothing")


def test_a_tree_may_be_passed_and_is_checked() -> None:
    graph = hr.generate("transformer", 150, 1)
    tree = two_level_tree(graph, 3)
    result = hr.solve(graph, "60%", tree=tree, polish=0, **QUICK)
    assert result.solved
    assert result.stats.counts["levels"] == 1 + tree.depth
    other = hr.generate("chain", 200, 1)
    with pytest.raises(hr.GraphError):
        hr.solve(other, "60%", tree=tree, polish=0, **QUICK)


def test_a_second_run_takes_all_options_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = hr.generate("transformer", 120, 1)
    options = {"blocks": 3, "depth": 3, "cache_dir": tmp_path, "polish": 0, **QUICK}
    one = hr.solve(graph, "60%", **options)
    solved: list[int] = []
    real = nest.solve_jobs
    monkeypatch.setattr(nest, "solve_jobs", lambda jobs, *rest: solved.append(len(jobs)) or real(jobs, *rest))
    two = hr.solve(graph, "60%", **options)
    assert solved
    assert not sum(solved)
    assert one.schedule == two.schedule


def test_a_cache_that_cannot_be_written_is_told_and_survived(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    graph = hr.generate("transformer", 150, 1)
    result = hr.solve(graph, "60%", blocks=3, cache_dir=tmp_path / "file" / "below", polish=0, **QUICK)
    assert result.solved
    assert any("not kept" in event for event in result.stats.degraded)


def test_few_levels_are_asked_for_where_few_suffice() -> None:
    assert inner_levels(300, 6) == 0
    assert inner_levels(5000, 12) == 1
    assert inner_levels(100_000, 12) > inner_levels(5000, 12)


def test_small_graphs_are_also_cut_into_blocks_for_the_exact_model() -> None:
    for ops, few in ((70, True), (600, False)):
        graph = hr.generate("chain", ops, 1)
        first = next(plan for plan in plans(graph, Params(depth=2)) if plan.tight)
        assert (graph.n_ops / first.blocks < EXACT_OPS) == few
    assert {plan.blocks for plan in plans(graph, Params(depth=2, blocks=9))} == {9}


def test_depth_below_two_is_refused() -> None:
    with pytest.raises(hr.MethodError, match="depth >= 2"):
        hr.solve(hr.generate("chain", 60, 1), "60%", depth=1)
