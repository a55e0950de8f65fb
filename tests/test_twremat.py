"""Claims about twremat: logarithmic peaks on long narrow graphs, valid schedules of any DAG."""

from __future__ import annotations

import math

import networkx as nx
import pytest
from chains import random_training_graph, run_method, uniform_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import optimal_time, random_graph

from hremate import Graph, MethodError, Op
from hremate.simulate import base_peak
from hremate.solvers import twremat
from hremate.solvers.base import Deadline, Run


@pytest.mark.parametrize("n", [32, 128, 256])
def test_the_peak_of_a_training_chain_grows_with_the_logarithm(n: int) -> None:
    graph = uniform_chain(n)
    result = run_method(twremat, graph, 0)
    assert base_peak(graph) == n + 1
    assert result.peak is not None and result.peak <= 3 * math.log2(n)


def test_the_peak_of_a_long_grid_is_about_width_times_logarithm() -> None:
    width, n = 3, 60
    ops = []
    for i in range(n):
        for k in range(width):
            reads = [f"x{i - 1}.{k}"] * (i > 0) + [f"x{i}.{k - 1}"] * (k > 0)
            ops.append(Op(f"f{i}.{k}", 1.0, tuple(reads), ((f"x{i}.{k}", 1),)))
    for i in range(n - 1, -1, -1):
        reads = [f"x{i}.{k}" for k in range(width)] + [f"g{i + 1}"] * (i < n - 1)
        ops.append(Op(f"b{i}", 1.0, tuple(reads), ((f"g{i}", 1),)))
    graph = Graph.from_ops(ops, ["g0"])
    result = run_method(twremat, graph, 0)
    assert base_peak(graph) > width * n
    assert result.peak is not None and result.peak <= (width + 1) * math.log2(n)


def test_a_budget_of_the_base_peak_needs_no_recomputation() -> None:
    result = run_method(twremat, uniform_chain(40))
    assert result.solved and result.recomputes == 0


def test_the_recursion_stops_early_where_memory_allows() -> None:
    graph = uniform_chain(128)
    tight, loose = run_method(twremat, graph, 20), run_method(twremat, graph, 70)
    assert tight.solved and loose.solved and loose.time < tight.time


def test_the_decomposition_of_a_path_has_width_one() -> None:
    ops = [Op(f"p{i}", 1.0, (f"x{i - 1}",) if i else (), ((f"x{i}", 1),)) for i in range(20)]
    assert twremat.TreeDecomposition(Graph.from_ops(ops, ["x19"])).width == 1


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([0.5, 2 / 3, 0.8]))
def test_a_separator_is_a_balanced_cut(rng, balance) -> None:  # type: ignore[no-untyped-def]
    graph = random_graph(rng, max_ops=12, max_tensors=14)
    tree = twremat.TreeDecomposition(graph)
    for ops in tree.components(range(graph.n_ops)):
        bag = tree.separator(ops, [1] * graph.n_ops, balance)
        rest = [i for i in ops if i not in bag]
        moral = nx.Graph((i, j) for i in rest for j in tree.neighbours[i] if j in rest)
        moral.add_nodes_from(rest)
        assert bag and set(bag) <= set(ops)
        assert sorted(map(sorted, nx.connected_components(moral))) == sorted(tree.components(rest))
        assert all(len(part) <= balance * len(ops) for part in tree.components(rest))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.0, 1.0))
def test_schedules_of_random_dags_are_valid_and_beat_no_optimum(rng, share) -> None:  # type: ignore[no-untyped-def]
    graph = random_graph(rng, max_ops=6)
    result = run_method(twremat, graph, int(share * base_peak(graph)))
    if result.solved:
        least = optimal_time(graph, result.budget)
        assert least is not None and result.time >= least


@settings(max_examples=20, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.0, 1.0))
def test_schedules_of_random_training_graphs_are_valid(rng, share) -> None:  # type: ignore[no-untyped-def]
    graph = random_training_graph(rng)
    assert run_method(twremat, graph, int(share * base_peak(graph))).schedule is not None


def test_an_expired_deadline_still_gives_a_schedule() -> None:
    run = Run(deadline=Deadline(0.0))
    result = twremat.solve(uniform_chain(50), 5, run, twremat.Params())
    assert result.schedule is not None and result.stats.timed_out


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(MethodError, match="Expected 0 <= stop <= 1"):
        twremat.Params(stop=2.0)
