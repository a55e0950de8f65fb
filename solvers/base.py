"""The interface of a solver: what it is told (`Run`) and how it hands in its answer (`finish`).

A solver is a module with a frozen parameters dataclass `Params` and

    solve(graph, budget, run, params) -> Result

where `budget` is in bytes and at least the largest working set of the graph need not be checked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hremate.errors import SolverError
from hremate.graph import Graph, IntArray
from hremate.result import Result, Stats, Status
from hremate.schedule import Schedule
from hremate.simulate import base_peak, simulate
from hremate.validate import validate


class Deadline:
    """A moment on the monotonic clock, or never."""

    def __init__(self, seconds: float | None = None) -> None:
        self.start = time.monotonic()
        self.end = None if seconds is None else self.start + seconds

    @property
    def remaining(self) -> float:
        """Seconds left, >= 0, infinite without a limit."""
        return float("inf") if self.end is None else max(0.0, self.end - time.monotonic())

    @property
    def expired(self) -> bool:
        return self.end is not None and time.monotonic() >= self.end

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    def within(self, seconds: float) -> Deadline:
        """A deadline `seconds` from now, or this one if that is earlier."""
        return Deadline(min(seconds, self.remaining))

    def shortened(self, seconds: float) -> Deadline:
        """The same clock, which strikes in `seconds` from now if that is earlier."""
        result = Deadline()
        result.start = self.start
        end = time.monotonic() + seconds
        result.end = self.end if not math.isfinite(end) else end if self.end is None else min(end, self.end)
        return result


def _silent(message: str) -> None:
    pass


@dataclass
class Run:
    """The circumstances of one solve."""

    seed: int = 0
    n_jobs: int = 1
    deadline: Deadline = field(default_factory=Deadline)
    #: A valid schedule to start from, of any peak.
    warm_start: Schedule | None = None
    #: Total time that no schedule within the budget can beat, as far as is known: reason to stop.
    lower_bound: float = 0.0
    #: Whether the search for that bound is over; the schedule within the budget that it came by, if any.
    bounded: bool = False
    bound_order: IntArray | None = None
    #: Called with one line of text when something worth telling happens.
    progress: Callable[[str], None] = _silent
    #: Called with (order, peak, time) for each improved schedule within the budget.
    callback: Callable[[Schedule, int, float], None] | None = None
    stats: Stats = field(default_factory=Stats)

    def listen(self, callback: Callable[[Schedule, int, float], None] | None) -> None:
        """Keep the trajectory from now on, and hand each improvement on to `callback`."""

        def improved(schedule: Schedule, peak: int, total: float) -> None:
            if self.record(total) and callback is not None:
                callback(schedule, peak, total)

        self.callback = improved

    def record(self, total: float) -> bool:
        """Note that a schedule within the budget takes the time `total`; return whether that is new."""
        trajectory = self.stats.trajectory
        if trajectory and total >= trajectory[-1][1]:
            return False
        trajectory.append((self.deadline.elapsed, total))
        return True


def finish(
    graph: Graph,
    budget: int,
    run: Run,
    method: str,
    order: IntArray | None,
    *,
    status: Status | None = None,
    proof: str | None = None,
    lower_bound: float | None = None,
    order_lower_bound: float | None = None,
    reason: str = "",
) -> Result:
    """Check `order` with the independent validator and wrap it into a `Result`.

    `status` defaults to FEASIBLE when the peak fits the budget, else NO_SOLUTION.

    Raises
    ------
    SolverError
        The order is not valid, or simulator and validator disagree: a fault of hremate, never passed on.
    """
    schedule = peak = total = None
    if order is not None:
        schedule = Schedule(np.asarray(order, np.int64))
        check = validate(graph, schedule)
        simulation = simulate(graph, schedule)
        peak, total = check.peak, check.time
        if (simulation.peak, simulation.time) != (peak, total):
            raise SolverError(f"{method}: simulate and validate disagree on a schedule of {graph.name!r}")
    fits = peak is not None and peak <= budget
    if status in (Status.OPTIMAL, Status.FEASIBLE) and not fits:
        raise SolverError(f"{method}: claims {status} with a peak of {peak} bytes, budget {budget}")
    if status is None:
        status = Status.FEASIBLE if fits else Status.NO_SOLUTION
    return Result(
        graph=graph.name,
        method=method,
        status=status,
        budget=budget,
        base_peak=base_peak(graph),
        base_time=graph.total_time,
        schedule=schedule,
        peak=peak,
        time=total,
        ops=graph.n_ops,
        seed=run.seed,
        wall_time=run.deadline.elapsed,
        lower_bound=lower_bound,
        order_lower_bound=order_lower_bound,
        proof=proof,
        reason=reason,
        stats=run.stats,
    )
