"""The joint forward and backward graph of a function: the one module that uses private parts of PyTorch.

What `torch._functorch.aot_autograd` does inside, in the order that it does it: functional tensors above a
proxy mode above fake tensors, with autograd on top. Tracing here rather than through
`aot_export_module(trace_joint=True)` traces once instead of twice, keeps the module scopes, allows
parameters without a gradient and outputs that are no scalar, and applies no decomposition: the ops are those
that eager mode dispatches, so that running them again gives the same bits.

Tested on PyTorch 2.12.1, 2.13.0 and 2.14.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, make_fx
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from hremate.torch._ops import IN_PLACE_DRAWS

#: What is used of it below has no types.
_private: Any = torch

Trace = Callable[[list[Any], "NodeMarker"], list[Any]]


def fake_mode() -> FakeTensorMode:
    """A mode whose tensors have storages without bytes; real tensors met on the way are constants."""
    return FakeTensorMode(allow_non_fake_inputs=True)


def fake_tensor(mode: FakeTensorMode, tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    """A leaf like `tensor` without its bytes, on `device` (None: its own)."""
    with mode:
        fake = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device or tensor.device
        )
    return fake.requires_grad_(tensor.requires_grad)


class NodeMarker:
    """Tells which part of the traced function made which fx node."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        self._graph = graph
        self._last = _last_node(graph)

    def mark(self, key: str, value: Any) -> None:
        """Set `meta[key] = value` on the nodes made since the last mark."""
        node = self._last
        end = _last_node(self._graph)
        while node is not end:
            node = node.next
            node.meta[key] = value
        self._last = end


def trace(
    function: Trace,
    inputs: Sequence[Any],
    leaves: Sequence[bool],
    mode: FakeTensorMode,
    *,
    compiling: bool = False,
) -> torch.fx.GraphModule:
    """The functional fx graph of `function(tensors, marker)` at the fake tensors `inputs`.

    `leaves` tells which of them are leaves of autograd in eager mode, which makes a difference to autocast.

    `function` may run autograd and modify tensors in place; it returns a list of tensors and Nones, which
    becomes the output of the graph. A tensor that was modified in place is returned with its last value.
    With `compiling`, `torch.compiler.is_compiling()` is true inside.
    """

    def functional(*tensors: torch.Tensor) -> list[Any]:
        proxies = get_proxy_mode()
        assert proxies is not None
        marker = NodeMarker(proxies.tracer.graph)
        below = torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        )
        with below, FunctionalTensorMode(), _Interceptions(proxies.tracer), _autocast_cache():
            wrapped = [_wrapped(t, leaf) for t, leaf in zip(tensors, leaves, strict=True)]
            return [_unwrapped(t) for t in function(wrapped, marker)]

    with ExitStack() as stack:
        stack.enter_context(mode)
        # The engine would run the backward part on threads of its own, where the modes are not active.
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        if compiling:
            stack.enter_context(_compiling())
        return make_fx(functional, decomposition_table=IN_PLACE_DRAWS)(*inputs)


class UnknownTensorUse(Exception):
    """The traced function uses a tensor that is none of its inputs in a way that a trace cannot follow."""


class _Interceptions(TorchDispatchMode):
    """What the modes below do not do as it is needed here.

    - Python may read (`item`, `if`) tensors whose values no input determines, such as `arange(n)`: they are
      computed for good, from the nodes that made them. Reading any other tensor fails.
    - The checks of `torch.linalg` become an op without outputs.
    - A tensor that is no input of the trace is a constant: it may neither be modified nor require a gradient.
    """

    def __init__(self, tracer: Any) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FunctionalTensor):
            slot = get_proxy_slot(_unwrapped(args[0]), self._tracer, None)
            if slot is not None:
                value = self._computed(slot.proxy.node)
                if value is not None:
                    return value.item()
        elif func is torch.ops.aten._linalg_check_errors.default:
            return torch.ops.hremate.check(args[0], args[1], kwargs["is_matrix"])
        written = _written(func, args, kwargs)
        self._refuse_constants(args, kwargs, written)
        layouts = [(value.shape, value.stride()) for value in map(_unwrapped, written)]
        result = func(*args, **kwargs)
        if torch.Tag.inplace_view not in func.tags:
            for tensor, (shape, stride) in zip(written, layouts, strict=True):
                value = _unwrapped(tensor)
                if value.shape == shape and value.stride() != stride:  # `out=` may change the shape
                    _lay_out(tensor, stride)
        return result

    def _refuse_constants(self, args: Any, kwargs: Any, written: list[torch.Tensor]) -> None:
        constants = filter(_is_constant, tree_leaves((args, kwargs)))
        if torch.is_grad_enabled() and any(t.requires_grad for t in constants):
            raise UnknownTensorUse(
                "it uses a tensor that requires a gradient and is no parameter of the model; register it"
            )
        if any(map(_is_constant, written)):
            raise UnknownTensorUse("it modifies a tensor that is no buffer of the model; use register_buffer")

    def _computed(self, node: torch.fx.Node) -> torch.Tensor | None:
        """The value of a node, None where it depends on an input or on chance."""
        needed = {node}
        todo = [node]
        while todo:
            current = todo.pop()
            drawn = torch.Tag.nondeterministic_seeded in getattr(current.target, "tags", ())
            if current.op == "placeholder" or drawn:
                return None
            for before in current.all_input_nodes:
                if before not in needed:
                    needed.add(before)
                    todo.append(before)
        values: dict[torch.fx.Node, Any] = {}
        with _disable_current_modes(), torch.no_grad():
            for current in self._tracer.graph.nodes:
                if current not in needed:
                    continue
                if current.op == "get_attr":
                    values[current] = getattr(self._tracer.root, str(current.target))
                else:
                    args, kwargs = torch.fx.map_arg((current.args, current.kwargs), values.__getitem__)
                    values[current] = current.target(*args, **kwargs)
        return values[node]


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that a call of `func` modifies."""
    if not func._schema.is_mutable:
        return []
    targets = []
    for k, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            targets.append(kwargs.get(argument.name, args[k] if k < len(args) else None))
    return [t for t in tree_leaves(targets) if isinstance(t, torch.Tensor)]


def _lay_out(tensor: Any, stride: tuple[int, ...]) -> None:
    """Give the value of `tensor` strides that eager mode keeps and the functional op has not.

    Kernels take elements in another order and with other vector instructions where the strides differ, and
    their last bits then differ as well. Parts of an `unsafe_split` (the gates of recurrent cells) have gaps.
    """
    laid_out = torch.ops.hremate.laid_out(tensor, stride)
    _private._functionalize_replace(tensor.elem, _unwrapped(laid_out))
    _private._functionalize_commit_update(tensor.elem)
    _private._sync(tensor)


def _is_constant(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, (FunctionalTensor, FakeTensor))


@contextmanager
def replaced(model: torch.nn.Module, named: dict[str, torch.Tensor]) -> Iterator[None]:
    """Run `model` with `named` for its parameters and buffers; those it replaces are in `named` afterwards.

    `torch.func.functional_call` would end before the backward part, which may call modules again
    (`torch.utils.checkpoint`).
    """
    with _private.nn.utils.stateless._reparametrize_module(model, named, tie_weights=True):
        yield


@contextmanager
def _autocast_cache() -> Iterator[None]:
    """Cast a weight once, as eager mode does; tracing turns the cache off."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(True)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


@contextmanager
def _compiling() -> Iterator[None]:
    before = getattr(torch.compiler, "_is_compiling_flag", False)
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


def sequence_number() -> int:
    """The number that the next autograd node of this thread will get."""
    return int(_private.autograd._get_sequence_nr())


def keeps_graph() -> bool:
    """Whether the running backward pass was asked to keep the graph (`retain_graph=True`)."""
    return bool(_private._C._autograd._get_current_graph_task_keep_graph())


def autograd_nodes(outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """The autograd nodes that `outputs` depend on, each once."""
    todo = [t.grad_fn for t in outputs if t.grad_fn is not None]
    seen = set(todo)
    while todo:
        node = todo.pop()
        yield node
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                todo.append(before)


def _wrapped(tensor: torch.Tensor, leaf: bool) -> torch.Tensor:
    if not leaf:
        return FunctionalTensor.to_functional(tensor)
    with torch.no_grad():
        wrapped: torch.Tensor = FunctionalTensor.to_functional(tensor)
    # Autograd takes what its wrapper computes for no leaf, even without a gradient.
    return wrapped.detach_().requires_grad_(tensor.requires_grad)


def _unwrapped(value: Any) -> Any:
    if not isinstance(value, FunctionalTensor):
        return value
    _private._sync(value)
    return _private._from_functional_tensor(value.elem)


def _last_node(graph: torch.fx.Graph) -> torch.fx.Node:
    return next(iter(reversed(graph.nodes)), graph._root)
