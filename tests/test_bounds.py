"""Bounds on memory: never above what brute force reaches, and worth something."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import min_peak, random_graph

from hremate import Graph, Op, memory_lower_bound

MODELS = ("coexist", "reuse")


@pytest.mark.parametrize("memory_model", MODELS)
def test_no_schedule_in_any_order_stays_below_the_bound(memory_model: str) -> None:
    tight = 0
    for seed in range(300):
        graph = random_graph(seed, max_ops=6, memory_model=memory_model)
        bound, least = memory_lower_bound(graph).bytes, min_peak(graph)
        assert bound <= least, seed
        tight += bound == least
    assert tight > 200  # most tiny graphs are decided by one of the floors


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_bound_holds_on_random_graphs(rng) -> None:  # type: ignore[no-untyped-def]
    graph = random_graph(rng, max_ops=6)
    assert memory_lower_bound(graph).bytes <= min_peak(graph)


def test_an_op_needs_its_inputs_outputs_and_workspace_at_once() -> None:
    graph = Graph.from_ops([Op("a", 1, (), (("x", 5),)), Op("b", 1, ("x",), (("y", 7),), workspace=11)])
    bound = memory_lower_bound(graph)
    assert (bound.bytes, bound.op, bound.need) == (23, 1, "op 'b' needs by itself")


def test_under_reuse_outputs_may_overwrite_inputs() -> None:
    ops = [Op("a", 1, (), (("x", 5),)), Op("b", 1, ("x",), (("y", 7),), workspace=1)]
    assert memory_lower_bound(Graph.from_ops(ops, memory_model="reuse")).bytes == 7


def test_under_reuse_a_once_made_input_that_is_read_again_cannot_be_overwritten() -> None:
    ops = [
        Op("a", 1, (), (("x", 5),), once=True),
        Op("b", 1, ("x",), (("y", 7),)),
        Op("c", 1, ("x", "y"), (("z", 1),)),
    ]
    bound = memory_lower_bound(Graph.from_ops(ops, memory_model="reuse"))
    assert (bound.bytes, min_peak(Graph.from_ops(ops, memory_model="reuse"))) == (12, 12)


def test_making_the_last_input_counts_the_inputs_that_wait() -> None:
    ops = [
        Op("a", 1, (), (("x", 10),)),
        Op("wide", 1, (), (("w", 50),)),
        Op("narrow", 1, ("w",), (("s", 1),)),
        Op("wide too", 1, (), (("v", 60),)),
        Op("small", 1, ("v",), (("t", 1),)),
        Op("join", 1, ("s", "t"), (("y", 1),)),
    ]
    bound = memory_lower_bound(Graph.from_ops(ops))
    assert (bound.bytes, bound.op) == (61, 4)  # "small" itself
    slim = [
        Op("wide", 1, (), (("w", 50),)),
        Op("narrow", 1, ("w",), (("s", 20),)),
        Op("wide too", 1, (), (("v", 60),)),
        Op("small", 1, ("v",), (("t", 20),)),
        Op("join", 1, ("s", "t"), (("y", 1),)),
    ]
    bound = memory_lower_bound(Graph.from_ops(slim))
    assert (bound.bytes, bound.need) == (90, "it takes to make the inputs of op 'join'")
    assert min_peak(Graph.from_ops(slim)) == 90


def test_the_graph_outputs_bound_the_peak_and_no_op_is_blamed() -> None:
    graph = Graph.from_ops([Op(f"o{i}", 1, (), ((f"t{i}", 10),)) for i in range(4)], ["t0", "t1", "t2", "t3"])
    bound = memory_lower_bound(graph)
    assert (bound.bytes, bound.op, bound.need) == (40, None, "the graph outputs need at the end")


def test_resident_bytes_and_zero_sizes_count_nothing() -> None:
    graph = Graph.from_ops([Op("a", 1, ("weight",), (("x", 0),)), Op("end", 1, ("x",))], resident=10**9)
    assert memory_lower_bound(graph).bytes == 0
