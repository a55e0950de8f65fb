"""From a model and a sample to a graph: the traced step with sizes and times on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from hremate._devices import Device, get_device
from hremate.graph import Graph, Op
from hremate.torch._program import Program
from hremate.torch._scopes import SCOPE
from hremate.torch._step import Captured, CaptureError, Loss, trace_step
from hremate.torch.costs import Cost, Profile, Roofline


@dataclass(frozen=True, eq=False, repr=False)
class CapturedGraph(Graph):
    """A `Graph` that remembers the program it was captured from, for `hremate.torch.apply`.

    Copies, files and pickles hold the plain graph.
    """

    captured: Captured | None = field(default=None)

    def __reduce__(self) -> Any:
        plain = {name: getattr(self, name) for name in Graph.__dataclass_fields__}
        return (_plain_graph, (plain,))


def _plain_graph(fields: dict[str, Any]) -> Graph:
    return Graph(**fields)


def capture(
    model: torch.nn.Module,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    *,
    device: str | Device | None = None,
    profile: bool | int = False,
    name: str | None = None,
) -> CapturedGraph:
    """The graph of one training step of `model`: forward, loss and backward, or forward alone.

    Nothing is computed and no memory is taken: the model is traced with fake tensors. It may live on the
    device `meta`; it is then traced as if on the CPU.

    Parameters
    ----------
    model : torch.nn.Module
        In the mode (`train`, `eval`) that the step runs in.
    args, kwargs
        A sample of its arguments: tensors (on any device, `meta` included) and other values, nested in
        tuples, lists and dicts. A single tensor stands for a tuple of one.
    loss : callable, optional
        Makes the scalar loss of the output of the model. Without it, the loss is the entry `loss` of a
        mapping, or the output itself where it is one scalar; otherwise every output that requires a
        gradient is given one by the caller. Where nothing requires a gradient, the forward part alone is
        captured.
    device : str or Device, optional
        Whose roofline the times follow: a name of `hremate.torch.DEVICES` or your own `Device`. Default:
        "cpu", or "a100" for a model on another device.
    profile : bool or int
        Measure the times on the device of the model instead, each the median of 5 runs (or of that many).
    name : str, optional
        Of the graph. Default: the class of the model.

    Returns
    -------
    CapturedGraph
        Times in microseconds. Weights, buffers, inputs and incoming gradients are resident; `resident` also
        counts the gradients of the weights, whose tensors have 0 bytes in the graph.

    Raises
    ------
    CaptureError
        The model branches on the values of tensors, modifies a weight, or cannot be traced for another
        reason. The message names the line.
    """
    spec = None if device is None else get_device(device)
    captured = trace_step(model, args, {} if kwargs is None else kwargs, loss)
    spec = spec or _default_device(model)
    cost: Cost = Profile(spec, 5 if profile is True else int(profile)) if profile else Roofline(spec)
    with torch.random.fork_rng(enabled=bool(profile)):  # ops are measured with random inputs
        return _graph(captured, cost, name or type(model).__name__, _source(spec, bool(profile)))


def _graph(captured: Captured, cost: Cost, name: str, source: str) -> CapturedGraph:
    program = captured.program
    if not program.ops:
        raise CaptureError("the model computes nothing: no op makes any tensor that it returns")
    leaf_names = _leaf_names(captured)
    sizes, resident = _accounted(captured)
    tensor_names = []
    for i, k in program.tensors:
        op = program.ops[i]
        tensor_names.append(op.node.name if len(op.made) == 1 else f"{op.node.name}.{k}")
    reads = [[tensor_names[x - program.n_leaves] for x in op.reads] for op in program.ops]
    tokens: list[str | None] = [None] * len(program.ops)
    for a, b in _unordered_draws(program):
        tokens[a] = f"{program.ops[a].node.name}.drawn"
        reads[b].append(f"{program.ops[a].node.name}.drawn")
    start = min(captured.tangents, default=len(program.ops))
    needed = _left_behind(captured)
    for i in captured.tangents:
        reads[i] = list(dict.fromkeys([*reads[i], *(tensor_names[x - program.n_leaves] for x in needed)]))
    loss = -1
    if captured.has_loss and program.ops[start].reads:
        loss = program.tensors[program.ops[start].reads[0] - program.n_leaves][0]
    first = 0
    ops = []
    for i, op in enumerate(program.ops):
        made = len(op.made)
        made_here = list(zip(tensor_names[first : first + made], sizes[first : first + made], strict=True))
        token = tokens[i]
        if token is not None:
            made_here.append((token, 0))
        first += made
        ops.append(
            Op(
                name=op.node.name,
                time=0.0 if i in captured.tangents and not captured.has_loss else cost(op.node),
                inputs=(*reads[i], *(leaf_names[x] for x in op.leaves)),
                outputs=tuple(made_here),
                phase="loss" if i == loss else "forward" if i < start else "backward",
                type=str(op.node.target),
                scope=op.node.meta.get(SCOPE, ""),
                once=op.once or i in captured.tangents,
            )
        )
    kept = [x for r in (*captured.outputs, *(r for _, r in captured.gradients)) for x in r.reads]
    # Autograd holds the incoming gradient while the backward part runs.
    kept += [program.ops[i].made[0][1] for i in captured.tangents]
    graph = Graph.from_ops(
        ops,
        [tensor_names[x - program.n_leaves] for x in dict.fromkeys(kept)],
        name=name,
        resident=resident,
        metadata={"source": source},
    )
    fields = {key: getattr(graph, key) for key in Graph.__dataclass_fields__}
    return CapturedGraph(**fields, captured=captured)


def _accounted(captured: Captured) -> tuple[list[int], int]:
    """Bytes of each tensor in the graph, and of what is resident."""
    program = captured.program
    sizes = list(program.sizes)
    n_parameters = len(captured.signature.parameters)
    leaves = captured.signature.leaves
    resident = sum(leaf.nbytes for leaf in leaves)
    resident += sum(t.untyped_storage().nbytes() for t in program.constants)
    given = {x for r in captured.outputs for x in r.reads}
    start = min(captured.tangents, default=len(program.ops))
    for i, gradient in captured.gradients:
        if i >= n_parameters:
            continue
        resident += leaves[i].nbytes
        for x in gradient.reads:
            made_by = program.tensors[x - program.n_leaves][0]
            if x not in given and made_by >= start and sizes[x - program.n_leaves] <= leaves[i].nbytes:
                sizes[x - program.n_leaves] = 0
    if not captured.has_loss:  # the caller brings the gradients of the outputs
        for i in captured.tangents:
            x = program.ops[i].made[0][1] - program.n_leaves
            resident += sizes[x]
            sizes[x] = 0
    return sizes, resident


def _left_behind(captured: Captured) -> list[int]:
    """Slots that the forward part makes for the caller and that no incoming gradient depends on by itself."""
    program = captured.program
    if not captured.tangents:
        return []
    made = [x for r in captured.outputs for x in r.reads]
    made += [x for _, r in captured.updates for x in r.reads]
    before = set()
    todo = [min(captured.tangents)] if len(captured.tangents) == 1 else []
    while todo:
        for x in program.ops[todo.pop()].reads:
            i = program.tensors[x - program.n_leaves][0]
            if i not in before:
                before.add(i)
                todo.append(i)
    return [x for x in dict.fromkeys(made) if program.tensors[x - program.n_leaves][0] not in before]


def _unordered_draws(program: Program) -> list[tuple[int, int]]:
    """Pairs of random ops that follow each other in the trace without depending on each other.

    They draw from one generator, so their first runs must keep their order.
    """
    above = [0] * len(program.ops)  # for each op the set of random ops before it, as bits
    pairs = []
    last = -1
    seen = 0
    for i, op in enumerate(program.ops):
        for x in op.reads:
            above[i] |= above[program.tensors[x - program.n_leaves][0]]
        if op.random:
            if last >= 0 and not above[i] >> (seen - 1) & 1:
                pairs.append((last, i))
                above[i] |= above[last]
            above[i] |= 1 << seen
            seen += 1
            last = i
    return pairs


def _leaf_names(captured: Captured) -> list[str]:
    signature = captured.signature
    names = [*signature.parameters, *signature.buffers]
    n_inputs = captured.program.n_placeholders - len(names)
    names += [f"input.{k}" for k in range(n_inputs)]
    return names + [f"constant.{k}" for k in range(len(captured.program.constants))]


def _default_device(model: torch.nn.Module) -> Device:
    parameter = next(iter(model.parameters()), None)
    kind = "cpu" if parameter is None else parameter.device.type
    return get_device("cpu" if kind in ("cpu", "meta") else "a100")


def _source(device: Device, profile: bool) -> str:
    times = "times measured" if profile else f"times from a roofline of {device.name}"
    return f"captured from PyTorch {torch.__version__}; {times}"
