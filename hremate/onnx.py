"""ONNX models as graphs, for planning: inference, in the order of the file.

Shapes come from ONNX's shape inference; times from a roofline. Weights, constants and model inputs are
resident; ops that only reinterpret a tensor (Reshape, Squeeze, ...) cost nothing and belong to its readers.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hremate._devices import Device, get_device
from hremate.errors import FormatError, GraphError, MissingExtraError
from hremate.graph import Graph, Op

if TYPE_CHECKING:
    import onnx

#: Ops whose output shares the memory of their first input.
VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
#: Ops that draw random numbers, which ONNX gives no way to repeat unless they have a seed.
RANDOM = frozenset({"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
                    "Multinomial"})  # fmt: skip


def capture(
    model: str | os.PathLike[str] | onnx.ModelProto,
    *,
    dimensions: Mapping[str, int] | None = None,
    device: str | Device = "a100",
    name: str | None = None,
) -> Graph:
    """The graph of an ONNX model.

    Parameters
    ----------
    model : path or onnx.ModelProto
    dimensions : mapping, optional
        Sizes of the symbolic dimensions of the model's inputs, such as {"batch": 8}.
    device : str or Device
        Whose roofline the times follow, see `hremate.torch.capture`.
    name : str, optional
        Of the graph. Default: the name in the model.

    Returns
    -------
    Graph
        Times in microseconds. An op with subgraphs (If, Loop) is one op that takes the time of its bytes.

    Raises
    ------
    MissingExtraError
        The package onnx is not installed.
    FormatError
        Not an ONNX model.
    GraphError
        The shape of a tensor is not known; the message names it and its op.
    """
    try:
        import onnx
        import onnx.shape_inference
    except ImportError as error:
        raise MissingExtraError("hremate.onnx needs the package onnx: pip install 'hremate[onnx]'") from error
    if isinstance(model, (str, os.PathLike)):
        model = _load(Path(model))
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    _fix_dimensions(fixed, dimensions or {})
    try:
        inferred = onnx.shape_inference.infer_shapes(fixed, data_prop=True)
    except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise GraphError(f"the shapes of the model contradict each other: {error}") from error
    return _Reader(inferred, get_device(device)).graph(name)


def _load(path: Path) -> onnx.ModelProto:
    import google.protobuf.message
    import onnx

    try:
        # Weights kept in files beside the model are not needed: their shapes are in the model.
        return onnx.load(str(path), load_external_data=False)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from error
    except google.protobuf.message.DecodeError as error:
        raise FormatError(f"{path}: not an ONNX model ({error})") from error


def _fix_dimensions(model: onnx.ModelProto, dimensions: Mapping[str, int]) -> None:
    """Put numbers in the place of symbolic dimensions."""
    graph = model.graph
    for value in [*graph.input, *graph.output, *graph.value_info]:
        for dimension in value.type.tensor_type.shape.dim:
            if dimension.dim_param in dimensions:
                size = int(dimensions[dimension.dim_param])
                dimension.ClearField("dim_param")
                dimension.dim_value = size


#: Element types of which a byte holds two.
_PACKED = ("INT4", "FLOAT4E2M1")


class _Reader:
    def __init__(self, model: onnx.ModelProto, device: Device) -> None:
        self._graph = model.graph
        self._device = device
        self._types = {v.name: v.type.tensor_type for v in
                       [*self._graph.input, *self._graph.output, *self._graph.value_info]}  # fmt: skip
        self._weights = {t.name: t for t in self._graph.initializer}
        #: The tensor that a view lies in.
        self._base: dict[str, str] = {}
        self._made_by = {x: self._label(i, n) for i, n in enumerate(self._graph.node) for x in n.output if x}
        self._constants: set[str] = set()

    def graph(self, name: str | None) -> Graph:
        import onnx

        if not self._graph.node:
            raise GraphError("the ONNX model has no nodes")
        resident = {x: self._bytes(x) for x in self._weights}
        resident.update((v.name, self._bytes(v.name)) for v in self._graph.input if v.name not in resident)
        ops = []
        for i, node in enumerate(self._graph.node):
            made = [x for x in node.output if x]
            if node.op_type == "Constant":
                self._constants.update(made)
                continue
            if node.op_type in VIEWS and node.input:
                self._base[made[0]] = self._owner(node.input[0])
                continue
            reads = [*node.input, *(x for a in node.attribute for x in _captured(a, onnx))]
            inputs = tuple(dict.fromkeys(self._owner(x) for x in reads if x and x not in self._constants))
            ops.append(
                Op(
                    name=self._label(i, node),
                    time=self._time(node),
                    inputs=inputs,
                    outputs=tuple((x, self._bytes(x)) for x in made),
                    phase="forward",
                    type=f"{node.domain + '.' if node.domain else ''}{node.op_type}",
                    scope="/".join(node.name.split("/")[1:-1]),
                    once=node.op_type in RANDOM and not any(a.name == "seed" for a in node.attribute),
                )
            )
        outputs = list(dict.fromkeys(self._owner(v.name) for v in self._graph.output))
        known = {x for op in ops for x in (*op.inputs, *(t for t, _ in op.outputs))}
        return Graph.from_ops(
            ops,
            [x for x in outputs if x in known],
            name=name or self._graph.name or "onnx",
            resident=sum(resident.values()),
            metadata={"source": f"captured from ONNX; times from a roofline of {self._device.name}"},
        )

    def _label(self, index: int, node: onnx.NodeProto) -> str:
        """A name that is unique: nodes of ONNX may have none, or share one."""
        return f"{node.name or node.op_type}#{index}"

    def _owner(self, tensor: str) -> str:
        return self._base.get(tensor, tensor)

    def _time(self, node: onnx.NodeProto) -> float:
        tensors = [x for x in (*node.input, *node.output) if x and x not in self._constants]
        if node.op_type in ("Gather", "Slice"):  # read no more than they write
            tensors = list(node.output) * 2
        moved = sum(self._bytes(x) for x in tensors)
        return round(self._device.time(self._flops(node), moved, self._dtype(node.output[0])), 2)

    def _flops(self, node: onnx.NodeProto) -> float:
        """Of the ops that are bound by computation; the others by their bytes."""
        if node.op_type in ("MatMul", "Gemm"):
            left = self._shape(node.input[0])
            transposed = any(a.name == "transA" and a.i for a in node.attribute)
            inner = left[-2] if transposed and len(left) > 1 else left[-1]
            return 2.0 * math.prod(self._shape(node.output[0])) * inner
        if node.op_type == "Conv":
            return 2.0 * math.prod(self._shape(node.output[0])) * math.prod(self._shape(node.input[1])[1:])
        if node.op_type == "ConvTranspose":
            return 2.0 * math.prod(self._shape(node.input[0])) * math.prod(self._shape(node.input[1])[1:])
        return 0.0

    def _shape(self, tensor: str) -> tuple[int, ...]:
        if tensor in self._weights:
            return tuple(self._weights[tensor].dims)
        kind = self._types.get(tensor)
        where = f"tensor {tensor!r}"
        if tensor in self._made_by:
            where += f" of op {self._made_by[tensor]!r}"
        if kind is None or not kind.HasField("shape"):
            raise GraphError(f"the shape of {where} is not known, and shape inference does not find it")
        for d in kind.shape.dim:
            if not d.HasField("dim_value"):
                raise GraphError(
                    f"dimension {d.dim_param or '?'!r} of {where} is not a number; "
                    f"pass dimensions={{{d.dim_param or '...'!r}: size}}"
                )
        return tuple(d.dim_value for d in kind.shape.dim)

    def _bytes(self, tensor: str) -> int:
        import onnx

        count = math.prod(self._shape(tensor))
        kind = self._element(tensor)
        if onnx.helper.tensor_dtype_to_string(kind).endswith(_PACKED):
            return (count + 1) // 2
        return count * int(onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize)

    def _element(self, tensor: str) -> int:
        weight = self._weights.get(tensor)
        return int(weight.data_type if weight is not None else self._types[tensor].elem_type)

    def _dtype(self, tensor: str) -> str:
        import onnx

        return str(onnx.helper.tensor_dtype_to_np_dtype(self._element(tensor)))


def _captured(attribute: Any, onnx: Any) -> list[str]:
    """Tensors that the subgraphs of an attribute read from outside."""
    graphs = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
    found = []
    for graph in graphs:
        own = {x.name for x in [*graph.input, *graph.initializer]}
        for node in graph.node:
            inner = [x for a in node.attribute for x in _captured(a, onnx)]
            found += [x for x in [*node.input, *inner] if x and x not in own]
            own.update(node.output)
    return list(dict.fromkeys(found))
