"""Thousands of random tiny graphs against brute force: nothing beats the optimum, every proof holds.

2,000 graphs run with the other tests, 50,000 with `pytest -m nightly`.
"""

from __future__ import annotations

import random

import pytest
from oracle import optimal_time, random_graph

import hremate as hr

#: Methods and how often each is asked; the quick ones always.
SHARES = {
    "cut": 1.0, "beam": 1.0, "greedy": 0.3, "branch-and-bound": 0.2, "exact": 0.05, "hierarchical": 0.05,
    "anneal": 0.02, "checkmate-lp": 0.02, "twremat": 0.1, "mincut": 0.1, "chen-sqrt": 0.1, "rotor": 0.1,
    "griewank": 0.1, "rockmate": 0.05, "checkmate": 0.02, "chen-greedy": 0.1,
}  # fmt: skip


def check(seed: int) -> int:
    """Hold every claim about one graph against the oracle; the number of methods that were asked."""
    rng = random.Random(seed)
    graph = random_graph(rng, max_ops=rng.choice([4, 5, 5, 6, 7]), max_tensors=7)
    budget = int(rng.uniform(0.4, 1.0) * hr.base_peak(graph))
    best = optimal_time(graph, budget)
    asked = 0
    for method, share in SHARES.items():
        if rng.random() >= share:
            continue
        options = {"proposals": 2000} if method == "anneal" else {}
        polish = 0 if method == "hierarchical" and rng.random() < 0.7 else None
        try:
            result = hr.solve(graph, budget, method, seed=seed, polish=polish, **options)
        except hr.MethodError:  # not a graph for this method
            continue
        asked += 1
        if best is None:
            assert not result.solved, method
        else:
            assert result.status is not hr.Status.INFEASIBLE, method
            assert result.lower_bound is None or result.lower_bound <= best + 1e-9, method
            assert result.memory_lower_bound is None or result.memory_lower_bound <= budget, method
        if result.schedule is not None:
            found = hr.validate(graph, result.schedule, result.budget if result.solved else None)
            assert (found.peak, found.time) == (result.peak, result.time), method
        if result.solved:
            assert result.time is not None and best is not None and result.time >= best - 1e-9, method
            if result.status is hr.Status.OPTIMAL and result.proof == "any-order":
                assert result.time == pytest.approx(best, abs=1e-9), method
        if method == "branch-and-bound":
            assert result.solved == (best is not None)
        # The hierarchy tells where it has to fall back on a flat method.
        assert method == "hierarchical" or not result.stats.degraded, method
    return asked


def check_range(start: int, stop: int) -> None:
    asked = 0
    for seed in range(start, stop):
        try:
            asked += check(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    assert asked >= 2 * (stop - start)


@pytest.mark.parametrize("start", range(0, 2000, 500))
def test_no_method_beats_brute_force_and_every_proof_holds(start: int) -> None:
    check_range(start, start + 500)


@pytest.mark.nightly
@pytest.mark.parametrize("start", range(2000, 52_000, 2500))
def test_no_method_beats_brute_force_on_fifty_thousand_graphs(start: int) -> None:
    check_range(start, start + 2500)
