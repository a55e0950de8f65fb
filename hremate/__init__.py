"""hremate: schedules of computation graphs with rematerialization under a memory budget.

    import hremate as hr
    g = hr.read_graph("gpt2-12.json.gz")
    r = hr.solve(g, budget="50%")
    print(r)
"""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

# `partition`, `solvers` and `ilp` lie beside this folder in the source tree and inside it once installed.
_parent = Path(__file__).resolve().parent.parent
if (_parent / "partition" / "__init__.py").is_file() and not (_parent / "hremate" / "partition").is_dir():
    __path__.append(str(_parent))

from hremate.budget import format_bytes, parse_budget  # noqa: E402
from hremate.errors import (  # noqa: E402
    BudgetError,
    CycleError,
    DuplicateNameError,
    EmptyGraphError,
    FormatError,
    GraphError,
    HremateError,
    InvalidValueError,
    MethodError,
    MissingExtraError,
    OrderError,
    ScheduleError,
    SolverError,
    UnknownTensorError,
    VersionError,
)
from hremate.graph import Graph, Op  # noqa: E402
from hremate.result import Result, Stats, Status  # noqa: E402
from hremate.schedule import Schedule  # noqa: E402
from hremate.validate import Check, InvalidSchedule, Violation, validate  # noqa: E402

if TYPE_CHECKING:
    from hremate.bounds import MemoryBound, TimeBound, memory_lower_bound, time_lower_bound
    from hremate.compare import Comparison, Outcome, Summary, Unanswered, compare
    from hremate.frontier import Frontier, MinBudget, frontier, min_budget
    from hremate.generate import generate
    from hremate.improve import improve
    from hremate.io import ScheduleFile, read_graph, read_schedule, write_graph, write_schedule
    from hremate.report import report
    from hremate.simulate import Simulation, base_peak, simulate
    from hremate.solve import solve
    from hremate.trace import trace, write_trace

__version__ = "0.1.0"

logging.getLogger("hremate").addHandler(logging.NullHandler())

# Names whose modules load numba or more: imported on first use, so that `import hremate` stays quick.
_LAZY = {
    "Comparison": "hremate.compare",
    "Frontier": "hremate.frontier",
    "MemoryBound": "hremate.bounds",
    "MinBudget": "hremate.frontier",
    "Outcome": "hremate.compare",
    "ScheduleFile": "hremate.io",
    "Simulation": "hremate.simulate",
    "Summary": "hremate.compare",
    "Unanswered": "hremate.compare",
    "base_peak": "hremate.simulate",
    "compare": "hremate.compare",
    "frontier": "hremate.frontier",
    "generate": "hremate.generate",
    "improve": "hremate.improve",
    "TimeBound": "hremate.bounds",
    "memory_lower_bound": "hremate.bounds",
    "min_budget": "hremate.frontier",
    "report": "hremate.report",
    "time_lower_bound": "hremate.bounds",
    "trace": "hremate.trace",
    "read_graph": "hremate.io",
    "read_schedule": "hremate.io",
    "simulate": "hremate.simulate",
    "solve": "hremate.solve",
    "write_graph": "hremate.io",
    "write_schedule": "hremate.io",
    "write_trace": "hremate.trace",
}

#: Modules that need an extra each; loaded by name only.
_FRONT_ENDS = ("torch", "onnx", "jax")


class _Package(ModuleType):
    """Keeps `hremate.solve` and the like the functions they are named after.

    The import system sets each submodule as an attribute of its package; where the module and its main
    function share a name, the function wins.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _LAZY and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if name in _FRONT_ENDS:
        return importlib.import_module(f"hremate.{name}")
    raise AttributeError(f"module 'hremate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "BudgetError",
    "Check",
    "Comparison",
    "CycleError",
    "DuplicateNameError",
    "EmptyGraphError",
    "FormatError",
    "Frontier",
    "Graph",
    "GraphError",
    "HremateError",
    "InvalidSchedule",
    "InvalidValueError",
    "MemoryBound",
    "MethodError",
    "MinBudget",
    "MissingExtraError",
    "Op",
    "OrderError",
    "Outcome",
    "Result",
    "Schedule",
    "ScheduleError",
    "ScheduleFile",
    "Simulation",
    "SolverError",
    "Stats",
    "Status",
    "Summary",
    "TimeBound",
    "Unanswered",
    "UnknownTensorError",
    "VersionError",
    "Violation",
    "__version__",
    "base_peak",
    "compare",
    "format_bytes",
    "frontier",
    "generate",
    "improve",
    "memory_lower_bound",
    "min_budget",
    "parse_budget",
    "read_graph",
    "read_schedule",
    "report",
    "simulate",
    "solve",
    "time_lower_bound",
    "trace",
    "validate",
    "write_graph",
    "write_schedule",
    "write_trace",
]
