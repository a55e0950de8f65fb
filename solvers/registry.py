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
            "the segment-alive MILP in SCIP: best staged schedule, given order and others",
            True,
            "proves up to about 70-100 ops; refuses above 400",
            "after Checkmate (Jain et al., MLSys 2020), with segments instead of frees",
        ),
        Method(
            "branch-and-bound",
            "hremate.solvers.branch_and_bound",
            "A* over states: best over all orders, anytime",
            True,
            "proves up to about 20-30 ops; refuses above 62 ops or tensors",
            "Hart, Nilsson and Raphael 1968 (A*)",
        ),
        Method(
            "checkmate",
            "hremate.solvers.checkmate",
            "the published Checkmate MILP in SCIP, for comparison",
            True,
            "about 70 ops; refuses above 1,000,000 variables",
            "Jain et al., MLSys 2020",
        ),
        Method(
            "moccasin",
            "hremate.solvers.moccasin",
            "retention intervals in CP-SAT, at most C runs per op",
            True,
            "needs the extra hremate[moccasin]; at most 5,000 ops",
            "Bartan et al., ICML 2023",
        ),
        Method(
            "beam",
            "hremate.solvers.beam",
            "beam search with recomputation, passes along seed orders, repair",
            False,
            "any graph; best below 5,000 ops",
            "eviction price after Kirisame et al., ICLR 2021",
        ),
        Method(
            "anneal",
            "hremate.solvers.anneal",
            "local search over sequences, cold from the given order and warm from the cut",
            False,
            "any graph; best below 5,000 ops",
            "after FastSA (Imanishi et al., NeurIPS 2023)",
        ),
        Method(
            "cut",
            "hremate.solvers.cut",
            "what to keep and re-run by minimum cuts, then at several moments at once in SCIP",
            False,
            "any graph, 240,000 ops in seconds; mostly optimal on training graphs of up to 3,000 ops",
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
            "checkmate-lp",
            "hremate.solvers.checkmate_lp",
            "Checkmate's LP relaxation, rounded in two phases",
            False,
            "about 150 ops; refuses above 1,000,000 variables",
            "Jain et al., MLSys 2020, section 5",
        ),
        Method(
            "rockmate",
            "hremate.ilp.rockmate",
            "chain of blocks, options from small exact models, rotor on top",
            False,
            "training graphs that are chains of blocks",
            "Zhao et al., ICML 2023",
        ),
        Method(
            "rotor",
            "hremate.solvers.rotor",
            "dynamic program over a chain of blocks, saved or run again whole",
            False,
            "training graphs that are chains of blocks",
            "Beaumont et al., ACM TOMS 2024",
        ),
        Method(
            "twremat",
            "hremate.solvers.twremat",
            "recursion over separators of a tree decomposition",
            False,
            "any graph of small treewidth",
            "Kumar et al., NeurIPS 2019",
        ),
        Method(
            "mincut",
            "hremate.solvers.mincut",
            "knapsack over the minimum cut between forward and backward part",
            False,
            "training graphs",
            "PyTorch's memory-budget partitioner; He and Yu, MLSys 2023",
        ),
        Method(
            "chen-sqrt",
            "hremate.solvers.chen_sqrt",
            "evenly spaced checkpoints, about sqrt(n) of them",
            False,
            "training graphs",
            "Chen et al., 2016",
        ),
        Method(
            "chen-greedy",
            "hremate.solvers.chen_greedy",
            "a checkpoint whenever a segment exceeds b bytes, b swept",
            False,
            "training graphs",
            "Chen et al., 2016",
        ),
        Method(
            "griewank",
            "hremate.solvers.griewank",
            "binomial checkpointing (revolve) with c slots, c swept",
            False,
            "training graphs",
            "Griewank and Walther, ACM TOMS 2000",
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
    try:
        return params(**options)
    except (TypeError, ValueError) as error:
        raise MethodError(f"method {method.name!r}: {error}") from error
