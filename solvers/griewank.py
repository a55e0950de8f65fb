"""The method `griewank`: binomial checkpointing with c slots.

Griewank and Walther, Algorithm 799: revolve (ACM TOMS, 2000), section 2: with c slots beside the input, a
chain of n steps needs the fewest forward steps when the part right of each checkpoint is a binomial share
of the whole. On DAGs, as Checkmate does (Jain et al., MLSys 2020, section 6.1): the steps lie between
articulation points ("articulation") or are single ops of the linearised order ("linear"), where a slot
holds everything that crosses its position.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.solvers.base import Run, finish
from hremate.solvers.chain import crossing, last_forward_read, training_split
from hremate.solvers.chen import candidate_positions, check_points
from hremate.solvers.expand import Expansion, Sweep

#: A number of slots that would run more forward steps than this, times the length of the chain, is skipped.
MOST_REPETITIONS = 40


@dataclass(frozen=True)
class Params:
    """Parameters of griewank."""

    #: Number of slots; 0 tries a row of them.
    slots: int = 0
    #: What a step is: between "articulation" points, a single op ("linear"), or "both".
    points: str = "both"

    def __post_init__(self) -> None:
        if self.slots < 0:
            raise MethodError("Expected slots >= 0.")
        check_points(self.points)


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest of the binomial schedules that fits `budget`.

    Raises
    ------
    MethodError
        The graph has no backward part.
    """
    split = training_split(graph, "griewank")
    sweep = Sweep(graph, budget, run)
    sweep.offer(np.arange(graph.n_ops))
    if sweep.fits and not params.slots:
        return finish(graph, budget, run, "griewank", sweep.order)
    expansion = Expansion(graph)
    reversals = (
        Reversal(expansion, split, positions)
        for positions in candidate_positions(graph, split, params.points)
    )
    orders = (
        reversal.schedule(slots)
        for reversal in reversals
        for slots in slot_counts(reversal.steps, params.slots)
    )
    return finish(graph, budget, run, "griewank", sweep.offer_all(orders))


def slot_counts(steps: int, wanted: int) -> list[int]:
    """Numbers of slots to try on a chain, most first: the one wanted, else a geometric row."""
    if wanted:
        return [wanted]
    counts = {1, 2, 3, max(1, steps - 1)}
    value = 3.0
    while value < steps:
        counts.add(round(value))
        value *= 1.25
    few_enough = [c for c in counts if forward_steps(steps, c) <= MOST_REPETITIONS * steps]
    return sorted(few_enough, reverse=True)


def repetitions(steps: int, slots: int) -> int:
    """Least r with steps <= beta(slots + 1, r) = C(slots + 1 + r, r)."""
    r = 0
    while math.comb(slots + 1 + r, r) < steps:
        r += 1
    return r


def forward_steps(steps: int, slots: int) -> int:
    """Fewest forward steps that reverse a chain with `slots` beside the input (theorem 1 of the paper).

    r n - beta(c + 1, r - 1) to advance, c counting the input too, and one more in each reversal.
    """
    r = repetitions(steps, slots)
    return steps + (r * steps - math.comb(slots + 1 + r, r - 1) if r else 0)


def checkpoint(steps: int, slots: int) -> int:
    """Steps to advance before the next checkpoint is stored.

    Any m with forward_steps(m, slots) + forward_steps(steps - m, slots - 1) + m least will do; those are
    an interval whose ends follow from the binomial numbers (section 2 of the paper).
    """
    c = slots + 1
    r = repetitions(steps, slots)
    if r < 1:
        return 1
    most = math.comb(c + r - 1, r - 1)
    least_right = math.comb(c - 1 + r - 1, r - 1)
    return max(1, min(most, steps - least_right))


class Reversal:
    """Schedules of the backward part that recompute from checkpoints on the way."""

    def __init__(self, expansion: Expansion, split: int, positions: IntArray) -> None:
        graph = expansion.graph
        self.expansion = expansion
        self.split = split
        #: Step i is the forward ops bounds[i]:bounds[i + 1].
        self.bounds = [0, *positions.tolist(), split]
        self.steps = len(self.bounds) - 1
        last = last_forward_read(graph, split)
        #: Tensors that cross the start of each step.
        self.state: list[list[int]] = [crossing(graph, last, p).tolist() for p in self.bounds[:-1]]
        step_of_op = np.searchsorted(np.array(self.bounds), np.arange(split), side="right") - 1
        #: Step that makes each forward tensor.
        self.step_of = step_of_op[graph.producer[: graph.out_ptr[split]]].tolist()

    def schedule(self, slots: int) -> IntArray:
        """The whole schedule with `slots` checkpoints beside the input."""
        self.expansion.reset()
        #: Number of slots that hold each tensor.
        self.held = [0] * self.expansion.graph.n_tensors
        #: Tensors that lost their last slot since the last drop, and the step of the schedule at it.
        self.loose: list[int] = []
        self.dropped_at = 0
        self.next_backward = self.split
        # Parts still to reverse, the next one last: (first step, end, slots, whether its start has a slot).
        todo = [(0, self.steps, slots, False)]
        while todo:
            first, end, free, stored = todo.pop()
            if end - first == 1:
                if stored:
                    self._hold(first, -1)
                self._reverse(first)
                continue
            middle = first + checkpoint(end - first, free) if free else end - 1
            self._advance(first, middle)
            self._hold(middle, 1)
            # The left part inherits the slot of its start.
            todo += [(first, middle, free, stored), (middle, end, max(0, free - 1), True)]
        return np.array(self.expansion.order, np.int64)

    def _hold(self, step: int, change: int) -> None:
        for x in self.state[step]:
            self.held[x] += change
            if not self.held[x]:
                self.loose.append(x)

    def _advance(self, first: int, middle: int) -> None:
        """Make the state of step `middle` from that of step `first`, and drop what lies between."""
        self._first_runs(self.bounds[first], self.bounds[middle])
        self.expansion.ensure(self.state[middle])
        self._drop(self.state[middle])

    def _reverse(self, step: int) -> None:
        """Run the backward ops that need this step or a later one, what they read just before them."""
        expansion = self.expansion
        self._first_runs(self.bounds[step], self.bounds[step + 1])
        forward = len(self.step_of)
        while self.next_backward < expansion.graph.n_ops:
            op = self.next_backward
            if step and any(
                x < forward and not expansion.have[x] and self.step_of[x] < step for x in expansion.reads[op]
            ):
                break
            expansion.run(op)
            self.next_backward += 1
        self._drop(())

    def _first_runs(self, start: int, end: int) -> None:
        for op in range(start, end):
            if not self.expansion.ran[op]:
                self.expansion.run(op)

    def _drop(self, kept: list[int] | tuple[int, ...]) -> None:
        """Drop all forward tensors at hand but `kept` and those in slots."""
        expansion, spared = self.expansion, set(kept)
        recent = expansion.order[self.dropped_at :]
        made = [x for op in recent if op < self.split for x in expansion.makes[op]]
        expansion.drop(x for x in self.loose + made if not self.held[x] and x not in spared)
        self.loose = []
        self.dropped_at = len(expansion.order)
