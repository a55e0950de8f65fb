"""Claims about the partitioners that cut the given order: `intervals`, `sequence` and `repeat`."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.partition import cuts
from hremate.partition._cuts_kernel import forward_cuts
from hremate.partition.cuts import crossing_bytes, cut_sequence
from hremate.partition.evaluate import evaluate
from hremate.partition.intervals import intervals
from hremate.partition.repeat import repeat, stretches
from hremate.partition.sequence import crossing_tensors, sequence
from hremate.partition.tree import check_tree


@settings(max_examples=100, deadline=None)
@given(
    cross=st.lists(st.integers(0, 20), min_size=2, max_size=9),
    steps=st.lists(st.integers(0, 2), min_size=8, max_size=8),
    n_blocks=st.integers(1, 4),
    sizes=st.sampled_from([(0.4, 1.7), (0.1, 4.0), (0.0, np.inf)]),
)
def test_forward_cuts_are_the_cheapest_of_all_choices(
    cross: list[int], steps: list[int], n_blocks: int, sizes: tuple[float, float]
) -> None:
    price = np.array(cross, np.float64)
    weight = np.concatenate([[0.0], np.cumsum(steps[: len(cross) - 1])]).astype(np.float64)
    average = max(weight[-1], 1.0) / n_blocks
    smallest, largest = sizes[0] * average, sizes[1] * average

    def cost(positions: list[int]) -> float:
        widths = np.diff(weight[positions])
        if (widths < smallest).any() or (widths > largest).any():
            return np.inf
        return float(price[positions[1:-1]].sum() + 0.5 * (((widths - average) / average) ** 2).sum())

    choices = [[0, *inner, len(cross) - 1] for inner in combinations(range(1, len(cross) - 1), n_blocks - 1)]
    found = forward_cuts(price, weight, n_blocks, smallest, largest, average, 0.5).tolist()
    best = min(map(cost, choices), default=np.inf)
    assert (cost(found) if found else np.inf) == pytest.approx(best)


@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False), split=st.integers(1, 12))
def test_crossing_bytes_and_tensors_are_those_of_the_definition(rng: object, split: int) -> None:
    graph = oracle.random_graph(rng, 12, max_tensors=16)
    split = min(split, graph.n_ops)
    nbytes, count = np.zeros(split + 1), np.zeros(split + 1)
    largest = graph.size.max(initial=0)
    for x in range(graph.n_tensors):
        early = [int(r) for r in graph.users_of(x) if r < split]
        late = [int(r) for r in graph.users_of(x) if r >= split]
        for position in range(split + 1):
            if graph.producer[x] < position and early and max(early) >= position:
                nbytes[position] += graph.size[x] * (1 if late else 2)
                count[position] += graph.size[x] >= 1e-3 * largest
    assert crossing_bytes(graph, np.arange(split)).tolist() == nbytes.tolist()
    assert crossing_tensors(graph, split).tolist() == count.tolist()


def test_cuts_keep_to_the_allowed_positions() -> None:
    graph = hr.generate("transformer", 600, 0)
    allowed = np.arange(7, 250, 11)
    found = cut_sequence(graph, np.arange(260), 6, allowed)
    assert found is not None and len(found) == 7
    assert set(found[1:-1].tolist()) <= set(allowed.tolist())
    assert cut_sequence(graph, np.arange(260), 6, allowed[:3]) is None


def test_thinned_positions_still_hold_the_cheapest_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hr.generate("transformer", 3000, 0)
    order = np.arange(1300)
    full = cut_sequence(graph, order, 8)
    monkeypatch.setattr(cuts, "MOST_POSITIONS", 200)
    thin = cut_sequence(graph, order, 8)
    cross = crossing_bytes(graph, order)
    assert full is not None and thin is not None
    assert cross[thin[1:-1]].sum() == cross[full[1:-1]].sum()


def test_blocks_of_a_sequence_meet_in_one_tensor_each() -> None:
    graph = hr.generate("resnet", 600, 0)
    split = int(np.flatnonzero(graph.phase == 1)[0]) + 1
    tree = sequence(graph, 6)
    count = crossing_tensors(graph, split)
    assert [count[block.forward[0]] for block in tree.blocks[1:]] == [1] * 5


def test_sequence_is_quick_where_no_tensor_separates() -> None:
    graph = hr.generate("layered", 2000, 0)
    tree = sequence(graph, 8)
    check_tree(graph, tree)
    assert len(tree.blocks) == 8


def test_a_repetition_is_found_with_its_period_and_extent() -> None:
    noise = [100, 101, 102, 103]
    layer = [1, 2, 3, 1, 4]
    other = [7, 8, 9]
    token = np.array([*noise, *layer * 6, 104, 105, *other * 9, 106])
    found = stretches(token, 6)
    assert [(s.start, s.length, s.period) for s in found] == [(4, 30, 5), (36, 27, 3)]


@settings(max_examples=80, deadline=None)
@given(token=st.lists(st.integers(0, 3), min_size=1, max_size=80), shortest=st.integers(1, 10))
def test_stretches_are_disjoint_and_repeat(token: list[int], shortest: int) -> None:
    values = np.array(token)
    taken = np.zeros(len(token), np.int64)
    for s in stretches(values, shortest):
        assert s.length >= max(2 * s.period, shortest)
        taken[s.start : s.start + s.length] += 1
        part = values[s.start : s.start + s.length]
        assert (part[s.period :] == part[: -s.period]).all()
    assert taken.max() <= 1


@pytest.mark.parametrize("kind", ["transformer", "rnn", "chain"])
def test_repeat_has_no_more_classes_than_intervals(kind: str) -> None:
    graph = hr.generate(kind, 2500, 1)
    for blocks in (6, 9, 12):
        plain = evaluate(graph, intervals(graph, blocks)).classes
        assert evaluate(graph, repeat(graph, blocks)).classes <= plain


def test_layers_of_an_encoder_and_of_a_decoder_become_equal_blocks() -> None:
    graph = hr.generate("encdec", 2400, 0)
    assert evaluate(graph, repeat(graph, 9)).classes <= 6


def test_where_nothing_repeats_the_blocks_are_intervals() -> None:
    graph = hr.generate("layered", 300, 1)
    one, two = repeat(graph, 5), intervals(graph, 5)
    assert all(np.array_equal(a.ops, b.ops) for a, b in zip(one.blocks, two.blocks, strict=True))
