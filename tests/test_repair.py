"""Repair: never worse, within the limit, valid, and a fixed point; known cases by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import random_graph

from hremate import Graph, Op, ScheduleError, simulate, validate
from hremate.solvers.repair import repair


def _chain(sizes: list[int], reads: list[tuple[int, ...]], **kwargs: str) -> Graph:
    """Ops of time 1, op i making tensor i of sizes[i] and reading reads[i]; the last one is the output."""
    ops = [
        Op(f"o{i}", 1.0, tuple(f"t{j}" for j in reads[i]), ((f"t{i}", sizes[i]),)) for i in range(len(sizes))
    ]
    return Graph.from_ops(ops, [f"t{len(sizes) - 1}"], **kwargs)


def _random_order(graph: Graph, rng: random.Random) -> list[int]:
    """A random valid sequence: first runs in the given order, repeats strewn in."""
    order: list[int] = []
    for i in range(graph.n_ops):
        order.append(i)
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            j = rng.randint(0, i)
            if not graph.once[j]:
                order.append(j)
    return order


def _area(graph: Graph, order: np.ndarray) -> int:
    return int(simulate(graph, order).memory.sum())


@settings(max_examples=400, deadline=None)
@given(rng=st.randoms(use_true_random=False), slack=st.integers(-3, 6))
def test_never_worse_valid_within_the_limit_and_a_fixed_point(rng: random.Random, slack: int) -> None:
    graph = random_graph(rng)
    before = _random_order(graph, rng)
    old = validate(graph, before)
    budget = max(0, old.peak + slack)
    after = repair(graph, before, budget)
    new = validate(graph, after, max(budget, old.peak))
    assert new.time <= old.time
    assert len(after) <= len(before)
    assert np.array_equal(repair(graph, after, budget), after)


@settings(max_examples=200, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_with_room_for_everything_nothing_is_recomputed(rng: random.Random) -> None:
    graph = random_graph(rng)
    assert sorted(repair(graph, _random_order(graph, rng), 10**6)) == list(range(graph.n_ops))


@settings(max_examples=200, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_no_single_execution_is_left_that_could_go(rng: random.Random) -> None:
    graph = random_graph(rng)
    before = _random_order(graph, rng)
    budget = simulate(graph, before).peak
    after = repair(graph, before, budget).tolist()
    seen: set[int] = set()
    for p, i in enumerate(after):
        if i in seen:
            rest = after[:p] + after[p + 1 :]
            assert simulate(graph, rest).peak > budget
        seen.add(i)


@pytest.mark.parametrize("model", ["coexist", "reuse"])
def test_recomputes_that_nobody_reads_are_dropped_with_what_served_them(model: str) -> None:
    graph = _chain([1, 1, 1, 1], [(), (0,), (1,), (2,)], memory_model=model)
    assert repair(graph, [0, 1, 2, 0, 1, 3], 0).tolist() == [0, 1, 2, 3]


def test_a_first_copy_that_nobody_reads_is_dropped() -> None:
    graph = _chain([5, 1, 1], [(), (), (0, 1)])
    assert repair(graph, [0, 1, 0, 2], 0).tolist() == [1, 0, 2]


@pytest.mark.parametrize("budget, kept", [(6, [0, 1, 2, 3, 4]), (5, [0, 1, 2, 3, 0, 4])])
def test_a_copy_is_kept_exactly_when_it_fits(budget: int, kept: list[int]) -> None:
    # Step 2 holds t1 and makes t2 (5 bytes); t0 on top makes 6.
    graph = _chain([1, 2, 3, 1, 1], [(), (0,), (1,), (2,), (0, 3)])
    assert simulate(graph, [0, 1, 2, 3, 0, 4]).peak == 5
    assert repair(graph, [0, 1, 2, 3, 0, 4], budget).tolist() == kept


def test_a_premature_recompute_runs_just_before_its_reader() -> None:
    graph = _chain([2, 9, 1, 1, 1], [(), (0,), (1,), (2,), (0, 3)])
    order = [0, 1, 2, 0, 3, 4]
    assert repair(graph, order, 0).tolist() == [0, 1, 2, 3, 0, 4]


def test_most_time_is_saved_first() -> None:
    # Room to keep either a (time 1) or b (time 9) over the big step, not both.
    ops = [
        Op("a", 1.0, (), (("ta", 2),)),
        Op("b", 9.0, (), (("tb", 2),)),
        Op("c", 1.0, ("ta", "tb"), (("tc", 1),)),
        Op("big", 1.0, ("tc",), (("td", 1),), workspace=6),
        Op("e", 1.0, ("ta", "tb", "td"), (("te", 1),)),
    ]
    graph = Graph.from_ops(ops, ["te"])
    order = [0, 1, 2, 3, 0, 1, 4]
    assert repair(graph, order, 10).tolist() == [0, 1, 2, 3, 0, 4]


def test_the_peak_it_came_with_is_the_limit_when_the_budget_is_smaller() -> None:
    graph = _chain([4, 4, 1], [(), (0,), (0, 1)])
    assert repair(graph, [0, 1, 0, 2], 1).tolist() == [0, 1, 2]


def test_an_invalid_sequence_is_refused() -> None:
    graph = _chain([1, 1], [(), (0,)])
    with pytest.raises(ScheduleError, match="before it is computed"):
        repair(graph, [1, 0], 9)


def test_running_late_shrinks_the_area_and_never_the_validity() -> None:
    rng = random.Random(5)
    for _ in range(50):
        graph = random_graph(rng, min_ops=4)
        before = _random_order(graph, rng)
        budget = simulate(graph, before).peak
        after = repair(graph, before, budget)
        if len(after) == len(before):
            assert _area(graph, after) <= _area(graph, np.array(before))
