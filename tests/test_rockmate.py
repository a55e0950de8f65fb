"""Claims about rockmate: more options than rotor never hurt, blocks grow until the graph is a chain."""

from __future__ import annotations

import pytest
from chains import answers_or_refuses, random_training_graph, run_method
from hypothesis import given, settings
from hypothesis import strategies as st

from hremate import Graph, MethodError, Op, generate
from hremate.ilp import rockmate
from hremate.simulate import base_peak
from hremate.solvers import rotor
from hremate.solvers.chain_cuts import build_chain


@pytest.mark.parametrize("share", [70, 50])
def test_options_within_blocks_beat_whole_blocks_on_a_transformer(share: int) -> None:
    graph = generate("transformer", 250, seed=1)
    budget = base_peak(graph) * share // 100
    ours, plain = run_method(rockmate, graph, budget), run_method(rotor, graph, budget)
    assert ours.solved and plain.solved and ours.time < plain.time


def test_blocks_that_the_backward_part_ties_together_grow() -> None:
    ops = [Op(f"f{i}", 1.0, (f"x{i - 1}",) if i else (), ((f"x{i}", 5),), phase="forward") for i in range(6)]
    ops += [
        Op("b5", 1.0, ("x5", "x4"), (("g5", 5),), phase="backward"),
        Op("b1", 1.0, ("g5", "x2"), (("g1", 5),), phase="backward"),
        Op("late", 1.0, ("g1", "x3"), (("g", 5),), phase="backward"),
        Op("b0", 1.0, ("g", "x0"), (("g0", 5),), phase="backward"),
    ]
    graph = Graph.from_ops(ops, ["g0"])
    sizes = [len(b.forward) for b in build_chain(graph, "rockmate", most=100, grow=True).blocks]
    assert sum(sizes) == 6 and 1 < len(sizes) < 6
    assert run_method(rockmate, graph, base_peak(graph) - 5).schedule is not None


def test_a_graph_that_becomes_one_block_is_refused() -> None:
    ops = [
        Op("a", 1.0, (), (("a1", 5), ("a2", 5)), phase="forward"),
        Op("b", 1.0, ("a1", "a2"), (("b", 5),), phase="forward"),
        Op("c", 1.0, ("a1", "b"), (("c", 5),), phase="backward"),
    ]
    with pytest.raises(MethodError, match="rockmate needs a chain of blocks"):
        run_method(rockmate, Graph.from_ops(ops, ["c"]), 1)


@settings(max_examples=25, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.3, 1.0))
def test_schedules_of_random_graphs_are_valid_or_refused(rng, share) -> None:  # type: ignore[no-untyped-def]
    result = answers_or_refuses(rockmate, random_training_graph(rng), share)
    assert result is None or result.schedule is not None


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(MethodError, match="Expected options >= 1"):
        rockmate.Params(options=0)
    with pytest.raises(MethodError, match="Expected grid >= 0"):
        rockmate.Params(grid=-1)
