"""The best schedule that a method has come across, checked in exact bytes."""

from __future__ import annotations

import math
from collections.abc import Callable

from hremate.graph import Graph, IntArray
from hremate.schedule import Schedule
from hremate.simulate import Simulation, simulate
from hremate.solvers.base import Run

#: A schedule this close to its bound, relative to the base time, is optimal.
OPTIMAL_GAP = 1e-9


def meets(graph: Graph, time: float, lower_bound: float) -> bool:
    """Whether a schedule of this time is optimal by this bound; the order of a sum does not count."""
    return time <= lower_bound + OPTIMAL_GAP * graph.total_time


class Incumbent:
    """The best schedule within a budget among those offered, and the one of the smallest peak.

    Parameters
    ----------
    budget : int
        Bytes.
    on_improved : callable, optional
        Called with each improved order within the budget and its simulation.
    lower_bound : float
        Time that no schedule beats, as far as is known; the sum of all op times is always one.
    """

    def __init__(
        self,
        graph: Graph,
        budget: int,
        on_improved: Callable[[IntArray, Simulation], object] | None = None,
        lower_bound: float = 0.0,
    ) -> None:
        self.lower_bound = max(lower_bound, graph.total_time)
        self._graph = graph
        self._budget = budget
        self._on_improved = on_improved
        #: The quickest schedule within the budget, and its time; None and +inf before there is one.
        self.order: IntArray | None = None
        self.time = math.inf
        #: The schedule of the smallest peak.
        self.smallest: IntArray | None = None
        self._smallest_peak: float = math.inf

    @property
    def best(self) -> IntArray | None:
        """The quickest schedule within the budget, or else the one of the smallest peak."""
        return self.smallest if self.order is None else self.order

    @property
    def meets_bound(self) -> bool:
        """Whether nothing is left to gain."""
        return meets(self._graph, self.time, self.lower_bound)

    def offer(self, order: IntArray) -> int:
        """Consider a valid schedule; return by how many bytes it exceeds the budget."""
        simulation = simulate(self._graph, order)
        if simulation.peak < self._smallest_peak:
            self.smallest, self._smallest_peak = order, simulation.peak
        excess = simulation.peak - self._budget
        if excess <= 0 and simulation.time < self.time:
            self.order, self.time = order, simulation.time
            if self._on_improved is not None:
                self._on_improved(order, simulation)
        return excess


def announcer(run: Run, method: str) -> Callable[[IntArray, Simulation], None]:
    """Tells `run.progress` and `run.callback` of an improved order."""

    def announce(order: IntArray, simulation: Simulation) -> None:
        run.progress(f"{method}: time {simulation.time:.6g}")
        if run.callback is not None:
            run.callback(Schedule(order), simulation.peak, simulation.time)

    return announce
