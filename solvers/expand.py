"""From "what is kept" to a flat schedule: what is missing runs again just before it is needed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hremate.graph import BoolArray, Graph, IntArray
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solvers.base import Run


class Expansion:
    """A schedule under construction, with the tensors that count as being at hand.

    A tensor is at hand from the run of its producer until it is dropped. To drop a tensor means only that
    its next reader makes it again: frees follow from the order. Graph outputs and what an op makes that
    may run only once are never dropped.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        in_idx, in_ptr = graph.in_idx.tolist(), graph.in_ptr.tolist()
        self.reads: list[list[int]] = [in_idx[in_ptr[i] : in_ptr[i + 1]] for i in range(graph.n_ops)]
        self.makes = [graph.outputs_of(i) for i in range(graph.n_ops)]
        self.producer: list[int] = graph.producer.tolist()
        self.stays: list[bool] = (graph.is_output | graph.once[graph.producer]).tolist()
        self.reset()

    def reset(self) -> None:
        """Start again with an empty schedule."""
        #: Ops so far.
        self.order: list[int] = []
        #: Tensors at hand, bool[m].
        self.have = [False] * self.graph.n_tensors
        #: Ops that have run, bool[n].
        self.ran = [False] * self.graph.n_ops

    def run(self, op: int) -> None:
        """Run `op`, before it whatever makes the inputs that are not at hand, depth first."""
        have, reads, producer = self.have, self.reads, self.producer
        stack = [op]
        while stack:
            i = stack[-1]
            for x in reads[i]:
                if not have[x]:
                    stack.append(producer[x])
                    break
            else:
                stack.pop()
                self.order.append(i)
                self.ran[i] = True
                for x in self.makes[i]:
                    have[x] = True

    def ensure(self, tensors: Iterable[int]) -> None:
        """Make the `tensors` that are not at hand."""
        for x in tensors:
            if not self.have[x]:
                self.run(self.producer[x])

    def drop(self, tensors: Iterable[int]) -> None:
        """From here on the `tensors` are to be made again."""
        for x in tensors:
            if not self.stays[x]:
                self.have[x] = False


def recompute_once(expansion: Expansion, split: int, kept: BoolArray) -> IntArray:
    """The schedule that keeps some forward tensors for the backward part and makes the others again.

    The given order; from position `split` on, a forward tensor that is not in `kept` (bool[m]) is made
    again by the first op that needs it, and then stays until its last read. No op runs more than twice.
    """
    expansion.reset()
    graph = expansion.graph
    for op in range(split):
        expansion.run(op)
    expansion.drop(np.flatnonzero(~kept[: graph.out_ptr[split]]).tolist())
    for op in range(split, graph.n_ops):
        expansion.run(op)
    return np.array(expansion.order, np.int64)


class Sweep:
    """The best of several schedules: the fastest within the budget, else the one of smallest peak."""

    def __init__(self, graph: Graph, budget: int, run: Run) -> None:
        self.graph = graph
        self.budget = budget
        self.run = run
        #: The best so far, None before the first offer.
        self.order: IntArray | None = None
        self._rank: tuple[bool, float, float] = (True, np.inf, np.inf)

    @property
    def fits(self) -> bool:
        """Whether the best so far is within the budget."""
        return not self._rank[0]

    def offer(self, order: IntArray) -> int:
        """Consider a schedule; returns its peak in bytes."""
        schedule = Schedule(order)
        simulation = simulate(self.graph, schedule)
        peak, time = simulation.peak, simulation.time
        rank = (False, time, float(peak)) if peak <= self.budget else (True, float(peak), time)
        if rank < self._rank:
            self.order, self._rank = schedule.order, rank
            if self.fits and self.run.callback is not None:
                self.run.callback(schedule, peak, time)
        return peak

    def offer_all(self, orders: Iterable[IntArray]) -> IntArray | None:
        """Consider schedules one by one until the deadline; returns the best so far."""
        for order in orders:
            self.offer(order)
            if self.run.deadline.expired:
                self.run.stats.timed_out = True
                break
        return self.order
