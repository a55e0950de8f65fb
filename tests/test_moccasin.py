"""Moccasin: staged optima with enough runs per op, honest claims with fewer."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from oracle import breakpoints, optimal_staged, random_graph

from hremate import Graph, Op, Status, simulate
from hremate.errors import MethodError, MissingExtraError
from hremate.result import Result
from hremate.simulate import base_peak
from hremate.solvers import moccasin
from hremate.solvers.base import Deadline, Run

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture
def ortools() -> None:
    pytest.importorskip("ortools", reason="OR-tools is not installed: pip install 'hremate[moccasin]'")


def solve(graph: Graph, budget: int, run: Run | None = None, max_runs: int = 2) -> Result:
    return moccasin.solve(graph, budget, run or Run(), moccasin.Params(max_runs=max_runs, workers=1))


def three_runs() -> Graph:
    """Op a is read at three moments between which nothing fits beside its result."""
    ops = [
        Op("a", 1.0, (), (("x", 8),)),
        Op("b", 5.0, ("x",), (("y", 1),)),
        Op("c", 5.0, ("y",), (("z", 1),), workspace=8),
        Op("d", 5.0, ("x", "z"), (("u", 1),)),
        Op("e", 5.0, ("u",), (("v", 1),), workspace=8),
        Op("f", 5.0, ("x", "v"), (("w", 1),)),
    ]
    return Graph.from_ops(ops, ["w"])


@pytest.mark.usefixtures("ortools")
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_equals_the_staged_optimum_with_enough_runs(first: int) -> None:
    for seed in range(first, first + 10):
        graph = random_graph(seed, max_ops=6)
        for budget in breakpoints(graph, staged=True):
            best = optimal_staged(graph, budget)
            result = solve(graph, budget, max_runs=graph.n_ops)
            if best is None:
                assert result.status is Status.NO_SOLUTION
                assert result.reason.startswith("no staged schedule fits")
            else:
                assert result.status is Status.OPTIMAL
                assert result.time == result.order_lower_bound == best


@pytest.mark.usefixtures("ortools")
def test_two_runs_per_op_are_not_always_enough() -> None:
    graph = three_runs()
    refused = solve(graph, 10, max_runs=2)
    assert refused.status is Status.NO_SOLUTION and refused.order_lower_bound is None
    assert "at most 2 runs per op fits" in refused.reason
    result = solve(graph, 10, max_runs=3)
    assert result.schedule is not None and list(result.schedule) == [0, 1, 2, 0, 3, 4, 0, 5]
    assert optimal_staged(graph, 10) == result.time


@pytest.mark.usefixtures("ortools")
def test_what_is_proved_for_few_runs_is_said_in_the_reason_and_is_no_proof() -> None:
    ops = [
        Op("a", 1.0, (), (("x", 4),)),
        Op("b", 1.0, ("x",), (("y", 1),)),
        Op("c", 1.0, ("y",), (("z", 1),), workspace=6),
        Op("d", 1.0, ("x", "z"), (("w", 1),)),
    ]
    result = solve(Graph.from_ops(ops, ["w"]), 8, max_runs=2)
    assert result.status is Status.FEASIBLE and result.proof is None and result.order_lower_bound is None
    assert result.time == 5.0
    assert result.reason == "no staged schedule of at most 2 runs per op takes less than 5"


@pytest.mark.usefixtures("ortools")
def test_one_run_per_op_is_the_given_order() -> None:
    graph = three_runs()
    result = solve(graph, base_peak(graph), max_runs=1)
    assert result.proof == "any-order" and result.recomputes == 0


@pytest.mark.usefixtures("ortools")
def test_times_that_are_not_whole_are_still_bounded_from_below() -> None:
    graph = three_runs()
    ops = [graph.op(i) for i in range(graph.n_ops)]
    ops = [Op(op.name, op.time / 3 + 0.1, op.inputs, op.outputs, op.workspace) for op in ops]
    result = solve(Graph.from_ops(ops, ["w"]), 10, max_runs=6)
    assert result.time is not None and result.order_lower_bound is not None
    assert 0 <= result.time - result.order_lower_bound <= 1e-12 * result.time


@pytest.mark.usefixtures("ortools")
def test_equal_seeds_give_equal_schedules_with_several_workers() -> None:
    graph = random_graph(11, max_ops=12, min_ops=12, max_tensors=12, memory_model="coexist")
    budget = base_peak(graph)
    orders = []
    for _ in range(2):
        params = moccasin.Params(workers=4)
        result = moccasin.solve(graph, budget - 1, Run(seed=3), params)
        orders.append(None if result.schedule is None else list(result.schedule))
    assert orders[0] == orders[1]


@pytest.mark.usefixtures("ortools")
def test_a_passed_deadline_ends_the_search() -> None:
    result = solve(three_runs(), 10, Run(deadline=Deadline(0.0)), max_runs=3)
    assert result.stats.timed_out and result.status in (Status.NO_SOLUTION, Status.OPTIMAL)


@pytest.mark.usefixtures("ortools")
def test_improved_schedules_are_reported_and_faults_of_the_callback_are_raised() -> None:
    seen: list[tuple[int, float]] = []
    run = Run(callback=lambda schedule, peak, time: seen.append((peak, time)))
    result = solve(three_runs(), 10, run, max_runs=3)
    assert seen[-1] == (result.peak, result.time)

    def fail(*_: object) -> None:
        raise MethodError("enough")

    with pytest.raises(MethodError, match="enough"):
        solve(three_runs(), 10, Run(callback=fail), max_runs=3)


def test_without_ortools_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hremate\[moccasin\]'"):
        solve(three_runs(), 10)


@pytest.mark.parametrize("options", [{"max_runs": 0}, {"workers": 0}])
def test_refuses_parameters_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(MethodError, match=r"Expected \w+ >= 1"):
        moccasin.Params(**options)


@pytest.mark.slow
@pytest.mark.usefixtures("ortools")
@pytest.mark.skipif(not SHARED.exists(), reason=f"{SHARED} is absent: the public graphs are not here")
@pytest.mark.parametrize(("percent", "overhead"), [(90, 0.7892), (80, 2.2965)])
def test_proves_the_published_optimum_of_rl100(percent: int, overhead: float) -> None:
    from hremate.io import read_graph

    graph = read_graph(SHARED / "data" / "public" / "rl100.json.gz")
    budget = percent * base_peak(graph) // 100
    result = moccasin.solve(graph, budget, Run(deadline=Deadline(600.0)), moccasin.Params())
    assert result.overhead == pytest.approx(overhead / 100, abs=1e-6)
    assert "takes less than" in result.reason and not result.stats.timed_out
    assert result.schedule is not None and np.bincount(result.schedule.order).max() <= 2
    assert simulate(graph, result.schedule).peak <= budget
