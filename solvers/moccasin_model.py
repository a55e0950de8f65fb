"""The program of `moccasin`: retention intervals of copies (Bartan et al., ICML 2023, section 2).

Op v has the slot t(t+1)/2 + v in each stage t >= v of the staged grid; its first run stands in stage v. Up to
C - 1 more runs stand at slots of later stages. The copy a run makes is retained over an interval of slots, up
to its last read. Each read takes one interval of the producer that covers it; intervals of an op do not
overlap; the bytes of all intervals together stay within the budget at every slot. The published code also
restricts the lengths of intervals to a set, which is not done here.

Beyond the paper: workspaces, graph outputs (their last interval lasts to the end; other sinks are not
retained), `once`, several outputs per op (one start for all, one end for each group with the same users), and
the memory model `reuse`, where a slot has two moments: before the outputs are made, with the workspace, and
after, without the inputs that die. A tensor of 0 bytes is retained for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from hremate.graph import Graph, IntArray
from hremate.solvers.staged import TensorGroup, stage_runs, tensor_groups

#: Times that are not whole are rounded down to this share of their sum.
_FINEST = 2.0**-50


@dataclass(frozen=True)
class _Tensor:
    """A group of tensors and the intervals of its copies."""

    group: TensorGroup
    #: End of each copy, as a variable: the first moment at which it need not be there.
    ends: list[Any]
    #: For each reading run (op, number) and for the end of the schedule (-1, 0): one 0-1 variable per copy.
    servers: dict[tuple[int, int], list[Any]]


class Program:
    """The constraint program of a graph under a budget in bytes, at most `max_runs` runs per op.

    `cp_model` is the module of OR-tools, so that this one can be imported without it.
    """

    def __init__(self, graph: Graph, budget: int, max_runs: int, cp_model: Any) -> None:
        self.graph = graph
        self.model = cp_model.CpModel()
        n = graph.n_ops
        self._reuse = graph.memory_model == "reuse"
        self.horizon = n * (n + 1) // 2 * (2 if self._reuse else 1)
        groups, last = tensor_groups(graph)
        #: Runs per op that any staged schedule may want.
        self.needed_runs = max(last[i] - i for i in range(n)) + 1
        self.quantum, costs, self.exact_times = _integer_times(graph)

        #: Slot of each run of each op, and whether it takes place, as variables or constants.
        self.starts: list[list[Any]] = []
        self.active: list[list[Any]] = []
        objective = []
        for i in range(n):
            slots = [_slot(t, i) for t in range(i + 1, last[i] + 1)]
            starts, active = [_slot(i, i)], [1]
            for c in range(1, min(max_runs, len(slots) + 1)):
                domain = cp_model.Domain.from_values(slots[c - 1 :])
                starts.append(self.model.new_int_var_from_domain(domain, ""))
                active.append(self.model.new_bool_var(""))
                objective.append(costs[i] * active[c])
                if c > 1:
                    self.model.add_implication(active[c], active[c - 1])
            self.starts.append(starts)
            self.active.append(active)
        self.tensors = [self._tensor(group) for group in groups]
        self._add_reads()
        self._add_memory(budget)
        self.model.minimize(sum(objective))
        self.n_vars = len(self.model.proto.variables)

    def order_of(self, value: Callable[[Any], int]) -> IntArray:
        """The schedule of a solution, given as a function from variables to values."""
        runs = []
        for i, (starts, active) in enumerate(zip(self.starts, self.active, strict=True)):
            runs.append((starts[0], i))
            runs += [(value(s), i) for s, a in zip(starts[1:], active[1:], strict=True) if value(a)]
        return np.array([i for _, i in sorted(runs)], np.int64)

    def hint(self, schedule: Iterable[int]) -> None:
        """Suggest a schedule; of no effect unless it is staged with few enough runs."""
        n = self.graph.n_ops
        runs = stage_runs(schedule, n)
        if runs is None:
            return
        for i, (starts, active) in enumerate(zip(self.starts, self.active, strict=True)):
            slots = [_slot(t, i) for t in range(i + 1, n) if runs[t, i]]
            for c in range(1, len(starts)):
                self.model.add_hint(active[c], c <= len(slots))
                if c <= len(slots):
                    self.model.add_hint(starts[c], slots[c - 1])

    def _made(self, slot: Any) -> Any:
        """First moment at which the outputs of a run are there."""
        return 2 * slot + 1 if self._reuse else slot

    def _read(self, slot: Any) -> Any:
        """First moment at which an input of a run need not be there any more."""
        return 2 * slot + 1 if self._reuse else slot + 1

    def _tensor(self, group: TensorGroup) -> _Tensor:
        """Add the ends of the copies of a tensor: after they begin, and before the next copy is made."""
        starts, active = self.starts[group.producer], self.active[group.producer]
        ends = [self.model.new_int_var(0, self.horizon, "") for _ in starts]
        for c, end in enumerate(ends):
            self.model.add(end >= self._made(starts[c]) + 1)
            if c + 1 < len(ends):
                self.model.add(end <= self._made(starts[c + 1])).only_enforce_if(active[c + 1])
        return _Tensor(group, ends, {})

    def _add_reads(self) -> None:
        """Every read, and the end for graph outputs, takes exactly one copy that covers it."""
        for tensor in self.tensors:
            reads = [(j, d) for j in tensor.group.users for d in range(len(self.starts[j]))]
            for j, d in reads:
                slot, takes_place = self.starts[j][d], self.active[j][d]
                servers = self._serve(tensor, self._read(slot), slot)
                if d == 0:
                    self.model.add_exactly_one(servers)
                else:
                    self.model.add(sum(servers) == takes_place)
                tensor.servers[j, d] = servers
            if tensor.group.is_output:
                tensor.servers[-1, 0] = servers = self._serve(tensor, self.horizon, None)
                self.model.add_exactly_one(servers)

    def _serve(self, tensor: _Tensor, until: Any, slot: Any) -> list[Any]:
        """Variables "copy c is there until moment `until`, made before `slot`"."""
        servers = []
        for c, end in enumerate(tensor.ends):
            server = self.model.new_bool_var("")
            self.model.add(end >= until).only_enforce_if(server)
            if c > 0:
                self.model.add_implication(server, self.active[tensor.group.producer][c])
            if slot is not None:
                start = self.starts[tensor.group.producer][c]
                self.model.add(start + 1 <= slot).only_enforce_if(server)
            servers.append(server)
        return servers

    def _add_memory(self, budget: int) -> None:
        """All copies and workspaces fit the budget at every moment."""
        graph, model = self.graph, self.model
        unit = math.gcd(*graph.size.tolist(), *graph.workspace.tolist()) or 1
        intervals, demands = [], []

        def add(start: Any, length: Any, end: Any, takes_place: Any, nbytes: int) -> None:
            intervals.append(model.new_optional_interval_var(start, length, end, takes_place, ""))
            demands.append(nbytes // unit)

        for tensor in self.tensors:
            for c, end in enumerate(tensor.ends):
                start = self._made(self.starts[tensor.group.producer][c])
                length = model.new_int_var(1, self.horizon, "")
                add(start, length, end, self.active[tensor.group.producer][c], tensor.group.size)
        for i in np.flatnonzero(graph.workspace).tolist():
            for start, takes_place in zip(self.starts[i], self.active[i], strict=True):
                moment = 2 * start if self._reuse else start
                add(moment, 1, moment + 1, takes_place, int(graph.workspace[i]))
        model.add_cumulative(intervals, demands, budget // unit)
        self.n_intervals = len(intervals)


def _slot(stage: int, op: int) -> int:
    """Place of (stage, op) on the staged grid."""
    return stage * (stage + 1) // 2 + op


def _integer_times(graph: Graph) -> tuple[float, list[int], bool]:
    """(time units of one quantum, times in quanta, whether they are exact).

    Whole times are exact. Others are rounded down to a fine share of their sum, so that a bound in quanta
    stays one.
    """
    exact = [Fraction(t) for t in graph.time.tolist()]
    if all(t.denominator == 1 for t in exact):
        divisor = math.gcd(*[t.numerator for t in exact]) or 1
        if sum(exact) / divisor < 1 / Fraction(_FINEST):
            return float(divisor), [t.numerator // divisor for t in exact], True
    quantum = Fraction(graph.total_time * _FINEST)
    return float(quantum), [math.floor(t / quantum) for t in exact], False
