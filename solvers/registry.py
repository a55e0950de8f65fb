"""The methods by name. Entries are import strings, so that listing them loads nothing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, fields
from typing import Any

from hremate.errors import MethodError


@dataclass(frozen=True)
class Method:
    """One way to schedule a graph."""

    name: str
    #: Module with `Params` and `solve`.
    module: str
    #: One line.
    summary: str
    #: Whether it can prove what it finds.
    exact: bool
    #: Size or kind of graphs it is meant for.
    limits: str
    source: str

    def load(self) -> Any:
        return importlib.import_module(self.module)


METHODS: dict[str, Method] = {
    m.name: m
    for m in (
        Method(
            "hierarchical",
            "hremate.ilp.hierarchical",
            "convex blocks, options per block, merged by the hierarchical ILP",
            False,
            "any graph",
            "Gusak et al., ICML 2025 (HiRemate)",
        ),
        Method(
            "exact",
            "hremate.solvers.exact",
            "the segment-alive MILP in SCIP: best schedule staged along the given order",
            True,
            "up to about 70 ops, fewer at tight budgets",
            "after Checkmate (Jain et al., MLSys 2020), with segments instead of frees",
        ),
        Method(
            "beam",
            "hremate.solvers.beam",
            "beam search with recomputation",
            False,
            "any graph",
            "-",
        ),
        Method(
            "greedy",
            "hremate.solvers.greedy",
            "a beam of width 1 without seeds",
            False,
            "any graph",
            "-",
        ),
        Method(
            "none",
            "hremate.solvers.none",
            "the given order, nothing recomputed: what autodiff does",
            False,
            "any graph",
            "-",
        ),
    )
}


def get_method(name: str) -> Method:
    """The method called `name`; raises MethodError with the list of names."""
    if name not in METHODS:
        raise MethodError(f"unknown method {name!r}; known: {', '.join(sorted(METHODS))}")
    return METHODS[name]


def make_params(method: Method, options: dict[str, Any]) -> Any:
    """The method's `Params` from keyword options; raises MethodError for an unknown or bad one."""
    params = method.load().Params
    known = [f.name for f in fields(params)]
    for key in options:
        if key not in known:
            raise MethodError(
                f"method {method.name!r} has no parameter {key!r}; known: {', '.join(known) or 'none'}"
            )
    return params(**options)
