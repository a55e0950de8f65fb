"""Changes of a graph that must not matter, or matter in a known way, to what is proved about it."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest
from oracle import random_graph

import hremate as hr

#: A method that proves the optimum over all orders.
PROVING = "branch-and-bound"
SEEDS = range(40)


def squeezed(graph: hr.Graph, rng: random.Random) -> int:
    """A budget at which something has to give, where one can be had."""
    low, high = hr.memory_lower_bound(graph).bytes, hr.base_peak(graph)
    return rng.randint(low, max(low, high - 1))


def some_graph(seed: int) -> hr.Graph:
    return random_graph(seed, max_ops=9, min_ops=4, max_tensors=11)


def ops_of(graph: hr.Graph) -> list[hr.Op]:
    return [graph.op(i) for i in range(graph.n_ops)]


def rebuilt(graph: hr.Graph, ops: list[hr.Op], outputs: list[str] | None = None) -> hr.Graph:
    if outputs is None:
        outputs = [graph.tensor_names[x] for x in graph.outputs]
    return hr.Graph.from_ops(ops, outputs, memory_model=graph.memory_model)


def renamed(graph: hr.Graph, rng: random.Random) -> hr.Graph:
    """Other names, and the outputs and inputs of each op listed otherwise."""
    numbers = rng.sample(range(1000), graph.n_tensors + graph.n_ops)
    tensor = {name: f"z{numbers[x]}" for x, name in enumerate(graph.tensor_names)}
    ops = []
    for i, op in enumerate(ops_of(graph)):
        inputs = [tensor.get(x, x) for x in op.inputs]
        outputs = [(tensor[x], nbytes) for x, nbytes in op.outputs]
        rng.shuffle(inputs)
        rng.shuffle(outputs)
        name = f"q{numbers[graph.n_tensors + i]}"
        ops.append(replace(op, name=name, inputs=tuple(inputs), outputs=tuple(outputs)))
    return rebuilt(graph, ops, [tensor[graph.tensor_names[x]] for x in graph.outputs])


def listed_otherwise(graph: hr.Graph, rng: random.Random) -> hr.Graph:
    """The same ops in another topological order."""
    ptr, idx = graph.predecessors
    waiting = {i: {int(p) for p in idx[ptr[i] : ptr[i + 1]]} for i in range(graph.n_ops)}
    order: list[int] = []
    while waiting:
        i = rng.choice([i for i, before in waiting.items() if before <= set(order)])
        order.append(i)
        del waiting[i]
    return rebuilt(graph, [graph.op(i) for i in order])


def scaled(graph: hr.Graph, times: float, sizes: int) -> hr.Graph:
    """Every time and every number of bytes multiplied."""
    return rebuilt(
        graph,
        [
            replace(
                op, time=op.time * times, workspace=op.workspace * sizes,
                outputs=tuple((x, nbytes * sizes) for x, nbytes in op.outputs),
            )
            for op in ops_of(graph)
        ],
    )  # fmt: skip


def proved(graph: hr.Graph, budget: int) -> float:
    """The least time within `budget`, in any order; infinite when there is none."""
    result = hr.solve(graph, budget, PROVING)
    if not result.solved:
        return math.inf
    assert result.status is hr.Status.OPTIMAL and result.proof == "any-order"
    assert result.time is not None
    return result.time


@pytest.mark.parametrize("seed", SEEDS)
def test_names_and_the_order_of_the_listing_do_not_change_the_optimum(seed: int) -> None:
    rng = random.Random(seed)
    graph = some_graph(seed)
    budget = squeezed(graph, rng)
    expected = proved(graph, budget)
    assert proved(renamed(graph, rng), budget) == pytest.approx(expected)
    assert proved(listed_otherwise(graph, rng), budget) == pytest.approx(expected)


@pytest.mark.parametrize("method", ["cut", "beam", "greedy", "exact", "anneal", "twremat", "checkmate-lp"])
def test_names_do_not_change_any_answer(method: str) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        graph = some_graph(seed)
        budget = squeezed(graph, rng)
        names = iter(rng.sample(range(1000), graph.n_tensors))
        tensor = {name: f"z{next(names)}" for name in graph.tensor_names}
        other = rebuilt(
            graph,
            [
                replace(
                    op, name=f"z{i}", inputs=tuple(tensor.get(x, x) for x in op.inputs),
                    outputs=tuple((tensor[x], nbytes) for x, nbytes in op.outputs),
                )
                for i, op in enumerate(ops_of(graph))
            ],
            [tensor[graph.tensor_names[x]] for x in graph.outputs],
        )  # fmt: skip
        options = {"proposals": 2000} if method == "anneal" else {}
        assert hr.solve(graph, budget, method, **options).schedule == (
            hr.solve(other, budget, method, **options).schedule
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_scaled_times_and_sizes_give_the_same_overhead_and_scaled_bounds(seed: int) -> None:
    graph = some_graph(seed)
    budget = squeezed(graph, random.Random(seed))
    expected = proved(graph, budget)
    larger = scaled(graph, 3.0, 2)
    # Twice the bytes and one more hold no more than twice the bytes do.
    for limit in (2 * budget, 2 * budget + 1):
        assert proved(larger, limit) == pytest.approx(3 * expected)
    assert hr.memory_lower_bound(larger).bytes == 2 * hr.memory_lower_bound(graph).bytes
    assert hr.base_peak(larger) == 2 * hr.base_peak(graph)
    assert hr.time_lower_bound(larger, 2 * budget).time == pytest.approx(
        3 * hr.time_lower_bound(graph, budget).time, rel=1e-5
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_larger_budget_never_takes_longer(seed: int) -> None:
    graph = some_graph(seed)
    low, high = hr.memory_lower_bound(graph).bytes, hr.base_peak(graph)
    budgets = sorted({low - 1, low, (low + high) // 2, high - 1, high} & set(range(high + 1)))
    times = [proved(graph, budget) for budget in budgets]
    assert times == sorted(times, reverse=True)
    bounds = [hr.time_lower_bound(graph, budget).time for budget in budgets if budget >= low]
    assert all(a >= b - 1e-9 for a, b in pairwise(bounds))
    assert all(bound <= time + 1e-9 for bound, time in zip(bounds[::-1], times[::-1], strict=False))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_an_op_that_touches_nothing_only_adds_its_time(seed: int, place: str) -> None:
    graph = some_graph(seed)
    budget = squeezed(graph, random.Random(seed))
    ops = ops_of(graph)
    at = {"first": 0, "middle": len(ops) // 2, "last": len(ops)}[place]
    ops.insert(at, hr.Op("alone", 7.0, (), (("nothing", 0),)))
    other = rebuilt(graph, ops)
    assert hr.base_peak(other) == hr.base_peak(graph)
    assert hr.memory_lower_bound(other).bytes == hr.memory_lower_bound(graph).bytes
    assert proved(other, budget) == pytest.approx(proved(graph, budget) + 7.0)
    bound = hr.time_lower_bound(graph, budget).time
    assert hr.time_lower_bound(other, budget).time == pytest.approx(bound + 7.0)
