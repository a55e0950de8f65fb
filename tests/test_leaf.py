"""Claims about leaves: what a part costs its parent is what running it really costs."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.ilp import leaf_graph as leaf_graph_module
from hremate.ilp.leaf import (
    AFTER,
    ALL_CHARGED,
    BEFORE,
    HELD,
    OUTPUTS_CHARGED,
    OUTPUTS_FREE,
    Leaf,
    Part,
    cut_problem,
    just_in_time,
    make_leaf,
    make_option,
)
from hremate.ilp.leaf_graph import leaf_graph, low_peak_options, split_at_gap
from hremate.ilp.options import FrontierParams, frontier, menu, pareto
from hremate.partition.intervals import intervals
from hremate.partition.tree import Block
from hremate.simulate import simulate
from hremate.solvers.base import Deadline


def whole(graph: hr.Graph, split: int) -> Leaf:
    block = Block(np.arange(split), np.arange(split, graph.n_ops))
    return make_leaf(graph, block, np.zeros(graph.n_tensors, np.bool_))


def peak_of(leaf: Leaf, part: Part, alive: set[int]) -> int:
    """Peak of a part when the parent keeps the interface tensors in `alive` before, and all after."""
    peak = 0
    touched = (*part.reads, *part.makes)
    for internal, states in zip(part.internal.tolist(), part.states.tolist(), strict=True):
        here = internal + sum(int(leaf.size[x]) for x in alive - set(touched))
        for x, state in zip(touched, states, strict=True):
            if state == HELD or (state == AFTER and leaf.interface[x]) or (state == BEFORE and x in alive):
                here += int(leaf.size[x])
        peak = max(peak, here)
    return peak


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**6), split=st.integers(1, 7))
def test_saving_all_costs_what_the_given_order_costs(seed: int, split: int) -> None:
    graph = oracle.random_graph(seed)
    split = min(split, graph.n_ops)
    leaf = whole(graph, split)
    nothing = np.zeros(leaf.n_forward, np.bool_)
    option = make_option(leaf, np.arange(split), just_in_time(leaf, nothing))
    forward_outputs = set(np.flatnonzero(leaf.interface & leaf.forward_made).tolist())
    peak = max(peak_of(leaf, option.forward, set()), peak_of(leaf, option.backward, forward_outputs))
    assert peak == simulate(graph, range(graph.n_ops)).peak


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**6), split=st.integers(1, 6), bits=st.integers(0, 127))
def test_an_option_never_costs_more_than_its_parts_say(seed: int, split: int, bits: int) -> None:
    graph = oracle.random_graph(seed)
    split = min(split, graph.n_ops)
    leaf = whole(graph, split)
    rerun = np.array([bool(bits >> k & 1) for k in range(split)]) & ~graph.once[:split]
    option = make_option(leaf, np.arange(split), just_in_time(leaf, rerun))
    order = leaf.ops[np.concatenate([option.forward.sequence, option.backward.sequence])]
    simulation = simulate(graph, order)
    forward_outputs = set(np.flatnonzero(leaf.interface & leaf.forward_made).tolist())
    peak = max(peak_of(leaf, option.forward, set()), peak_of(leaf, option.backward, forward_outputs))
    assert simulation.peak <= peak
    assert simulation.time == pytest.approx(option.forward.time + option.backward.time)


def first_leaf(kind: str, ops: int, blocks: int, index: int = 0) -> Leaf:
    graph = hr.generate(kind, ops, 1)
    return make_leaf(graph, intervals(graph, blocks).blocks[index], np.zeros(graph.n_tensors, np.bool_))


@pytest.mark.parametrize("kind", ["chain", "transformer", "unet", "resnet", "encdec"])
def test_frontier_spans_saving_all_to_running_all_again(kind: str) -> None:
    leaf = first_leaf(kind, 300, 4, 1)
    options = frontier(leaf, FrontierParams(grid=8), deadline=Deadline())
    assert options[0].time == pytest.approx(float(leaf.time.sum()))
    assert min(o.saved_bytes for o in options) == 0
    assert options == pareto(options)
    for option in options:
        assert set(option.backward.sequence.tolist()) >= set(range(leaf.n_forward, leaf.n_ops))


@pytest.mark.parametrize("mode", [OUTPUTS_FREE, OUTPUTS_CHARGED, ALL_CHARGED])
def test_cut_problem_of_a_leaf_counts_what_its_option_saves(mode: int) -> None:
    leaf = first_leaf("unet", 200, 3, 1)
    problem = cut_problem(leaf, mode)
    rng = np.random.default_rng(0)
    for _ in range(20):
        rerun = rng.random(leaf.n_forward) < 0.4
        option = make_option(leaf, np.arange(leaf.n_forward), just_in_time(leaf, rerun))
        assert option.saved_bytes <= problem.kept_bytes(rerun)
        assert option.time <= problem.rerun_time(rerun) + float(leaf.time.sum()) + 1e-6


def test_equal_layers_share_a_signature_and_a_changed_time_does_not() -> None:
    graph = hr.generate("transformer", 600, 0)
    pinned = np.zeros(graph.n_tensors, np.bool_)
    leaves = [make_leaf(graph, block, pinned) for block in intervals(graph, 6).blocks]
    signatures = [leaf.signature for leaf in leaves]
    twice = next(s for s in signatures if signatures.count(s) > 1)
    block = intervals(graph, 6).blocks[signatures.index(twice)]
    ops = [graph.op(i) for i in range(graph.n_ops)]
    i = int(block.forward[3])
    ops[i] = hr.Op(ops[i].name, ops[i].time + 1, ops[i].inputs, ops[i].outputs, ops[i].workspace)
    changed = hr.Graph.from_ops(ops, [graph.tensor_names[x] for x in graph.outputs])
    assert make_leaf(changed, block, pinned).signature != twice


@pytest.mark.parametrize("kind", ["chain", "resnet"])
def test_schedules_of_the_leaf_graph_are_options_within_its_budgets(kind: str) -> None:
    leaf = first_leaf(kind, 60, 5)
    known = frontier(leaf, FrontierParams(grid=4), deadline=Deadline())
    lowest = min(max(o.forward.peak, o.backward.peak) for o in known)
    found = low_peak_options(leaf, known, width=1, node_limit=1, seed=0, deadline=Deadline(), degraded=[])
    assert min(max(o.forward.peak, o.backward.peak) for o in found) <= lowest
    graph = leaf_graph(leaf, lowest, lowest)
    assert graph.n_ops == leaf.n_ops + 1
    forward, backward = split_at_gap(leaf, np.arange(graph.n_ops))
    assert forward.tolist() == list(range(leaf.n_forward))
    assert backward.tolist() == list(range(leaf.n_forward, leaf.n_ops))


def test_gap_limits_what_is_saved() -> None:
    leaf = first_leaf("chain", 60, 3)
    peak = max(o.backward.peak for o in frontier(leaf, FrontierParams(grid=4), deadline=Deadline()))
    for save in (0, peak // 3, peak):
        graph = leaf_graph(leaf, peak, save)
        rerun = np.zeros(leaf.n_forward, np.bool_)
        option = make_option(leaf, np.arange(leaf.n_forward), just_in_time(leaf, rerun))
        memory = simulate(graph, range(graph.n_ops)).memory[leaf.n_forward]
        assert (memory <= peak) == (option.saved_bytes <= save)


def test_menu_holds_the_extremes_and_what_is_wanted() -> None:
    leaf = first_leaf("transformer", 400, 4, 1)
    options = frontier(leaf, FrontierParams(grid=12), deadline=Deadline())
    price = 1e-6
    chosen = menu(options, price, 6, wanted=[options[3]])
    assert options[3] in chosen
    assert options[0] in chosen
    assert min(o.saved_bytes + o.read_bytes for o in chosen) == min(
        o.saved_bytes + o.read_bytes for o in options
    )
    assert len(chosen) <= 6


def test_a_failing_milp_leaves_the_beam_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise hr.SolverError("out of memory")

    monkeypatch.setattr(leaf_graph_module, "solve_staged", refuse)
    leaf = first_leaf("resnet", 60, 5)
    known = frontier(leaf, FrontierParams(grid=4), deadline=Deadline())
    degraded: list[str] = []
    low_peak_options(
        leaf, known, width=1, node_limit=1, seed=0, deadline=Deadline(), degraded=degraded
    )
    assert degraded
    assert all("out of memory" in event for event in degraded)
