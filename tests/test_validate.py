"""The validator: every kind of violation is caught, on mutations of valid schedules."""

from __future__ import annotations

import random
import re

import pytest
from oracle import optimal_order, random_graph

from hremate import Graph, InvalidSchedule, Op, Schedule, ScheduleError, Violation, validate

SEEDS = range(60)


def small_graph(memory_model: str = "coexist") -> Graph:
    ops = [
        Op("load", 1.0, (), (("x", 4),), once=True),
        Op("left", 2.0, ("x",), (("l", 3),)),
        Op("right", 2.5, ("x",), (("r", 5),), workspace=2),
        Op("join", 1.0, ("l", "r"), (("y", 1),)),
    ]
    return Graph.from_ops(ops, ["y"], memory_model=memory_model)


def caught(graph: Graph, order: list[int], budget: int | None = None) -> Violation:
    with pytest.raises(InvalidSchedule) as error:
        validate(graph, order, budget)
    return error.value.violation


def test_a_valid_schedule_reports_peak_time_and_recomputes() -> None:
    check = validate(small_graph(), [0, 1, 2, 1, 3], budget=14)
    # Step 2 holds x + r + workspace: l is computed again and so need not be kept.
    assert (check.peak, check.time, check.recomputes) == (12, 8.5, 1)


def test_it_takes_schedules_lists_and_iterators_alike() -> None:
    graph = small_graph()
    assert validate(graph, Schedule([0, 1, 2, 3])) == validate(graph, iter([0, 1, 2, 3]))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_step_that_names_no_op_is_caught(seed: int) -> None:
    rng = random.Random(seed)
    graph = random_graph(seed)
    order = list(range(graph.n_ops))
    order.insert(rng.randint(0, len(order)), rng.choice([-1, graph.n_ops, 2**40]))
    assert caught(graph, order) is Violation.UNKNOWN_OP


@pytest.mark.parametrize("seed", SEEDS)
def test_reading_before_computing_is_caught(seed: int) -> None:
    rng = random.Random(seed)
    readers: list[int] = []
    while not readers:
        graph = random_graph(rng, min_ops=2)
        readers = [i for i in range(graph.n_ops) if len(graph.inputs_of(i))]
    order = list(range(graph.n_ops))
    reader = rng.choice(readers)
    order.remove(reader)
    order.insert(int(graph.producer[graph.inputs_of(reader)[0]]), reader)
    assert caught(graph, order) is Violation.NOT_COMPUTED


@pytest.mark.parametrize("seed", SEEDS)
def test_an_op_left_out_is_caught(seed: int) -> None:
    graph = random_graph(seed)
    unread = [i for i in range(graph.n_ops) if not any(len(graph.users_of(x)) for x in graph.outputs_of(i))]
    order = list(range(graph.n_ops))
    order.remove(random.Random(seed).choice(unread))
    assert caught(graph, order) is Violation.NEVER_RUN


@pytest.mark.parametrize("seed", SEEDS)
def test_running_a_once_op_again_is_caught(seed: int) -> None:
    graph = random_graph(seed)
    ops = [graph.op(i) for i in range(graph.n_ops)]
    chosen = random.Random(seed).randrange(len(ops))
    ops[chosen] = Op(ops[chosen].name, 1.0, ops[chosen].inputs, ops[chosen].outputs, once=True)
    once = Graph.from_ops(ops, [graph.tensor_names[x] for x in graph.outputs])
    assert caught(once, [*range(len(ops)), chosen]) is Violation.RUN_AGAIN


@pytest.mark.parametrize("seed", SEEDS)
def test_one_byte_above_the_budget_is_caught(seed: int) -> None:
    graph = random_graph(seed)
    order = optimal_order(graph, float("inf"))
    assert order is not None
    peak = validate(graph, order).peak
    assert validate(graph, order, peak).peak == peak
    if peak:
        assert caught(graph, order, peak - 1) is Violation.OVER_BUDGET


def test_an_empty_schedule_runs_nothing() -> None:
    assert caught(small_graph(), []) is Violation.NEVER_RUN


def test_the_first_violation_in_the_order_of_the_enum_is_reported() -> None:
    graph = small_graph()
    assert caught(graph, [3, 99], 0) is Violation.UNKNOWN_OP
    assert caught(graph, [3, 0, 0], 0) is Violation.NOT_COMPUTED
    assert caught(graph, [0, 0], 0) is Violation.NEVER_RUN
    assert caught(graph, [0, 0, 1, 2, 3], 0) is Violation.RUN_AGAIN


def test_fractions_and_nested_lists_are_no_schedule() -> None:
    for order in ([0, 1.5, 2, 3], [[0, 1], [2, 3]], ["a"]):
        with pytest.raises(ScheduleError, match="integers"):
            validate(small_graph(), order)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("order", "budget", "message"),
    [
        ([0, 7], None, "step 1: no op 7 (the graph has 4 ops)"),
        ([0, 3], None, "step 1: op 'join' reads 'l' before it is computed"),
        ([0, 1], None, "op 'right' never runs"),
        ([0, 1, 2, 0, 3], None, "op 'load' may run only once and runs 2 times"),
        ([0, 1, 2, 3], 13, "step 2: op 'right' brings the peak to 14 bytes, 1 above the budget of 13 bytes"),
    ],
)
def test_messages_name_step_op_and_tensor(order: list[int], budget: int | None, message: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(message)):
        validate(small_graph(), order, budget)
