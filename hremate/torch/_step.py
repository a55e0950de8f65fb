"""One training step of a model as a traced program, and what its inputs and outputs mean."""

from __future__ import annotations

import logging
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils import _pytree as pytree

from hremate.errors import GraphError
from hremate.torch import _aot
from hremate.torch._attributes import Attributes
from hremate.torch._description import Description, autocast_state, describe
from hremate.torch._program import Program, Result, build
from hremate.torch._scopes import Scopes

_log = logging.getLogger("hremate")

Loss = Callable[..., torch.Tensor]


#: What to do about a forward part that is repeated in the backward part.
_CHECKPOINT = "if that is torch.utils.checkpoint, switch it off: a schedule takes its place"


class CaptureError(GraphError):
    """A model that cannot be traced as one static graph; the message names the line of the model."""


@dataclass(frozen=True)
class Signature:
    """What a call must look like for a captured program to serve it."""

    #: Names of the weights and buffers, in the order of the placeholders.
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    #: Structure of (args, kwargs), and of the output.
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    #: Leaves of (args, kwargs) and of the output; `Tensor` stands for a tensor.
    in_leaves: tuple[Any, ...]
    out_leaves: tuple[Any, ...]
    #: `describe` of weights, buffers and input tensors, in the order of the placeholders.
    leaves: tuple[Description, ...]
    #: (device type, dtype) of autocast where it was on.
    autocast: tuple[Any, ...]
    #: Training flag of each module.
    training: tuple[bool, ...]


@dataclass(frozen=True)
class Captured:
    """A traced training (or inference) step, ready to be scheduled and run."""

    program: Program
    signature: Signature
    #: Output tensors, in the order of the tensors among `Signature.out_leaves`.
    outputs: tuple[Result, ...]
    #: Indices into `outputs` of those that gradients come in for.
    differentiable: tuple[int, ...]
    #: Indices into `outputs` of those that require a gradient in eager mode and get none here.
    refused: tuple[int, ...]
    #: Op that makes the incoming gradient of each differentiable output.
    tangents: tuple[int, ...]
    #: (placeholder, its gradient) where there is one.
    gradients: tuple[tuple[int, Result], ...]
    #: (placeholder, its last value) of buffers and inputs that are modified.
    updates: tuple[tuple[int, Result], ...]

    @property
    def has_loss(self) -> bool:
        """Whether the one gradient that comes in is that of a scalar."""
        if len(self.differentiable) != 1:
            return False
        return bool(self.outputs[self.differentiable[0]].node.meta["val"].numel() == 1)


def trace_step(model: torch.nn.Module, args: Any, kwargs: Mapping[str, Any], loss: Loss | None) -> Captured:
    """Trace one step of `model`, see `capture`."""
    _check(model, kwargs, loss)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    leaves, in_spec = flatten_call(args, kwargs)
    inputs = [x for x in leaves if isinstance(x, torch.Tensor)]
    real = [*parameters.values(), *buffers.values(), *inputs]
    mode = _aot.fake_mode()
    fakes = [_fake(mode, t) for t in real]
    step = _Step(model, [*parameters, *buffers], len(parameters), leaves, in_spec, loss)
    attributes = Attributes(model)
    set_meanwhile: list[tuple[str, Any]] = []
    try:
        module = _traced(step, fakes, [t.is_leaf for t in real], mode)
        program = build(module.graph, module)
    except CaptureError:
        raise
    except Exception as error:  # whatever the code of the model or PyTorch raises
        raise CaptureError(_explain(error, step.scope)) from error
    finally:
        set_meanwhile += attributes.restore()
    _check_attributes(set_meanwhile, program)
    signature = Signature(
        parameters=tuple(parameters),
        buffers=tuple(buffers),
        in_spec=in_spec,
        out_spec=step.out_spec,
        in_leaves=tuple(torch.Tensor if isinstance(x, torch.Tensor) else x for x in leaves),
        out_leaves=tuple(step.out_leaves),
        leaves=tuple(map(describe, real)),
        autocast=autocast_state(),
        training=tuple(m.training for m in model.modules()),
    )
    names = [*parameters, *buffers, *(f"input {k}" for k in range(len(inputs)))]
    captured = _sorted_out(program, signature, step, names)
    shared = shared_update(captured, real)
    if shared is not None:
        raise CaptureError(f"the model modifies {names[shared]!r}, which shares memory with another tensor")
    return captured


def _check(model: Any, kwargs: Any, loss: Any) -> None:
    """Complain about arguments that cannot be right."""
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(f"expected a torch.nn.Module, not {type(model).__name__}; wrap functions in one")
    if loss is not None and not callable(loss):
        raise CaptureError(f"loss is a {type(loss).__name__}; expected a function of the output of the model")
    for name, module in model.named_modules():
        where = f"module {name!r}" if name else "the model"
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(f"{where} is a ScriptModule; capture the module that it was made of")
        kind = type(module).__name__
        if kind in ("DataParallel", "DistributedDataParallel"):
            raise CaptureError(f"{where} is a {kind}; capture the module inside and let it hold that")
        own = [*module._parameters.values(), *module._buffers.values()]
        if any(torch.nn.parameter.is_lazy(t) for t in own):
            raise CaptureError(f"{where} is lazy and has no shapes yet; call the model once before")
        if getattr(module, "sparse", False) is True and isinstance(
            module, (torch.nn.Embedding, torch.nn.EmbeddingBag)
        ):
            raise CaptureError(f"{where} has a sparse gradient; only dense tensors can be captured")


def _check_attributes(set_meanwhile: list[tuple[str, Any]], program: Program) -> None:
    read = {t.untyped_storage()._cdata for t in program.constants}
    for path, value in set_meanwhile:
        if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata in read:
            raise CaptureError(
                f"the model reads its attribute {path!r} and replaces it in forward; make it a buffer"
            )
        _log.warning("the model sets its attribute %r in forward; a schedule does not do that again", path)


def shared_update(captured: Captured, tensors: Sequence[torch.Tensor]) -> int | None:
    """A placeholder that the step modifies and that shares memory with another one."""
    if not captured.updates:
        return None
    count = Counter(t.untyped_storage()._cdata for t in tensors)
    modified = (i for i, _ in captured.updates if count[tensors[i].untyped_storage()._cdata] > 1)
    return next(modified, None)


def _traced(
    step: _Step, fakes: list[torch.Tensor], leaves: list[bool], mode: Any
) -> torch.fx.GraphModule:
    try:
        return _aot.trace(step, fakes, leaves, mode)
    except DataDependentOutputException as error:
        # Libraries avoid reading tensors where `torch.compile` traces them. What they compute instead may
        # differ from eager mode in the last bits.
        try:
            module = _aot.trace(step, fakes, leaves, mode, compiling=True)
        except DataDependentOutputException:
            raise error from None
        _log.warning("%s; traced as torch.compile would, which avoids it", _explain(error, step.scope))
        return module


class _Step:
    """The function that is traced: one step of a model."""

    def __init__(
        self,
        model: torch.nn.Module,
        names: list[str],
        n_parameters: int,
        leaves: list[Any],
        in_spec: pytree.TreeSpec,
        loss: Loss | None,
    ) -> None:
        self._model, self._names, self._leaves, self._in_spec = model, names, leaves, in_spec
        self._loss = loss
        self.n_parameters = n_parameters
        # Filled in by the call.
        self.out_leaves: list[Any] = []
        self.out_spec: Any = None
        self.differentiable: list[int] = []
        self.refused: list[int] = []
        self.n_outputs = 0
        self._scopes: Scopes | None = None

    @property
    def scope(self) -> str:
        """The module that is traced at the moment, or was when tracing failed."""
        return "" if self._scopes is None else self._scopes.current

    def __call__(self, tensors: list[torch.Tensor], marker: _aot.NodeMarker) -> list[Any]:
        """Returns outputs, incoming gradients, gradients of all placeholders and their last values."""
        named = dict(zip(self._names, tensors, strict=False))
        given = iter(tensors[len(self._names) :])
        leaves = [next(given) if isinstance(x, torch.Tensor) else x for x in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._in_spec)
        scopes = self._scopes = Scopes(marker)
        with _aot.replaced(self._model, named):
            with scopes.forward(self._model):
                result = self._model(*args, **kwargs)
                if self._loss is not None:
                    result = self._loss(result)
            outputs = self._look_at(result)
            targets = [outputs[i] for i in self.differentiable]
            wanted = [t for t in tensors if t.requires_grad]
            tangents = [torch.ones_like(t) for t in targets]
            found: list[Any] = []
            if targets:
                with scopes.backward(targets):
                    found = list(torch.autograd.grad(targets, wanted, tangents, allow_unused=True))
        last = [named[n] for n in self._names] + tensors[len(self._names) :]
        by_tensor = iter(found)
        gradients = [next(by_tensor) if targets and t.requires_grad else None for t in tensors]
        return [*outputs, *tangents, *gradients, *last]

    def _look_at(self, result: Any) -> list[torch.Tensor]:
        leaves, self.out_spec = pytree.tree_flatten(result)
        self.out_leaves = [torch.Tensor if isinstance(x, torch.Tensor) else x for x in leaves]
        outputs = [x for x in leaves if isinstance(x, torch.Tensor)]
        self.n_outputs = len(outputs)
        needing = [i for i, t in enumerate(outputs) if t.requires_grad]
        named_loss = result.get("loss") if isinstance(result, Mapping) else None
        if self._loss is not None:
            if len(outputs) != 1 or outputs[0].numel() != 1 or not needing:
                raise CaptureError("expected `loss` to return one scalar tensor that requires a gradient")
        elif isinstance(named_loss, torch.Tensor) and named_loss.requires_grad and named_loss.numel() == 1:
            self.differentiable = [i for i in needing if outputs[i] is named_loss]
            self.refused = [i for i in needing if outputs[i] is not named_loss]
            return outputs
        self.differentiable = needing
        return outputs


def _sorted_out(program: Program, signature: Signature, step: _Step, names: Sequence[str]) -> Captured:
    n = program.n_placeholders
    results = iter(program.results)
    outputs = [next(results) for _ in range(step.n_outputs)]
    tangents = [next(results) for _ in step.differentiable]
    gradients = [next(results) for _ in range(n)]
    last = [next(results) for _ in range(n)]
    updates = tuple((i, r) for i, r in enumerate(last) if r is not None and r.node.op != "placeholder")
    for i, _ in updates:
        if i < step.n_parameters:
            raise CaptureError(f"the model modifies its weight {names[i]!r} in forward; make it a buffer")
        if signature.leaves[i].requires_grad:
            raise CaptureError(f"the model modifies {names[i]!r}, which requires a gradient; clone it first")
    by_node = {op.node: i for i, op in enumerate(program.ops)}
    captured = Captured(
        program=program,
        signature=signature,
        outputs=tuple(r for r in outputs if r is not None),
        differentiable=tuple(step.differentiable),
        refused=tuple(step.refused),
        tangents=tuple(by_node[r.node] for r in tangents if r is not None),
        gradients=tuple((i, r) for i, r in enumerate(gradients) if r is not None),
        updates=updates,
    )
    start = min(captured.tangents, default=len(program.ops))
    for i, result in updates:
        if any(program.tensors[x - program.n_leaves][0] >= start for x in result.reads):
            raise CaptureError(f"the model modifies {names[i]!r} in its backward part; {_CHECKPOINT}")
    for op in program.ops[start:]:
        if op.random:
            raise CaptureError(f"{op.node.name} draws random numbers in the backward part; {_CHECKPOINT}")
    for op in program.ops[: min(captured.tangents, default=0)]:
        op.gradients = True
    # What leaves the step in its forward part is computed there, once.
    for output in captured.outputs:
        for slot in output.reads:
            program.ops[program.tensors[slot - program.n_leaves][0]].once = True
    return captured


def flatten_call(args: Any, kwargs: Mapping[str, Any]) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves and the structure of a call."""
    if isinstance(args, torch.Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise CaptureError(f"args is a {type(args).__name__}; expected a tuple of arguments")
    if not isinstance(kwargs, Mapping):
        raise CaptureError(f"kwargs is a {type(kwargs).__name__}; expected a dict of keyword arguments")
    return pytree.tree_flatten((tuple(args), dict(kwargs)))


def _fake(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout is not torch.strided:
        raise CaptureError(f"a tensor of layout {tensor.layout}; only dense tensors can be captured")
    return _aot.fake_tensor(mode, tensor, torch.device("cpu") if tensor.device.type == "meta" else None)


def _explain(error: Exception, scope: str) -> str:
    """What went wrong, in which line of the model and in which of its modules."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    frames = [f for f in frames if not f.filename.startswith("<")]
    where = f", at {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
    if scope:
        where = f" in module {scope!r}{where}"
    kind = type(error).__name__
    if isinstance(error, _aot.UnknownTensorUse):
        return f"the model cannot be traced: {error}{where}"
    if "DataDependent" in kind or "_local_scalar_dense" in str(error):
        what = "the model branches on the value of a tensor, or reads one into Python"
    else:
        reason = next(iter(str(error).strip().splitlines()), "")
        what = f"the model cannot be traced ({kind}: {reason})"
    return what + where
