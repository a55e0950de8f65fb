"""Claims about the synthetic graphs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hremate import Graph, InvalidValueError, validate
from hremate._random_dags import _band
from hremate.generate import KINDS, generate, options_of
from hremate.graph import BACKWARD, FORWARD, LOSS
from hremate.simulate import simulate

MODELS = [kind for kind in KINDS if kind not in ("layered", "series-parallel")]
RANDOM = ["layered", "series-parallel"]
#: Ops of one layer (block, time step), forward and backward.
UNIT = {"chain": 6, "transformer": 48, "encdec": 131, "unet": 38, "resnet": 24, "rnn": 32, "ssm": 84}


def test_every_kind_has_a_line_about_it() -> None:
    assert all(KINDS.values()) and len(KINDS) == 9


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("ops", [200, 1000, 6000])
def test_models_come_within_two_percent_or_one_unit(kind: str, ops: int) -> None:
    assert abs(generate(kind, ops).n_ops - ops) <= max(0.02 * ops, UNIT[kind])


@pytest.mark.parametrize("kind", RANDOM)
@pytest.mark.parametrize("ops", [1, 2, 3, 4, 5, 17, 1000])
def test_random_dags_have_exactly_the_ops_asked_for(kind: str, ops: int) -> None:
    assert generate(kind, ops, seed=ops).n_ops == ops


@pytest.mark.parametrize("kind", MODELS)
def test_the_smallest_model_is_a_whole_training_graph(kind: str) -> None:
    graph = generate(kind, 1)
    assert set(graph.phase.tolist()) == {FORWARD, LOSS, BACKWARD}
    validate(graph, range(graph.n_ops))


@pytest.mark.parametrize("kind", KINDS)
def test_equal_arguments_give_equal_graphs_and_seeds_matter(kind: str) -> None:
    graph = generate(kind, 300, seed=1)
    assert graph.sha256 == generate(kind, 300, seed=1).sha256
    assert len({generate(kind, 300, seed=s).sha256 for s in range(4)}) > 1


def test_graphs_do_not_depend_on_the_hash_seed() -> None:
    code = "from hremate.generate import *\nfor k in KINDS: print(generate(k, 150, seed=2).sha256)"
    root = str(Path(__file__).resolve().parent.parent)
    answers = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert answers[0] == answers[1] and len(answers[0].split()) == len(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_arrays_are_those_that_from_ops_builds(kind: str) -> None:
    graph = generate(kind, 400, seed=5)
    again = Graph.from_ops(
        [graph.op(i) for i in range(graph.n_ops)],
        [graph.tensor_names[x] for x in graph.outputs],
        name=graph.name,
        resident=graph.resident,
        metadata=graph.metadata,
    )
    assert again.sha256 == graph.sha256
    for field in ("time", "workspace", "phase", "once", "size", "producer", "out_ptr", "in_ptr", "in_idx",
                  "use_ptr", "use_idx", "outputs"):  # fmt: skip
        ours, theirs = getattr(graph, field), getattr(again, field)
        assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype and not ours.flags.writeable, field


@pytest.mark.parametrize("kind", KINDS)
def test_the_given_order_is_valid_and_every_op_leads_to_an_output(kind: str) -> None:
    graph = generate(kind, 500, seed=3)
    assert validate(graph, range(graph.n_ops)).recomputes == 0
    assert graph.prune() is graph


@pytest.mark.parametrize("kind", MODELS)
def test_forward_then_one_loss_op_then_backward_with_scopes(kind: str) -> None:
    graph = generate(kind, 500)
    loss = np.flatnonzero(graph.phase == LOSS)
    assert len(loss) == 1
    assert (graph.phase[: loss[0]] == FORWARD).all() and (graph.phase[loss[0] + 1 :] == BACKWARD).all()
    scopes = {graph.op_scopes[i] for i in range(graph.n_ops) if graph.phase[i] != BACKWARD}
    assert len(scopes) > 3 and "" not in scopes
    assert {graph.op_scopes[i] for i in range(graph.n_ops) if graph.phase[i] == BACKWARD} <= scopes


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_memory_grows_to_a_peak_near_the_loss(kind: str, seed: int) -> None:
    graph = generate(kind, 2000, seed=seed)
    loss = int(np.flatnonzero(graph.phase == LOSS)[0])
    run = simulate(graph, range(graph.n_ops))
    assert abs(run.peak_step - loss) <= 0.05 * graph.n_ops
    quarters = [int(run.memory[loss * q // 4]) for q in range(1, 5)]
    assert quarters == sorted(quarters) and quarters[0] < 0.6 * run.peak


@pytest.mark.parametrize("kind", MODELS)
def test_each_parameter_has_one_gradient_of_no_bytes_among_the_outputs(kind: str) -> None:
    graph = generate(kind, 700)
    pattern = re.compile(r"(weight|bias|weight_ih|weight_hh|a_log)$")
    parameters = {x for names in graph.resident_inputs for x in names if pattern.search(x)}
    sizes = graph.size[graph.outputs]
    assert sorted(sizes.tolist())[-1] == 4  # the loss
    assert (sizes == 0).sum() == len(parameters) == len(graph.outputs) - 1
    assert (graph.phase[graph.producer[graph.outputs]] != FORWARD).all()


def test_costs_and_reads_of_a_chain_are_those_of_the_captured_perceptron() -> None:
    graph = generate("chain", 14, width=2048, batch=4096)
    ops = [graph.op(i) for i in range(graph.n_ops)]
    forward = [(op.type, op.time) for op in ops if op.phase == "forward"]
    assert forward == [("aten.addmm.default", 385.77), ("aten.relu.default", 51.93)] * 2
    weight_2, weight_1 = "layers.1.linear.weight", "layers.0.linear.weight"
    backward = [(op.type.split(".")[1], op.time, op.inputs) for op in ops if op.phase == "backward"][2:]
    assert backward == [
        ("threshold_backward", 75.9, ("t3", "t6")),
        ("mm", 385.77, ("t7", weight_2)),
        ("mm", 385.77, ("t1", "t7")),
        ("sum", 27.97, ("t7",)),
        ("threshold_backward", 75.9, ("t1", "t8")),
        ("mm", 385.77, ("t11", "input")),
        ("sum", 27.97, ("t11",)),
    ]
    assert weight_1 not in {x for op in ops if op.phase == "backward" for x in op.inputs}


def test_backward_ops_read_what_their_derivative_needs() -> None:
    graph = generate("transformer", 200)
    read: dict[str, set[str]] = {}
    for i in np.flatnonzero(graph.phase == BACKWARD):
        for x in graph.inputs_of(int(i)):
            maker = int(graph.producer[x])
            if graph.phase[maker] == FORWARD:
                kind, source = (graph.op_types[j].split(".")[1] for j in (i, maker))
                read.setdefault(kind, set()).add(source)
    assert read["_softmax_backward_data"] == {"_softmax"}
    assert read["gelu_backward"] == {"addmm"}
    assert read["native_dropout_backward"] == {"native_dropout"}
    assert read["native_layer_norm_backward"] == {"native_layer_norm", "add", "native_dropout"}
    assert "add" not in read and "sum" not in read


def test_shared_weights_add_up_their_gradients_step_by_step() -> None:
    graph = generate("rnn", 500)
    steps = len({s for s in graph.op_scopes if s.startswith("lstm.0.")})
    partial = [
        i
        for i in range(graph.n_ops)
        if graph.phase[i] == BACKWARD
        and graph.op_types[i] == "aten.mm.default"
        and graph.op_scopes[i].startswith("lstm")
        and not any(x.endswith(("weight_ih", "weight_hh")) for x in graph.resident_inputs[i])
    ]
    assert len(partial) == 2 * steps
    assert all(graph.size[x] > 0 for i in partial for x in graph.outputs_of(i))


@pytest.mark.parametrize(
    ("kind", "type_", "outputs"),
    [
        ("transformer", "aten.native_layer_norm.default", 3),
        ("transformer", "aten.native_dropout.default", 2),
        ("resnet", "aten.max_pool2d_with_indices.default", 2),
        ("unet", "aten.native_group_norm.default", 3),
    ],
)
def test_ops_with_several_outputs_occur(kind: str, type_: str, outputs: int) -> None:
    graph = generate(kind, 300)
    made = [len(graph.outputs_of(i)) for i in range(graph.n_ops) if graph.op_types[i] == type_]
    assert made and set(made) == {outputs}


@pytest.mark.parametrize("kind", ["unet", "encdec"])
def test_long_skips_cross_the_model(kind: str) -> None:
    graph = generate(kind, 2000)
    forward = int((graph.phase == FORWARD).sum())
    reach = [
        max(int(i) for i in graph.users_of(x) if i < forward) - int(graph.producer[x])
        for x in range(int(graph.out_ptr[forward]))
        if any(i < forward for i in graph.users_of(x))
    ]
    assert max(reach) > forward * 0.4


def test_options_set_the_sizes() -> None:
    small, large = (generate("transformer", 300, batch=b, sequence=64, hidden=64) for b in (2, 4))
    assert small.op_names == large.op_names
    assert large.size.sum() == pytest.approx(2 * small.size.sum(), rel=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_is_taken(kind: str) -> None:
    options = dict.fromkeys(options_of(kind), 2)
    validate(generate(kind, 60, **options), range(generate(kind, 60, **options).n_ops))


@pytest.mark.parametrize(
    ("kind", "ops", "options", "named"),
    [
        ("tranformer", 10, {}, "tranformer"),
        ("chain", 0, {}, "ops"),
        ("chain", 10.0, {}, "ops"),
        ("chain", True, {}, "ops"),
        ("chain", 10, {"seed": -1}, "seed"),
        ("chain", 10, {"heads": 2}, "heads"),
        ("chain", 10, {"width": 0}, "width"),
        ("layered", 10, {"width": 3}, "width"),
        ("transformer", 100, {"hidden": 64, "heads": 7}, "7 heads"),
    ],
)
def test_bad_arguments_are_named(kind: str, ops: int, options: dict[str, int], named: str) -> None:
    with pytest.raises(InvalidValueError, match=named):
        generate(kind, ops, **options)


def test_numpy_integers_are_integers() -> None:
    ours = generate("chain", np.int64(50), seed=np.int32(1), width=np.int16(512))  # type: ignore[arg-type]
    assert ours.sha256 == generate("chain", 50, seed=1, width=512).sha256


# -- random DAGs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", RANDOM)
def test_random_dags_have_one_source_and_one_sink_and_the_published_values(kind: str) -> None:
    graph = generate(kind, 4000, seed=7)
    assert (np.diff(graph.in_ptr) == 0).sum() == 1 and (np.diff(graph.use_ptr) == 0).sum() == 1
    assert graph.outputs.tolist() == [3999]
    assert set(graph.time.tolist()) <= set(range(1, 1000))
    assert (graph.size % 10 == 0).all() and graph.size.min() >= 10 and graph.size.max() <= 8200
    assert graph.size.mean() == pytest.approx(2000, rel=0.05)
    assert np.median(graph.size) < 0.9 * graph.size.mean()


@pytest.mark.parametrize("above", range(1, 9))
@pytest.mark.parametrize("below", range(1, 9))
def test_bands_join_windows_spread_evenly_over_the_larger_layer(above: int, below: int) -> None:
    source, target = _band(above, below)
    pairs = list(zip(source.tolist(), target.tolist(), strict=True))
    many, few = max(above, below), min(above, below)
    assert len(set(pairs)) == len(pairs) == round(0.2 * many * few + 0.8 * many)
    assert {a for a, _ in pairs} == set(range(above)) and {b for _, b in pairs} == set(range(below))
    large = [[b if above >= below else a for a, b in pairs if (a if above >= below else b) == k]
             for k in range(many)]  # fmt: skip
    assert max(map(len, large)) - min(map(len, large)) <= 1
    for k, window in enumerate(large):
        assert window == list(range(window[0], window[0] + len(window)))
        centre = 0 if many == 1 else -(-k * (few - 1) // (many - 1))
        assert centre in window


def test_layered_graphs_have_the_published_share_of_skip_edges() -> None:
    graph = generate("layered", 3000, seed=11)
    depth = np.zeros(graph.n_ops, np.int64)
    ptr, idx = graph.predecessors
    for i in range(1, graph.n_ops):
        depth[i] = depth[idx[ptr[i] : ptr[i + 1]]].max() + 1
    reader = np.repeat(np.arange(graph.n_ops), np.diff(ptr))
    assert ((depth[reader] - depth[idx]) > 1).mean() == pytest.approx(0.14, abs=0.02)
    assert (np.bincount(depth)[[0, -1]] == 1).all()


@pytest.mark.parametrize("seed", range(5))
def test_series_parallel_graphs_reduce_to_one_edge(seed: int) -> None:
    graph = generate("series-parallel", 200, seed=seed)
    below = {i: {int(j) for j in graph.users_of(i)} for i in range(200)}
    above = {i: {int(j) for j in graph.inputs_of(i)} for i in range(200)}
    todo = list(range(1, 199))
    while todo:
        i = todo.pop()
        if i in below and len(below[i]) == len(above[i]) == 1 and i not in (0, 199):
            (a,), (b,) = above.pop(i), below.pop(i)
            below[a] = below[a] - {i} | {b}
            above[b] = above[b] - {i} | {a}
            todo += [a, b]
    assert below == {0: {199}, 199: set()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_quarter_of_a_million_ops(kind: str) -> None:
    graph = generate(kind, 250_000, seed=1)
    assert abs(graph.n_ops - 250_000) <= UNIT.get(kind, 0)
    assert simulate(graph, np.arange(graph.n_ops)).peak > 0
