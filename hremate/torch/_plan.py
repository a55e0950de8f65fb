"""A schedule turned into events: what to run, when to hand results over, what to forget after each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from pickle import PicklingError
from typing import Any

import numpy as np
import torch

from hremate.torch._instruction import Instruction
from hremate.torch._program import Result, TracedOp
from hremate.torch._step import Captured


class Kind(Enum):
    """What happens at an event."""

    #: Run an op.
    RUN = auto()
    #: Write the new value of a buffer or an input that the model modifies.
    UPDATE = auto()
    #: The forward part is over: hand its outputs to the caller.
    OUTPUTS = auto()
    #: The backward part is over: hand the gradients to autograd.
    GRADIENTS = auto()


@dataclass(frozen=True)
class Event:
    kind: Kind
    #: Of the op, or the position in `Captured.updates`.
    index: int
    #: Tensors to forget afterwards.
    frees: tuple[int, ...]
    #: Whether the op has run before.
    again: bool = False
    #: Whether it is a random op that runs several times.
    redraws: bool = False


@dataclass(frozen=True)
class Plan:
    """Events of the forward and of the backward part, and what they need of the leaves."""

    captured: Captured
    forward: tuple[Event, ...]
    backward: tuple[Event, ...]
    #: Placeholders that the backward part reads as the caller left them.
    saved: tuple[int, ...]
    #: Placeholders that are modified and whose old value is read afterwards.
    old_values: frozenset[int]
    #: Placeholders that the backward part reads whatever their value is.
    ignored: frozenset[int]
    #: Outputs that the backward part reads.
    read_outputs: tuple[int, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        """A plan never changes, so that copies of a module share it."""
        return self

    def __reduce__(self) -> Any:
        raise PicklingError(
            "a scheduled module cannot be pickled; save module.module and module.schedule, and apply it again"
        )


def make_plan(captured: Captured, order: Iterable[int]) -> Plan:
    """Derive from the order what lives how long: a copy until its last read, see `hremate.simulate`."""
    program = captured.program
    steps = list(order)
    split = next((p for p, i in enumerate(steps) if i in captured.tangents), len(steps))
    events: list[tuple[Kind, int]] = []
    pending = {j: {program.tensors[x - program.n_leaves][0] for x in result.reads}
               for j, (_, result) in enumerate(captured.updates)}  # fmt: skip
    for i in steps[:split]:
        events.append((Kind.RUN, i))
        for j in [j for j, waiting in pending.items() if waiting <= {i}]:
            events.append((Kind.UPDATE, j))
            del pending[j]
        for waiting in pending.values():
            waiting.discard(i)
    events.append((Kind.OUTPUTS, -1))
    n_forward = len(events)
    if captured.tangents:
        events += [(Kind.RUN, i) for i in steps[split:]]
        events.append((Kind.GRADIENTS, -1))

    frees = _frees(captured, events)
    runs = np.bincount(steps, minlength=len(program.ops))
    seen: set[int] = set()
    made = []
    matters: list[set[int]] = []  # leaves whose values an event depends on
    for (kind, index), freed in zip(events, frees, strict=True):
        again = kind is Kind.RUN and index in seen
        redraws = kind is Kind.RUN and program.ops[index].random and bool(runs[index] > 1)
        made.append(Event(kind, index, freed, again, redraws))
        leaves = set(_reads(captured, kind, index)[1])
        matters.append(leaves - program.ops[index].ignored if again else leaves)
        if kind is Kind.RUN:
            seen.add(index)
    read_later: list[set[int]] = [set()]
    for leaves in reversed(matters):
        read_later.append(read_later[-1] | leaves)
    read_later.reverse()
    old_values = frozenset(
        captured.updates[index][0]
        for p, (kind, index) in enumerate(events)
        if kind is Kind.UPDATE and captured.updates[index][0] in read_later[p + 1]
    )
    inputs = range(program.n_placeholders)
    # The op that makes an incoming gradient does not run: autograd brings it.
    read_behind = {
        x
        for kind, index in events[n_forward:]
        if kind is not Kind.RUN or index not in captured.tangents
        for x in _reads(captured, kind, index)[0]
    }
    return Plan(
        captured,
        tuple(made[:n_forward]),
        tuple(made[n_forward:]),
        saved=tuple(x for x in inputs if x in read_later[n_forward] and x not in old_values),
        old_values=old_values,
        ignored=frozenset(x for op in program.ops for x in op.ignored) - read_later[n_forward],
        read_outputs=tuple(i for i, r in enumerate(captured.outputs) if read_behind.intersection(r.reads)),
    )


def _reads(captured: Captured, kind: Kind, index: int) -> tuple[list[int], list[int]]:
    """Tensors and leaves that an event reads."""
    results: list[Result]
    if kind is Kind.RUN:
        op: TracedOp = captured.program.ops[index]
        return op.reads, op.leaves
    if kind is Kind.UPDATE:
        results = [captured.updates[index][1]]
    elif kind is Kind.OUTPUTS:
        results = list(captured.outputs)
    else:
        results = [r for _, r in captured.gradients]
    return [x for r in results for x in r.reads], [x for r in results for x in r.leaves]


def _frees(captured: Captured, events: list[tuple[Kind, int]]) -> list[tuple[int, ...]]:
    """Tensors whose copy dies at each event."""
    wanted: set[int] = set()
    result: list[tuple[int, ...]] = []
    for kind, index in reversed(events):
        freed = []
        if kind is Kind.RUN:
            for _, slot in captured.program.ops[index].made:
                if slot in wanted:
                    wanted.discard(slot)
                else:
                    freed.append(slot)
        for slot in dict.fromkeys(_reads(captured, kind, index)[0]):
            if slot not in wanted:
                wanted.add(slot)
                freed.append(slot)
        result.append(tuple(freed))
    return result[::-1]


class Run:
    """One pass through a plan: the environment, and the states of the generators."""

    def __init__(self, plan: Plan, leaves: Iterable[Any]) -> None:
        program = plan.captured.program
        self._plan = plan
        # Without the flag that they require gradients, no op records anything for autograd.
        self._env: list[Any] = [*(t.detach() for t in leaves), *program.constants]
        self._env += [None] * (program.n_slots - len(self._env))
        self._draws: dict[int, torch.Tensor] = {}
        self._tangents: dict[int, torch.Tensor] = {}

    def copy(self) -> Run:
        """A run that goes on from here and leaves this one as it is."""
        other = Run.__new__(Run)
        other._plan, other._env, other._draws = self._plan, list(self._env), self._draws
        other._tangents = {}
        return other

    def forward(self) -> list[torch.Tensor]:
        """Run the forward part; returns its outputs. Forgets leaves that autograd saves by itself."""
        outputs: list[torch.Tensor] = []
        for event in self._plan.forward:
            if event.kind is Kind.OUTPUTS:
                outputs = [self._value(r) for r in self._plan.captured.outputs]
            self._run(event)
        for slot in range(self._plan.captured.program.n_placeholders):
            if slot not in self._plan.old_values and slot not in self._plan.ignored:
                self._env[slot] = None
        return outputs

    def backward(self, saved: Iterable[torch.Tensor], tangents: Iterable[torch.Tensor]) -> dict[int, Any]:
        """Run the backward part; returns the gradient of each placeholder that has one."""
        for slot, tensor in zip(self._plan.saved, saved, strict=True):
            self._env[slot] = tensor.detach()
        self._tangents = dict(zip(self._plan.captured.tangents, tangents, strict=True))
        gradients: dict[int, Any] = {}
        for event in self._plan.backward:
            if event.kind is Kind.GRADIENTS:
                gradients = {i: self._value(r) for i, r in self._plan.captured.gradients}
            self._run(event)
        self._env.clear()
        self._tangents.clear()
        return gradients

    def _run(self, event: Event) -> None:
        env = self._env
        if event.kind is Kind.RUN:
            op = self._plan.captured.program.ops[event.index]
            torch.set_grad_enabled(op.gradients)
            if event.index in self._tangents:
                env[op.made[0][1]] = self._tangents[event.index]
            elif event.again and op.written:
                kept = [(slot, env[slot]) for slot in op.written]
                for slot, value in kept:
                    env[slot] = value.clone()
                self._compute(op)
                for slot, value in kept:
                    env[slot] = value
            elif event.again and event.redraws:
                now = _generator_state(op)
                _set_generator_state(op, self._draws[event.index])
                self._compute(op)
                _set_generator_state(op, now)
            else:
                if event.redraws:
                    self._draws[event.index] = _generator_state(op)
                self._compute(op)
        elif event.kind is Kind.UPDATE:
            torch.set_grad_enabled(False)
            slot, result = self._plan.captured.updates[event.index]
            target = env[slot]
            if slot in self._plan.old_values:
                env[slot] = target.clone()
            target.copy_(self._value(result))
        for slot in event.frees:
            env[slot] = None

    def _compute(self, op: TracedOp) -> None:
        env = self._env
        for instruction in op.instructions:
            value = instruction.run(env)
            if instruction.slot is not None:
                env[instruction.slot] = value
        program = self._plan.captured.program
        for index, slot in op.made:
            made = value if index is None else value[index]
            # Some kernels leave out what the next op does not need.
            if made is not None and made.untyped_storage().nbytes() > program.sizes[slot - program.n_leaves]:
                made = _compact(made, program.sizes[slot - program.n_leaves])
            env[slot] = made
        if len(op.instructions) > 1:
            self._forget_views(op.instructions)

    def _value(self, result: Result) -> Any:
        for instruction in result.instructions:
            self._env[instruction.slot or 0] = instruction.run(self._env)
        value = self._env[result.slot]
        self._forget_views(result.instructions)
        return value

    def _forget_views(self, instructions: Iterable[Instruction]) -> None:
        for instruction in instructions:
            if instruction.slot is not None:
                self._env[instruction.slot] = None


def _compact(tensor: torch.Tensor, nbytes: int) -> torch.Tensor:
    """`tensor` in a storage of `nbytes`, where a kernel has left it in its larger scratch memory.

    The mean of `mse_loss` is one: on the CPU it sits in a storage as large as the input.
    """
    return tensor.clone() if tensor.numel() * tensor.element_size() == nbytes else tensor


def _generator_state(op: TracedOp) -> torch.Tensor:
    device = _device(op)
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_generator_state(op: TracedOp, state: torch.Tensor) -> None:
    device = _device(op)
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _device(op: TracedOp) -> torch.device:
    value = op.node.meta["val"]
    return (value[0] if isinstance(value, (list, tuple)) else value).device
