"""Claims about the bound on time: never above the optimum over all orders, tight where it can be."""

from __future__ import annotations

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.bounds import time_lower_bound


def check(graph: hr.Graph) -> tuple[int, int]:
    """Hold the bound against the optimum at every budget; (cases, tight ones)."""
    cases = tight = 0
    for budget in oracle.breakpoints(graph):
        best = oracle.optimal_time(graph, budget)
        if best is None:
            continue
        bound = time_lower_bound(graph, budget).time
        assert graph.total_time - 1e-9 <= bound <= best + 1e-9
        cases += 1
        tight += bound >= best - 1e-6
    return cases, tight


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**7))
def test_never_above_the_optimum_of_any_order(seed: int) -> None:
    check(oracle.random_graph(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_never_above_the_optimum_on_thousands_of_graphs(part: int) -> None:
    for seed in range(10**8 + part * 250, 10**8 + (part + 1) * 250):
        check(oracle.random_graph(seed))


def test_mostly_tight_on_tiny_graphs() -> None:
    found = [check(oracle.random_graph(seed)) for seed in range(100)]
    assert sum(tight for _, tight in found) >= 0.6 * sum(cases for cases, _ in found)


def test_rounds_up_to_the_quantum_of_the_times() -> None:
    graph = hr.generate("chain", 60, 1)
    cents = hr.Graph.from_ops(
        [
            hr.Op(o.name, round(o.time, 1), o.inputs, o.outputs, o.workspace)
            for o in map(graph.op, range(graph.n_ops))
        ],
        [graph.tensor_names[x] for x in graph.outputs],
    )
    bound = time_lower_bound(cents, hr.base_peak(cents) * 7 // 10).time
    assert bound > cents.total_time
    assert round(bound, 1) == pytest.approx(bound, abs=1e-9)


def test_result_carries_bound_and_gap() -> None:
    result = hr.solve(hr.generate("chain", 60, 1), "80%", method="beam")
    assert result.base_time < result.lower_bound <= result.time
    assert 0 <= result.gap < 0.2
