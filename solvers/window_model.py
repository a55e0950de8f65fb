"""The program of a window: which slots run, given a schedule that is fixed elsewhere (see `windows`).

Each slot runs its op or not, and a tensor is alive on *segments* between the slots of its producer and of
its readers. Tensors that no free slot makes or reads add constants to the memory rows. With the runs fixed
the least segments are 0 or 1, as in `hremate.solvers.segments`, and there is no big-M; that they are integer
helps the solver to branch on what is kept, which moves its bound most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.solvers._window_kernel import held_bytes
from hremate.solvers.milp import Milp, MilpBuilder
from hremate.solvers.segments import MAX_DIVISORS

#: Coefficients in the memory rows of a program beyond which it is not built: SCIP would get nowhere with it.
MOST_COEFFICIENTS = 1_000_000
# References to a segment or a run: the index of its variable, or one of these.
_ZERO, _ONE = -1, -2


class TooLarge(Exception):
    """A window has more slots or coefficients than pay."""


@dataclass(frozen=True, eq=False)
class Slots:
    """The steps of a schedule, with candidate runs in between; S slots."""

    #: Op of each slot, int64[S].
    op: IntArray
    #: Step of the schedule that a slot is, or right before which it lies, int64[S].
    step: IntArray
    #: Whether it is a step of the schedule, bool[S].
    present: BoolArray
    #: Whether its run may change, bool[S].
    free: BoolArray


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one op with the same readers, as one."""

    #: Bytes, > 0.
    size: int
    readers: tuple[int, ...]
    is_output: bool


@dataclass(frozen=True, eq=False)
class Net:
    """What the programs of one graph under one budget share."""

    graph: Graph
    #: Bytes.
    budget: int
    #: The tensors of each op that are not empty. Empty ones are kept for ever.
    groups: tuple[tuple[TensorGroup, ...], ...]
    #: Number among the groups of its producer of each tensor, -1 for an empty one, int64[m].
    group_of: IntArray
    #: Largest common divisor of all sizes, or 1 where the budget holds too many of it; bytes.
    divisor: int
    #: Cost 1 of a program is so much time.
    time_unit: float

    @classmethod
    def of(cls, graph: Graph, budget: int) -> Net:
        groups = []
        group_of = np.full(graph.n_tensors, -1, np.int64)
        for i in range(graph.n_ops):
            merged: dict[tuple[tuple[int, ...], bool], list[int]] = {}
            for x in graph.outputs_of(i):
                if graph.size[x]:
                    key = (tuple(graph.users_of(x).tolist()), bool(graph.is_output[x]))
                    merged.setdefault(key, []).append(int(x))
            for number, tensors in enumerate(merged.values()):
                group_of[tensors] = number
            groups.append(tuple(TensorGroup(int(graph.size[xs].sum()), *key) for key, xs in merged.items()))
        divisor = math.gcd(*graph.size.tolist(), *graph.workspace.tolist())
        if not divisor or budget // divisor > MAX_DIVISORS:
            divisor = 1
        positive = graph.time[graph.time > 0]
        time_unit = float(positive.mean()) if len(positive) else 1.0
        return cls(graph, budget, tuple(groups), group_of, divisor, time_unit)

    def limit(self, nbytes: int) -> float:
        """Upper side of a memory row that has room for `nbytes`."""
        return nbytes // self.divisor * self.divisor / max(self.budget, 1)


@dataclass(frozen=True, eq=False)
class WindowModel:
    """The program of a window with what is needed to read its solutions."""

    net: Net
    milp: Milp
    slots: Slots
    #: Variable of the run of each slot, -2 where it runs in any case, int64[S].
    run_var: IntArray
    #: The present schedule as a solution; it may miss rows where that exceeds the budget or holds runs that
    #: help nobody.
    start: FloatArray
    #: Rows of memory, and bytes that are alive at each without any variable.
    memory_rows: tuple[int, ...]
    memory_fixed: tuple[int, ...]

    @property
    def n_runs(self) -> int:
        """Number of runs that may change."""
        return int((self.run_var >= 0).sum())

    def memory_limit(self, row: int, budget: int) -> float:
        """Upper side of the memory row number `row` under a budget in bytes."""
        return self.net.limit(budget - self.memory_fixed[row])

    def runs_of(self, x: FloatArray) -> BoolArray:
        """Which slots run in a solution, bool[S]."""
        runs: BoolArray = self.run_var == _ONE
        runs[~runs] = x[self.run_var[~runs]] == 1.0
        return runs

    def order_of(self, x: FloatArray) -> IntArray:
        """The schedule that a solution stands for."""
        return self.slots.op[self.runs_of(x)]


def build_window_model(net: Net, order: IntArray, slots: Slots) -> WindowModel:
    """The program over `slots`, which are those of the valid schedule `order`; some must be free.

    Raises
    ------
    TooLarge
        The memory rows have more than `MOST_COEFFICIENTS`.
    """
    return _Assembly(net, order, slots).model()


@dataclass
class _Life:
    """The segments of a group of tensors."""

    producer: int
    group: TensorGroup
    #: Slots of the producer and of the readers, ascending, and whether each is one of the producer.
    slots: list[int]
    makes: list[bool]
    #: The segment that starts at each slot, and what counts at a slot of the producer (else _ZERO).
    after: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)


#: Segment `what` of so many bytes counts at the slots first..last.
_Cover = tuple[int, int, int, int]


class _Assembly:
    """One program while it is put together."""

    def __init__(self, net: Net, order: IntArray, slots: Slots) -> None:
        self.net = net
        self.graph = net.graph
        self.reuse = net.graph.memory_model == "reuse"
        self.order = order
        self.slots = slots
        self.milp = MilpBuilder()
        self.run = [_ONE] * len(slots.op)
        for s in np.flatnonzero(slots.free).tolist():
            self.run[s] = self.milp.add_var(float(self.graph.time[slots.op[s]]) / net.time_unit, integer=True)
        self.slots_of: list[list[int]] = [[] for _ in range(self.graph.n_ops)]
        for s, i in enumerate(slots.op.tolist()):
            self.slots_of[i].append(s)
        #: What counts while a slot starts (under `coexist` also while it ends), and while it ends.
        self.start_cover: list[_Cover] = []
        self.end_cover: list[_Cover] = []
        self.memory_rows: list[int] = []
        self.memory_fixed: list[int] = []

    def model(self) -> WindowModel:
        changing = np.unique(self.slots.op[self.slots.free]).tolist()
        for i in changing:
            runs = [self.run[s] for s in self.slots_of[i]]
            if _ONE not in runs:
                self.milp.add_row(runs, [1.0] * len(runs), 1.0)
        touched = self._touched(changing)
        makers = self.graph.producer[touched & (self.net.group_of >= 0)]
        numbers = self.net.group_of[touched & (self.net.group_of >= 0)]
        pairs = sorted(set(zip(makers.tolist(), numbers.tolist(), strict=True)))
        lives = [self._life(i, number) for i, number in pairs]
        self._memory(np.where(touched, 0, self.graph.size))
        milp = self.milp.build()
        return WindowModel(
            self.net, milp, self.slots, np.array(self.run, np.int64), self._present(lives, milp.n_vars),
            tuple(self.memory_rows), tuple(self.memory_fixed),
        )  # fmt: skip

    def _touched(self, changing: list[int]) -> BoolArray:
        """Tensors that a free slot makes or reads, with the others of their groups, bool[m]."""
        graph = self.graph
        touched = np.zeros(graph.n_tensors, np.bool_)
        for i in changing:
            touched[graph.out_ptr[i] : graph.out_ptr[i + 1]] = True
            touched[graph.inputs_of(i)] = True
        # Tensors of one group have the same readers, so they are touched together.
        return touched

    def _life(self, producer: int, number: int) -> _Life:
        """Add the segments of a group of tensors and the rows between them."""
        group = self.net.groups[producer][number]
        slots = sorted(s for i in (producer, *group.readers) for s in self.slots_of[i])
        life = _Life(producer, group, slots, [int(self.slots.op[s]) == producer for s in slots])
        forced, wanted = self._needs(life)
        alone = len(self.net.groups[producer]) == 1
        segment = _ZERO
        for k, s in enumerate(slots):
            run, own = self.run[s], _ZERO
            after = _ONE if forced[k] else self.milp.add_var(integer=True) if wanted[k] else _ZERO
            if life.makes[k]:
                own = _ONE if run == _ONE else self._remake(segment, run, after, alone)
            elif segment >= 0:
                for follower in (run, after):
                    if follower >= 0:
                        self.milp.add_row([follower, segment], [1.0, -1.0], upper=0.0)
            life.own.append(own)
            life.after.append(after)
            segment = after
        self._cover(life)
        return life

    def _needs(self, life: _Life) -> tuple[list[bool], list[bool]]:
        """Whether the tensor is alive after each slot in any case, and whether it can be of use there."""
        forced = [life.group.is_output] * len(life.slots)
        wanted = [life.group.is_output] * len(life.slots)
        for k in range(len(life.slots) - 2, -1, -1):
            run, makes = self.run[life.slots[k + 1]], life.makes[k + 1]
            forced[k] = not makes and (run == _ONE or forced[k + 1])
            wanted[k] = not makes or (run != _ONE and wanted[k + 1])
        return forced, wanted

    def _remake(self, before: int, run: int, after: int, alone: bool) -> int:
        """Add the rows at a slot that may make the tensor anew; return what counts there.

        A run whose only tensor is not alive afterwards, or was alive before, helps nobody.
        """
        supply = [run] if before == _ZERO else [run, before]
        ones = [1.0] * len(supply)
        if after == _ZERO:
            return run
        if after == _ONE:
            self.milp.add_row(supply, ones, 1.0, 1.0 if alone else np.inf)
            return _ONE
        self.milp.add_row([after, *supply], [1.0, *(-v for v in ones)], 0.0 if alone else -np.inf, 0.0)
        if alone:
            return after
        own = self.milp.add_var()
        self.milp.add_row([own, run], [1.0, -1.0], lower=0.0)
        self.milp.add_row([own, after], [1.0, -1.0], lower=0.0)
        return own

    def _cover(self, life: _Life) -> None:
        """Note at which slots each segment counts."""
        size, total = life.group.size, len(self.run)
        for k, s in enumerate(life.slots):
            last = k + 1 == len(life.slots)
            following = total if last else life.slots[k + 1]
            if life.after[k] != _ZERO:
                reaches = not last and (self.reuse or not life.makes[k + 1])
                self.start_cover.append((s + 1, following - (not reaches), life.after[k], size))
                self.end_cover.append((s + life.makes[k], following - 1, life.after[k], size))
            if life.own[k] != _ZERO:
                (self.end_cover if self.reuse else self.start_cover).append((s, s, life.own[k], size))

    def _memory(self, constant_size: IntArray) -> None:
        """Add the rows of memory; `constant_size` (int64[m]) is 0 for tensors that have segments."""
        graph, slots = self.graph, self.slots
        before = np.empty(len(self.order), np.int64)
        after = np.empty(len(self.order), np.int64)
        held_bytes(
            self.order, graph.in_ptr, graph.in_idx, graph.out_ptr, constant_size, graph.outputs, before, after
        )
        held = before[slots.step]
        workspace = graph.workspace[slots.op]
        if self.reuse:
            self._rows(held, workspace, self.start_cover)
            self._rows(
                np.where(slots.present, after[slots.step], held), np.zeros_like(workspace), self.end_cover
            )
        else:
            total = np.concatenate([[0], np.cumsum(constant_size)])
            made = (total[graph.out_ptr[1:]] - total[graph.out_ptr[:-1]])[slots.op]
            self._rows(held + made, workspace, self.start_cover)

    def _rows(self, constant: IntArray, workspace: IntArray, cover: list[_Cover]) -> None:
        """Add the rows that can be exceeded at all, one for neighbours with the same variables.

        Parameters
        ----------
        constant : int64[S], bytes at each slot in any case.
        workspace : int64[S], bytes at each slot if it runs.
        """
        budget = self.net.budget
        run = np.array(self.run)
        changes = np.zeros((2, len(constant) + 1), np.int64)  # certain and possible bytes of segments
        edge = np.zeros(len(constant) + 1, np.bool_)  # where the variables change
        for first, last, segment, size in cover:
            if first <= last:
                row = changes[0 if segment == _ONE else 1]
                row[first] += size
                row[last + 1] -= size
                edge[first] = edge[last + 1] = True
        optional = np.where(run == _ONE, 0, workspace)
        edge[:-1] |= optional > 0
        edge[1:] |= optional > 0
        certain, possible = np.cumsum(changes, axis=1)[:, :-1]
        certain += constant + workspace - optional
        possible += certain + optional
        region = np.cumsum(edge)
        chosen: list[int] = []
        for s in np.flatnonzero(possible > budget).tolist():
            if not chosen or region[chosen[-1]] != region[s]:
                chosen.append(s)
            elif certain[s] > certain[chosen[-1]]:
                chosen[-1] = s
        unit = max(budget, 1)
        variables: list[list[int]] = [[] for _ in chosen]
        values: list[list[float]] = [[] for _ in chosen]
        covered = [entry for entry in cover if entry[2] >= 0]
        rows = np.searchsorted(chosen, [(first, last + 1) for first, last, *_ in covered]).reshape(-1, 2)
        if np.maximum(rows[:, 1] - rows[:, 0], 0).sum() > MOST_COEFFICIENTS:
            raise TooLarge
        for (_, _, segment, size), (start, end) in zip(covered, rows.tolist(), strict=True):
            for q in range(start, end):
                variables[q].append(segment)
                values[q].append(size / unit)
        for q, s in enumerate(chosen):
            if optional[s]:
                variables[q].append(self.run[s])
                values[q].append(int(optional[s]) / unit)
            self.memory_fixed.append(int(certain[s]))
            limit = self.net.limit(budget - int(certain[s]))
            self.memory_rows.append(self.milp.add_row(variables[q], values[q], upper=limit))

    def _present(self, lives: list[_Life], n_vars: int) -> FloatArray:
        """The schedule as it is, as a solution."""
        x = np.zeros(n_vars)
        present = self.slots.present.tolist()
        for s, run in enumerate(self.run):
            if run >= 0:
                x[run] = present[s]
        for life in lives:
            needed = life.group.is_output
            for k in range(len(life.slots) - 1, -1, -1):
                s = life.slots[k]
                if life.after[k] >= 0:
                    x[life.after[k]] = needed
                if life.own[k] >= 0 and life.own[k] not in (life.after[k], self.run[s]):
                    x[life.own[k]] = needed or present[s]
                if present[s]:
                    needed = not life.makes[k]
        return x
