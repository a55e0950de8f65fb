"""Claims about bundles and pins: tied tensors share their parts, and what the rows allow still fits."""

from __future__ import annotations

import numpy as np
import pytest

import hremate as hr
from hremate.ilp import bundles as bundles_module
from hremate.ilp.bundles import PINNED_TOTAL, bundles, pinned_tensors
from hremate.ilp.leaf import make_leaf, make_option, measure
from hremate.ilp.model import HierarchicalModel
from hremate.ilp.options import FrontierParams, fast_forward, frontier, menu
from hremate.ilp.program import Reruns, build_level
from hremate.partition.intervals import intervals
from hremate.partition.tree import Block
from hremate.simulate import base_peak, simulate
from hremate.solvers.base import Deadline
from hremate.solvers.scip import MilpSolver


def nothing(graph: hr.Graph) -> np.ndarray:
    return np.zeros(graph.n_tensors, np.bool_)


def test_few_tensors_are_not_tied() -> None:
    graph = hr.generate("chain", 100, 1)
    names = bundles(graph, intervals(graph, 4), nothing(graph), base_peak(graph))
    assert np.array_equal(names, np.arange(graph.n_tensors))


@pytest.mark.parametrize("kind", ["unet", "ssm"])
def test_tied_tensors_are_made_and_read_by_the_same_parts(kind: str) -> None:
    graph = hr.generate(kind, 1500, 1)
    tree = intervals(graph, 8)
    names = bundles(graph, tree, nothing(graph), base_peak(graph) // 2)
    part = np.empty(graph.n_ops, np.int64)
    for k, item in enumerate(tree.items):
        part[tree.part(item)] = k

    def parts(x: int) -> tuple[int, bool, frozenset[int]]:
        maker = int(part[graph.producer[x]])
        readers = part[graph.use_idx[graph.use_ptr[x] : graph.use_ptr[x + 1]]].tolist()
        return maker, bool(graph.is_output[x]), frozenset(readers) - {maker}

    tied = np.flatnonzero(names != np.arange(graph.n_tensors))
    assert len(tied)
    for x in tied.tolist():
        assert parts(x) == parts(int(names[x]))
        assert names[names[x]] == names[x]


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
@pytest.mark.parametrize("kind", ["unet", "ssm", "encdec"])
def test_what_the_rows_of_bundles_allow_fits_when_it_runs(
    kind: str, memory_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles_module, "MOST_TENSORS", 10)
    graph = hr.generate(kind, 120, 2).with_memory_model(memory_model)
    tree = intervals(graph, 3)
    budget = base_peak(graph) * 3 // 4
    names = bundles(graph, tree, nothing(graph), budget)
    assert len(np.unique(names)) < graph.n_tensors
    leaves = [make_leaf(graph, block, nothing(graph), names) for block in tree.blocks]
    menus = [menu(frontier(leaf, FrontierParams(grid=4), deadline=Deadline()), 1e-6, 4) for leaf in leaves]
    level = build_level(graph, tree, leaves, menus, budget, reruns=Reruns.WANTED)
    model = HierarchicalModel(level.program)
    result = MilpSolver(model.milp).solve(node_limit=3)
    assert result.x is not None
    assert simulate(graph, model.order(model.choice(result.x))).peak <= budget


def test_a_bundle_made_in_part_is_counted_inside() -> None:
    ops = [
        hr.Op("f0", 1.0, (), (("a", 10),)),
        hr.Op("f1", 1.0, ("a",), (("b", 7),)),
        hr.Op("f2", 1.0, ("b",), (("c", 5),)),
        hr.Op("g", 1.0, ("a", "c"), (("d", 1),)),
    ]
    graph = hr.Graph.from_ops(ops, ["d"])
    names = np.array([0, 1, 0, 3])  # a and c are one bundle
    leaf = make_leaf(graph, Block(np.arange(3), np.empty(0, np.int64)), nothing(graph), names)
    whole = make_option(leaf, np.arange(3), np.empty(0, np.int64)).forward
    assert whole.makes == (0,)
    assert leaf.bundle_bytes[0] == 15
    part = measure(leaf, np.array([0, 1]), backward=False, survives=np.zeros(3, np.bool_))
    assert part.makes == ()
    assert part.peak == 17
    sequence = fast_forward(leaf, [0])
    assert sequence is not None
    assert sequence.tolist() == [0, 1, 2]


def test_pins_are_few_bytes_in_all() -> None:
    graph = hr.generate("ssm", 20_000, 1)
    budget = base_peak(graph) // 3
    pinned = pinned_tensors(graph, intervals(graph, 8), budget, base_peak(graph))
    assert pinned[graph.size == 0].all()
    assert 0 < int(graph.size[pinned].sum()) <= PINNED_TOTAL * budget
