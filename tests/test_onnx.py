"""Claims about graphs captured from ONNX models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

onnx = pytest.importorskip("onnx", reason="the extra onnx is not installed: nothing of ONNX is tested")

import numpy as np  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.onnx as ho  # noqa: E402
from hremate._devices import Device  # noqa: E402


def weight(name: str, *dims: int) -> Any:
    return numpy_helper.from_array(np.zeros(dims, np.float32), name)


def model(nodes: list[Any], inputs: dict[str, list[Any]], outputs: list[str], weights: list[Any]) -> Any:
    graph = helper.make_graph(
        nodes, "tiny",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, dims) for x, dims in inputs.items()],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in outputs],
        weights,
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("my.ops", 1)]
    )


def convolutional(batch: Any = 2) -> Any:
    return model(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], name="/body/conv/Conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"]),
            helper.make_node("Flatten", ["r"], ["f"]),
            helper.make_node("Gemm", ["f", "v"], ["y"]),
        ],
        {"x": [batch, 3, 8, 8]}, ["y"], [weight("w", 4, 3, 3, 3), weight("v", 256, 10)],
    )  # fmt: skip


def test_sizes_come_from_shape_inference_and_views_cost_nothing() -> None:
    graph = ho.capture(convolutional())
    assert graph.op_types == ("Conv", "Relu", "Gemm")
    assert [graph.op(i).outputs[0][1] for i in range(3)] == [2048, 2048, 80]
    assert graph.op(2).inputs == ("r", "v")
    assert graph.resident == 4 * (4 * 27 + 2560 + 2 * 3 * 64)
    assert [graph.tensor_names[x] for x in graph.outputs] == ["y"]
    assert hr.base_peak(graph) == 4096
    assert graph.op_scopes[0] == "body/conv"


def test_times_follow_the_flops_of_convolutions_and_products() -> None:
    slow = Device("slow", {"float32": 1e9}, bandwidth=1e12, launch=5.0)
    graph = ho.capture(convolutional(4), device=slow)
    assert graph.time[0] == pytest.approx(5 + 1e6 * 2 * 4 * 4 * 64 * 27 / 1e9, abs=0.01)
    assert graph.time[2] == pytest.approx(5 + 1e6 * 2 * 4 * 256 * 10 / 1e9, abs=0.01)


def test_symbolic_dimensions_are_given_by_name() -> None:
    graph = ho.capture(convolutional("batch"), dimensions={"batch": 2})
    assert graph.sha256 == ho.capture(convolutional()).sha256
    with pytest.raises(hr.GraphError, match=r"dimension 'batch' of tensor 'x'.*dimensions=\{'batch': size\}"):
        ho.capture(convolutional("batch"))


def test_an_op_with_subgraphs_reads_what_they_read() -> None:
    branch = helper.make_graph(
        [helper.make_node("Add", ["a", "a"], ["t"])], "branch", [],
        [helper.make_tensor_value_info("t", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    condition = helper.make_node("Cast", ["x"], ["b"], to=TensorProto.BOOL)
    first = helper.make_node("Squeeze", ["b"], ["c"])
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    nodes = [helper.make_node("Abs", ["z"], ["a"]), condition, first, choice]
    graph = ho.capture(model(nodes, {"x": [1], "z": [4]}, ["y"], []))
    assert set(graph.op(2).inputs) == {"b", "a"}


def test_random_ops_without_a_seed_run_once() -> None:
    nodes = [
        helper.make_node("RandomNormal", [], ["a"], shape=[4]),
        helper.make_node("RandomNormal", [], ["b"], shape=[4], seed=1.0),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    assert ho.capture(model(nodes, {}, ["y"], [])).once.tolist() == [True, False, False]


def test_a_model_is_read_from_a_file_and_bad_files_are_refused(tmp_path: Path) -> None:
    onnx.save(convolutional(), str(tmp_path / "model.onnx"))
    assert ho.capture(tmp_path / "model.onnx").sha256 == ho.capture(convolutional()).sha256
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    with pytest.raises(hr.FormatError, match=r"bad\.onnx"):
        ho.capture(tmp_path / "bad.onnx")
    with pytest.raises(hr.FormatError, match="cannot be read"):
        ho.capture(tmp_path / "missing.onnx")


def test_unknown_shapes_name_the_tensor_and_its_op() -> None:
    custom = helper.make_node("Mystery", ["x"], ["m"], name="what", domain="my.ops")
    node = helper.make_node("Relu", ["m"], ["y"])
    with pytest.raises(hr.GraphError, match=r"tensor 'm' of op 'what#0'"):
        ho.capture(model([custom, node], {"x": [2]}, ["y"], []))
    with pytest.raises(hr.GraphError, match="no nodes"):
        ho.capture(model([], {"x": [2]}, ["x"], []))
