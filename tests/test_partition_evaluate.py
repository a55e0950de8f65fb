"""Claims about the cheap evaluation of trees."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.ilp.leaf import make_leaf
from hremate.partition.evaluate import best, class_hashes, evaluate
from hremate.partition.intervals import intervals
from hremate.partition.pairing import GUEST
from hremate.partition.registry import PARTITIONERS
from hremate.partition.tree import BlockTree


def by_definition(graph: hr.Graph, tree: BlockTree) -> tuple[int, float, int]:
    """Interface, foreign and internal bytes, straight from their definitions."""
    shared, internal, foreign = 0, 0, 0.0
    has_backward = any(len(block.backward) for block in tree.blocks)
    for block in tree.blocks:
        forward, backward = set(block.forward.tolist()), set(block.backward.tolist())
        inside = forward | backward
        for x in range(graph.n_tensors):
            maker, users = int(graph.producer[x]), set(graph.users_of(x).tolist())
            outside = bool(users - inside) or bool(graph.is_output[x]) or maker not in inside
            touches = maker in inside or bool(users & inside)
            shared += int(graph.size[x]) * (touches and outside)
            kept = maker in forward and users & backward if has_backward else maker in inside
            if kept and not outside:
                internal += int(graph.size[x])
            made_forward = any(maker in set(b.forward.tolist()) for b in tree.blocks)
            if made_forward and maker not in inside and users & backward:
                foreign += int(graph.size[x]) * (GUEST if users & forward else 1.0)
    return shared, foreign, internal


@settings(max_examples=80, deadline=None)
@given(rng=st.randoms(use_true_random=False), blocks=st.integers(1, 4), split=st.integers(1, 12))
def test_bytes_are_those_of_the_definitions(rng: object, blocks: int, split: int) -> None:
    graph = oracle.random_graph(rng, 12, max_tensors=16)
    tree = intervals(graph, blocks, split=min(split, graph.n_ops))
    found = evaluate(graph, tree)
    expected = by_definition(graph, tree)
    assert (found.interface_bytes, found.internal_bytes) == (expected[0], expected[2])
    assert found.foreign_bytes == pytest.approx(expected[1])
    assert 0.0 <= found.score <= 1.0


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("kind", ["transformer", "unet", "rnn", "layered"])
def test_equal_hashes_mean_equal_leaves(name: str, kind: str) -> None:
    graph = hr.generate(kind, 900, 0)
    tree = PARTITIONERS[name].load()(graph, 9)
    pinned = np.zeros(graph.n_tensors, np.bool_)
    signatures = [make_leaf(graph, block, pinned).signature for block in tree.blocks]
    hashes = class_hashes(graph, tree).tolist()
    pairs = [(i, j) for i in range(len(hashes)) for j in range(i)]
    assert all((signatures[i] == signatures[j]) for i, j in pairs if hashes[i] == hashes[j])
    # Types count here and not in a leaf; where op types follow from times and sizes, both agree.
    assert len(set(hashes)) >= len(set(signatures))


def test_the_best_tree_is_that_of_least_score_but_for_small_gains() -> None:
    for kind in ("unet", "transformer", "encdec", "layered"):
        graph = hr.generate(kind, 500, 1)
        scores = {name: evaluate(graph, p.load()(graph, 6)).score for name, p in PARTITIONERS.items()}
        assert scores["best"] <= min(scores.values()) + 0.03


def test_the_first_candidate_stays_unless_another_is_worth_it() -> None:
    graph = hr.generate("layered", 300, 1)
    one, two = best(graph, 5, candidates=["intervals"]), intervals(graph, 5)
    assert all(np.array_equal(a.ops, b.ops) for a, b in zip(one.blocks, two.blocks, strict=True))


def test_no_candidates_and_unknown_candidates_are_refused() -> None:
    graph = hr.generate("chain", 60, 0)
    with pytest.raises(hr.MethodError, match="at least one candidate"):
        best(graph, 3, candidates=[])
    with pytest.raises(hr.MethodError, match="unknown partitioner"):
        best(graph, 3, candidates=["metis"])
