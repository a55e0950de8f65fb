"""An independent check of a schedule, in plain Python: it shares no code with `hremate.simulate`.

Every schedule that leaves hremate has passed it.
"""

from __future__ import annotations

import enum
import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass

from hremate.errors import ScheduleError
from hremate.graph import Graph
from hremate.schedule import Schedule


class Violation(enum.Enum):
    """The ways a schedule can be wrong."""

    UNKNOWN_OP = "a step names no op of the graph"
    NOT_COMPUTED = "a step reads a tensor before it is computed"
    NEVER_RUN = "an op never runs"
    RUN_AGAIN = "an op that may run only once runs again"
    OVER_BUDGET = "the peak exceeds the budget"


@dataclass(frozen=True)
class Check:
    """What the validator found out about a valid schedule."""

    peak: int
    time: float
    recomputes: int


class InvalidSchedule(ScheduleError):
    """A schedule that is not valid; `violation` says in which way."""

    def __init__(self, violation: Violation, message: str) -> None:
        super().__init__(message)
        self.violation = violation


def validate(graph: Graph, schedule: Schedule | Iterable[int], budget: int | None = None) -> Check:
    """Check that `schedule` is valid for `graph` and, where `budget` (bytes) is given, fits it.

    Returns
    -------
    Check
        Peak (bytes), time and number of recomputed steps, found without `simulate`.

    Raises
    ------
    InvalidSchedule
        With the first violation, in the order of `Violation`, naming step, op and tensor.
    ScheduleError
        `schedule` is no sequence of integers.
    """
    try:
        order = [operator.index(i) for i in schedule]
    except TypeError as error:
        raise ScheduleError(f"a schedule is a flat sequence of op indices (integers): {error}") from None
    n = graph.n_ops
    names = graph.op_names
    inputs = [[int(x) for x in graph.inputs_of(i)] for i in range(n)]
    size = [int(s) for s in graph.size]
    for step, i in enumerate(order):
        if not 0 <= i < n:
            raise InvalidSchedule(Violation.UNKNOWN_OP, f"step {step}: no op {i} (the graph has {n} ops)")

    # A copy is [tensor, born, last step at which it is needed].
    copies: list[list[int]] = []
    latest: dict[int, list[int]] = {}
    runs = [0] * n
    reads: list[list[list[int]]] = []
    for step, i in enumerate(order):
        used = []
        for x in inputs[i]:
            if x not in latest:
                raise InvalidSchedule(
                    Violation.NOT_COMPUTED,
                    f"step {step}: op {names[i]!r} reads {graph.tensor_names[x]!r} before it is computed",
                )
            latest[x][2] = step
            used.append(latest[x])
        reads.append(used)
        for x in graph.outputs_of(i):
            latest[x] = [x, step, step]
            copies.append(latest[x])
        runs[i] += 1
    for i, count in enumerate(runs):
        if count == 0:
            raise InvalidSchedule(Violation.NEVER_RUN, f"op {names[i]!r} never runs")
    for i, count in enumerate(runs):
        if count > 1 and graph.once[i]:
            raise InvalidSchedule(
                Violation.RUN_AGAIN, f"op {names[i]!r} may run only once and runs {count} times"
            )
    for x in graph.outputs.tolist():
        latest[x][2] = len(order)

    dying: list[list[list[int]]] = [[] for _ in range(len(order) + 1)]
    for copy in copies:
        dying[copy[2]].append(copy)
    live = peak = 0
    peak_step = 0
    for step, i in enumerate(order):
        made = sum(size[x] for x in graph.outputs_of(i))
        workspace = int(graph.workspace[i])
        if graph.memory_model == "reuse":
            released = sum(size[copy[0]] for copy in reads[step] if copy[2] == step)
            here = max(live + workspace, live - released + made)
        else:
            here = live + made + workspace
        if here > peak:
            peak, peak_step = here, step
        live += made - sum(size[copy[0]] for copy in dying[step])
    if budget is not None and peak > budget:
        raise InvalidSchedule(
            Violation.OVER_BUDGET,
            f"step {peak_step}: op {names[order[peak_step]]!r} brings the peak to {peak} bytes, "
            f"{peak - budget} above the budget of {budget} bytes",
        )
    return Check(peak, math.fsum(float(graph.time[i]) for i in order), len(order) - n)
