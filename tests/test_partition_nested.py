"""Claims about trees of several levels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.partition.evaluate import class_hashes
from hremate.partition.nested import Limits, deepened, nested
from hremate.partition.registry import PARTITIONERS
from hremate.partition.tree import Block, BlockTree, check_tree

CAPTURED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "captured"


def all_blocks(tree: BlockTree) -> Iterator[Block]:
    for block in tree.blocks:
        yield block
        if block.children is not None:
            yield from all_blocks(block.children)


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("kind", ["chain", "transformer", "unet", "rnn", "layered", "series-parallel"])
def test_every_level_keeps_the_invariants_and_the_limits(name: str, kind: str) -> None:
    graph = hr.generate(kind, 1500, 1)
    limits = Limits(blocks=5, leaf_ops=40)
    tree = nested(graph, limits, name)
    check_tree(graph, tree)
    assert tree.depth >= 3
    for block in all_blocks(tree):
        if block.children is None:
            assert block.n_ops <= limits.leaf_ops or len(block.forward) == 1
        else:
            assert 2 <= len(block.children.blocks) <= limits.blocks


@pytest.mark.parametrize("name", PARTITIONERS)
@settings(max_examples=50, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    blocks=st.integers(2, 4),
    leaf=st.integers(1, 6),
    split=st.integers(1, 20),
)
def test_any_small_graph_is_split_down_to_single_ops(
    name: str, rng: object, blocks: int, leaf: int, split: int
) -> None:
    graph = oracle.random_graph(rng, 20, max_tensors=24)
    tree = nested(graph, Limits(blocks=blocks, leaf_ops=leaf), name, split=min(split, graph.n_ops))
    check_tree(graph, tree)
    assert all(b.n_ops <= leaf or len(b.forward) == 1 for b in tree.leaves())


def test_the_depth_limit_ends_the_splitting() -> None:
    graph = hr.generate("transformer", 3000, 0)
    for depth in (1, 2, 3):
        tree = nested(graph, Limits(blocks=4, leaf_ops=20, depth=depth))
        check_tree(graph, tree)
        assert tree.depth == depth


def test_levels_are_few_and_branch_evenly() -> None:
    limits = Limits(blocks=10, leaf_ops=100)
    assert limits.children(100, 9) == 1
    assert limits.children(101, 9) == 2
    assert limits.children(700, 9) == 10
    # 42 leaves: two levels of 7 by 6, not 10 by 5.
    assert limits.children(3000, 9) == 7
    assert limits.children(3000, 1) == 10
    assert limits.children(3000, 0) == 1
    assert limits.children(100_000, 9) == 7


@pytest.mark.parametrize("name", PARTITIONERS)
def test_equal_blocks_have_equal_children(name: str) -> None:
    graph = hr.generate("transformer", 6000, 0)
    tree = nested(graph, Limits(blocks=8, leaf_ops=60), name)
    shapes: dict[int, list[list[list[int]]]] = {}
    for hashed, block in zip(class_hashes(graph, tree).tolist(), tree.blocks, strict=True):
        local = np.full(graph.n_ops, -1)
        local[block.ops] = np.arange(block.n_ops)
        assert block.children is not None
        shapes.setdefault(hashed, []).append([local[part].tolist() for part in block.children.parts(0)])
    assert max(map(len, shapes.values())) >= 3
    assert all(shape == same[0] for same in shapes.values() for shape in same)


def test_uneven_limits_branch_as_widely_as_they_may() -> None:
    limits = Limits(blocks=6, leaf_ops=23, even=False)
    assert [limits.children(n_ops, 1) for n_ops in (23, 24, 100_000)] == [1, 6, 6]
    assert limits.children(24, 0) == 1


@pytest.mark.parametrize("name", PARTITIONERS)
def test_a_tree_gets_further_levels_and_keeps_its_blocks(name: str) -> None:
    graph = hr.generate("encdec", 900, 1)
    flat = PARTITIONERS[name].load()(graph, 5)
    tree = deepened(graph, flat, Limits(blocks=4, leaf_ops=20, depth=2), name)
    check_tree(graph, tree)
    assert tree.depth == 3 and tree.items == flat.items
    for before, after in zip(flat.blocks, tree.blocks, strict=True):
        assert np.array_equal(before.ops, after.ops)
    again = deepened(graph, tree, Limits(blocks=2, leaf_ops=1), name)
    assert all(a.children is b.children for a, b in zip(tree.blocks, again.blocks, strict=True) if a.children)


def test_a_function_of_ones_own_is_a_partitioner() -> None:
    asked: list[int] = []

    def halves(graph: hr.Graph, n_blocks: int, *, split: int | None = None) -> BlockTree:
        asked.append(n_blocks)
        return PARTITIONERS["intervals"].load()(graph, 2, split=split)

    graph = hr.generate("chain", 600, 0)
    tree = nested(graph, Limits(blocks=4, leaf_ops=40), halves)
    check_tree(graph, tree)
    assert asked and {len(b.children.blocks) for b in all_blocks(tree) if b.children} == {2}


def test_a_small_graph_is_one_block() -> None:
    tree = nested(hr.generate("chain", 30, 0), Limits(leaf_ops=100))
    assert tree.depth == len(tree.blocks) == 1


@pytest.mark.parametrize(
    ("limits", "message"),
    [({"blocks": 1}, "blocks >= 2"), ({"leaf_ops": 0}, "leaf_ops >= 1"), ({"depth": 0}, "depth >= 1")],
)
def test_limits_check_their_ranges(limits: dict[str, int], message: str) -> None:
    with pytest.raises(hr.MethodError, match=message):
        Limits(**limits)


@pytest.mark.skipif(not CAPTURED.is_dir(), reason=f"no captured graphs in {CAPTURED}")
def test_captured_graphs_are_split_within_the_invariants() -> None:
    for path in sorted(CAPTURED.glob("*.json.gz")):
        graph = hr.read_graph(path)
        for name in PARTITIONERS:
            tree = nested(graph, Limits(blocks=6, leaf_ops=60), name)
            check_tree(graph, tree)
            assert sum(b.n_ops for b in tree.leaves()) == graph.n_ops


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["transformer", "unet", "rnn", "ssm"])
def test_a_hundred_thousand_ops_are_split_within_the_invariants(kind: str) -> None:
    graph = hr.generate(kind, 100_000, 0)
    for name in PARTITIONERS:
        tree = nested(graph, partitioner=name)
        check_tree(graph, tree)
        assert np.mean([b.n_ops for b in tree.leaves()]) >= 30
