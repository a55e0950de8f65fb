"""A sequence under random moves agrees with an evaluation from scratch, and undoing leaves no trace."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import random_graph

from hremate import Graph, base_peak, generate, validate
from hremate.graph import IntArray
from hremate.simulate import step_memory
from hremate.solvers import sequence as module
from hremate.solvers._anneal_kernel import BEST_TIME
from hremate.solvers._anneal_moves_kernel import worst_slot
from hremate.solvers._anneal_state_kernel import (
    LOGGED,
    OVERFLOW,
    REPEATED,
    SHIFT,
    STEPS,
    VACANT,
    put,
    shift,
    take,
    undo,
)
from hremate.solvers.sequence import Sequence

EVERY_MOVE = np.arange(1, 9) / 8


def cells(graph: Graph, order: IntArray) -> IntArray:
    """Bytes in each cell of the profile, by the definition: one per step, two under `reuse`."""
    if graph.memory_model == "coexist":
        return step_memory(graph, order)
    made_at: dict[int, int] = {}
    copies: list[list[int]] = []  # tensor, first step, last step
    for p, i in enumerate(order.tolist()):
        for x in graph.inputs_of(i).tolist():
            copies[made_at[x]][2] = p
        for x in graph.outputs_of(i):
            made_at[x] = len(copies)
            copies.append([x, p, p])
    for x in graph.outputs.tolist():
        copies[made_at[x]][2] = len(order)
    result = np.zeros(2 * len(order) + 1, np.int64)
    result[0:-1:2] = graph.workspace[order]
    for x, start, end in copies:
        result[2 * start + 1 : max(2 * end, 2 * start + 1) + 1] += graph.size[x]
    return result[:-1]


def agrees(sequence: Sequence, budget: int) -> None:
    """The arrays of the sequence are what its order says."""
    graph, state, order = sequence.graph, sequence.state, sequence.order
    validate(graph, order)
    unit = int(np.gcd.reduce(np.concatenate([graph.size, graph.workspace]))) or 1
    above = cells(graph, order) // unit - min(sequence.budget, budget // unit)
    assert state.scalar[OVERFLOW] == np.maximum(above, 0).sum()
    assert state.scalar[STEPS] == len(order)
    assert state.time[0] == pytest.approx(graph.time[order].sum())
    runs = np.bincount(order, minlength=graph.n_ops)
    assert np.array_equal(state.n_runs, runs)
    assert sorted(state.repeated[: state.scalar[REPEATED]].tolist()) == np.flatnonzero(runs > 1).tolist()
    halves = sequence.net.halves
    profile = state.profile + np.repeat(state.pending, 1 << SHIFT)
    occupied = np.flatnonzero(np.repeat(state.op[:-1] >= 0, halves))
    assert np.array_equal(profile[occupied], above)
    used = profile[: halves * len(state.op)]
    assert (used[np.repeat(state.op < 0, halves)] < -VACANT // 2).all()
    tops = np.maximum.reduceat(profile, np.arange(0, len(profile), 1 << SHIFT))
    assert (state.top[: len(tops)] >= tops).all()
    reads = np.zeros_like(state.reads)
    for slot in np.flatnonzero(state.op >= 0).tolist():
        for x in graph.inputs_of(int(state.op[slot])).tolist():
            if sequence.net.row[x] >= 0:
                reads[sequence.net.row[x], slot >> SHIFT] += 1
    assert np.array_equal(state.reads, reads)


@pytest.mark.parametrize("many", [0, 64])
@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False), share=st.sampled_from([0.4, 0.6, 0.8, 1.0]))
def test_random_moves_agree_with_an_evaluation_from_scratch(
    many: int, rng: random.Random, share: float
) -> None:
    graph = random_graph(rng)
    budget = int(share * base_peak(graph))
    softness = rng.choice([1.0, np.inf])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANY_READERS", many)
        sequence = Sequence(graph, np.arange(graph.n_ops), budget, rng.randrange(1000), softness=softness)
    agrees(sequence, budget)
    for _ in range(4):
        sequence.run(rng.choice([1, 2, 17, 300]), float(graph.time.mean()) + 0.1, 1.01, EVERY_MOVE)
        agrees(sequence, budget)


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
@pytest.mark.parametrize("kind", ["layered", "transformer", "unet"])
@pytest.mark.parametrize("many", [0, 2, 64])
def test_thousands_of_moves_on_larger_graphs(
    monkeypatch: pytest.MonkeyPatch, many: int, kind: str, memory_model: str
) -> None:
    """Several blocks of the profile, laid out anew as runs are added, reads of some tensors counted."""
    monkeypatch.setattr(module, "MANY_READERS", many)
    graph = generate(kind, 250, seed=3).with_memory_model(memory_model)
    budget = base_peak(graph) * 6 // 10
    sequence = Sequence(graph, np.arange(graph.n_ops), budget, 1, softness=np.inf)
    for temperature in (3.0, 1.0, 0.3, 0.01):
        sequence.run(5000, temperature * graph.total_time / graph.n_ops, 1.05, EVERY_MOVE)
        agrees(sequence, budget)
    assert sequence.tally[:, 0].min() > 0
    assert sequence.tally[:, 1].min() > 0  # every move gets accepted at times


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
def test_the_worst_slot_of_any_stretch_is_the_first_of_its_highest(memory_model: str) -> None:
    """Bounds of blocks, stale after many moves, hide nothing and stay bounds."""
    graph = generate("unet", 250, seed=3).with_memory_model(memory_model)
    budget = base_peak(graph) * 6 // 10
    sequence = Sequence(graph, np.arange(graph.n_ops), budget, 1, softness=np.inf)
    rng = random.Random(0)
    for _ in range(8):
        sequence.run(500, graph.total_time / graph.n_ops, 1.05, EVERY_MOVE)
        g, s = sequence.net, sequence.state
        profile = (s.profile + np.repeat(s.pending, 1 << SHIFT))[: g.halves * len(s.op)]
        highest = profile.reshape(-1, g.halves).max(axis=1)
        for _ in range(20):
            low, high = sorted(rng.sample(range(len(s.op) - 1), 2))
            assert worst_slot(g, s, low, high) == low + int(np.argmax(highest[low : high + 1]))
        agrees(sequence, budget)


@settings(max_examples=150, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_undo_restores_order_overflow_and_time(rng: random.Random) -> None:
    graph = random_graph(rng)
    budget = base_peak(graph) // 2
    sequence = Sequence(graph, np.arange(graph.n_ops), budget, rng.randrange(1000))
    sequence.run(rng.choice([0, 50, 200]), 1.0, 1.01, EVERY_MOVE)
    g, s = sequence.net, sequence.state
    order, overflow = sequence.order, int(s.scalar[OVERFLOW])
    s.scalar[LOGGED] = 0
    for _ in range(rng.randint(1, 6)):
        u = rng.randrange(graph.n_ops)
        earlier = [int(graph.producer[x]) for x in graph.inputs_of(u)]
        if earlier:
            v = rng.choice(earlier)
            put(g, s, np.int64(v), np.int64(u), np.int64(s.n_runs[u] - 1))
    for v in range(graph.n_ops):
        if s.n_runs[v] > 1 and rng.random() < 0.7:
            take(g, s, np.int64(v), np.int64(s.n_runs[v] - 1))
    undo(g, s)
    assert np.array_equal(sequence.order, order)
    assert s.scalar[OVERFLOW] == overflow
    agrees(sequence, budget)


def test_a_run_does_not_pass_another_run_of_its_op() -> None:
    graph = generate("chain", 6, seed=0)
    order = np.array([0, 1, 0, 1, *range(2, graph.n_ops)])
    sequence = Sequence(graph, order, base_peak(graph), 0)
    g, s = sequence.net, sequence.state
    s.scalar[LOGGED] = 0
    assert not shift(g, s, np.int64(1), np.int64(0), np.int64(2), np.int64(0))
    assert not shift(g, s, np.int64(1), np.int64(1), np.int64(1), np.int64(0))
    assert np.array_equal(sequence.order, order)
    assert shift(g, s, np.int64(0), np.int64(1), np.int64(1), np.int64(0))
    assert sequence.order[:4].tolist() == [0, 0, 1, 1]
    agrees(sequence, base_peak(graph))


def test_the_best_is_kept_when_the_sequence_is_laid_out_anew() -> None:
    graph = generate("transformer", 80, seed=0)
    budget = base_peak(graph) * 7 // 10
    sequence = Sequence(graph, np.arange(graph.n_ops), budget, 0)
    sequence.run(20_000, 0.1 * graph.total_time / graph.n_ops, 1.01, EVERY_MOVE)
    best, time = sequence.best, float(sequence.numbers[BEST_TIME])
    sequence.lay_out(np.arange(graph.n_ops))
    assert np.array_equal(sequence.best, best)
    assert sequence.best_time == time == pytest.approx(validate(graph, best, budget).time)


def test_sizes_that_could_overflow_are_counted_coarsely_and_never_too_low() -> None:
    small = generate("layered", 40, seed=1)
    scale = 2**62 // (2 * int(small.size.sum() + small.workspace.sum()))
    given_ops = [small.op(i) for i in range(small.n_ops)]
    ops = [replace(op, outputs=tuple((t, size * scale + 1) for t, size in op.outputs)) for op in given_ops]
    graph = Graph.from_ops(ops, [small.tensor_names[x] for x in small.outputs])
    budget = base_peak(graph) * 8 // 10
    sequence = Sequence(graph, np.arange(graph.n_ops), budget, 0)
    sequence.run(20_000, 0.3 * graph.total_time / graph.n_ops, 1.01, EVERY_MOVE)
    validate(graph, sequence.best, budget)


def test_counting_reads_changes_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same moves, whether the last read of a tensor is found by its readers or by counted blocks."""
    graph = generate("ssm", 600, seed=1)
    budget = base_peak(graph) // 2
    orders = []
    for many in (0, 10**6):
        monkeypatch.setattr(module, "MANY_READERS", many)
        sequence = Sequence(graph, np.arange(graph.n_ops), budget, 1, softness=10.0)
        sequence.run(20_000, graph.total_time / graph.n_ops / 10, 1.05, EVERY_MOVE)
        orders.append(sequence.order)
    assert np.array_equal(*orders)
