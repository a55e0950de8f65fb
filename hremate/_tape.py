"""A tape that records the forward ops of a model and derives its backward ops, as autodiff does.

Only shapes are followed, never numbers. The operators are in `hremate._operators`. Views are free and
share the name of the tensor they look into. The time of an op follows a roofline model of a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hremate.graph import PHASES, Graph, Op

LAUNCH_US = 4.0
FLOPS_PER_US = 90e12 / 1e6
BYTES_PER_US = 1.4e12 / 1e6

FLOAT = 4  # bytes per element

FORWARD_PHASE, LOSS_PHASE, BACKWARD_PHASE = PHASES

Shape = tuple[int, ...]


@dataclass(slots=True, eq=False)
class Value:
    """A tensor, a view of one, or a parameter."""

    #: Name of the tensor in the graph; a view has the name of its base.
    name: str
    shape: Shape
    #: Bytes that reading or writing it moves.
    nbytes: int
    #: Whether a gradient flows back to it.
    differentiable: bool = True
    parameter: bool = False
    #: Reads of a parameter whose gradients are still to come.
    uses: int = 0
    grad: Value | None = None


#: Takes the gradients of the outputs (None where there is none), emits ops, hands gradients on.
Pullback = Callable[..., None]


class Tape:
    """Builds a training graph: forward ops first, then `finish` adds the backward part.

    Set `scope` before the ops of a module; backward ops get the scope of the forward op they belong to.
    """

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.scope = ""
        self.resident = 0
        self.phase = FORWARD_PHASE
        self._count: dict[str, int] = {}
        self._values = 0
        self._entries: list[tuple[Sequence[Value], Pullback, str]] = []
        self._outputs: list[str] = []

    # -- leaves -----------------------------------------------------------------------------------

    def source(self, name: str, shape: Shape, itemsize: int = FLOAT) -> Value:
        """A resident tensor without gradient: model input, target, mask."""
        value = Value(name, shape, math.prod(shape) * itemsize, differentiable=False)
        self.resident += value.nbytes
        return value

    def parameter(self, name: str, shape: Shape) -> Value:
        """A resident tensor with a (resident) gradient."""
        value = Value(f"{self.scope}.{name}" if self.scope else name, shape, math.prod(shape) * FLOAT)
        value.parameter = True
        self.resident += 2 * value.nbytes
        return value

    # -- the machinery ----------------------------------------------------------------------------

    def emit(
        self, kind: str, inputs: Sequence[Value], outputs: Sequence[Value], flops: float = 0.0
    ) -> None:
        """Add one op. The gradient of a parameter counts 0 bytes: its buffer is resident."""
        base = kind.split(".")[0]
        count = self._count.get(base, 0)
        self._count[base] = count + 1
        moved = 0
        for value in inputs:
            moved += value.nbytes
        for value in outputs:
            moved += value.nbytes
        self.ops.append(
            Op(
                name=f"{base}_{count}" if count else base,
                time=round(LAUNCH_US + max(flops / FLOPS_PER_US, moved / BYTES_PER_US), 2),
                inputs=tuple([value.name for value in inputs]),
                outputs=tuple([(value.name, 0 if value.parameter else value.nbytes) for value in outputs]),
                phase=self.phase,
                type=f"aten.{kind}",
                scope=self.scope,
            )
        )

    def new(self, shape: Shape, itemsize: int = FLOAT, differentiable: bool = True) -> Value:
        self._values += 1
        return Value(f"t{self._values - 1}", shape, math.prod(shape) * itemsize, differentiable)

    def record(self, outputs: Sequence[Value], pullback: Pullback) -> None:
        self._entries.append((outputs, pullback, self.scope))

    def gradient_for(self, value: Value) -> Value:
        """A new tensor for one contribution to the gradient of `value`."""
        gradient = self.new(value.shape)
        # The only contribution goes straight to the resident buffer of the parameter.
        gradient.parameter = value.parameter and value.uses == 1 and value.grad is None
        return gradient

    def give(self, value: Value, gradient: Value) -> None:
        """Add `gradient` to what has arrived at `value`."""
        if value.parameter:
            value.uses -= 1
        if value.grad is not None:
            total = self.new(value.shape)
            total.parameter = value.parameter and value.uses == 0
            self.emit("add.Tensor", (value.grad, gradient), (total,))
            gradient = total
        value.grad = gradient
        if value.parameter and value.uses == 0:
            self._outputs.append(gradient.name)

    def finish(self, loss: Value) -> None:
        """Derive the backward part: walk the tape in reverse."""
        self.phase = BACKWARD_PHASE
        loss.grad = self.new(loss.shape)
        self.emit("ones_like.default", (loss,), (loss.grad,))
        self._outputs.append(loss.name)
        while self._entries:
            outputs, pullback, self.scope = self._entries.pop()
            gradients = [value.grad for value in outputs]
            if any(gradient is not None for gradient in gradients):
                pullback(*gradients)
            for value in outputs:
                value.grad = None

    def graph(self, name: str, metadata: dict[str, object]) -> Graph:
        return Graph.from_ops(
            self.ops, self._outputs, name=name, resident=self.resident, metadata=metadata
        )
