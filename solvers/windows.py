"""Windows: the best change to some runs of a schedule while everything else stays as it is.

A window frees where some ops run again. The steps of the schedule, with *candidate* runs put in between, are
the slots of a program (`window_model`) that decides which of them run, so it sees both "keep it instead of
computing it again" and "compute it again instead of keeping it", and, since a first run may give way to a
later one, "run it later".

A candidate run is put right before a step that could read what it makes, with the candidates that could make
its own inputs before it. It is left out where the tensor may as well be kept: where, ever since it was last
made or read, the schedule has room for `reach` times its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.simulate import step_memory
from hremate.solvers.base import Deadline
from hremate.solvers.incumbent import Incumbent
from hremate.solvers.memory_milp import solve_within
from hremate.solvers.scip import MilpSolver
from hremate.solvers.window_model import Net, Slots, TooLarge, WindowModel, build_window_model

#: Candidate runs beyond which a window is given up.
MOST_CANDIDATES = 200_000
#: Steps between two looks at the clock.
_STRIDE = 1024
#: As in `exact`: this heuristic spends its time on such programs without finding anything.
_SETTINGS = {"heuristics/farkasdiving/freq": -1}


@dataclass(frozen=True, eq=False)
class Window:
    """What may change: the runs of some ops, among some steps of the schedule."""

    #: Ops whose runs are free, bool[n].
    ops: BoolArray
    #: Free are the steps first <= p < last.
    first: int
    last: int
    #: How much room keeps a candidate out, >= 0; the larger, the more candidates.
    reach: float = 1.0


@dataclass(frozen=True, eq=False)
class WindowAnswer:
    """What solving a window found."""

    #: Which slots run in the best schedule within the budget, bool[S]; None when there is none.
    runs: BoolArray | None
    #: Its time, never more than that of the schedule as it was, if that is within the budget; else +inf.
    time: float
    #: It is the best one of the window.
    proved: bool
    #: Branch-and-bound nodes.
    nodes: int
    #: Ctrl-C arrived.
    interrupted: bool
    #: Why there is no answer.
    failure: str = ""


class Windows:
    """Windows on the schedules of one graph under one budget (bytes), as long as there is time."""

    def __init__(self, graph: Graph, budget: int, deadline: Deadline | None = None) -> None:
        self.graph = graph
        self.budget = budget
        self.deadline = deadline or Deadline()
        self.net = Net.of(graph, budget)
        self._inputs = [[x for x in graph.inputs_of(i).tolist() if graph.size[x]] for i in range(graph.n_ops)]
        self._size: list[int] = graph.size.tolist()
        self._producer: list[int] = graph.producer.tolist()
        self._once: list[bool] = graph.once.tolist()
        # An empty tensor is kept for ever, from the first run of its producer on, which then must stay.
        self._movable = np.ones(graph.n_ops, np.bool_)
        self._movable[graph.producer[graph.size == 0]] = False

    def slots(self, order: IntArray, window: Window) -> Slots:
        """The steps of a valid schedule with the candidate runs of a window in between.

        Raises
        ------
        TooLarge
            There are more than `MOST_CANDIDATES`, or no time is left to find them all.
        """
        ops = window.ops.tolist()
        slack = self.budget - step_memory(self.graph, order)
        touched: dict[int, int] = {}  # last step at which each tensor of the window had a slot
        ran = [False] * self.graph.n_ops
        entries: list[tuple[int, int, bool, bool]] = []  # op, step, present, free
        for p, i in enumerate(order.tolist()):
            inside = window.first <= p < window.last
            reads = [x for x in self._inputs[i] if ops[self._producer[x]]]
            if len(entries) - p > MOST_CANDIDATES or (p % _STRIDE == 0 and self.deadline.expired):
                raise TooLarge
            if inside:
                for r in self._candidates(reads, ops, slack, window.reach, touched, p):
                    entries.append((r, p, False, True))
            entries.append((i, p, True, inside and ops[i] and ran[i]))
            ran[i] = True
            for x in reads:
                touched[x] = p
            if ops[i]:
                touched.update((x, p) for x in self.graph.outputs_of(i))
        op, step, present, free = (np.array(column) for column in zip(*entries, strict=True))
        self._free_first_runs(op, step, present, free, window)
        return Slots(op, step, present, free)

    def _candidates(
        self,
        reads: list[int],
        ops: list[bool],
        slack: IntArray,
        reach: float,
        touched: dict[int, int],
        step: int,
    ) -> list[int]:
        """Ops of the window to run before `step`, which has the inputs `reads` from it; ascending."""
        found: set[int] = set()
        stack = list(reads)
        while stack:
            x = stack.pop()
            r = self._producer[x]
            if r in found or self._once[r]:
                continue
            between = slack[touched[x] + 1 : step]
            if not len(between) or between.min() >= reach * self._size[x]:
                continue
            found.add(r)
            stack += [y for y in self._inputs[r] if ops[self._producer[y]]]
        for r in found:
            for x in (*self.graph.outputs_of(r), *self._inputs[r]):
                if x in touched:
                    touched[x] = step - 1  # need not be alive during the step itself
        return sorted(found)

    def _free_first_runs(
        self, op: IntArray, step: IntArray, present: BoolArray, free: BoolArray, window: Window
    ) -> None:
        """First runs of ops that may run again later are free, too: one of the runs is enough."""
        ops, first = np.unique(op, return_index=True)  # a candidate never comes before the first run
        again = np.zeros(self.graph.n_ops, np.bool_)
        again[op[free]] = True
        first = first[again[ops] & self._movable[ops]]
        free[first[(window.first <= step[first]) & (step[first] < window.last)]] = True

    def model(self, order: IntArray, window: Window) -> WindowModel | None:
        """The program of a window of a valid schedule; None when nothing can change.

        Raises
        ------
        TooLarge
            See `slots` and `build_window_model`.
        """
        slots = self.slots(order, window)
        return build_window_model(self.net, order, slots) if slots.free.any() else None


def solve_window(
    model: WindowModel,
    *,
    deadline: Deadline | None = None,
    node_limit: int | None = None,
    seed: int = 0,
) -> WindowAnswer:
    """Solve the program of a window, starting from the schedule as it is.

    Parameters
    ----------
    deadline, node_limit, seed
        As in `MilpSolver`.

    Raises
    ------
    SolverError
        SCIP failed.
    """
    best = Incumbent(model.net.graph, model.net.budget)
    chosen: list[BoolArray] = []

    def offer(x: FloatArray) -> int:
        runs, before = model.runs_of(x), best.time
        excess = best.offer(model.slots.op[runs])
        if best.time < before:
            chosen[:] = [runs]
        return excess

    offer(model.start)
    outcome = solve_within(
        MilpSolver(model.milp, seed=seed, name=f"window of {model.net.graph.name!r}", settings=_SETTINGS),
        model.net.budget, model.memory_rows, model.memory_limit, offer,
        deadline=deadline or Deadline(), node_limit=node_limit, starts=[model.start],
    )  # fmt: skip
    return WindowAnswer(
        chosen[0] if chosen else None, best.time, outcome.proved, outcome.nodes, outcome.interrupted
    )


def combine(order: IntArray, changes: Sequence[tuple[Slots, BoolArray]]) -> IntArray:
    """`order` with the changes of several windows on it: which of their slots run.

    Changes that suit it one by one may together exceed the budget or read what is not there yet.
    """
    stays = np.ones(len(order), np.bool_)
    added = [np.empty((0, 2), np.int64)]
    for slots, runs in changes:
        stays[slots.step[slots.present & ~runs]] = False
        new = runs & ~slots.present
        added.append(np.column_stack([slots.step[new], slots.op[new]]))
    step, op = np.concatenate(added).T
    kept = np.flatnonzero(stays)
    # Before a step its candidates run, in topological order.
    last = np.concatenate([np.zeros(len(op), np.int64), np.ones(len(kept), np.int64)])
    step, op = np.concatenate([step, kept]), np.concatenate([op, order[kept]])
    result: IntArray = op[np.lexsort((op, last, step))]
    return result
