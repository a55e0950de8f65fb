"""Branch and bound against the oracle: the optimum over all orders, and honest answers when it stops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import breakpoints, min_peak, optimal_time, random_graph

from hremate import Graph, Op, Status, validate
from hremate.errors import MethodError
from hremate.result import Result
from hremate.simulate import base_peak
from hremate.solvers import _branch_kernel, branch_and_bound
from hremate.solvers.base import Deadline, Run
from hremate.solvers.branch_and_bound import MAX_ITEMS, Params


def solve(graph: Graph, budget: int, run: Run | None = None, **options: int) -> Result:
    return branch_and_bound.solve(graph, budget, run or Run(), Params(**options))


def training(layers: int, model: str = "coexist") -> Graph:
    """A chain with its backward pass; layer i has time and size growing with i."""
    ops = [
        Op(f"f{i}", 1.0 + i, (f"x{i - 1}",) if i else (), ((f"x{i}", 3 + i % 4),)) for i in range(layers)
    ]
    ops.append(Op("loss", 1.0, (f"x{layers - 1}",), ((f"g{layers - 1}", 2),)))
    for i in reversed(range(layers)):
        read = (f"g{i}", f"x{i}", *([f"x{i - 1}"] if i else []))
        ops.append(Op(f"b{i}", 2.0 + i, read, ((f"g{i - 1}", 2), (f"w{i}", 1)), workspace=i % 2))
    return Graph.from_ops(ops, [f"w{i}" for i in range(layers)], memory_model=model)


def assert_equals_oracle(graph: Graph) -> None:
    for budget in breakpoints(graph):
        best = optimal_time(graph, budget)
        result = solve(graph, budget)
        assert result.proof == "any-order"
        if best is None:
            assert result.status is Status.INFEASIBLE
            assert result.memory_lower_bound == result.peak == min_peak(graph)
        else:
            assert result.status is Status.OPTIMAL
            assert result.time == result.lower_bound == best
            assert result.schedule is not None and validate(graph, result.schedule, budget).time == best


@pytest.mark.parametrize("first", range(0, 200, 20))
@pytest.mark.parametrize("model", ["coexist", "reuse"])
def test_equals_the_oracle_at_every_budget(first: int, model: str) -> None:
    for seed in range(first, first + 20):
        assert_equals_oracle(random_graph(seed, memory_model=model))


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_equals_the_oracle_on_graphs_that_hypothesis_finds(rng: object) -> None:
    assert_equals_oracle(random_graph(rng, max_ops=6))  # type: ignore[arg-type]


@pytest.mark.parametrize("model", ["coexist", "reuse"])
def test_proves_a_training_chain_of_21_ops(model: str) -> None:
    graph = training(10, model)
    result = solve(graph, base_peak(graph) * 3 // 4)
    assert result.status is Status.OPTIMAL and result.proof == "any-order"
    assert result.time is not None and result.time > graph.total_time


def test_growing_arrays_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training(8)
    budget = base_peak(graph) * 6 // 10
    usual = solve(graph, budget)
    monkeypatch.setattr(branch_and_bound, "_FIRST_STATES", 4)
    grown = solve(graph, budget)
    assert (grown.status, grown.time) == (usual.status, usual.time)
    assert grown.stats.counts["states"] > 4


@pytest.mark.parametrize("model", ["coexist", "reuse"])
def test_pausing_after_every_set_changes_nothing(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for graph in [training(5, model), *(random_graph(seed, memory_model=model) for seed in range(8))]:
        for budget in range(base_peak(graph) // 2, base_peak(graph), 2):
            usual = solve(graph, budget)
            with monkeypatch.context() as patch:
                patch.setattr(branch_and_bound, "_WORK", 1)
                patch.setattr(branch_and_bound, "_SHORT", 10**6)
                patch.setattr(branch_and_bound, "_LONG", 10**6)
                paused = solve(graph, budget)
            assert paused.status is usual.status
            assert paused.time == usual.time or not usual.solved
            assert paused.memory_lower_bound == usual.memory_lower_bound


@pytest.mark.parametrize("states", [1, 5, 50, 500])
def test_without_room_for_states_bound_and_schedule_stay_on_their_sides_of_the_optimum(states: int) -> None:
    graph = training(7)
    budget = base_peak(graph) * 6 // 10
    best = solve(graph, budget).time
    result = solve(graph, budget, max_states=states)
    assert result.lower_bound is not None and best is not None and result.lower_bound <= best
    assert result.status in (Status.OPTIMAL, Status.FEASIBLE, Status.NO_SOLUTION)
    if result.solved:
        assert result.time is not None and result.time >= best
    if states == 1:
        assert result.status is Status.NO_SOLUTION and "in the time and states given" in result.reason


def test_a_passed_deadline_hands_in_the_warm_start() -> None:
    graph = training(7)
    budget = base_peak(graph) * 7 // 10
    start = solve(graph, budget).schedule
    result = solve(graph, budget, Run(deadline=Deadline(0.0), warm_start=start))
    assert result.status is Status.FEASIBLE and result.schedule == start
    assert result.lower_bound == graph.total_time and result.stats.timed_out


def test_ctrl_c_hands_in_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    graph = training(5)
    monkeypatch.setattr(_branch_kernel, "search", interrupted)
    result = solve(graph, base_peak(graph) * 7 // 10)
    assert result.status is Status.NO_SOLUTION and result.stats.interrupted


def test_improved_schedules_are_reported() -> None:
    graph = training(7)
    seen: list[float] = []
    run = Run(callback=lambda schedule, peak, time: seen.append(time))
    result = solve(graph, base_peak(graph) * 7 // 10, run)
    assert seen == sorted(seen, reverse=True) and seen[-1] == result.time


def test_refuses_graphs_beyond_its_masks() -> None:
    def chain(n: int) -> Graph:
        return Graph.from_ops([Op(f"op{i}", 1.0, (), ((f"t{i}", 1),)) for i in range(n)], [])

    assert solve(chain(MAX_ITEMS), 1).status is Status.OPTIMAL
    with pytest.raises(MethodError, match="at most 62 ops"):
        solve(chain(MAX_ITEMS + 1), 1)


def test_refuses_no_states() -> None:
    with pytest.raises(MethodError, match="Expected max_states >= 1"):
        Params(max_states=0)


def test_a_once_op_is_never_run_again() -> None:
    ops = [
        Op("a", 1.0, (), (("x", 4),), once=True),
        Op("b", 1.0, ("x",), (("y", 1),)),
        Op("c", 1.0, ("y",), (("z", 1),), workspace=6),
        Op("d", 1.0, ("x", "z"), (("w", 1),)),
    ]
    graph = Graph.from_ops(ops, ["w"])
    result = solve(graph, 11)
    assert result.status is Status.INFEASIBLE and result.memory_lower_bound == 12
    again = solve(graph, 12)
    assert again.schedule is not None and np.bincount(again.schedule.order).max() == 1
