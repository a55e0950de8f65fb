"""Annealing: valid, never worse than its start, repeatable, optimal on small graphs; known hard cases."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import random_graph

import hremate as hr
from hremate.solvers import anneal as module
from hremate.solvers import sequence as sequences
from hremate.solvers.anneal import Params, anneal, default_proposals
from hremate.solvers.base import Deadline, Run

DATA = Path(__file__).resolve().parent.parent.parent / "shared" / "data"


@settings(max_examples=60, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    share=st.floats(0.3, 1.0),
    softness=st.sampled_from([1.0, 3.0, math.inf]),
)
def test_valid_and_never_worse_than_the_start(rng: random.Random, share: float, softness: float) -> None:
    graph = random_graph(rng)
    start = np.arange(graph.n_ops)
    peak = hr.base_peak(graph)
    found = anneal(graph, start, int(share * peak), seed=1, proposals=500, softness=softness)
    checked = hr.validate(graph, found.order)
    assert (checked.peak, checked.time) == (found.peak, found.time)
    again = anneal(graph, found.order, found.peak, seed=2, proposals=500, softness=softness)
    assert again.peak <= found.peak
    assert again.time <= found.time


def test_reaches_the_optimum_over_all_orders_on_most_small_graphs() -> None:
    reached = cases = 0
    for seed in range(60):
        graph = random_graph(random.Random(seed))
        for (budget, best), _ in itertools.pairwise([*oracle.frontier(graph, staged=False), (0, 0.0)]):
            result = hr.solve(graph, budget, "anneal", proposals=4000)
            cases += 1
            assert result.time is not None and (not result.solved or result.time >= best)
            reached += result.solved and result.time == best
    assert cases > 50
    assert reached >= 0.95 * cases


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
def test_equal_seeds_give_equal_results_and_others_differ(memory_model: str) -> None:
    graph = hr.generate("layered", 120, seed=2).with_memory_model(memory_model)
    budget = hr.base_peak(graph) * 7 // 10
    start = range(graph.n_ops)
    options: dict[str, Any] = {"proposals": 20_000, "softness": math.inf}
    orders = [anneal(graph, start, budget, seed=seed, **options).order for seed in (5, 5, 6)]
    assert np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], orders[2])


def test_workers_and_one_process_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARALLEL_PROPOSALS", 1)
    graph = hr.generate("layered", 100, seed=4)
    budget = hr.base_peak(graph) * 7 // 10
    with joblib.parallel_config(backend="threading"):
        both = [
            hr.solve(graph, budget, "anneal", proposals=40_000, restarts=2, n_jobs=jobs) for jobs in (1, 2)
        ]
    assert both[0].schedule == both[1].schedule
    assert not both[1].stats.degraded


def test_workers_and_one_process_agree_on_huge_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARALLEL_PROPOSALS", 1)
    monkeypatch.setattr(module, "HUGE_GRAPH", 50)
    graph = hr.generate("ssm", 200)
    budget = hr.base_peak(graph) * 4 // 10
    cut = hr.solve(graph, budget, "cut")
    with joblib.parallel_config(backend="threading"):
        both = [
            hr.solve(graph, budget, "anneal", proposals=40_000, restarts=2, n_jobs=jobs) for jobs in (1, 2)
        ]
    assert both[0].schedule == both[1].schedule
    assert both[0].stats.counts["proposals"] <= 40_000
    assert both[0].time <= cut.time


def test_a_broken_pool_is_survived_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no workers")

    monkeypatch.setattr(module, "PARALLEL_PROPOSALS", 1)
    monkeypatch.setattr(module.joblib, "Parallel", broken)
    graph = hr.generate("layered", 100, seed=4)
    result = hr.solve(graph, "80%", "anneal", proposals=20_000, restarts=2, n_jobs=2)
    assert result.solved
    assert any("RuntimeError" in event for event in result.stats.degraded)


def test_the_deadline_ends_a_run() -> None:
    graph = hr.generate("layered", 200, seed=0)
    found = anneal(graph, range(graph.n_ops), hr.base_peak(graph) * 6 // 10, deadline=Deadline(0.2))
    assert 0 < found.proposals < default_proposals(graph)


def test_a_run_ends_where_nothing_is_left_to_gain() -> None:
    graph = hr.generate("layered", 100, seed=0)
    found = anneal(graph, range(graph.n_ops), hr.base_peak(graph), goal=graph.total_time)
    assert found.proposals == 0


def test_ctrl_c_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hr.generate("transformer", 100, seed=0)
    calls = 0
    search = sequences.search

    def interrupted(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls == 30:
            raise KeyboardInterrupt
        return search(*args)

    monkeypatch.setattr(sequences, "search", interrupted)
    run = Run()
    budget = hr.base_peak(graph) * 7 // 10
    result = module.solve(graph, budget, run, Params())
    assert run.stats.interrupted
    assert result.solved
    assert calls == 30


def test_a_warm_start_is_never_made_worse() -> None:
    graph = hr.generate("transformer", 100, seed=0)
    first = hr.solve(graph, "60%", "beam")
    second = hr.solve(graph, "60%", "anneal", warm_start=first.schedule, proposals=256)
    assert first.solved and second.solved
    assert (second.time or 0.0) <= (first.time or 0.0)


def test_warm_runs_take_starts_in_turn_the_one_that_led_furthest_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = hr.generate("layered", 200, seed=1)
    budget = hr.base_peak(graph) * 7 // 10
    beam = hr.solve(graph, budget, "beam")
    assert beam.schedule is not None
    search = module._Portfolio(graph, budget, Run(warm_start=beam.schedule), Params(proposals=1000))
    runs: list[tuple[np.ndarray, module.Setting, float]] = []

    def run(start: np.ndarray, setting: module.Setting, part: float) -> tuple[bool, float]:
        runs.append((start, setting, part))
        search.proposals += module.FEW_MOVES * graph.n_ops
        return False, graph.total_time * (5.0 if setting in module.COLD else 1.0 + 1.0 / len(runs))

    monkeypatch.setattr(search, "anneal", run)
    search.run_all()
    starts = search.starts
    assert len(starts) == 2
    assert np.array_equal(starts[0], beam.schedule.order)
    assert graph.time[starts[1]].sum() < graph.time[starts[0]].sum()
    warm = [start for start, setting, _ in runs if setting == module.WARM]
    turns = [next(k for k in (0, 1) if np.array_equal(start, starts[k])) for start in warm]
    assert turns == [0, 1, 1, 0, 1, 0, 1, 0, 1]
    assert sum(part for _, _, part in runs) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("moves", "started", "settings"),
    [
        (0.5, True, [module.SOFT[0]] * 2),
        (0.5, False, [module.SOFT[0]]),
        (1.5, True, [module.WARM] * 7),
        (1.5, False, [module.WARM] * 7),
    ],
)
def test_with_few_moves_for_each_op_restarts_are_soft(
    moves: float, started: bool, settings: list[module.Setting], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One takes all the rest of the time where no start is within the budget."""
    graph = hr.generate("transformer", 100)
    search = module._Portfolio(graph, hr.base_peak(graph), Run(), Params())
    restarts: list[list[module.Setting]] = []
    parts: list[float] = []

    def run(start: np.ndarray, setting: module.Setting, part: float) -> tuple[bool, float]:
        search.runs += 1
        search.proposals += int(moves * module.FEW_MOVES * graph.n_ops)
        parts.append(part)
        return setting in module.COLD, graph.total_time

    def restart(runs: list[tuple[np.ndarray, module.Setting]], part: float) -> None:
        restarts.append([setting for _, setting in runs])
        parts.append(part)

    monkeypatch.setattr(search, "gather", lambda: search.starts.extend([search.given] * started))
    monkeypatch.setattr(search, "anneal", run)
    monkeypatch.setattr(search, "restart", restart)
    search.run_all()
    assert restarts == [settings]
    assert sum(parts) == pytest.approx(1.0)


def test_every_improvement_is_announced_with_its_time() -> None:
    graph = hr.generate("layered", 80, seed=1)
    seen: list[float] = []
    result = hr.solve(
        graph, "80%", "anneal", proposals=20_000, callback=lambda schedule, peak, time: seen.append(time)
    )
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == result.time


@pytest.mark.parametrize(("name", "value"), [("proposals", 0), ("restarts", 0)])
def test_parameters_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(hr.MethodError, match=name):
        Params(**{name: value})


@pytest.mark.parametrize(
    ("name", "percent", "overhead"), [("cm1-fcn8", 80, 0.1361), ("rl100", 80, 0.0), ("rl250", 80, 0.0)]
)
def test_known_results_on_public_graphs(name: str, percent: int, overhead: float) -> None:
    path = DATA / "public" / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    result = hr.solve(hr.read_graph(path), f"{percent}%", "anneal", proposals=1_500_000)
    assert result.overhead is not None
    assert 100 * result.overhead <= overhead + 5e-5
