"""Orders of small peak: topological, near the smallest peak of tiny graphs, repeatable, exact under undo."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from oracle import random_graph

from hremate import Graph, generate, simulate
from hremate.solvers import orders
from hremate.solvers.orders import NO_LIMIT, depth_first, longest_paths, peak_order, smallest_peak_order


def _smallest_peak(graph: Graph) -> int:
    """Least peak of all orders without recomputation."""
    reads = [{int(graph.producer[x]) for x in graph.inputs_of(i)} for i in range(graph.n_ops)]
    best = NO_LIMIT
    for order in itertools.permutations(range(graph.n_ops)):
        place = {i: k for k, i in enumerate(order)}
        if all(place[j] < place[i] for i in order for j in reads[i]):
            best = min(best, simulate(graph, order).peak)
    return best


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("width", [1, 3, 40])
def test_it_is_a_topological_order_of_all_ops(width: int, backward: bool) -> None:
    rng = random.Random(width)
    for _ in range(40):
        graph = random_graph(rng)
        order = peak_order(graph, width, backward=backward)
        assert order is not None
        assert sorted(order) == list(range(graph.n_ops))
        simulate(graph, order)  # raises where an op runs before its inputs


def test_wide_beams_from_both_ends_reach_the_smallest_peak_of_tiny_graphs() -> None:
    rng = random.Random(4)
    for _ in range(60):
        graph = random_graph(rng, max_ops=6)
        peaks = []
        for backward in (False, True):
            order = peak_order(graph, 200, backward=backward)
            assert order is not None
            peaks.append(simulate(graph, order).peak)
        assert min(peaks) == _smallest_peak(graph)


def test_no_order_of_the_four_is_better_than_the_smallest() -> None:
    rng = random.Random(9)
    for _ in range(40):
        graph = random_graph(rng)
        least = simulate(graph, smallest_peak_order(graph, 4)).peak
        assert least <= simulate(graph, range(graph.n_ops)).peak
        assert least <= simulate(graph, depth_first(graph)).peak
        for backward in (False, True):
            order = peak_order(graph, 4, backward=backward)
            assert order is not None and least <= simulate(graph, order).peak


def test_equal_seeds_give_equal_orders() -> None:
    graph = generate("layered", 300, seed=2)
    a, b = (peak_order(graph, 8, seed=5) for _ in range(2))
    assert a is not None and np.array_equal(a, b)


def test_it_gives_up_after_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "CHUNK", 1000)
    graph = generate("layered", 300, seed=2)
    assert peak_order(graph, 8, max_work=5000) is None
    order = peak_order(graph, 8)
    assert order is not None and np.array_equal(order, peak_order(graph, 8, max_work=10**9))


def test_longest_paths_from_both_ends() -> None:
    graph = generate("series-parallel", 60, seed=1)
    ones = np.ones(graph.n_ops, np.int64)
    assert longest_paths(graph, ones).max() == longest_paths(graph, ones, to_end=False).max()
