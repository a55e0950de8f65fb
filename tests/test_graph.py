"""Claims about graphs: what is refused, what the arrays hold, what new graphs come from old ones."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hremate import (
    CycleError,
    DuplicateNameError,
    EmptyGraphError,
    Graph,
    GraphError,
    HremateError,
    InvalidValueError,
    Op,
    OrderError,
    UnknownTensorError,
    validate,
)

SOURCE = Op("source", 1.0, (), (("x", 8),))
READER = Op("reader", 2.0, ("x", "weight"), (("y", 4), ("z", 2)), workspace=3)


@st.composite
def graphs(draw: st.DrawFn, most: int = 8, single: bool = False) -> Graph:
    """Graphs with ops of 0-3 outputs (one, if `single`), resident inputs, phases and graph outputs."""
    ops: list[Op] = []
    tensors: list[str] = []
    for i in range(draw(st.integers(1, most))):
        known = [*tensors, *([] if single else ["w0", "w1"])]
        inputs = draw(st.lists(st.sampled_from(known), max_size=4)) if known else []
        made = 1 if single else draw(st.integers(0, 3))
        names = [f"op{i}"] if single else [f"t{i}.{k}" for k in range(made)]
        ops.append(
            Op(
                f"op{i}",
                draw(st.just(0.0) | st.floats(1e-150, 100)),
                tuple(inputs),
                tuple((name, draw(st.integers(0, 50))) for name in names),
                draw(st.integers(0, 20)),
                draw(st.sampled_from([None, "forward", "loss", "backward"])),
                draw(st.sampled_from(["", "aten.mm"])),
                draw(st.sampled_from(["", "h.0"])),
                draw(st.booleans()),
            )
        )
        tensors += names
    read = {x for op in ops for x in op.inputs}
    candidates = sorted({*tensors, *read})
    outputs = draw(st.lists(st.sampled_from(candidates), max_size=4)) if candidates else []
    return Graph.from_ops(
        ops,
        outputs,
        name="drawn",
        memory_model=draw(st.sampled_from(["coexist", "reuse"])),
        resident=draw(st.integers(0, 100)),
    )


def arrays_of(graph: Graph) -> dict[str, np.ndarray]:
    values = {f.name: getattr(graph, f.name) for f in fields(graph)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def rebuilt(graph: Graph) -> Graph:
    return Graph.from_ops(
        [graph.op(i) for i in range(graph.n_ops)],
        [graph.tensor_names[x] for x in graph.outputs] + list(graph.resident_outputs),
        name=graph.name,
        memory_model=graph.memory_model,
        resident=graph.resident,
        units=graph.units,
        metadata=graph.metadata,
    )


# -- what is refused ------------------------------------------------------------------------------


def named(**changes: Any) -> list[Op]:
    return [SOURCE, Op(**{"name": "bad_op", "time": 1.0, **changes})]


@pytest.mark.parametrize(
    ("ops", "outputs", "error", "names"),
    [
        ([], [], EmptyGraphError, ["graph"]),
        ([SOURCE, Op("source", 1.0)], [], DuplicateNameError, ["'source'", "0", "1"]),
        (
            [SOURCE, Op("other", 1.0, (), (("x", 1),))],
            [],
            DuplicateNameError,
            ["'x'", "'source'", "'other'"],
        ),
        ([Op("both", 1.0, (), (("x", 1), ("x", 2)))], [], DuplicateNameError, ["'x'", "'both'"]),
        ([SOURCE], ["nowhere"], UnknownTensorError, ["'nowhere'"]),
        ([Op("loop", 1.0, ("x",), (("x", 1),))], [], CycleError, ["'loop'"]),
        (
            [Op("a", 1.0, ("y",), (("x", 1),)), Op("b", 1.0, ("x",), (("y", 1),))],
            [],
            CycleError,
            ["a -> b -> a"],
        ),
        ([READER, SOURCE], [], OrderError, ["'reader'", "'x'"]),
        (named(time=-1.0), [], InvalidValueError, ["bad_op", "time", "-1.0"]),
        (named(time=math.nan), [], InvalidValueError, ["bad_op", "time", "nan"]),
        (named(time=math.inf), [], InvalidValueError, ["bad_op", "time", "inf"]),
        (named(time=10**400), [], InvalidValueError, ["bad_op", "time", "finite"]),
        (named(time="1"), [], InvalidValueError, ["bad_op", "time", "'1'"]),
        (named(time=True), [], InvalidValueError, ["bad_op", "time", "True"]),
        (named(workspace=-1), [], InvalidValueError, ["bad_op", "workspace", "-1"]),
        (named(workspace=0.5), [], InvalidValueError, ["bad_op", "workspace", "0.5"]),
        (named(workspace=None), [], InvalidValueError, ["bad_op", "workspace", "None"]),
        (named(outputs=(("big", 2**63),)), [], InvalidValueError, ["bad_op", "'big'", "2^63"]),
        (named(outputs=(("neg", -5),)), [], InvalidValueError, ["bad_op", "'neg'", "-5"]),
        (named(outputs=(("nan", math.nan),)), [], InvalidValueError, ["bad_op", "'nan'"]),
        (named(outputs=(("inf", math.inf),)), [], InvalidValueError, ["bad_op", "'inf'"]),
        (named(outputs=(("big", 2**62),)), [], InvalidValueError, ["2^62"]),
        (named(phase="sideways"), [], InvalidValueError, ["bad_op", "phase", "'sideways'"]),
        (named(once=1), [], InvalidValueError, ["bad_op", "once", "1"]),
        (named(name=""), [], InvalidValueError, ["op 1"]),
        (named(name=7), [], InvalidValueError, ["op 1"]),
        ([Op("huge", 1e308), Op("huger", 1e308)], [], InvalidValueError, ["times", "infinity"]),
    ],
)
def test_a_bad_graph_gets_its_error_class_and_the_names(
    ops: list[Op], outputs: list[str], error: type[HremateError], names: list[str]
) -> None:
    with pytest.raises(GraphError) as caught:
        Graph.from_ops(ops, outputs)
    assert type(caught.value) is error
    assert all(name in str(caught.value) for name in names), str(caught.value)


def test_a_long_cycle_is_a_cycle_and_a_long_disorder_is_none() -> None:
    n = 5000
    ops = [Op(f"op{i}", 1.0, (f"t{i + 1}",), ((f"t{i}", 1),)) for i in range(n)]
    with pytest.raises(OrderError, match="'op0'"):
        Graph.from_ops(ops)
    ops[-1] = Op("last", 1.0, ("t0",), ((f"t{n - 1}", 1),))
    with pytest.raises(CycleError, match="last"):
        Graph.from_ops(ops)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"memory_model": "share"}, "'share'"), ({"resident": -1}, "resident"), ({"resident": 1.5}, "resident")],
)
def test_bad_graph_fields_are_named(options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidValueError, match=match):
        Graph.from_ops([SOURCE], **options)
    if "memory_model" in options:
        with pytest.raises(InvalidValueError, match=match):
            Graph.from_ops([SOURCE]).with_memory_model(options["memory_model"])


def test_integral_floats_and_numpy_numbers_are_sizes() -> None:
    op = Op("a", np.float32(1.5), (), (("x", 8.0), ("y", np.int32(4))), np.int64(2))  # type: ignore[arg-type]
    assert Graph.from_ops([op]).op(0) == Op("a", 1.5, (), (("x", 8), ("y", 4)), 2)


def test_ops_without_outputs_and_without_time_are_allowed() -> None:
    graph = Graph.from_ops([Op("nothing", 0)])
    assert (graph.n_ops, graph.n_tensors, graph.total_time) == (1, 0, 0.0)
    validate(graph, [0])


# -- what the arrays hold -------------------------------------------------------------------------


@given(graphs())
@settings(max_examples=200, deadline=None)
def test_the_arrays_say_what_the_ops_said(graph: Graph) -> None:
    made = {x: i for i in range(graph.n_ops) for x, _ in graph.op(i).outputs}
    assert [graph.tensor_names[x] for x in range(graph.n_tensors)] == list(made)
    for x, name in enumerate(graph.tensor_names):
        assert graph.producer[x] == made[name] and x in graph.outputs_of(made[name])
        users = [i for i in range(graph.n_ops) if name in graph.op(i).inputs]
        assert graph.users_of(x).tolist() == users
        assert graph.is_output[x] == (x in graph.outputs.tolist())
    ptr, idx = graph.predecessors
    succ_ptr, succ_idx = graph.successors
    for i in range(graph.n_ops):
        op = graph.op(i)
        inputs = graph.inputs_of(i).tolist()
        assert inputs == sorted({graph.tensor_names.index(x) for x in op.inputs if x in made})
        assert graph.resident_inputs[i] == tuple(x for x in op.inputs if x not in made)
        assert graph.out_bytes[i] == sum(size for _, size in op.outputs)
        assert idx[ptr[i] : ptr[i + 1]].tolist() == sorted({made[x] for x in op.inputs if x in made})
        readers = {j for j in range(graph.n_ops) for x in graph.op(j).inputs if made.get(x) == i}
        assert succ_idx[succ_ptr[i] : succ_ptr[i + 1]].tolist() == sorted(readers)
    assert graph.total_time == math.fsum(graph.op(i).time for i in range(graph.n_ops))


@given(graphs())
@settings(max_examples=100, deadline=None)
def test_building_a_graph_from_its_own_ops_changes_nothing(graph: Graph) -> None:
    again = rebuilt(graph)
    assert again.sha256 == graph.sha256
    for name, array in arrays_of(graph).items():
        assert np.array_equal(array, arrays_of(again)[name]), name


def test_arrays_are_frozen_and_typed() -> None:
    graph = Graph.from_ops([SOURCE, READER], ["y"])
    arrays = arrays_of(graph)
    assert len(arrays) == 12
    derived = [graph.out_bytes, graph.is_output, *graph.predecessors, *graph.successors]
    for array in [*arrays.values(), *derived]:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    types = {"time": np.float64, "phase": np.int8, "once": np.bool_}
    assert all(array.dtype == types.get(name, np.int64) for name, array in arrays.items())
    with pytest.raises(AttributeError):
        graph.name = "other"  # type: ignore[misc]


def test_repeated_inputs_count_once_and_keep_resident_ones_apart() -> None:
    graph = Graph.from_ops([SOURCE, Op("b", 1.0, ("w", "x", "w", "x", "v"))])
    assert graph.inputs_of(1).tolist() == [0] and graph.resident_inputs[1] == ("w", "v")


def test_a_resident_tensor_may_be_a_graph_output() -> None:
    graph = Graph.from_ops([SOURCE, READER], ["weight", "z"])
    assert graph.outputs.tolist() == [2] and graph.resident_outputs == ("weight",)
    assert graph.to_dict()["outputs"] == ["z", "weight"]


# -- hash -----------------------------------------------------------------------------------------

HASHED = """
from hremate import Graph, Op
a = Op("a", 1.5, ("w", "v"), (("x", 8), ("y", 4)), 3, "forward", "aten.mm", "h.0", True)
b = Op("b", 2, ("y", "x", "w"), (("z", 1),))
g = Graph.from_ops([a, b], ["z", "x", "w"], name="g", resident=5, metadata={"k": {"b": 1, "a": [2]}})
print(g.sha256)
"""


def test_the_hash_is_stable_over_processes_and_releases() -> None:
    root = str(Path(__file__).resolve().parent.parent)
    answers = {
        subprocess.run(
            [sys.executable, "-c", HASHED],
            env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "77")
    }
    assert answers == {"97918adb16d2b6b99a23da85334f94a9e02b7652f36009461914ebf1858ac4a2"}


@pytest.mark.parametrize(
    "change",
    [
        {"name": "b"},
        {"time": 1.0000001},
        {"outputs": (("x", 9),)},
        {"outputs": (("t", 8),)},
        {"workspace": 1},
        {"phase": "loss"},
        {"type": "mm"},
        {"scope": "h"},
        {"once": True},
        {"inputs": ("w",)},
    ],
)
def test_every_field_of_an_op_changes_the_hash(change: dict[str, Any]) -> None:
    op = Op("a", 1.0, (), (("x", 8),))
    assert Graph.from_ops([op]).sha256 != Graph.from_ops([replace(op, **change)]).sha256


def test_every_field_of_a_graph_changes_the_hash() -> None:
    variants = [
        Graph.from_ops([SOURCE]),
        Graph.from_ops([SOURCE], ["x"]),
        Graph.from_ops([SOURCE], name="other"),
        Graph.from_ops([SOURCE], resident=1),
        Graph.from_ops([SOURCE], units=("s", "bytes")),
        Graph.from_ops([SOURCE], metadata={"a": 1}),
        Graph.from_ops([SOURCE]).with_memory_model("reuse"),
    ]
    assert len({graph.sha256 for graph in variants}) == len(variants)


# -- new graphs from old --------------------------------------------------------------------------


@given(graphs())
@settings(max_examples=150, deadline=None)
def test_prune_keeps_exactly_the_ops_that_lead_to_an_output(graph: Graph) -> None:
    pruned = graph.prune()
    names = {graph.tensor_names[x] for x in graph.outputs}
    kept: list[str] = []
    wanted = set(names)
    for op in reversed([graph.op(i) for i in range(graph.n_ops)]):
        if not names or wanted & {x for x, _ in op.outputs}:
            kept.append(op.name)
            wanted |= set(op.inputs)
    assert list(pruned.op_names) == kept[::-1]
    assert {pruned.tensor_names[x] for x in pruned.outputs} == names
    assert pruned.prune() is pruned
    assert [pruned.op(i) for i in range(pruned.n_ops)] == [
        graph.op(i) for i in range(graph.n_ops) if graph.op_names[i] in kept
    ]


@given(graphs(), st.data())
@settings(max_examples=150, deadline=None)
def test_a_subgraph_has_its_ops_resident_borders_and_what_leaves_it(
    graph: Graph, data: st.DataObject
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(range(graph.n_ops)), min_size=1, unique=True))
    part = graph.subgraph(chosen, name="part")
    inside = sorted(chosen)
    assert part.name == "part" and part.memory_model == graph.memory_model
    made = {x for i in inside for x, _ in graph.op(i).outputs}
    leaving = {
        graph.tensor_names[x]
        for x in range(graph.n_tensors)
        if graph.tensor_names[x] in made
        and (graph.is_output[x] or any(int(j) not in chosen for j in graph.users_of(x)))
    }
    assert {part.tensor_names[x] for x in part.outputs} == leaving
    for k, i in enumerate(inside):
        ours, theirs = part.op(k), graph.op(i)
        assert set(ours.inputs) == set(theirs.inputs)
        assert set(part.resident_inputs[k]) == set(theirs.inputs) - made
        assert (ours.name, ours.time, ours.outputs, ours.workspace) == (
            theirs.name, theirs.time, theirs.outputs, theirs.workspace
        )  # fmt: skip
    assert graph.subgraph(range(graph.n_ops)).sha256 == rebuilt(graph).sha256


@pytest.mark.parametrize("ops", [[2], [-1], [0, 0]])
def test_a_subgraph_of_ops_that_are_not_there_is_refused(ops: list[int]) -> None:
    with pytest.raises(InvalidValueError):
        Graph.from_ops([SOURCE, READER]).subgraph(ops)


def test_a_subgraph_of_nothing_is_refused() -> None:
    with pytest.raises(EmptyGraphError):
        Graph.from_ops([SOURCE]).subgraph([])


# -- networkx -------------------------------------------------------------------------------------


@given(graphs(single=True))
@settings(max_examples=100, deadline=None)
def test_a_graph_of_single_output_ops_survives_networkx(graph: Graph) -> None:
    again = Graph.from_networkx(graph.to_networkx())
    assert again.sha256 == graph.sha256
    for name, array in arrays_of(graph).items():
        assert np.array_equal(array, arrays_of(again)[name]), name


def test_networkx_nodes_hold_all_outputs_and_edges_the_tensors_read() -> None:
    graph = Graph.from_ops([SOURCE, READER, Op("end", 1.0, ("z", "y", "x"))], ["z", "y"])
    g = graph.to_networkx()
    assert g.nodes["reader"]["memory"] == 6 and g.nodes["end"]["memory"] == 0
    assert g.edges["reader", "end"]["tensors"] == ["y", "z"]
    assert g.graph["outputs"] == ["reader"]


def test_the_order_of_insertion_decides_where_edges_leave_a_choice() -> None:
    g = nx.DiGraph([("late", "end")])
    g.add_edge("first", "late")
    g.add_node("free")
    nx.set_node_attributes(g, 1, "time")
    nx.set_node_attributes(g, 2, "memory")
    assert Graph.from_networkx(g, ["end"]).op_names == ("first", "late", "end", "free")


def bad_digraph(kind: str) -> nx.DiGraph:
    g = nx.DiGraph([("a", "b"), ("b", "c")])
    nx.set_node_attributes(g, 1.0, "time")
    nx.set_node_attributes(g, 2, "memory")
    if kind == "cycle":
        g.add_edge("c", "a")
    elif kind == "loop":
        g.add_edge("b", "b")
    elif kind in ("time", "memory"):
        del g.nodes["b"][kind]
    elif kind == "negative":
        g.nodes["b"]["memory"] = -2
    elif kind == "undirected":
        return g.to_undirected()
    elif kind == "parallel":
        return nx.MultiDiGraph(g)
    elif kind == "empty":
        return nx.DiGraph()
    return g


@pytest.mark.parametrize(
    ("kind", "error", "match"),
    [
        ("cycle", CycleError, "a -> b -> c -> a"),
        ("loop", CycleError, "b -> b"),
        ("time", InvalidValueError, "'b'.*'time'"),
        ("memory", InvalidValueError, "'b'.*'memory'"),
        ("negative", InvalidValueError, "'b'"),
        ("undirected", GraphError, "DiGraph"),
        ("parallel", GraphError, "DiGraph"),
        ("empty", EmptyGraphError, "no ops"),
    ],
)
def test_a_bad_networkx_graph_is_refused_by_name(kind: str, error: type[GraphError], match: str) -> None:
    with pytest.raises(error, match=match):
        Graph.from_networkx(bad_digraph(kind))


def test_an_output_that_is_no_node_is_unknown() -> None:
    with pytest.raises(UnknownTensorError, match="'d'"):
        Graph.from_networkx(bad_digraph("fine"), ["d"])
