"""The given order, nothing recomputed: what autodiff does by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate.graph import Graph
from hremate.result import Result
from hremate.solvers.base import Run, finish


@dataclass(frozen=True)
class Params:
    """No parameters."""


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Return the given order, whatever its peak."""
    return finish(graph, budget, run, "none", np.arange(graph.n_ops))
