"""Polish: never worse, repeatable, stops when asked, and makes bad schedules optimal."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joblib import parallel_config
from oracle import optimal_order, optimal_time, random_graph

import hremate.solvers.polish as module
from hremate import Graph, SolverError, base_peak, generate, simulate, time_lower_bound, validate
from hremate.solvers.anneal import Annealed, anneal
from hremate.solvers.base import Deadline, Run
from hremate.solvers.polish import PolishParams, polish
from hremate.solvers.shift import shift_and_repair
from hremate.solvers.staged import threshold_orders
from hremate.solvers.window_model import TooLarge
from hremate.solvers.windows import WindowAnswer, Windows

QUICK = PolishParams(rounds=2, patience=1)


@pytest.fixture(autouse=True)
def short_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROPOSALS_PER_OP", 300)


def bad_schedule(graph: Graph, rng: random.Random) -> list[int]:
    """First runs in the given order, any op run again at any moment."""
    order: list[int] = []
    for i in range(graph.n_ops):
        order.append(i)
        order += [j for j in range(i + 1) if not graph.once[j] and rng.random() < 0.2]
    return order


def slow_schedule(graph: Graph, share: float = 0.85) -> tuple[np.ndarray, int]:
    """The slowest of the cheap schedules that fit this share of the base peak; and the bytes of that."""
    budget = int(base_peak(graph) * share)
    found = [(simulate(graph, order), order) for order in threshold_orders(graph)]
    order = max((s.time, k) for k, (s, _) in enumerate(found) if s.peak <= budget)[1]
    return found[order][1], budget


@settings(max_examples=25, deadline=None)
@given(rng=st.randoms(use_true_random=False), slack=st.integers(-3, 3))
def test_never_worse_and_valid(rng: random.Random, slack: int) -> None:
    graph = random_graph(rng, max_ops=6)
    order = bad_schedule(graph, rng)
    before = simulate(graph, order)
    budget = max(0, before.peak + slack)
    after = validate(graph, polish(graph, np.array(order), budget, Run(), QUICK))
    if before.peak <= budget:
        assert after.peak <= budget and after.time <= before.time
    else:
        assert after.peak <= before.peak


@settings(max_examples=15, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_bad_schedule_of_a_tiny_graph_becomes_optimal(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=6)
    order = bad_schedule(graph, rng)
    budget = simulate(graph, order).peak
    best = optimal_time(graph, budget)
    found = polish(graph, np.array(order), budget, Run(), PolishParams(rounds=4))
    assert simulate(graph, found).time == best


def unchanged(graph: Graph, order: np.ndarray, budget: int, **_: Any) -> SimpleNamespace:
    """In place of `anneal`."""
    return SimpleNamespace(order=order)


@pytest.mark.parametrize("model", ["coexist", "reuse"])
def test_a_slow_schedule_is_polished_to_the_optimum(model: str) -> None:
    graph = generate("unet", 60).with_memory_model(model)
    order, budget = slow_schedule(graph)
    bound = time_lower_bound(graph, budget).time
    run = Run(lower_bound=bound)
    found = validate(graph, polish(graph, order, budget, run, PolishParams(rounds=6)), budget)
    assert simulate(graph, order).time > 5 * found.time
    assert found.time == pytest.approx(bound, rel=1e-9)


def test_windows_alone_come_close_to_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "anneal", unchanged)
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run()
    found = validate(graph, polish(graph, order, budget, run, PolishParams(rounds=6)), budget)
    assert found.time <= 1.02 * time_lower_bound(graph, budget).time
    assert run.stats.counts["windows"] >= 1


def test_a_schedule_at_its_bound_is_left_alone() -> None:
    graph = random_graph(2, min_ops=5)
    order = np.array(optimal_order(graph, 100))
    run = Run(lower_bound=simulate(graph, order).time)
    assert np.array_equal(polish(graph, order, 100, run), order)
    assert "windows" not in run.stats.counts


def test_no_time_returns_the_input_but_shifted_and_repaired() -> None:
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run(deadline=Deadline(0.0))
    found = polish(graph, order, budget, run)
    assert np.array_equal(found, shift_and_repair(graph, order, budget))
    assert run.stats.timed_out and "windows" not in run.stats.counts


def test_it_repeats_for_a_seed_whatever_the_number_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    monkeypatch.setattr(module, "RUNS", 60)
    monkeypatch.setattr(module, "NODES", 5)
    monkeypatch.setattr(module, "PARALLEL_RUNS", 1)
    with parallel_config(backend="threading"):
        one, other, two = (
            polish(graph, order, budget, Run(seed=3, n_jobs=jobs), QUICK) for jobs in (1, 1, 2)
        )
    assert np.array_equal(one, other) and np.array_equal(one, two)
    assert simulate(graph, one).peak <= budget


@pytest.mark.parametrize("where", ["anneal", "solve_window"])
def test_ctrl_c_hands_in_the_best_so_far(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def interrupt(*args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, where, interrupt)
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run()
    found = validate(graph, polish(graph, order, budget, run), budget)
    assert run.stats.interrupted
    assert found.time <= simulate(graph, order).time


def test_ctrl_c_inside_the_solver_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "solve_window", lambda *a, **k: WindowAnswer(None, np.inf, False, 0, True))
    calls: list[int] = []
    monkeypatch.setattr(module, "anneal", lambda *a, **k: calls.append(1) or unchanged(*a, **k))
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run()
    polish(graph, order, budget, run)
    assert run.stats.interrupted and len(calls) == 1


def test_a_failure_of_the_solver_is_told_and_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise SolverError("window: SCIP is not well")

    monkeypatch.setattr(module, "solve_window", fail)
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run()
    found = validate(graph, polish(graph, order, budget, run, QUICK), budget)
    assert found.time <= simulate(graph, order).time
    assert run.stats.degraded[0] == "window: SCIP is not well"


@pytest.mark.parametrize("call", ["slots", "model"])
def test_windows_too_large_to_build_are_left_out(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Annealing goes on, and nothing counts as settled."""
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    asked = []

    def fails(*args: Any) -> None:
        asked.append(args)
        raise TooLarge

    monkeypatch.setattr(Windows, call, fails)
    run = Run(seed=1)
    found = simulate(graph, polish(graph, order, budget, run, QUICK))
    assert asked
    assert found.peak <= budget and found.time < simulate(graph, order).time
    assert "windows" not in run.stats.counts or not run.stats.counts["windows"]


def test_improvements_are_announced_best_last() -> None:
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run()
    times: list[float] = []
    run.listen(lambda schedule, peak, time: times.append(time))
    found = polish(graph, order, budget, run, QUICK)
    assert times == sorted(times, reverse=True)
    assert times[-1] == simulate(graph, found).time
    assert [time for _, time in run.stats.trajectory] == times
    seconds = [at for at, _ in run.stats.trajectory]
    assert seconds == sorted(seconds)


def test_long_schedules_are_annealed_softly_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without windows, from ever less soft starts, and never to something worse."""
    soft: list[float] = []

    def noted(*args: Any, **options: Any) -> Annealed:
        soft.append(options["softness"])
        return anneal(*args, **options)

    monkeypatch.setattr(module, "MOST_STEPS", 10)
    monkeypatch.setattr(module, "LONG_PROPOSALS_PER_OP", 300)
    monkeypatch.setattr(module, "anneal", noted)
    graph = generate("unet", 60)
    order, budget = slow_schedule(graph)
    run = Run()
    found = validate(graph, polish(graph, order, budget, run, PolishParams(rounds=3)), budget)
    assert found.time < simulate(graph, order).time
    assert soft == [100.0, 30.0, 10.0]
    assert "windows" not in run.stats.counts
