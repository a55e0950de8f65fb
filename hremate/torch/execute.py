"""Train with a schedule: a module that computes what the model computes, within the budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from hremate._devices import Device
from hremate.errors import BudgetError, HremateError
from hremate.graph import Graph
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solve import solve
from hremate.torch import _aot
from hremate.torch._capture import CapturedGraph, capture
from hremate.torch._description import autocast_state, describe
from hremate.torch._plan import Plan, Run, make_plan
from hremate.torch._step import flatten_call, shared_update


class ExecutionError(HremateError):
    """A scheduled module is used in a way that it was not captured for."""


def remat(
    model: torch.nn.Module,
    args: Any,
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: int | str,
    loss: Callable[..., torch.Tensor] | None = None,
    method: str = "hierarchical",
    device: str | Device | None = None,
    profile: bool | int = False,
    fallback: bool = False,
    **solve_options: Any,
) -> RematModule:
    """`model` within a memory budget: capture it, find a schedule, return a module that runs it.

    Parameters
    ----------
    model, args, kwargs, loss, device, profile
        As in `capture`. With `loss`, the module returned computes the loss.
    budget : int or str
        Bytes of the activations ("2GiB"), or a share of those that the model needs by itself ("50%").
    method, **solve_options
        As in `hremate.solve`: `time_limit`, `n_jobs`, `seed`, ...
    fallback : bool
        Run the model itself, without a budget, where a call does not look like the sample, instead of
        raising (the last, smaller batch of an epoch).

    Raises
    ------
    CaptureError
        The model cannot be captured.
    BudgetError
        No schedule within the budget was found.
    """
    graph = capture(model, args, kwargs, loss, device=device, profile=profile)
    result = solve(graph, budget, method, **solve_options)
    if not result.solved or result.schedule is None:
        raise BudgetError(result.reason or f"no schedule within {budget!r} was found")
    module = apply(model, graph, result.schedule, loss=loss, fallback=fallback)
    module.result = result
    return module


def apply(
    model: torch.nn.Module,
    graph: Graph,
    schedule: Schedule | Iterable[int],
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[..., torch.Tensor] | None = None,
    fallback: bool = False,
) -> RematModule:
    """A module that runs `schedule`, a schedule of `graph`, in the place of `model`.

    Parameters
    ----------
    graph : Graph
        What `capture` returned. A graph that was read from a file has lost the traced program; then `args`
        and `kwargs`, the sample, are needed to trace it again.
    loss, fallback
        As in `remat`; `loss` as in the capture.

    Raises
    ------
    ScheduleError
        Not a valid schedule of the graph.
    ExecutionError
        The graph was not captured from this model.
    """
    simulate(graph, schedule)
    captured = graph.captured if isinstance(graph, CapturedGraph) else None
    if captured is None:
        if args is None:
            raise ExecutionError("the graph carries no program; pass the sample (args, kwargs) as well")
        again = capture(model, args, kwargs, loss)
        captured = again.captured
        if not _same_structure(graph, again):
            raise ExecutionError(f"graph {graph.name!r} is not what capturing this model gives now")
    assert captured is not None
    named = (tuple(n for n, _ in model.named_parameters()), tuple(n for n, _ in model.named_buffers()))
    if named != (captured.signature.parameters, captured.signature.buffers):
        raise ExecutionError("the graph was captured from another model: the names of the weights differ")
    order = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
    return RematModule(model, graph, order, make_plan(captured, order), loss, fallback)


class RematModule(torch.nn.Module):
    """A model that runs by a schedule. Made by `remat` and `apply`.

    It shares the weights and buffers of `module`. In evaluation mode and where gradients are off it runs
    `module` itself (a graph captured without gradients excepted: its schedule runs there).
    """

    def __init__(
        self,
        model: torch.nn.Module,
        graph: Graph,
        schedule: Schedule,
        plan: Plan,
        loss: Callable[..., torch.Tensor] | None,
        fallback: bool,
    ) -> None:
        super().__init__()
        self.module = model
        #: The graph that was scheduled, its schedule, and what `hremate.solve` said, if it was asked.
        self.graph = graph
        self.schedule = schedule
        self.result: Result | None = None
        self._plan = plan
        self._loss = loss
        self._fallback = fallback
        self.training = model.training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        captured = self._plan.captured
        signature = captured.signature
        if torch.is_grad_enabled() != bool(captured.tangents) or (
            captured.tangents and not self.module.training and any(signature.training)
        ):
            return self._eager(args, kwargs)
        leaves, in_spec = flatten_call(args, kwargs)
        tensors = [*self.module.parameters(), *self.module.buffers()]
        tensors += [x for x in leaves if isinstance(x, torch.Tensor)]
        difference = self._difference(leaves, in_spec, tensors)
        if difference is not None:
            if self._fallback:
                return self._eager(args, kwargs)
            raise ExecutionError(f"{difference}; capture it again, or pass fallback=True")
        if captured.tangents:
            outputs = list(_Scheduled.apply(self._plan, *tensors))
            anchor = outputs[captured.differentiable[0]]
            for i in captured.refused:
                outputs[i] = _Refused.apply(anchor, outputs[i])
        else:
            with _plain():
                outputs = Run(self._plan, tensors).forward()
        made = iter(outputs)
        result = [next(made) if x is torch.Tensor else x for x in signature.out_leaves]
        return pytree.tree_unflatten(result, signature.out_spec)

    def _eager(self, args: Any, kwargs: Any) -> Any:
        result = self.module(*args, **kwargs)
        return result if self._loss is None else self._loss(result)

    def _difference(self, leaves: list[Any], in_spec: Any, tensors: list[torch.Tensor]) -> str | None:
        """What is not as in the sample, for people."""
        signature = self._plan.captured.signature
        if in_spec != signature.in_spec:
            return "the arguments are nested otherwise than those of the sample"
        for given, known in zip(leaves, signature.in_leaves, strict=True):
            if not _same(torch.Tensor if isinstance(given, torch.Tensor) else given, known):
                return f"an argument is {given!r:.60}, and {known!r:.60} in the sample"
        names = [*signature.parameters, *signature.buffers]
        for k, (tensor, known) in enumerate(zip(tensors, signature.leaves, strict=True)):
            if describe(tensor) != known:
                what = repr(names[k]) if k < len(names) else f"input {k - len(names)}"
                return f"{what} is {describe(tensor)}, and {known} in the sample"
        shared = shared_update(self._plan.captured, tensors)
        if shared is not None:
            what = repr(names[shared]) if shared < len(names) else f"input {shared - len(names)}"
            return f"{what}, which the model modifies, shares memory with another tensor"
        if autocast_state() != signature.autocast:
            return "autocast is not as it was at the capture"
        if tuple(m.training for m in self.module.modules()) != signature.training:
            return "some module is in another mode (train, eval) than at the capture"
        return None


class _Scheduled(torch.autograd.Function):
    """The whole step as one autograd node."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        run = Run(plan, tensors)
        with _plain():
            values = run.forward()
        captured = plan.captured
        # The run keeps tensors of its own, so that no output refers to itself through its autograd node.
        # `detach` would make views, which the caller could not modify in place.
        outputs = [v.data for v in values]
        ctx.plan, ctx.run = plan, run
        ctx.n_saved = len(plan.saved)
        # Autograd checks that nobody has modified them when the backward part begins.
        ctx.save_for_backward(*(tensors[i] for i in plan.saved), *(outputs[i] for i in plan.read_outputs))
        ctx.mark_non_differentiable(
            *(t for i, t in enumerate(outputs) if i not in captured.differentiable)
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise ExecutionError("a scheduled module has no second derivatives (create_graph=True)")
        if ctx.run is None:
            raise ExecutionError(
                "backward runs a second time, but its tensors are gone; pass retain_graph=True the first time"
            )
        run: Run = ctx.run.copy() if _aot.keeps_graph() else ctx.run
        if run is ctx.run:
            ctx.run = None
        captured = ctx.plan.captured
        saved = ctx.saved_tensors[: ctx.n_saved]
        with _plain():
            found = run.backward(saved, [gradients[i] for i in captured.differentiable])
        return (None, *(found.get(i) for i in range(captured.program.n_placeholders)))


class _Refused(torch.autograd.Function):
    """An output beside the loss: its gradient is not part of the captured step."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.data

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None]:
        raise ExecutionError(
            "a gradient comes in for an output beside the loss, which was not captured; "
            "add it to the loss inside the model, or return a tuple without an entry named `loss`"
        )


@contextmanager
def _plain() -> Iterator[None]:
    """No autograd and no autocast: what they do is part of the traced ops already."""
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        for kind, _ in autocast_state():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _same(a: Any, b: Any) -> bool:
    """Whether two arguments that are no tensors are equal, as far as they can tell."""
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except (TypeError, ValueError):  # arrays have no one answer
        return False


def _same_structure(a: Graph, b: Graph) -> bool:
    """Whether two graphs differ in nothing but times and metadata."""
    return (a.op_names, a.tensor_names) == (b.op_names, b.tensor_names) and all(
        np.array_equal(x, y)
        for x, y in ((a.size, b.size), (a.in_ptr, b.in_ptr), (a.in_idx, b.in_idx), (a.outputs, b.outputs))
    )
