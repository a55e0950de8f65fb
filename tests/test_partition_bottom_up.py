"""Claims about H-Partition: convex groups of narrow interface."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.partition import _bottom_up_kernel as kernels
from hremate.partition import _lists_kernel as lists
from hremate.partition.bottom_up import bottom_up, groups, transposed


def reach(graph: hr.Graph) -> np.ndarray:
    """bool[n, n]: whether there is a path (of any length, also 0) from op to op."""
    result = np.eye(graph.n_ops, dtype=np.bool_)
    ptr, idx = graph.predecessors
    for i in range(graph.n_ops):
        for p in idx[ptr[i] : ptr[i + 1]]:
            result[:, i] |= result[:, p]
    return result


@settings(max_examples=150, deadline=None)
@given(
    rng=st.randoms(use_true_random=False),
    most_ops=st.integers(1, 20),
    fewest=st.integers(1, 5),
)
def test_groups_are_convex_small_enough_and_numbered_topologically(
    rng: object, most_ops: int, fewest: int
) -> None:
    graph = oracle.random_graph(rng, 24, min_ops=2, max_tensors=30)
    rank = groups(graph, graph.n_ops, most_ops=most_ops, fewest=fewest)
    path = reach(graph)
    for g in range(int(rank.max()) + 1):
        inside = rank == g
        assert 1 <= inside.sum() <= most_ops
        between = path[inside].any(axis=0) & path[:, inside].any(axis=1)
        assert not (between & ~inside).any()
    ptr, idx = graph.predecessors
    reader = np.repeat(np.arange(graph.n_ops), np.diff(ptr))
    assert (rank[idx] <= rank[reader]).all()


@pytest.mark.parametrize("kind", ["layered", "series-parallel", "unet", "encdec", "ssm"])
def test_quotients_of_larger_graphs_stay_acyclic(kind: str) -> None:
    graph = hr.generate(kind, 2000, 5)
    for most_ops in (7, 60, 2000):
        rank = groups(graph, graph.n_ops, most_ops=most_ops)
        ptr, idx = graph.predecessors
        assert (rank[idx] <= rank[np.repeat(np.arange(graph.n_ops), np.diff(ptr))]).all()
        assert np.bincount(rank).max() <= most_ops


def graph_of(arcs: dict[str, str], sizes: dict[str, int] | None = None) -> hr.Graph:
    """Ops named by letters; `arcs` says whom each reads; sizes default to 1."""
    size = {**dict.fromkeys(arcs, 1), **(sizes or {})}
    ops = [hr.Op(name, 1.0, tuple(reads), ((name, size[name]),)) for name, reads in arcs.items()]
    return hr.Graph.from_ops(ops, [list(arcs)[-1]])


def partition_of(graph: hr.Graph, **limits: int) -> list[str]:
    rank = groups(graph, graph.n_ops, **limits)
    return ["".join(graph.op_names[i] for i in np.flatnonzero(rank == g)) for g in range(rank.max() + 1)]


def test_a_chain_is_merged_across_its_large_tensors() -> None:
    graph = graph_of({"a": "", "b": "a", "c": "b", "d": "c"}, {"a": 90, "b": 1, "c": 80})
    assert partition_of(graph, most_ops=2) == ["ab", "cd"]


def test_a_diamond_is_one_group_and_half_of_it_is_none() -> None:
    diamond = {"a": "", "b": "a", "c": "a", "d": "bc"}
    assert partition_of(graph_of(diamond), most_ops=4) == ["abcd"]
    # Two ops that flow between a and d, and no pair of them that leaves a way out and back.
    pairs = sorted(partition_of(graph_of(diamond), most_ops=2))
    assert pairs in (["a", "bc", "d"], ["ab", "cd"], ["ac", "bd"])


def test_a_flow_group_forms_although_its_inner_ops_read_from_elsewhere() -> None:
    # x is read all along, as a mask is; the flow of a reconverges in d all the same.
    graph = graph_of({"x": "", "y": "x", "a": "y", "b": "ax", "c": "ax", "d": "bc", "e": "dx"})
    assert "".join(sorted(partition_of(graph, most_ops=4), key=len)[-1]) in ("abcd", "bcde", "xyab")


def test_merging_ends_at_the_number_of_groups_asked_for() -> None:
    graph = hr.generate("chain", 300, 0)
    assert groups(graph, 100, most_ops=100, fewest=9).max() + 1 == 9
    assert groups(graph, 100, most_ops=100, fewest=1).max() + 1 == 1


def lists_of(ptr: np.ndarray, idx: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows, cells = np.empty((len(ptr) - 1, 3), np.int32), np.empty((len(idx), 2), np.int32)
    lists.fill_lists(ptr, idx, rows, cells)
    return rows, cells


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False), chosen=st.sets(st.integers(0, 11), min_size=1))
def test_interface_bytes_count_every_shared_tensor_once(rng: object, chosen: set[int]) -> None:
    graph = oracle.random_graph(rng, 12, max_tensors=16)
    members = np.array(sorted(i for i in chosen if i < graph.n_ops) or [0])
    inside = set(members.tolist())
    shared = 0
    touched: list[list[int]] = [[] for _ in range(graph.n_ops)]
    for x in range(graph.n_tensors):
        touching = {int(graph.producer[x]), *graph.users_of(x).tolist()}
        for i in sorted(touching):
            touched[i].append(x)
        if touching & inside and (touching - inside or graph.is_output[x]):
            shared += int(graph.size[x])
    ptr = np.cumsum([0, *map(len, touched)])
    idx = np.array([x for row in touched for x in row], np.int64)
    touch, cells = lists_of(ptr, idx)
    tensors = np.zeros((graph.n_tensors, 4), np.int64)
    tensors[:, lists.SIZE] = graph.size
    tensors[:, lists.TOUCHING] = np.bincount(idx, minlength=graph.n_tensors) + graph.is_output
    clock = np.zeros(1, np.int64)
    assert lists.interface_bytes(members, touch, cells, tensors, clock, 1000) == shared
    touches = sum(len(touched[i]) for i in members)
    assert not touches or lists.interface_bytes(members, touch, cells, tensors, clock, touches - 1) == np.inf


@settings(max_examples=100, deadline=None)
@given(rng=st.randoms(use_true_random=False), forward=st.booleans())
def test_a_flow_group_is_left_only_through_its_end(rng: object, forward: bool) -> None:
    graph = oracle.random_graph(rng, 16, min_ops=4, max_tensors=24)
    ptr, idx = graph.successors if forward else graph.predecessors
    n = graph.n_ops
    arcs, cells = lists_of(ptr, idx)
    groups_of_one = np.stack([np.arange(n), np.ones(n, np.int64), np.zeros(n, np.int64)], axis=1)
    clock = np.zeros(1, np.int64)
    members = np.empty(kernels.MOST_FLOW + 2, np.int64)
    for start in range(n):
        count = kernels.flow_group(start, forward, arcs, cells, groups_of_one, clock, n, members)
        if not count:
            continue
        group = members[:count].tolist()
        assert group[0] == start and len(set(group)) == count
        for member in group[:-1]:
            assert set(idx[ptr[member] : ptr[member + 1]].tolist()) <= set(group)


def test_layers_of_a_transformer_become_equal_blocks() -> None:
    from hremate.partition.evaluate import evaluate

    graph = hr.generate("transformer", 1500, 0)
    assert evaluate(graph, bottom_up(graph, 8)).classes <= 4


def test_transposed_twice_is_the_matrix_itself() -> None:
    ptr, idx = hr.generate("layered", 200, 0).predecessors
    there = transposed(ptr, idx, 200)
    assert [a.tolist() for a in transposed(*there, 200)] == [ptr.tolist(), idx.tolist()]


def test_a_group_share_of_nothing_is_refused() -> None:
    with pytest.raises(hr.MethodError, match="Expected group_share > 0"):
        bottom_up(hr.generate("chain", 30, 0), 2, group_share=0.0)
