"""Claims that hold for every partitioner, and for the trees they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.partition.registry import PARTITIONERS, find_partitioner
from hremate.partition.subgraph import subgraph
from hremate.partition.tree import Block, BlockTree, Item, check_tree

KINDS = ["chain", "transformer", "encdec", "unet", "resnet", "rnn", "ssm", "layered", "series-parallel"]
CAPTURED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "captured"


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("blocks", [1, 2, 6, 15, 40])
def test_every_kind_of_graph_is_cut_within_the_invariants(name: str, kind: str, blocks: int) -> None:
    graph = hr.generate(kind, 300, 3)
    tree = PARTITIONERS[name].load()(graph, blocks)
    check_tree(graph, tree)
    assert 1 <= len(tree.blocks) <= blocks


@pytest.mark.parametrize("name", PARTITIONERS)
@settings(max_examples=80, deadline=None)
@given(rng=st.randoms(use_true_random=False), blocks=st.integers(1, 9), split=st.integers(1, 20))
def test_any_small_graph_is_cut_within_the_invariants(
    name: str, rng: object, blocks: int, split: int
) -> None:
    graph = oracle.random_graph(rng, 20, max_tensors=24)
    tree = PARTITIONERS[name].load()(graph, blocks, split=min(split, graph.n_ops))
    check_tree(graph, tree)
    assert len(tree.blocks) <= blocks


@pytest.mark.parametrize("name", PARTITIONERS)
def test_equal_calls_give_equal_trees(name: str) -> None:
    graph = hr.generate("unet", 400, 2)
    one, two = (PARTITIONERS[name].load()(graph, 7) for _ in range(2))
    assert one.items == two.items
    assert all(np.array_equal(a.ops, b.ops) for a, b in zip(one.blocks, two.blocks, strict=True))


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.skipif(not CAPTURED.is_dir(), reason=f"no captured graphs in {CAPTURED}")
def test_captured_graphs_are_cut_within_the_invariants(name: str) -> None:
    for path in sorted(CAPTURED.glob("*.json.gz")):
        graph = hr.read_graph(path)
        for blocks in (6, 12):
            tree = PARTITIONERS[name].load()(graph, blocks)
            check_tree(graph, tree)
            assert len(tree.blocks) == blocks, graph.name


@pytest.mark.parametrize("name", PARTITIONERS)
@pytest.mark.parametrize("blocks", [0, -1])
def test_a_block_count_below_one_is_refused(name: str, blocks: int) -> None:
    with pytest.raises(hr.MethodError, match="Expected n_blocks >= 1"):
        PARTITIONERS[name].load()(chain(4), blocks)


@pytest.mark.parametrize("name", PARTITIONERS)
def test_more_blocks_than_ops_give_a_block_an_op(name: str) -> None:
    tree = PARTITIONERS[name].load()(chain(4), 9)
    assert [block.forward.tolist() for block in tree.blocks] == [[0], [1], [2], [3]]


def test_an_unknown_partitioner_is_refused_by_name() -> None:
    with pytest.raises(hr.MethodError, match="unknown partitioner 'metis'; known: intervals"):
        find_partitioner("metis")
    assert find_partitioner("bottom-up").summary


@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False), keep=st.sets(st.integers(0, 9), min_size=1))
def test_a_subgraph_is_the_graph_built_from_its_ops(rng: object, keep: set[int]) -> None:
    graph = oracle.random_graph(rng, 10, max_tensors=12)
    ops = sorted(i for i in keep if i < graph.n_ops) or [0]
    made = {x for i in ops for x in graph.outputs_of(i)}
    needed = [
        x
        for x in sorted(made)
        if graph.is_output[x] or any(int(r) not in ops for r in graph.users_of(x))
    ]
    expected = hr.Graph.from_ops([graph.op(i) for i in ops], [graph.tensor_names[x] for x in needed])
    found = subgraph(graph, np.array(ops))
    for name in ("time", "workspace", "once", "size", "producer", "out_ptr", "in_ptr", "in_idx", "use_ptr",
                 "use_idx", "outputs"):  # fmt: skip
        assert np.array_equal(getattr(found, name), getattr(expected, name)), name
    assert found.op_names == expected.op_names and found.tensor_names == expected.tensor_names


def test_backward_parts_are_paired_by_structure_where_the_order_is_no_guide() -> None:
    graph = hr.generate("transformer", 600, 0)
    split = int(np.flatnonzero(graph.phase == 1)[0]) + 1
    order = random_order(graph, split)
    shuffled = subgraph(graph, order)
    tree = find_partitioner("intervals").load()(shuffled, 5)
    check_tree(shuffled, tree)
    # The gradient of a matrix product of layer k reads what the forward part of layer k made.
    foreign = 0
    for block in tree.blocks:
        layers = {shuffled.op_scopes[i].split(".")[1] for i in block.forward if layer_op(shuffled, i)}
        for i in block.backward:
            foreign += layer_op(shuffled, i) and shuffled.op_scopes[i].split(".")[1] not in layers
    assert foreign <= 0.1 * (shuffled.n_ops - split)


def layer_op(graph: hr.Graph, op: int) -> bool:
    return graph.op_scopes[op].startswith("h.")


def random_order(graph: hr.Graph, split: int) -> np.ndarray:
    """The forward ops as they are, the backward ops in a random topological order."""
    rng = np.random.default_rng(0)
    ptr, idx = graph.predecessors
    waiting = {i: {int(p) for p in idx[ptr[i] : ptr[i + 1]] if p >= split} for i in range(split, graph.n_ops)}
    order = list(range(split))
    while waiting:
        ready = [i for i, before in waiting.items() if not before]
        op = ready[int(rng.integers(len(ready)))]
        order.append(op)
        del waiting[op]
        for before in waiting.values():
            before.discard(op)
    return np.array(order)


def test_scopes_place_backward_ops_that_read_nothing_of_the_forward_part() -> None:
    ops = [
        hr.Op(f"f{i}", 1.0, (f"t{i - 1}",) if i else (), ((f"t{i}", 100),), scope=f"s{i}") for i in range(4)
    ]
    # Gradients in an order that tells nothing, of equal bytes and of nothing from the forward part.
    ops += [hr.Op(f"b{i}", 1.0, (), ((f"g{i}", 0),), scope=f"s{i}") for i in (1, 0, 3, 2)]
    ops += [hr.Op(f"c{i}", 1.0, (f"g{i}", f"t{i}"), ((f"d{i}", 100),)) for i in (1, 0, 3, 2)]
    graph = hr.Graph.from_ops(ops, [f"d{i}" for i in range(4)])
    tree = find_partitioner("intervals").load()(graph, 2, split=4)
    check_tree(graph, tree)
    assert [sorted(graph.op_names[i] for i in block.backward) for block in tree.blocks] == [
        ["b0", "b1", "c0", "c1"],
        ["b2", "b3", "c2", "c3"],
    ]


def chain(n: int) -> hr.Graph:
    ops = [hr.Op(f"o{i}", 1.0, (f"t{i - 1}",) if i else (), ((f"t{i}", 1),)) for i in range(n)]
    return hr.Graph.from_ops(ops, [f"t{n - 1}"])


def block_of(forward: list[int], backward: list[int], children: BlockTree | None = None) -> Block:
    return Block(np.array(forward, np.int64), np.array(backward, np.int64), children)


def tree_of(*parts: tuple[list[int], list[int]], items: list[tuple[int, bool]]) -> BlockTree:
    return BlockTree(tuple(block_of(f, b) for f, b in parts), tuple(Item(*item) for item in items))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (tree_of(([0, 1], [3]), items=[(0, False), (0, True)]), "op 'o2' lies in no part"),
        (tree_of(([0, 1], [1, 2, 3]), items=[(0, False), (0, True)]), "op 'o1' lies in two parts"),
        (tree_of(([0, 1], [2, 3]), items=[(0, True), (0, False)]), "op 'o2' of part 0 reads from op 'o1'"),
        (tree_of(([0, 2], [1, 3]), items=[(0, False), (0, True)]), "reads from op"),
        (tree_of(([0, 1], [2, 3]), items=[(0, False)]), "not listed exactly once"),
        (tree_of(([0, 1, 2, 3], []), items=[(0, False), (1, True)]), "is of no block"),
        (tree_of(([], [0, 1, 2, 3]), items=[(0, True)]), "block 0 has no forward op"),
    ],
)
def test_check_tree_names_what_is_broken(tree: BlockTree, message: str) -> None:
    with pytest.raises(hr.GraphError, match=message):
        check_tree(chain(4), tree)


PAIR = [(0, False), (1, False), (1, True), (0, True)]


@pytest.mark.parametrize(
    ("children", "message"),
    [
        (tree_of(([0], [5]), ([1, 2], [3, 4]), items=PAIR), None),
        (tree_of(([0], [5]), ([1, 2], [4]), items=PAIR), "do not cover its part backward=True"),
        (tree_of(([0], [5]), ([2], [3, 4]), items=PAIR), "children of block 0 do not cover its part"),
        (tree_of(([0], [3, 4]), ([1, 2], [5]), items=PAIR), "of level 2 reads from op"),
        (tree_of(([1, 2], [3, 4]), ([0], [5]), items=PAIR), "of level 2 reads from op"),
        (
            tree_of(([0], [3, 4]), ([1, 2], [5]), items=[(0, False), (0, True), (1, False), (1, True)]),
            "a forward part of the children of block 0 follows a backward part",
        ),
        (tree_of(([0], [5]), ([1, 2], [3, 4]), items=PAIR[:3]), r"part \(0.0, backward=True\) is not listed"),
    ],
)
def test_check_tree_looks_at_every_level(children: BlockTree, message: str | None) -> None:
    tree = BlockTree((block_of([0, 1, 2], [3, 4, 5], children),), (Item(0, False), Item(0, True)))
    if message is None:
        check_tree(chain(6), tree)
        assert tree.depth == 2
        assert [part.tolist() for part in tree.parts(1)] == [[0], [1, 2], [3, 4], [5]]
        assert [block.n_ops for block in tree.leaves()] == [2, 4]
    else:
        with pytest.raises(hr.GraphError, match=message):
            check_tree(chain(6), tree)


def test_phases_of_a_graph_do_not_matter_once_the_split_is_given() -> None:
    graph = hr.generate("resnet", 300, 1)
    split = int(np.flatnonzero(graph.phase == 1)[0]) + 1
    bare = replace(graph, phase=np.full(graph.n_ops, -1, np.int8))
    for partitioner in PARTITIONERS.values():
        one, two = partitioner.load()(graph, 5, split=split), partitioner.load()(bare, 5, split=split)
        assert all(np.array_equal(a.ops, b.ops) for a, b in zip(one.blocks, two.blocks, strict=True))
