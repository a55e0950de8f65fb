"""A training graph small enough to know everything about, and methods made for a test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import hremate as hr
from hremate.solvers import registry
from hremate.solvers.base import Run

Solve = Callable[[hr.Graph, int, Run, Any], hr.Result]

#: Both reach a peak of 40, the first in the time 9 (the least possible), the second in 10.
RERUN_F0 = np.array([0, 1, 2, 3, 4, 5, 6, 0, 7])
RERUN_F1 = np.array([0, 1, 2, 3, 4, 5, 1, 6, 7])


def training(name: str = "training", budget: Any = None) -> hr.Graph:
    """Base time 8, base peak 50, largest working set 30."""
    ops = [hr.Op("f0", 1.0, (), (("x0", 10),))]
    for i, time in enumerate((2.0, 1.0, 0.0), 1):
        ops.append(hr.Op(f"f{i}", time, (f"x{i - 1}",), ((f"x{i}", 10),)))
    ops += [hr.Op("b3", 1.0, ("x3",), (("g3", 10),))]
    ops += [hr.Op(f"b{i}", 1.0, (f"x{i}", f"g{i + 1}"), ((f"g{i}", 10),)) for i in (2, 1, 0)]
    return hr.Graph.from_ops(ops, name=name, metadata={} if budget is None else {"budget": budget})


@dataclass(frozen=True)
class Params:
    """Of the methods made for a test."""

    width: int = 4

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("Expected width >= 1.")


def register(monkeypatch: pytest.MonkeyPatch, name: str, solve: Solve) -> None:
    """Make `solve` the method `name` for the time of a test."""
    module = ModuleType(f"hremate_method_{name}")
    module.Params, module.solve = Params, solve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entry = registry.Method(name, module.__name__, "for tests", False, "any graph", "-")
    monkeypatch.setitem(registry.METHODS, name, entry)
