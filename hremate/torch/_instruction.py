"""One call of a program, ready to run again and again on an environment of values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


class Slot(int):
    """A place in the environment of a run, standing for its value among the arguments of a call."""


@dataclass(frozen=True)
class Instruction:
    """One call: a view, or the op itself."""

    function: Callable[..., Any]
    #: With slots in the places of values, in plain lists, tuples and dicts.
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Where a view goes; None for the op itself.
    slot: int | None
    #: (position, slot) of the slots among `args`; None where some lie deeper, or in `kwargs`.
    flat: tuple[tuple[int, int], ...] | None

    @staticmethod
    def of(function: Callable[..., Any], args: Any, kwargs: Any, slot: int | None) -> Instruction:
        """The instruction of a call."""
        deeper = [a for a in (*args, *kwargs.values()) if type(a) in (list, tuple, dict)]
        deep = any(map(_has_slot, deeper)) or any(type(a) is Slot for a in kwargs.values())
        flat = None if deep else tuple((k, int(a)) for k, a in enumerate(args) if type(a) is Slot)
        return Instruction(function, tuple(args), dict(kwargs), slot, flat)

    def run(self, env: list[Any]) -> Any:
        """The value of the call."""
        if self.flat is None:  # walking through all arguments costs as much as starting a kernel
            return self.function(*_filled(self.args, env), **_filled(self.kwargs, env))
        args = list(self.args)
        for position, slot in self.flat:
            args[position] = env[slot]
        return self.function(*args, **self.kwargs)


def _has_slot(template: Any) -> bool:
    if type(template) is Slot:
        return True
    parts = template.values() if type(template) is dict else template
    return type(template) in (list, tuple, dict) and any(map(_has_slot, parts))


def _filled(template: Any, env: list[Any]) -> Any:
    """`template` with values in the places of slots."""
    kind = type(template)
    if kind is Slot:
        return env[template]
    if kind is list or kind is tuple:
        return kind(_filled(t, env) for t in template)
    if kind is dict:
        return {key: _filled(t, env) for key, t in template.items()}
    return template
