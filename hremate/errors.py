"""The exceptions of hremate: bad input of every kind has its own class, all below `HremateError`.

Every message names the op, tensor, line or value at fault and, where there is one, the way out.
"""

from __future__ import annotations


class HremateError(Exception):
    """Base of everything hremate raises on purpose."""


class GraphError(HremateError):
    """A graph that breaks the rules of the model."""


class EmptyGraphError(GraphError):
    """A graph without ops."""


class DuplicateNameError(GraphError):
    """Two ops or two tensors share a name."""


class UnknownTensorError(GraphError):
    """A tensor is named that no op makes and no op reads."""


class CycleError(GraphError):
    """The ops do not form a DAG (a self-loop is a cycle of length one)."""


class OrderError(GraphError):
    """The graph is a DAG, but its ops are not listed in a topological order."""


class InvalidValueError(GraphError):
    """A size, time or other attribute outside its domain: negative, NaN, infinite, too large, wrong type."""


class FormatError(HremateError):
    """A file that is not in the format it should be in."""


class VersionError(FormatError):
    """A file of a known format in a version this release does not read."""


class ScheduleError(HremateError):
    """A sequence of ops that is no valid schedule of the graph."""


class BudgetError(HremateError):
    """A memory budget that cannot be read."""


class MethodError(HremateError):
    """An unknown method, a parameter out of range, or a method that cannot take this graph."""


class MissingExtraError(HremateError):
    """An optional package is needed and not installed."""


class SolverError(HremateError):
    """A solver failed in a way that left nothing usable."""
