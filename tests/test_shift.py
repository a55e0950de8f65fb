"""Shifts: the same runs in another order, valid, and of no larger peak."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import random_graph

import hremate as hr
from hremate import Graph, Op, simulate
from hremate.partition.phases import split_position
from hremate.simulate import step_memory
from hremate.solvers.repair import repair
from hremate.solvers.shift import later, shift_and_repair, shifted, sooner


def strewn(graph: Graph, rng: random.Random) -> np.ndarray:
    """The given order with runs of any op again at any moment."""
    order: list[int] = []
    for i in range(graph.n_ops):
        order.append(i)
        order += [j for j in range(i + 1) if not graph.once[j] and rng.random() < 0.3]
    return np.array(order)


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_shifted_schedule_is_valid_and_has_the_same_runs(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=8)
    order = strewn(graph, rng)
    first = rng.randrange(len(order) + 1)
    for shift in (sooner, later):
        found = shift(graph, order, first)
        assert sorted(found.tolist()) == sorted(order.tolist())
        assert found[:first].tolist() == order[:first].tolist()
        simulate(graph, found)  # raises where it is not valid


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_shifting_lowers_the_peak_or_leaves_it(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=8)
    order = strewn(graph, rng)
    assert step_memory(graph, shifted(graph, order)).max() <= step_memory(graph, order).max()


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False), slack=st.integers(-3, 3))
def test_repair_after_a_shift_is_never_worse_than_repair(rng: random.Random, slack: int) -> None:
    graph = random_graph(rng, max_ops=7)
    order = strewn(graph, rng)
    budget = max(0, simulate(graph, order).peak + slack)
    alone = simulate(graph, repair(graph, order, budget))
    found = simulate(graph, shift_and_repair(graph, order, budget))
    assert found.time <= alone.time
    assert found.peak <= max(budget, alone.peak)


def graph_of(*ops: tuple[str, tuple[str, ...], int], outputs: tuple[str, ...] = ("end",)) -> Graph:
    return Graph.from_ops([Op(name, 1.0, reads, ((name, size),)) for name, reads, size in ops], list(outputs))


def test_sooner_runs_what_frees_memory_before_what_takes_some() -> None:
    graph = graph_of(("a", (), 8), ("b", (), 8), ("small", ("a",), 1), ("end", ("small", "b"), 1))
    assert sooner(graph, np.arange(4)).tolist() == [0, 2, 1, 3]


def test_sooner_follows_what_it_moved() -> None:
    """`less` can run only after `small`, which frees memory itself, and goes right after it."""
    graph = graph_of(
        ("a", (), 8), ("b", (), 8), ("small", ("a",), 4), ("less", ("small",), 1), ("end", ("less", "b"), 1)
    )
    assert sooner(graph, np.arange(5)).tolist() == [0, 2, 3, 1, 4]
    assert sooner(graph, np.arange(5), first=3).tolist() == [0, 1, 2, 3, 4]


def test_later_runs_what_takes_memory_right_before_its_reader() -> None:
    graph = graph_of(("big", (), 8), ("a", (), 4), ("b", ("a",), 4), ("end", ("big", "b"), 1))
    assert later(graph, np.arange(4)).tolist() == [1, 2, 0, 3]


def test_the_step_that_reads_a_run_reads_it_still() -> None:
    """The second run of `a` is for `end`; `b`, which reads the first one, is not moved beyond it."""
    graph = graph_of(("a", (), 2), ("b", ("a",), 9), ("c", ("b",), 1), ("end", ("a", "c"), 1))
    order = np.array([0, 1, 2, 0, 3])
    assert later(graph, order).tolist() == sooner(graph, order).tolist() == [0, 1, 2, 0, 3]


def test_the_forward_part_of_a_training_graph_stays() -> None:
    graph = hr.generate("ssm", 300, 1)
    split = split_position(graph)
    given_order = np.arange(graph.n_ops)
    moved = sooner(graph, given_order, split)
    assert (moved[:split] == given_order[:split]).all()
    assert (moved != given_order).any()
