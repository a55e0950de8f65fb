"""Solves a program with rows of memory until its answer fits the budget in exact bytes.

SCIP takes rows as met within a tolerance, which is many bytes of a large budget. So each answer is simulated;
when it exceeds the budget, the rows of memory are tightened by the excess and the program is solved again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hremate.graph import FloatArray
from hremate.solvers.base import Deadline
from hremate.solvers.scip import FEASTOL, MilpResult, MilpSolver, MilpStatus

#: Solves with a tightened budget before a solution that exceeds the budget is given up.
_TIGHTENINGS = 3


@dataclass(frozen=True)
class Outcome:
    """What is known about the program under the whole budget, which contains every schedule within it."""

    #: INFEASIBLE: no schedule fits.
    status: MilpStatus
    #: No schedule costs less.
    bound: float
    #: Whether the answer fits the budget in exact bytes and is the best.
    proved: bool
    #: Branch-and-bound nodes of all solves.
    nodes: int
    #: Ctrl-C arrived.
    interrupted: bool


def solve_within(
    solver: MilpSolver,
    budget: int,
    memory_rows: Sequence[int],
    limit_of: Callable[[int, int], float],
    offer: Callable[[FloatArray], int],
    *,
    deadline: Deadline,
    node_limit: int | None = None,
    starts: Sequence[FloatArray] = (),
    cutoff: float = math.inf,
    enough: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Solve the program of `solver`, loaded with the memory rows of the whole budget.

    Parameters
    ----------
    budget : int
        Bytes.
    memory_rows, limit_of
        `limit_of(q, nbytes)` is the upper side of the row `memory_rows[q]` under a budget of `nbytes`.
    offer : callable
        Takes every solution found; returns by how many bytes its schedule exceeds the budget.
    deadline, node_limit, starts, cutoff
        As in `MilpSolver.solve`.
    enough : callable
        Asked after each improved solution; the search ends when it says so.

    Raises
    ------
    SolverError
        SCIP failed.
    """

    def note(x: FloatArray, _: float) -> bool:
        offer(x)
        return enough()

    limit = budget
    results: list[MilpResult] = []
    proved = False
    for attempt in range(1 + _TIGHTENINGS):
        result = solver.solve(
            deadline=deadline, node_limit=node_limit, starts=starts, cutoff=cutoff, on_incumbent=note
        )
        results.append(result)
        if result.x is None:
            break
        excess = offer(result.x)
        proved = attempt == 0 and excess <= 0 and result.status is MilpStatus.OPTIMAL
        if excess <= 0 or result.interrupted or deadline.expired or enough():
            break
        # SCIP does not see an excess below its tolerance: from the second time on, stay clear of it.
        limit = min(limit - excess, budget - math.ceil(2 * attempt * FEASTOL * budget))
        for q, row in enumerate(memory_rows):
            solver.set_row(row, -np.inf, limit_of(q, limit))
    first, last = results[0], results[-1]
    return Outcome(first.status, first.bound, proved, sum(r.nodes for r in results), last.interrupted)
