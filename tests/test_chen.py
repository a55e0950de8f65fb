"""Claims about chen-sqrt and chen-greedy: evenly spaced or greedy checkpoints, one more forward pass."""

from __future__ import annotations

import math

import numpy as np
import pytest
from chains import answers_or_refuses, random_training_graph, run_method, uniform_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import optimal_time

from hremate import Graph, MethodError, Op
from hremate.solvers import chen_greedy, chen_sqrt
from hremate.solvers.chain import articulation_positions

MODULES = (chen_sqrt, chen_greedy)


@pytest.mark.parametrize("module", MODULES)
def test_a_budget_of_the_base_peak_needs_no_recomputation(module) -> None:  # type: ignore[no-untyped-def]
    result = run_method(module, uniform_chain(9))
    assert result.solved and result.recomputes == 0


def test_sqrt_n_segments_rerun_all_but_the_last_segment_and_the_checkpoints() -> None:
    result = run_method(chen_sqrt, uniform_chain(16), 0, segments=4)
    # 16 forward ops: the 4 of the last segment and the 3 checkpoints are kept, 9 run again.
    assert result.recomputes == 9


@pytest.mark.parametrize("n", [16, 36, 64, 100])
def test_sqrt_n_segments_reach_a_peak_of_about_2_sqrt_n(n: int) -> None:
    result = run_method(chen_sqrt, uniform_chain(n), 0)
    assert result.peak is not None and result.peak <= 2 * math.sqrt(n) + 2


@pytest.mark.parametrize("module", MODULES)
def test_no_op_runs_more_than_twice(module) -> None:  # type: ignore[no-untyped-def]
    graph = uniform_chain(25)
    for budget in range(0, 27, 3):
        result = run_method(module, graph, budget)
        assert np.bincount(result.schedule.order).max() <= 2


def test_a_greedy_segment_ends_when_its_bytes_exceed_b() -> None:
    held = np.array([3, 1, 1, 5, 2, 2, 1])
    assert chen_greedy.greedy_cuts(held, np.arange(1, 7), 3) == [2, 4, 6]
    assert chen_greedy.greedy_cuts(held, np.array([3, 5]), 3) == [3, 5]


def test_even_cuts_are_evenly_spaced() -> None:
    assert chen_sqrt.even_cuts(np.arange(1, 12), 4) == [3, 6, 9]


def test_articulation_points_lie_where_one_tensor_crosses() -> None:
    ops = [
        Op("a", 1, (), (("a", 4),)),
        Op("b", 1, ("a",), (("b", 4),)),
        Op("c", 1, ("a", "b"), (("c", 4),)),
        Op("d", 1, ("c",), (("d", 4),)),
    ]
    graph = Graph.from_ops(ops, ["d"])
    assert articulation_positions(graph, 4, np.zeros(4, np.bool_)).tolist() == [1, 3]


@pytest.mark.parametrize("module", MODULES)
def test_a_graph_without_a_backward_part_is_refused(module) -> None:  # type: ignore[no-untyped-def]
    graph = Graph.from_ops([Op("a", 1, (), (("x", 1),)), Op("b", 1, ("x",), (("y", 1),))], ["y"])
    with pytest.raises(MethodError, match="no backward part"):
        run_method(module, graph)


@pytest.mark.parametrize("module", MODULES)
@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.3, 1.0))
def test_schedules_of_random_graphs_are_valid(module, rng, share) -> None:  # type: ignore[no-untyped-def]
    assert answers_or_refuses(module, random_training_graph(rng), share) is not None


@pytest.mark.parametrize("module", MODULES)
@settings(max_examples=10, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.5, 1.0))
def test_no_answer_beats_the_optimum(module, rng, share) -> None:  # type: ignore[no-untyped-def]
    graph = random_training_graph(rng, 4)
    result = answers_or_refuses(module, graph, share)
    if result is not None and result.solved:
        least = optimal_time(graph, result.budget)
        assert least is not None and result.time >= least


@pytest.mark.parametrize("module", MODULES)
def test_parameters_out_of_range_are_refused(module) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(MethodError, match="Expected points in articulation, linear, both"):
        module.Params(points="some")
    with pytest.raises(MethodError, match="Expected segments >= 0"):
        chen_sqrt.Params(segments=-1)
    with pytest.raises(MethodError, match="Expected segment_bytes >= 0"):
        chen_greedy.Params(segment_bytes=-1)
