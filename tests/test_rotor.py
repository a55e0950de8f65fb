"""Claims about rotor: the dynamic program against its slow twin, known optima, refusals."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from chains import answers_or_refuses, random_training_graph, run_method, uniform_chain
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import optimal_time

from hremate import Graph, MethodError, Op, generate
from hremate.simulate import base_peak
from hremate.solvers import rotor
from hremate.solvers._rotor_kernel import chain_program
from hremate.solvers.chain_cuts import build_chain


def random_chain(rng, n):  # type: ignore[no-untyped-def]
    """Arguments of `chain_program` after the capacity, as lists of small integers."""
    counts = [rng.randint(1, 3) for _ in range(n)]
    ptr = np.concatenate([[0], np.cumsum(counts)])

    def some(k, most, dtype=np.int64):  # type: ignore[no-untyped-def]
        return np.array([rng.randint(0, most) for _ in range(k)], dtype)

    k = int(ptr[-1])
    # Tensors that cross from block to block: made in block i, last read in block j > i.
    state = np.zeros((n + 1, n + 1), np.int64)
    for _ in range(n if n > 1 else 0):
        i, j = sorted(rng.sample(range(n), 2))
        state[: i + 1, i + 1 : j + 1] += rng.randint(0, 3)
    return (
        state, some(n, 6), some(n, 5, np.float64), some(n, 2), ptr,
        some(k, 5), some(k, 8), some(k, 8), some(k, 9, np.float64), some(k, 6), some(k, 9, np.float64),
    )  # fmt: skip


def slow_cost(arguments, a, b, m):  # type: ignore[no-untyped-def]
    """The recurrence as the paper writes it."""
    state, skip_peak, skip_time, gradients, ptr, saved, fore, back, time, tail_peak, tail_time = arguments

    @cache
    def opt(a: int, b: int, m: int) -> float:
        if m < 0:
            return float("inf")
        ways = [float("inf")]
        for k in range(ptr[a], ptr[a + 1]):
            if a == b and m >= max(tail_peak[k] + gradients[b], back[k]):
                ways.append(tail_time[k])
            if a < b and m >= max(fore[k] + gradients[b], back[k]):
                ways.append(time[k] + opt(a + 1, b, m - saved[k]))
        for j in range(a + 1, b + 1):
            peaks = [state[a, i] + skip_peak[i] + gradients[b] for i in range(a, j)]
            if m >= max(peaks):
                ways.append(sum(skip_time[a:j]) + opt(j, b, m - state[a, j]) + opt(a, j - 1, m))
        return min(ways)

    return opt(a, b, m)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_kernel_agrees_with_the_recurrence(rng) -> None:  # type: ignore[no-untyped-def]
    n, capacity = rng.randint(1, 6), 20
    arguments = random_chain(rng, n)
    cost = chain_program(capacity, *arguments)
    for a in range(n):
        for b in range(a, n):
            for m in range(capacity + 1):
                assert cost[a, b, m] == slow_cost(arguments, a, b, m)


@pytest.mark.parametrize("reads_output", [False, True])
def test_a_short_uniform_chain_is_solved_as_well_as_by_brute_force(reads_output: bool) -> None:
    graph = uniform_chain(5, reads_output=reads_output, size=100)
    solved = 0
    for budget in range(300, base_peak(graph) + 1, 100):
        result = run_method(rotor, graph, budget)
        least = optimal_time(graph, budget)
        if result.solved:
            solved += 1
            assert least is not None and least <= result.time <= least + 2
    assert solved >= 3


def test_the_time_never_grows_with_the_budget() -> None:
    graph = generate("chain", 80, seed=1)
    times = []
    for share in (50, 60, 70, 80, 90):
        result = run_method(rotor, graph, base_peak(graph) * share // 100)
        assert result.solved
        times.append(result.time)
    assert times == sorted(times, reverse=True)


def test_the_schedule_takes_the_time_that_the_program_promises() -> None:
    graph = uniform_chain(12, size=1000)
    chain = build_chain(graph, "rotor", most=100, grow=False)
    options = [[chain.option(i, np.flatnonzero(graph.phase[graph.producer] == 0))] for i in range(12)]
    program = rotor.Program(chain, options, base_peak(graph), 200)
    for level in program.levels:
        order = program.schedule(level)
        assert graph.time[order].sum() == program.cost[0, 11, level]


def test_a_tensor_that_skips_a_block_is_named() -> None:
    ops = [Op(f"f{i}", 1.0, (f"x{i - 1}",) if i else (), ((f"x{i}", 5),), phase="forward") for i in range(4)]
    ops += [
        Op("b3", 1.0, ("x3",), (("g3", 5),), phase="backward"),
        Op("b0", 1.0, ("g3", "x0"), (("g0", 5),), phase="backward"),
        Op("late", 1.0, ("g0", "x2"), (("g", 5),), phase="backward"),
    ]
    with pytest.raises(MethodError, match=r"tensor 'x2' of block \d skips one: op 'late'"):
        run_method(rotor, Graph.from_ops(ops, ["g"]), 1)


def test_a_graph_that_cannot_be_cut_is_refused_with_the_tensor_in_the_way() -> None:
    ops = [
        Op("a", 1.0, (), (("a1", 5), ("a2", 5)), phase="forward"),
        Op("b", 1.0, ("a1", "a2"), (("b1", 5), ("b2", 5)), phase="forward"),
        Op("c", 1.0, ("b1", "b2"), (("c", 5),), phase="forward"),
        Op("d", 1.0, ("a1", "b1", "c"), (("d", 5),), phase="backward"),
    ]
    with pytest.raises(MethodError, match="no such cut: tensor 'a1' skips op 'b'"):
        run_method(rotor, Graph.from_ops(ops, ["d"]), 1)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.3, 1.0))
def test_schedules_of_random_graphs_are_valid_or_refused(rng, share) -> None:  # type: ignore[no-untyped-def]
    result = answers_or_refuses(rotor, random_training_graph(rng), share)
    assert result is None or result.schedule is not None


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(MethodError, match="Expected slots >= 1"):
        rotor.Params(slots=0)
    with pytest.raises(MethodError, match="Expected blocks >= 2"):
        rotor.Params(blocks=1)
