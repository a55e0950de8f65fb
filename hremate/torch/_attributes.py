"""What a model leaves in its attributes while it is traced, taken back afterwards.

A schedule reproduces parameters and buffers. Whatever else `forward` sets (counters, caches, the attention of
the last call) would hold tensors of the trace, and would not change again when the schedule runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

#: What PyTorch itself keeps in each module.
_OWN = frozenset(vars(torch.nn.Module()))
_ABSENT = object()


class Attributes:
    """The plain attributes of the modules of a model at one moment; lists and dicts one level deep."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._before = [
            (name, module, {key: (value, _content(value)) for key, value in _plain(module).items()})
            for name, module in model.named_modules()
        ]

    def restore(self) -> Iterator[tuple[str, Any]]:
        """Set everything back; yields (path, value before) of each attribute that was set meanwhile."""
        for name, module, before in self._before:
            now = _plain(module)
            for key in [*before, *(k for k in now if k not in before)]:
                value, content = before.get(key, (_ABSENT, None))
                changed = now.get(key, _ABSENT) is not value
                if changed and value is _ABSENT:
                    del module.__dict__[key]
                elif changed:
                    module.__dict__[key] = value
                if content is not None and not _same_items(content, value):
                    changed = True
                    value.clear()
                    value.update(content) if isinstance(value, dict) else value.extend(content)
                if changed:
                    yield (f"{name}.{key}" if name else key), value


def _plain(module: torch.nn.Module) -> dict[str, Any]:
    return {key: value for key, value in vars(module).items() if key not in _OWN}


def _content(value: Any) -> Any:
    return value.copy() if type(value) in (list, dict) else None


def _same_items(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(a[k] is b[k] for k in a)
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
