"""What searches by passes and beams come across."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from hremate.graph import Graph, IntArray
from hremate.simulate import simulate
from hremate.solvers.orders import NO_LIMIT
from hremate.solvers.searcher import OutOfTime, Searcher
from hremate.solvers.shift import shift_and_repair

#: Units of work for each step of a schedule that is repaired and simulated.
_WORK_PER_STEP = 200


@dataclass
class Found:
    """What a search has come across."""

    graph: Graph
    budget: int
    #: Best schedule within the budget: least time, then least peak.
    order: IntArray | None = None
    time: float = float("inf")
    peak: int = NO_LIMIT
    #: Schedule of the smallest peak, then least time.
    smallest: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    smallest_peak: int = NO_LIMIT
    smallest_time: float = float("inf")
    #: Whether the deadline or Ctrl-C cut the search short.
    timed_out: bool = False
    interrupted: bool = False

    @property
    def best(self) -> IntArray:
        """The best schedule within the budget, or else the one of smallest peak."""
        return self.smallest if self.order is None else self.order

    def add(self, order: IntArray) -> None:
        """Take a valid schedule in."""
        simulation = simulate(self.graph, order)
        peak, time = simulation.peak, simulation.time
        if (peak, time) < (self.smallest_peak, self.smallest_time):
            self.smallest, self.smallest_peak, self.smallest_time = order, peak, time
        if peak <= self.budget and (time, peak) < (self.time, self.peak):
            self.order, self.time, self.peak = order, time, peak

    def take(self, searcher: Searcher, schedule: IntArray | None) -> bool:
        """Repair and shift what `searcher` found and take it in; whether no time at all is left to save."""
        if schedule is not None:
            self.add(shift_and_repair(self.graph, schedule, self.budget))
            searcher.count(_WORK_PER_STEP * len(schedule))
        return self.time <= self.graph.total_time

    @contextmanager
    def searching(self) -> Iterator[None]:
        """End a search at the deadline or on Ctrl-C, with the given order where nothing was found."""
        try:
            yield
        except OutOfTime:
            self.timed_out = True
        except KeyboardInterrupt:
            self.interrupted = True
        if not len(self.smallest):
            self.add(np.arange(self.graph.n_ops))
