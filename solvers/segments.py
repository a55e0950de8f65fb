"""The segment-alive MILP: the best schedule staged along the given order.

Stage t runs op t for the first time; before it, in the same stage, each earlier op i may run once more, at
slot (t, i), by increasing index. Within a stage a tensor is alive on *segments* between the slots of its
producer and its users, so that the memory at every slot is a plain sum. Once the runs are fixed, the least
segments are 0 or 1 by themselves, and there is no big-M. The solver may still branch on what is kept from
one stage to the next and on which ops run again at all: such decisions move its bound most.

The rows follow the memory rules of `hremate.simulate`. What cannot help is left out: a tensor of 0 bytes is
kept for ever; tensors of one op with the same users count as one; a run that nothing can read any more has
no variable; a tensor is not kept up to a slot at which it is computed again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hremate.graph import FloatArray, Graph, IntArray
from hremate.solvers.milp import Milp, MilpBuilder
from hremate.solvers.staged import TensorGroup, stage_runs, tensor_groups

#: Memory is counted in budgets, since the solver's absolute tolerance (1e-6) wants rows of about 1. While the
#: budget is at most so many common divisors of all sizes, the tolerance hides no byte: it is then first
#: rounded down to such a divisor.
MAX_DIVISORS = 2**18

# References to a segment: the index of its variable, or one of these.
_ZERO, _ONE = -1, -2
_END = -1


@dataclass(frozen=True)
class StagedModel:
    """The program with what is needed to read its solutions and to make some."""

    graph: Graph
    milp: Milp
    #: Variable of the run at slot (t, i), -1 where there is none, int64[n, n]. Slot (t, t) always runs.
    run_var: IntArray
    #: Variable "op r runs again in stage t or later", t > r, -1 where it cannot, int64[n, n].
    again_var: IntArray
    #: Bytes of one memory unit in the rows.
    unit: int
    #: Largest common divisor of all sizes, or 1 where it is too small to matter; bytes.
    divisor: int
    #: Rows of memory, and bytes that are alive at each without any variable.
    memory_rows: tuple[int, ...]
    memory_fixed: tuple[int, ...]
    #: Cost 1 of the program is so much time.
    time_unit: float
    tensors: tuple[TensorGroup, ...]
    #: For tensor x and stage t, (segment, slot at which it ends) after the producer's slot.
    chains: tuple[dict[int, tuple[tuple[int, int], ...]], ...]

    def memory_limit(self, row: int, budget: int) -> float:
        """Upper side of the memory row number `row` under a budget in bytes."""
        return _limit(budget - self.memory_fixed[row], self.unit, self.divisor)

    def order_of(self, x: FloatArray) -> IntArray:
        """The schedule that a solution stands for."""
        n = self.graph.n_ops
        runs = np.eye(n, dtype=np.bool_)
        has_var = self.run_var >= 0
        runs[has_var] = x[self.run_var[has_var]] == 1.0
        return np.nonzero(runs)[1].astype(np.int64)

    def solution_of(self, order: Iterable[int]) -> FloatArray | None:
        """The solution for a schedule whose first runs follow the given order; None for others.

        Runs are sorted within each stage and runs that nobody needs are dropped, so the memory of the
        solution may differ from that of the schedule.
        """
        runs = stage_runs(order, self.graph.n_ops)
        if runs is None:
            return None
        x = np.zeros(self.milp.n_vars)
        by_producer: list[list[int]] = [[] for _ in range(self.graph.n_ops)]
        for index, tensor in enumerate(self.tensors):
            by_producer[tensor.producer].append(index)
        # Users come after producers: the runs of all users are final when a tensor is traced.
        for i in range(self.graph.n_ops - 1, -1, -1):
            group = by_producer[i]
            needed = [self.tensors[index].is_output for index in group]
            for t in range(self.graph.n_ops - 1, i - 1, -1):
                for g, index in enumerate(group):
                    for segment, slot in reversed(self.chains[index].get(t, ())):
                        needed[g] = needed[g] or (slot != _END and bool(runs[t, slot]))
                        if segment >= 0:
                            x[segment] = needed[g]
                if t > i and runs[t, i]:
                    runs[t, i] = any(needed)
                    if runs[t, i] and self.run_var[t, i] < 0:
                        return None
                    needed = [False] * len(group)
        has_var = self.run_var >= 0
        x[self.run_var[has_var]] = runs[has_var]
        has_var = self.again_var >= 0
        x[self.again_var[has_var]] = np.maximum.accumulate(runs[::-1])[::-1][has_var]
        return x


def build_staged_model(graph: Graph, budget: int) -> StagedModel:
    """Build the program for `graph` under `budget` bytes.

    With n ops it has up to n^2 / 2 variables for runs, as many for "runs again" and for kept tensors, and
    n^2 / 2 rows of memory (n^2 under `reuse`).
    """
    n = graph.n_ops
    tensors, last = tensor_groups(graph)
    unit = max(budget, 1)
    divisor = math.gcd(*graph.size.tolist(), *graph.workspace.tolist())
    if not divisor or budget // divisor > MAX_DIVISORS:
        divisor = 1
    positive = graph.time[graph.time > 0]
    time_unit = float(positive.mean()) if len(positive) else 1.0

    builder = MilpBuilder()
    run_var = np.full((n, n), -1, np.int64)
    for i in range(n):
        for t in range(i + 1, last[i] + 1):
            run_var[t, i] = builder.add_var(float(graph.time[i]) / time_unit, integer=True)
    outputs_of = np.bincount([x.producer for x in tensors], minlength=n)
    chains = tuple(_add_chain(builder, x, run_var, n, bool(outputs_of[x.producer] == 1)) for x in tensors)
    again_var = _add_moments(builder, graph, tensors, chains, run_var)
    memory_rows, memory_fixed = _add_memory(builder, graph, budget, unit, divisor, tensors, chains, run_var)
    return StagedModel(
        graph, builder.build(), run_var, again_var, unit, divisor,
        tuple(memory_rows), tuple(memory_fixed), time_unit, tensors, chains,
    )  # fmt: skip


def _limit(nbytes: int, unit: int, divisor: int) -> float:
    return (nbytes // divisor) * divisor / unit


def _add_chain(
    builder: MilpBuilder, tensor: TensorGroup, run_var: IntArray, n: int, only_output: bool
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Add the segments of a tensor and the rows between them; return its chain in each stage."""
    i = tensor.producer
    chains: dict[int, tuple[tuple[int, int], ...]] = {}
    start = _ZERO  # segment from the start of the stage to slot (t, i)
    for t in range(i, n):
        run = int(run_var[t, i])
        if t > tensor.last_need:
            if t > i and run < 0:
                break
            chains[t] = ((_ZERO, _END),)
            start = _ZERO
            continue
        slots = [j for j in tensor.users if j <= t and (j == t or run_var[t, j] >= 0)]
        to_end = tensor.is_output and t == n - 1
        # Everything up to the last slot that is sure to read must be alive.
        forced = len(slots) + 1 if to_end else len(slots) if slots and slots[-1] == t else 0
        ends = [*slots, _END]
        chain: list[tuple[int, int]] = []
        if t > i and forced:
            _require(builder, run, start)
        previous = _ONE
        for q, end in enumerate(ends):
            if q < forced:
                segment = _ONE
            elif end == _END and t >= tensor.last_need:
                segment = _ZERO
            elif q == 0 and t > i and run < 0:
                segment = start
            else:
                segment = builder.add_var(integer=end == _END)
                if q == 0 and t > i:
                    _follow_own(builder, segment, run, start, only_output)
                elif previous >= 0:
                    builder.add_row([segment, previous], [1.0, -1.0], upper=0.0)
            if end not in (_END, t) and segment >= 0:
                builder.add_row([int(run_var[t, end]), segment], [1.0, -1.0], upper=0.0)
            chain.append((segment, end))
            previous = segment
        if t > i and run >= 0 and start >= 0 and not forced and not (only_output and chain[0][0] >= 0):
            builder.add_row([run, start], [1.0, 1.0], upper=1.0)
        chains[t] = tuple(chain)
        start = chain[-1][0]
    return chains


def _require(builder: MilpBuilder, run: int, start: int) -> None:
    """The tensor is alive after its producer's slot: kept or computed."""
    variables = [v for v in (run, start) if v >= 0]
    if start == _ONE:
        return
    builder.add_row(variables, [1.0] * len(variables), 1.0, 1.0)


def _follow_own(builder: MilpBuilder, segment: int, run: int, start: int, only_output: bool) -> None:
    """The segment after the producer's slot is alive only if the tensor was kept or computed.

    A run whose only tensor is not alive afterwards helps nobody, so for such ops it is alive.
    """
    variables = [segment, run] + ([start] if start >= 0 else [])
    values = [1.0, -1.0] + ([-1.0] if start >= 0 else [])
    builder.add_row(variables, values, 0.0 if only_output else -np.inf, 0.0)


def _add_moments(
    builder: MilpBuilder,
    graph: Graph,
    tensors: tuple[TensorGroup, ...],
    chains: tuple[dict[int, tuple[tuple[int, int], ...]], ...],
    run_var: IntArray,
) -> IntArray:
    """Add rows that every schedule meets and that cut off split runs; return their variables.

    Without them the relaxation runs an op by small parts, one in each stage, and needs only that part of
    its inputs. At the start of stage t, let again[r] = 1 if op r < t runs again in stage t or later. What
    is sure to be read later, and what an op that runs again reads, is kept or its op runs again.
    """
    n = graph.n_ops
    again_var = np.full((n, n), -1, np.int64)
    for t in range(1, n):
        again = again_var[t]
        for r in range(t):
            later = [int(v) for v in run_var[t:, r] if v >= 0]
            if later:
                again[r] = builder.add_var(integer=True)
                builder.add_row([int(again[r]), *later], [1.0] + [-1.0] * len(later), upper=0.0)
        for tensor, chain_of in zip(tensors, chains, strict=True):
            if tensor.producer >= t or t > tensor.last_need:
                continue
            supply = [chain_of[t - 1][-1][0]]
            if again[tensor.producer] >= 0:
                supply.append(int(again[tensor.producer]))
            ones = [1.0] * len(supply)
            if tensor.is_output or tensor.users[-1] >= t:
                builder.add_row(supply, ones, lower=1.0)
                continue
            for r in tensor.users:
                if again[r] >= 0:
                    builder.add_row([*supply, int(again[r])], [*ones, -1.0], lower=0.0)
    return again_var


def _add_memory(
    builder: MilpBuilder,
    graph: Graph,
    budget: int,
    unit: int,
    divisor: int,
    tensors: tuple[TensorGroup, ...],
    chains: tuple[dict[int, tuple[tuple[int, int], ...]], ...],
    run_var: IntArray,
) -> tuple[list[int], list[int]]:
    """Add the rows of memory at every slot; return them and the bytes that are fixed in each."""
    reuse = graph.memory_model == "reuse"
    memory_rows: list[int] = []
    memory_fixed: list[int] = []
    for t in range(graph.n_ops):
        slots = [k for k in range(t) if run_var[t, k] >= 0] + [t]
        before = [_MemoryRow() for _ in slots]  # when the op starts; with its outputs under `coexist`
        after = [_MemoryRow() for _ in slots] if reuse else before
        for row, k in zip(before, slots, strict=True):
            run = int(run_var[t, k]) if k < t else _ONE
            row.add(run, int(graph.workspace[k]))
        for tensor, chain_of in zip(tensors, chains, strict=True):
            i, size = tensor.producer, tensor.size
            if t not in chain_of:
                continue
            chain = chain_of[t]
            start = chain_of[t - 1][-1][0] if t > i else _ZERO
            position = 0  # the segment that covers the moment just before the slot
            for row, row_after, k in zip(before, after, slots, strict=True):
                if k < i:
                    row.add(start, size)
                    if reuse:
                        row_after.add(start, size)
                elif k == i:
                    if reuse:
                        row.add(start, size)
                    row_after.add(start, size)
                    row_after.add(int(run_var[t, i]) if t > i else _ONE, size)
                else:
                    while chain[position][1] != _END and chain[position][1] < k:
                        position += 1
                    row.add(chain[position][0], size)
                    if reuse:
                        row_after.add(chain[position + (chain[position][1] == k)][0], size)
        for row in before + after if reuse else before:
            if row.fixed + sum(row.sizes) <= budget:
                continue
            limit = _limit(budget - row.fixed, unit, divisor)
            values = [size / unit for size in row.sizes]
            memory_rows.append(builder.add_row(row.variables, values, upper=limit))
            memory_fixed.append(row.fixed)
    return memory_rows, memory_fixed


class _MemoryRow:
    """Bytes alive at one moment: fixed ones and those of variables."""

    def __init__(self) -> None:
        self.variables: list[int] = []
        self.sizes: list[int] = []
        self.fixed = 0

    def add(self, segment: int, nbytes: int) -> None:
        if segment >= 0:
            if nbytes:
                self.variables.append(segment)
                self.sizes.append(nbytes)
        elif segment == _ONE:
            self.fixed += nbytes
