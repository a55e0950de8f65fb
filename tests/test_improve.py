"""`improve`: any schedule in, a checked and never worse one out; and polish as part of `solve`."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import min_peak, optimal_time, random_graph
from test_polish import bad_schedule, slow_schedule

import hremate as hr
from hremate import cli


def small() -> tuple[hr.Graph, np.ndarray, int]:
    """A training graph, a slow schedule of it, and a budget that this fits."""
    graph = hr.generate("unet", 60)
    return graph, *slow_schedule(graph)


@settings(max_examples=15, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_bad_schedule_of_a_tiny_graph_becomes_optimal(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=5)
    order = bad_schedule(graph, rng)
    budget = hr.simulate(graph, order).peak
    result = hr.improve(graph, order, budget)
    assert result.solved and result.time == optimal_time(graph, budget)
    assert result.method == "improve"


@settings(max_examples=15, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_a_schedule_over_the_budget_is_repaired_or_the_status_tells(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=5)
    order = bad_schedule(graph, rng)
    peak = hr.simulate(graph, order).peak
    budget = rng.randint(0, max(peak - 1, 0))
    result = hr.improve(graph, order, budget, time_limit=2)
    assert result.peak is not None and result.peak <= peak
    if result.solved:
        hr.validate(graph, result.schedule or (), budget)
        best = optimal_time(graph, budget)
        assert best is not None and result.time is not None and result.time >= best
    else:
        assert result.reason
        assert result.status is hr.Status.NO_SOLUTION or budget < min_peak(graph)


def test_no_time_returns_the_schedule() -> None:
    graph, order, budget = small()
    result = hr.improve(graph, order, budget, time_limit=0)
    assert result.solved and result.time is not None
    assert result.time <= hr.simulate(graph, order).time


def test_it_is_never_slower_than_the_given_order_where_that_fits() -> None:
    graph, order, _ = small()
    result = hr.improve(graph, order, "100%")
    assert (result.status, result.recomputes) == (hr.Status.OPTIMAL, 0)


def test_an_invalid_schedule_and_bad_arguments_are_refused() -> None:
    graph, order, budget = small()
    with pytest.raises(hr.ScheduleError):
        hr.improve(graph, [0, 0], budget)
    for wrong in ({"seed": -1}, {"n_jobs": 0}, {"time_limit": -1.0}, {"time_limit": "3"}):
        arguments: dict[str, Any] = wrong
        with pytest.raises(hr.MethodError):
            hr.improve(graph, order, budget, **arguments)
    with pytest.raises(hr.BudgetError):
        hr.improve(graph, order)


def test_the_trajectory_falls_and_ends_at_the_result() -> None:
    graph, order, budget = small()
    told: list[float] = []
    result = hr.improve(
        graph, order, budget, lower_bound=graph.total_time, time_limit=2.0,
        callback=lambda schedule, peak, time: told.append(time),
    )  # fmt: skip
    times = [time for _, time in result.stats.trajectory]
    assert times == sorted(times, reverse=True) and times[-1] == result.time
    assert set(told) <= set(times)
    stages = result.stats.stage_time
    assert stages["improve"] >= stages["repair"] >= stages["polish"] == result.time
    json.dumps(result.to_dict())


# -- within solve -----------------------------------------------------------------------------------


def test_solve_polishes_when_asked_and_says_what_each_stage_reached() -> None:
    graph, _, budget = small()
    plain = hr.solve(graph, budget, "chen-sqrt", polish=0)
    better = hr.solve(graph, budget, "chen-sqrt", polish=5)
    assert plain.time is not None and better.time is not None and better.time <= plain.time
    assert "polish" not in plain.stats.stage_time and "repair" in plain.stats.stage_time
    assert "polish" not in hr.solve(graph, budget, "chen-sqrt").stats.stage_time
    stages = better.stats.stage_time
    assert stages["chen-sqrt"] >= stages["repair"] >= stages["polish"] == better.time


def test_the_hierarchy_is_polished_by_default_and_not_at_zero() -> None:
    graph = hr.generate("unet", 70)
    pure = hr.solve(graph, "60%", polish=0, time_limit=4, lower_bound=0.0)
    polished = hr.solve(graph, "60%", time_limit=4, lower_bound=0.0)
    assert "polish" not in pure.stats.stage_time
    assert polished.stats.stage_time["polish"] == polished.time
    assert polished.stats.seconds["polish"] > 0


def test_every_method_is_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    from hremate.solvers import twremat
    from hremate.solvers.base import finish

    graph, order, budget = small()
    wasteful = np.concatenate([order, order[-1:]])
    monkeypatch.setattr(twremat, "solve", lambda g, b, run, p: finish(g, b, run, "twremat", wasteful))
    result = hr.solve(graph, budget, "twremat")
    assert result.time is not None and result.time <= hr.simulate(graph, order).time
    assert result.stats.stage_time["twremat"] > result.stats.stage_time["repair"] == result.time


@pytest.mark.parametrize("polish", [-1.0, "soon", True])
def test_polish_takes_seconds(polish: Any) -> None:
    graph, _, budget = small()
    with pytest.raises(hr.MethodError, match="polish"):
        hr.solve(graph, budget, "cut", polish=polish)


def test_the_command_line_polishes(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    graph, _, budget = small()
    hr.write_graph(graph, tmp_path / "g.json")
    words = ["solve", str(tmp_path / "g.json"), "--budget", str(budget), "--method", "chen-sqrt", "--json"]
    assert cli.main([*words, "--polish", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    stats = printed["stats"]
    assert stats["stage_time"]["polish"] == printed["time"] == stats["trajectory"][-1][1]
