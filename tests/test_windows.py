"""Windows: never worse, the optimum of their class when everything is free, and only what is free changes."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import breakpoints, optimal_order, optimal_staged, random_graph

from hremate import Graph, Op, ScheduleError, SolverError, base_peak, generate, simulate, validate
from hremate.simulate import step_memory
from hremate.solvers import window_model
from hremate.solvers import windows as module
from hremate.solvers.base import Deadline
from hremate.solvers.repair import repair
from hremate.solvers.window_model import Slots, TooLarge, build_window_model
from hremate.solvers.windows import Window, Windows, combine, solve_window


def everything(graph: Graph, order: Any, reach: float = 1.0) -> Window:
    return Window(np.ones(graph.n_ops, np.bool_), 0, len(order), reach)


def some_schedule(graph: Graph, rng: random.Random) -> tuple[np.ndarray, int]:
    """An optimal schedule of a budget, with runs strewn in that it has room for; and the budget."""
    budget = rng.choice(breakpoints(graph)[-4:])
    order = optimal_order(graph, budget)
    while order is None:
        budget += 1
        order = optimal_order(graph, budget)
    for _ in range(6):
        place = rng.randint(1, len(order))
        again = rng.choice(order[:place])
        longer = [*order[:place], again, *order[place:]]
        if not graph.once[again] and simulate(graph, longer).peak <= budget:
            order = longer
    return np.array(order), budget


def best_choice(graph: Graph, slots: Slots, budget: int) -> float:
    """Least time over all ways to run some of the free slots, by trying all."""
    free = np.flatnonzero(slots.free)
    best = np.inf
    for bits in itertools.product([False, True], repeat=len(free)):
        runs = ~slots.free
        runs[free] = bits
        order = slots.op[runs]
        if len(set(order.tolist())) < graph.n_ops:
            continue
        try:
            found = simulate(graph, order)
        except ScheduleError:
            continue
        if found.peak <= budget:
            best = min(best, found.time)
    return best


@settings(max_examples=120, deadline=None)
@given(rng=st.randoms(use_true_random=False), reach=st.sampled_from([0.5, 1.0, 5.0]))
def test_the_answer_is_the_best_choice_among_the_free_slots(rng: random.Random, reach: float) -> None:
    graph = random_graph(rng, max_ops=6)
    order, budget = some_schedule(graph, rng)
    order = repair(graph, order, budget) if rng.random() < 0.5 else order
    windows = Windows(graph, budget)
    model = windows.model(order, everything(graph, order, reach))
    if model is None or model.n_runs > 11:
        return
    answer = solve_window(model)
    assert answer.runs is not None and answer.proved
    found = validate(graph, model.slots.op[answer.runs], budget)
    assert found.time == answer.time == best_choice(graph, model.slots, budget)
    assert answer.time <= simulate(graph, order).time


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_with_every_staged_slot_free_it_is_as_good_as_any_staged_schedule(rng: random.Random) -> None:
    """Slots as in the segment-alive MILP: before each first run every earlier op may run."""
    graph = random_graph(rng, max_ops=6)
    budget = rng.choice(breakpoints(graph, staged=True))
    n = graph.n_ops
    cells = [(t, i) for t in range(n) for i in range(t + 1)]
    slots = Slots(
        np.array([i for _, i in cells]),
        np.array([t for t, _ in cells]),
        np.array([t == i for t, i in cells]),
        np.array([t > i and not graph.once[i] for t, i in cells]),
    )
    keep = slots.present | slots.free
    slots = Slots(slots.op[keep], slots.step[keep], slots.present[keep], slots.free[keep])
    if not slots.free.any():
        return
    windows = Windows(graph, budget)
    answer = solve_window(build_window_model(windows.net, np.arange(n), slots))
    best = optimal_staged(graph, budget)
    assert answer.proved or best is None
    assert answer.time == (np.inf if best is None else best)


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_the_memory_of_the_present_solution_is_that_of_the_simulator(rng: random.Random) -> None:
    """A budget one byte below the peak cuts the present schedule off, the peak itself does not."""
    graph = random_graph(rng, max_ops=7)
    order, _ = some_schedule(graph, rng)
    order = repair(graph, order, simulate(graph, order).peak)
    peak = simulate(graph, order).peak
    window = everything(graph, order, reach=1e9)
    for budget in (peak, peak - 1):
        if budget < 0:
            continue
        windows = Windows(graph, budget)
        slots = windows.slots(order, window)
        if not slots.free.any():
            continue
        model = build_window_model(windows.net, order, slots)
        fits = model.milp.satisfied_by(model.start)
        assert fits == (budget >= peak)


@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_only_the_ops_and_steps_of_the_window_change(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=7, min_ops=3)
    order, budget = some_schedule(graph, rng)
    ops = np.array([rng.random() < 0.5 for _ in range(graph.n_ops)])
    first, last = sorted(rng.sample(range(len(order) + 1), 2))
    slots = Windows(graph, budget).slots(order, Window(ops, first, last, 5.0))
    assert slots.op[slots.present].tolist() == order.tolist()
    assert ops[slots.op[slots.free]].all()
    assert ((slots.step[slots.free] >= first) & (slots.step[slots.free] < last)).all()
    assert not graph.once[slots.op[~slots.present]].any()
    assert slots.free[~slots.present].all()


@pytest.mark.parametrize("model", ["coexist", "reuse"])
def test_recomputing_the_expensive_op_is_traded_for_recomputing_the_cheap_one(model: str) -> None:
    ops = [
        Op("dear", 9.0, (), (("d", 4),)),
        Op("cheap", 1.0, (), (("c", 4),)),
        Op("both", 1.0, ("d", "c"), (("b", 1),)),
        Op("big", 1.0, ("b",), (("x", 1),), workspace=8),
        Op("end", 1.0, ("d", "c", "x"), (("y", 1),)),
    ]
    graph = Graph.from_ops(ops, ["y"], memory_model=model)
    order = np.array([0, 1, 2, 3, 0, 4])
    budget = simulate(graph, order).peak
    window = everything(graph, order)
    found = Windows(graph, budget).model(order, window)
    assert found is not None
    answer = solve_window(found)
    assert answer.runs is not None
    assert found.slots.op[answer.runs].tolist() == [0, 1, 2, 3, 1, 4]


def test_a_first_run_gives_way_to_a_later_one() -> None:
    # `side` is needed at the end only; run first, it stands in the way of `big`.
    ops = [
        Op("in", 1.0, (), (("i", 1),)),
        Op("side", 5.0, ("i",), (("s", 6),)),
        Op("big", 1.0, ("i",), (("x", 1),), workspace=6),
        Op("end", 1.0, ("s", "x", "i"), (("y", 1),)),
    ]
    graph = Graph.from_ops(ops, ["y"])
    order = np.array([0, 1, 2, 1, 3])
    budget = 9
    model = Windows(graph, budget).model(order, everything(graph, order))
    assert model is not None
    answer = solve_window(model)
    assert answer.runs is not None
    assert model.slots.op[answer.runs].tolist() == [0, 2, 1, 3]


def test_an_over_budget_schedule_is_brought_within_it_where_the_window_can() -> None:
    ops = [
        Op("a", 1.0, (), (("ta", 4),)),
        Op("b", 1.0, ("ta",), (("tb", 1),)),
        Op("c", 1.0, ("tb",), (("tc", 1),), workspace=5),
        Op("d", 1.0, ("ta", "tc"), (("td", 1),)),
    ]
    graph = Graph.from_ops(ops, ["td"])
    order = np.arange(4)
    assert step_memory(graph, order).max() == 11
    model = Windows(graph, 7).model(order, everything(graph, order))
    assert model is not None
    answer = solve_window(model)
    assert answer.runs is not None
    assert model.slots.op[answer.runs].tolist() == [0, 1, 2, 0, 3]


def test_nothing_free_is_no_program() -> None:
    graph = Graph.from_ops([Op("a", 1.0, (), (("x", 1),)), Op("b", 1.0, ("x",), (("y", 1),))], ["y"])
    order = np.arange(2)
    assert Windows(graph, 10).model(order, everything(graph, order)) is None
    assert Windows(graph, 10).model(order, Window(np.zeros(2, np.bool_), 0, 2)) is None


def test_changes_of_disjoint_windows_combine_by_step() -> None:
    order = np.array([0, 1, 2, 0, 3])
    drop = Slots(order, np.arange(5), np.ones(5, np.bool_), order == 0)
    add = Slots(
        np.array([0, 1, 2, 0, 1, 3]), np.array([0, 1, 2, 3, 4, 4]),
        np.array([True, True, True, True, False, True]), np.array([False] * 4 + [True, False]),
    )  # fmt: skip
    without = np.array([True, True, True, False, True])
    assert combine(order, []).tolist() == order.tolist()
    assert combine(order, [(drop, without), (add, np.ones(6, np.bool_))]).tolist() == [0, 1, 2, 1, 3]


def test_equal_seeds_give_equal_answers() -> None:
    graph = random_graph(11, min_ops=7)
    order, budget = some_schedule(graph, random.Random(3))
    model = Windows(graph, budget).model(order, everything(graph, order, 5.0))
    if model is not None:
        first, second = (solve_window(model, node_limit=20, seed=4) for _ in range(2))
        assert first.time == second.time and np.array_equal(first.runs, second.runs)  # type: ignore[arg-type]


def test_a_failure_of_the_solver_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise SolverError("broken")

    monkeypatch.setattr("hremate.solvers.windows.MilpSolver", fail)
    graph = random_graph(4, min_ops=6)
    order, budget = some_schedule(graph, random.Random(1))
    model = Windows(graph, budget).model(order, everything(graph, order, 1e9))
    if model is None:
        pytest.fail("the case has no window")
    with pytest.raises(SolverError, match="broken"):
        solve_window(model)


@pytest.mark.parametrize(
    ("where", "limit"), [(module, "MOST_CANDIDATES"), (window_model, "MOST_COEFFICIENTS")]
)
def test_a_window_beyond_a_limit_is_not_built(
    monkeypatch: pytest.MonkeyPatch, where: Any, limit: str
) -> None:
    """Regression: of 10,000 ops one window took 56 seconds to build, and no deadline ended that."""
    graph = generate("chain", 40)
    order, budget = np.arange(graph.n_ops), base_peak(graph) // 2
    window = everything(graph, order, reach=10.0)
    assert Windows(graph, budget).model(order, window) is not None
    monkeypatch.setattr(where, limit, 20)
    with pytest.raises(TooLarge):
        Windows(graph, budget).model(order, window)


def test_no_window_is_built_without_time() -> None:
    graph = generate("chain", 40)
    order = np.arange(graph.n_ops)
    with pytest.raises(TooLarge):
        Windows(graph, base_peak(graph) // 2, Deadline(0.0)).slots(order, everything(graph, order))
