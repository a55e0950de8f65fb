"""The oracle against plain enumeration of sequences, and against published worked examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from oracle import (
    breakpoints,
    frontier,
    min_peak,
    optimal_order,
    optimal_staged,
    optimal_time,
    random_graph,
)

from hremate import Graph, InvalidSchedule, Op, validate


def chain(memory_model: str = "coexist") -> Graph:
    """a -> b -> c, where c also reads a."""
    ops = [
        Op("a", 1.0, (), (("x", 4),)),
        Op("b", 1.0, ("x",), (("y", 2),), workspace=3),
        Op("c", 1.0, ("x", "y"), (("z", 4),)),
    ]
    return Graph.from_ops(ops, ["z"], memory_model=memory_model)


#: Worked examples of the Huawei challenge: name, inputs, run memory, output bytes, time.
EXAMPLE_1 = [
    ("A", "", 100, 100, 10),
    ("B", "", 100, 100, 5),
    ("C", "", 100, 100, 5),
    ("D", "ABC", 50, 100, 2),
    ("E", "D", 100, 100, 2),
    ("F", "AEC", 50, 100, 2),
]
EXAMPLE_2 = [
    ("A", "", 100, 100, 10),
    ("B", "", 100, 100, 10),
    ("C", "", 100, 25, 10),
    ("D", "", 100, 25, 10),
    ("E", "AB", 100, 100, 5),
    ("F", "CD", 100, 100, 10),
    ("G", "EF", 100, 100, 10),
    ("H", "G", 100, 100, 10),
    ("I", "EFH", 50, 100, 10),
]


def worked_example(rows: list[tuple[str, str, int, int, int]]) -> Graph:
    ops = [
        Op(name, float(time), tuple(inputs), ((name, output),), workspace=run_memory)
        for name, inputs, run_memory, output, time in rows
    ]
    return Graph.from_ops(ops, [rows[-1][0]], memory_model="reuse")


@pytest.mark.parametrize(("rows", "best"), [(EXAMPLE_1, 31.0), (EXAMPLE_2, 95.0)])
def test_worked_examples_have_their_published_best_time(
    rows: list[tuple[str, str, int, int, int]], best: float
) -> None:
    graph = worked_example(rows)
    assert optimal_time(graph, 350) == best
    order = optimal_order(graph, 350)
    assert order is not None and validate(graph, order, 350).time == best


def stages(order: tuple[int, ...], n: int) -> list[list[int]] | None:
    """The stages of a schedule staged along 0..n-1, None when it is not staged."""
    result: list[list[int]] = [[]]
    for i in order:
        if len(result) > n or i > len(result) - 1:
            return None
        result[-1].append(i)
        if i == len(result) - 1:
            result.append([])
    complete = len(result) == n + 1 and not result[-1]
    ascending = all(a < b for stage in result for a, b in itertools.pairwise(stage))
    return result[:-1] if complete and ascending else None


def all_checks(graph: Graph, longest: int) -> Iterator[tuple[tuple[int, ...], int, float]]:
    """(order, peak, time) of every valid schedule of at most `longest` steps."""
    for steps in range(graph.n_ops, longest + 1):
        for order in itertools.product(range(graph.n_ops), repeat=steps):
            if len(set(order)) == graph.n_ops:
                try:
                    check = validate(graph, order)
                except InvalidSchedule:
                    continue
                yield order, check.peak, check.time


@pytest.mark.parametrize("seed", range(30))
def test_no_sequence_beats_the_oracle_and_the_oracle_is_reached(seed: int) -> None:
    graph = random_graph(seed, max_ops=4)
    longest = {1: 5, 2: 8, 3: 7, 4: 7}[graph.n_ops]
    checks = list(all_checks(graph, longest))
    for staged in (False, True):
        allowed = [c for c in checks if not staged or stages(c[0], graph.n_ops) is not None]
        for budget in breakpoints(graph, staged=staged):
            times = [time for _, peak, time in allowed if peak <= budget]
            order = optimal_order(graph, budget, staged=staged)
            if order is None:
                assert not times
                continue
            best = validate(graph, order, budget).time
            assert best == (optimal_staged if staged else optimal_time)(graph, budget)
            assert not staged or stages(tuple(order), graph.n_ops) is not None
            assert not times or best <= min(times)
            assert len(order) > longest or best == min(times)


@pytest.mark.parametrize("seed", range(30))
def test_frontier_falls_from_the_smallest_peak_and_staged_lies_above(seed: int) -> None:
    graph = random_graph(seed)
    points = frontier(graph)
    assert points[0][0] == min_peak(graph)
    assert points[-1][1] == graph.total_time
    assert all(a < c and b > d for (a, b), (c, d) in itertools.pairwise(points))
    for budget, time in points:
        staged = optimal_staged(graph, budget)
        assert staged is None or staged >= time
        assert optimal_time(graph, budget) == time
    assert optimal_time(graph, points[0][0] - 1) is None


def test_known_optima_of_a_chain_under_both_models() -> None:
    assert frontier(chain()) == [(10, 3.0)]
    # c may write z over x and y: its step needs 6 bytes, b's 7 are then the peak.
    assert frontier(chain("reuse")) == [(7, 3.0)]


def test_once_forbids_the_recomputation_that_saves_memory() -> None:
    def graph(once: bool) -> Graph:
        ops = [
            Op("a", 1.0, (), (("x", 4),), once=once),
            Op("b", 1.0, ("x",), (("y", 1),)),
            Op("c", 1.0, ("y",), (("z", 1),), workspace=6),
            Op("d", 1.0, ("x", "z"), (("w", 1),)),
        ]
        return Graph.from_ops(ops, ["w"])

    assert optimal_time(graph(False), 8) == 5.0
    assert optimal_time(graph(True), 8) is None
    assert optimal_time(graph(True), 12) == 4.0
