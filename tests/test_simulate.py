"""The simulator equals the validator and a naive twin, on valid and invalid sequences of both models."""

from __future__ import annotations

import importlib.util
import math
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import random_graph

from hremate import Graph, InvalidSchedule, Op, Schedule, ScheduleError, simulate, validate
from hremate.simulate import base_peak, step_memory

REPLAY = Path(__file__).resolve().parents[2] / "shared" / "tools" / "replay.py"


def naive_memory(graph: Graph, order: list[int]) -> list[int]:
    """Bytes at each step, straight from the definition: ask of every copy at every step if it is alive."""
    runs_at = [[p for p, i in enumerate(order) if i == op] for op in range(graph.n_ops)]
    copies: list[tuple[int, int, int]] = []  # (bytes, born, last step)
    dying = [0] * len(order)
    for x in range(graph.n_tensors):
        births = runs_at[graph.producer[x]]
        users = set(graph.users_of(x).tolist())
        for k, born in enumerate(births):
            following = births[k + 1] if k + 1 < len(births) else len(order)
            reads = [p for p in range(born + 1, following) if order[p] in users]
            last = max(reads, default=born)
            if reads:
                dying[last] += int(graph.size[x])
            if following == len(order) and graph.is_output[x]:
                if reads:
                    dying[last] -= int(graph.size[x])
                last = len(order)
            copies.append((int(graph.size[x]), born, last))
    memory = []
    for p, i in enumerate(order):
        live = sum(nbytes for nbytes, born, last in copies if born < p <= last)
        made = sum(int(graph.size[x]) for x in graph.outputs_of(i))
        workspace = int(graph.workspace[i])
        if graph.memory_model == "reuse":
            memory.append(max(live + workspace, live - dying[p] + made))
        else:
            memory.append(live + made + workspace)
    return memory


def random_order(graph: Graph, rng: random.Random) -> list[int]:
    """A sequence that is usually valid: reads are computed, ops repeat, order strays from the given one."""
    order: list[int] = []
    ran: set[int] = set()
    while len(ran) < graph.n_ops and len(order) < 40:
        ready = [
            i
            for i in range(graph.n_ops)
            if all(int(graph.producer[x]) in ran for x in graph.inputs_of(i))
            and not (graph.once[i] and i in ran)
        ]
        fresh = [i for i in ready if i not in ran]
        i = rng.choice(fresh) if fresh and rng.random() < 0.6 else rng.choice(ready)
        order.append(i)
        ran.add(i)
    if rng.random() < 0.25:  # spoil it
        mutation = rng.randrange(3)
        p = rng.randrange(len(order))
        if mutation == 0:
            del order[p]
        elif mutation == 1:
            order[p] = rng.randint(-1, graph.n_ops)
        else:
            rng.shuffle(order)
    return order


@pytest.mark.parametrize("seed", range(20))
def test_simulator_validator_and_naive_twin_agree(seed: int) -> None:
    rng = random.Random(seed)
    valid = 0
    for _ in range(150):
        graph = random_graph(rng)
        order = random_order(graph, rng)
        try:
            check = validate(graph, order)
        except InvalidSchedule:
            with pytest.raises(ScheduleError):
                simulate(graph, order)
            continue
        valid += 1
        result = simulate(graph, order)
        assert (result.peak, result.time, result.recomputes) == (check.peak, check.time, check.recomputes)
        assert result.memory.tolist() == naive_memory(graph, order)
        assert result.memory[result.peak_step] == result.peak == result.memory.max()
        assert result.peak_step == int(np.argmax(result.memory))
    assert valid > 75


@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.data())
def test_they_agree_on_arbitrary_sequences(rng: random.Random, data: st.DataObject) -> None:
    graph = random_graph(rng, max_ops=4)
    order = data.draw(st.lists(st.integers(-1, graph.n_ops), max_size=12))
    try:
        check = validate(graph, order)
    except InvalidSchedule:
        with pytest.raises(ScheduleError):
            simulate(graph, order)
    else:
        result = simulate(graph, order)
        assert (result.peak, result.time) == (check.peak, check.time)


def two_step(memory_model: str) -> Graph:
    """p makes x (4) and w (3); q reads both, makes y (5), workspace 2."""
    ops = [
        Op("p", 1.0, (), (("x", 4), ("w", 3))),
        Op("q", 1.0, ("x", "w"), (("y", 5),), workspace=2),
    ]
    return Graph.from_ops(ops, ["y"], memory_model=memory_model)


def test_coexist_counts_inputs_outputs_and_workspace_together() -> None:
    assert simulate(two_step("coexist"), [0, 1]).memory.tolist() == [7, 7 + 5 + 2]


def test_reuse_lets_outputs_overwrite_dying_inputs_but_not_workspace() -> None:
    assert simulate(two_step("reuse"), [0, 1]).memory.tolist() == [7, max(7 + 2, 5)]


def test_reuse_keeps_inputs_that_are_read_again_and_graph_outputs() -> None:
    ops = [
        Op("p", 1.0, (), (("x", 4), ("w", 3), ("o", 6))),
        Op("q", 1.0, ("x", "w", "o"), (("y", 5),)),
        Op("r", 1.0, ("x", "y"), (("z", 1),)),
    ]
    graph = Graph.from_ops(ops, ["z", "o"], memory_model="reuse")
    # q: w dies, x is read by r, o is an output: 13 - 3 + 5. r: x and y die: max(15, 15 - 9 + 1).
    assert simulate(graph, [0, 1, 2]).memory.tolist() == [13, 15, 15]


def test_a_copy_dies_at_its_last_read_before_the_next_copy() -> None:
    ops = [
        Op("a", 1.0, (), (("x", 8),)),
        Op("b", 1.0, ("x",), (("y", 1),)),
        Op("c", 1.0, ("y",), (("z", 1),)),
        Op("d", 1.0, ("x", "z"), (("w", 1),)),
    ]
    graph = Graph.from_ops(ops, ["w"])
    assert simulate(graph, [0, 1, 2, 3]).memory.tolist() == [8, 9, 10, 10]
    assert simulate(graph, [0, 1, 2, 0, 3]).memory.tolist() == [8, 9, 2, 9, 10]
    # A second copy right after the first: the first is never read and dies at once.
    assert simulate(graph, [0, 0, 1, 2, 3]).memory.tolist() == [8, 8, 9, 10, 10]


def test_rerunning_an_op_makes_fresh_copies_of_all_its_outputs() -> None:
    ops = [
        Op("a", 1.0, (), (("x", 5), ("y", 7))),
        Op("b", 1.0, ("x",), ()),
        Op("c", 1.0, ("y",), ()),
    ]
    graph = Graph.from_ops(ops, [])
    # y is not needed from the first run of a: it exists at step 0 only.
    assert simulate(graph, [0, 1, 0, 2]).memory.tolist() == [12, 5, 12, 7]


def test_only_the_last_copy_of_an_output_is_kept_to_the_end() -> None:
    ops = [Op("a", 1.0, (), (("x", 5),)), Op("b", 1.0, (), (("y", 2),))]
    graph = Graph.from_ops(ops, ["x"])
    assert simulate(graph, [0, 1]).memory.tolist() == [5, 7]
    assert simulate(graph, [0, 1, 0]).memory.tolist() == [5, 2, 5]


def test_resident_tensors_cost_nothing() -> None:
    ops = [Op("a", 1.0, ("weight",), (("x", 5),))]
    graph = Graph.from_ops(ops, ["x", "weight"], resident=10**9)
    assert simulate(graph, [0]).peak == 5


def test_peaks_above_2_to_53_bytes_are_exact() -> None:
    big = 2**60 + 1
    graph = Graph.from_ops([Op("a", 1.0, (), (("x", big),)), Op("b", 1.0, ("x",), (("y", 1),))], ["y"])
    assert simulate(graph, [0, 1]).peak == validate(graph, [0, 1]).peak == big + 1


def test_times_are_summed_exactly() -> None:
    graph = Graph.from_ops([Op("a", 1e16), Op("b", 1.0), Op("c", 1.0)])
    assert simulate(graph, [0, 1, 2]).time == math.fsum([1e16, 1.0, 1.0]) == 1e16 + 2


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([], "empty"),
        ([0, 5], "step 1: no op 5"),
        ([-1, 0, 1], "step 0: no op -1"),
        ([1, 0], "step 0: op 'q' reads 'x' before it is computed"),
        ([0, 0], "op 'q' never runs"),
    ],
)
def test_bad_sequences_are_refused_with_their_step(order: list[int], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        simulate(two_step("coexist"), order)


def test_a_once_op_that_runs_again_is_refused() -> None:
    graph = Graph.from_ops([Op("a", 1.0, once=True), Op("b", 1.0)])
    with pytest.raises(ScheduleError, match="'a' may run only once and runs 2 times"):
        simulate(graph, [0, 1, 0])


def test_a_part_of_a_schedule_has_a_profile_too() -> None:
    assert step_memory(two_step("coexist"), np.array([0])).tolist() == [7]


def test_base_peak_is_the_peak_of_the_given_order() -> None:
    for seed in range(50):
        graph = random_graph(seed)
        assert base_peak(graph) == validate(graph, range(graph.n_ops)).peak


def test_a_million_steps_have_the_peak_and_profile_of_three_laps() -> None:
    n, laps = 1000, 1000
    ops = [
        Op(f"op{i}", 0.1, tuple(f"t{j}" for j in (i - 1, i - 7) if j >= 0), ((f"t{i}", i % 13),), i % 5)
        for i in range(n)
    ]
    graph = Graph.from_ops(ops, [f"t{n - 1}"])
    result = simulate(graph, Schedule(np.tile(np.arange(n), laps)))
    short = Schedule(np.tile(np.arange(n), 3))
    assert result.peak == validate(graph, short).peak
    assert (result.memory[:-n].reshape(laps - 1, n) == simulate(graph, short).memory[:n]).all()
    assert result.time == math.fsum([0.1] * (n * laps)) and result.recomputes == n * (laps - 1)


def replay_tool() -> ModuleType:
    if not REPLAY.is_file():
        pytest.skip(f"{REPLAY} is absent")
    spec = importlib.util.spec_from_file_location("replay", REPLAY)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_independent_replay_tool_agrees() -> None:
    replay = replay_tool()
    rng = random.Random(1)
    for _ in range(300):
        graph = random_graph(rng)
        order = random_order(graph, rng)
        try:
            peak, time, recomputes, _ = replay.replay(graph.to_dict(), order)
        except replay.Invalid:
            with pytest.raises(ScheduleError):
                simulate(graph, order)
        else:
            result = simulate(graph, order)
            assert (result.peak, result.time, result.recomputes) == (peak, time, recomputes)
