"""Claims about partitions: trees that hold their invariants, blocks that repeat, phases found."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.ilp.leaf import make_leaf
from hremate.partition.intervals import intervals
from hremate.partition.phases import split_position
from hremate.partition.tree import Block, BlockTree, Item, check_tree

KINDS = ["chain", "transformer", "encdec", "unet", "resnet", "rnn", "ssm", "layered", "series-parallel"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [1, 2, 6, 15, 40])
def test_intervals_keep_the_invariants(kind: str, blocks: int) -> None:
    graph = hr.generate(kind, 300, 3)
    tree = intervals(graph, blocks)
    check_tree(graph, tree)
    assert len(tree.blocks) == blocks


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), blocks=st.integers(1, 9), split=st.integers(1, 7))
def test_intervals_of_any_small_graph_keep_the_invariants(seed: int, blocks: int, split: int) -> None:
    graph = oracle.random_graph(seed)
    check_tree(graph, intervals(graph, blocks, split=min(split, graph.n_ops)))


def test_layers_of_a_transformer_become_equal_blocks() -> None:
    graph = hr.generate("transformer", 900, 0)
    layers = len({scope.split(".")[1] for scope in graph.op_scopes if scope.startswith("h.")})
    tree = intervals(graph, layers // 2)
    pinned = np.zeros(graph.n_tensors, np.bool_)
    classes = {make_leaf(graph, block, pinned).signature for block in tree.blocks}
    assert len(classes) <= len(tree.blocks) // 2


@pytest.mark.parametrize("kind", ["chain", "transformer", "unet", "resnet", "encdec"])
def test_split_of_an_unlabelled_training_graph_lies_near_its_loss(kind: str) -> None:
    graph = hr.generate(kind, 400, 1)
    labelled = split_position(graph)
    bare = hr.Graph.from_ops(
        [hr.Op(o.name, o.time, o.inputs, o.outputs, o.workspace) for o in map(graph.op, range(graph.n_ops))],
        [graph.tensor_names[x] for x in graph.outputs],
    )
    assert abs(split_position(bare) - labelled) <= 0.1 * graph.n_ops


def test_graph_without_mirrored_reads_has_no_backward_part() -> None:
    graph = hr.generate("layered", 300, 1)
    assert split_position(graph) == graph.n_ops


def chain(n: int) -> hr.Graph:
    ops = [hr.Op(f"o{i}", 1.0, (f"t{i - 1}",) if i else (), ((f"t{i}", 1),)) for i in range(n)]
    return hr.Graph.from_ops(ops, [f"t{n - 1}"])


def tree_of(*parts: tuple[list[int], list[int]], items: list[tuple[int, bool]]) -> BlockTree:
    blocks = tuple(Block(np.array(f, np.int64), np.array(b, np.int64)) for f, b in parts)
    return BlockTree(blocks, tuple(Item(*item) for item in items))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (tree_of(([0, 1], [3]), items=[(0, False), (0, True)]), "op 'o2' lies in no part"),
        (tree_of(([0, 1], [1, 2, 3]), items=[(0, False), (0, True)]), "op 'o1' lies in two parts"),
        (tree_of(([0, 1], [2, 3]), items=[(0, True), (0, False)]), "op 'o2' of part 0 reads from op 'o1'"),
        (tree_of(([0, 2], [1, 3]), items=[(0, False), (0, True)]), "reads from op"),
        (tree_of(([0, 1], [2, 3]), items=[(0, False)]), "not listed exactly once"),
        (tree_of(([], [0, 1, 2, 3]), items=[(0, True)]), "block 0 has no forward op"),
    ],
)
def test_check_tree_names_what_is_broken(tree: BlockTree, message: str) -> None:
    with pytest.raises(hr.GraphError, match=message):
        check_tree(chain(4), tree)


def test_a_block_count_below_one_is_refused() -> None:
    with pytest.raises(hr.MethodError, match="Expected n_blocks >= 1"):
        intervals(chain(4), 0)
