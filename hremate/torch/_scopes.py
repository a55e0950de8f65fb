"""Which module made which node of a trace, in the forward and in the backward part."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from hremate.torch._aot import NodeMarker, autograd_nodes, sequence_number

#: Key of `fx.Node.meta` that holds the path of the module.
SCOPE = "hremate_scope"


class Scopes:
    """Follows the modules of a model while it is traced, and marks the nodes that they make."""

    def __init__(self, marker: NodeMarker) -> None:
        self._marker = marker
        #: Path of the module that runs.
        self.current = ""
        self._stack: list[str] = []
        #: First autograd sequence number made in a scope, and the scope.
        self._numbers: list[int] = [0]
        self._scopes: list[str] = [""]

    @contextmanager
    def forward(self, model: torch.nn.Module) -> Iterator[None]:
        """Mark what the modules of `model` make inside the block."""
        handles = []
        for name, module in model.named_modules():
            if name:
                handles.append(module.register_forward_pre_hook(self._entering(name), prepend=True))
                handles.append(module.register_forward_hook(self._leave))
        try:
            yield
            self._change("")
        finally:
            for handle in handles:
                handle.remove()

    @contextmanager
    def backward(self, outputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """Mark the nodes that the gradient of an op makes with the scope of the op."""
        handles = []
        for node in autograd_nodes(outputs):
            scope = self._scopes[bisect_right(self._numbers, node._sequence_nr()) - 1]
            handles.append(node.register_prehook(self._differentiating(scope)))
        self._change("")
        try:
            yield
            self._change("")
        finally:
            for handle in handles:
                handle.remove()

    def _change(self, scope: str) -> None:
        self._marker.mark(SCOPE, self.current)
        self.current = scope
        self._numbers.append(sequence_number())
        self._scopes.append(scope)

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(module: Any, args: Any) -> None:
            self._stack.append(self.current)
            self._change(name)

        return enter

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        self._change(self._stack.pop())

    def _differentiating(self, scope: str) -> Callable[..., None]:
        def start(gradients: Any) -> None:
            self._marker.mark(SCOPE, self.current)
            self.current = scope

        return start
