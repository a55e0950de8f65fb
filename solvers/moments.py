"""The cut model at several moments at once: a bound for any order at tight budgets.

Let v_1, v_2, ..., v_K be ops, each a descendant of the one before. Their first runs, the *moments*, come in
that order in every schedule and split it into windows 0..K. For op r and window j, y[j, r] = 1 if r runs
within the window; for tensor x, k[j, x] = 1 if x is alive beside v_j at its first run. What a window reads
it finds at its moment or makes itself; what is alive at a moment was so at the one before or was made since;
what is alive fits beside v_j. An op that runs in so many windows costs its time once less than that, since
one of its runs is the first; the sum bounds the time of recomputation from below, in any order, under both
memory models. One moment alone is the program of `hremate.solvers.cut_model.any_order_problem`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.solvers._emit_kernel import append_run
from hremate.solvers._moment_kernel import mark_relatives
from hremate.solvers.milp import Milp, MilpBuilder

#: A variable that is 0 or 1 without being one.
_ZERO, _ONE = -1, -2


@dataclass(frozen=True)
class MomentsModel:
    """The program with what is needed to read its solutions."""

    milp: Milp
    #: Ops at whose first runs memory counts, int64[K].
    moments: IntArray
    #: Where the first run of each op can be, see `spans`; int64[n] each.
    after: IntArray
    by: IntArray
    #: Variable of "runs in window j", -1 for never and -2 for always, int64[K+1, n].
    run: IntArray
    #: Variable of "there when window j begins", likewise; int64[K+1, m] (row 0: nothing is).
    keep: IntArray
    #: Variable of "there while the op of moment j works", likewise; `keep` where memory counts both alike.
    beside: IntArray
    #: Cost 1 of the program is so much time.
    unit: float
    #: Cost of running once each op whose first run may fall into several windows: counted, yet not extra.
    first_runs: float


def _values(index: IntArray, x: FloatArray) -> BoolArray:
    """0-1 values behind an array of variables and constants."""
    result = index == _ONE
    result[index >= 0] = x[index[index >= 0]] > 0.5
    return result


def spans(graph: Graph, moments: Sequence[int] | IntArray) -> tuple[IntArray, IntArray]:
    """For each op, the last moment that surely comes before all its runs, and the first by which it has run.

    Moments count from 1; 0 and K + 1 stand for none. A moment's own op has its own number in both.

    Returns
    -------
    after, by : int64[n]
    """
    after = np.zeros(graph.n_ops, np.int64)
    by = np.full(graph.n_ops, len(moments) + 1, np.int64)
    before_v, after_v = np.empty((2, graph.n_ops), np.bool_)
    for j in range(len(moments), 0, -1):
        v = int(moments[j - 1])
        mark_relatives(
            v, graph.in_ptr, graph.in_idx, graph.use_ptr, graph.use_idx, graph.out_ptr, graph.producer,
            before_v, after_v,
        )  # fmt: skip
        by[before_v] = j
        by[v] = j
        after[after_v] = np.maximum(after[after_v], j)
        after[v] = j
    return after, by


def build_moments(graph: Graph, budget: int, moments: Sequence[int], unit: float) -> MomentsModel | None:
    """Build the program; None where a moment's op does not fit into `budget` bytes by itself.

    Parameters
    ----------
    moments : sequence of int
        Ops, each a descendant of the one before.
    unit : float
        Time units of one unit of the objective.
    """
    n, m, count = graph.n_ops, graph.n_tensors, len(moments)
    after, by = spans(graph, moments)
    builder = MilpBuilder()
    run = np.full((count + 1, n), _ZERO, np.int64)
    cost = (graph.time / unit).tolist()
    once = graph.once.tolist()
    first_runs = 0.0
    for r, (first, last) in enumerate(zip(after.tolist(), by.tolist(), strict=True)):
        if last - first == 1:
            run[first, r] = _ONE
        elif last > first:
            first_runs += cost[r]
            mine = [builder.add_var(cost[r], integer=True) for _ in range(first, last)]
            run[first:last, r] = mine
            builder.add_row(mine, [1.0] * len(mine), lower=1.0, upper=1.0 if once[r] else np.inf)
        if not once[r]:
            run[last:, r] = [builder.add_var(cost[r], integer=True) for _ in range(last, count + 1)]
    inputs = [graph.inputs_of(v) for v in moments]
    reuse = graph.memory_model == "reuse"
    keep, besides = np.full((2, count + 1, m), _ZERO, np.int64)
    since = after[graph.producer]
    size = graph.size
    for j, v in enumerate(moments, start=1):
        made = graph.producer == v
        there = np.flatnonzero((since < j) & ~made)
        beside = besides[j]
        beside[there] = [builder.add_var(integer=True) for _ in there]
        beside[inputs[j - 1]] = _ONE
        _link(builder, graph, beside, keep[j - 1], run[j - 1])
        read = int(size[inputs[j - 1]].sum())
        out, workspace = int(graph.out_bytes[v]), int(graph.workspace[v])
        if reuse:
            # Inputs may die as soon as v has worked, and then its outputs take their room.
            keep[j, there] = [builder.add_var(integer=True) for _ in there]
            for x in there.tolist():
                if beside[x] >= 0:
                    builder.add_row([int(keep[j, x]), int(beside[x])], [1.0, -1.0], upper=0.0)
            free = _capacity(builder, size, beside, budget - read - workspace)
            free = _capacity(builder, size, keep[j], budget - out) and free
        else:
            keep[j] = beside
            free = _capacity(builder, size, keep[j], budget - read - out - workspace)
        if not free:
            return None
        keep[j, made] = _ONE
    for j in range(count + 1):
        _reads(builder, graph, keep[j], run[j])
    end = np.full(m, _ZERO, np.int64)
    end[graph.outputs] = _ONE
    _link(builder, graph, end, keep[count], run[count])
    return MomentsModel(
        builder.build(), np.asarray(moments, np.int64), after, by, run, keep, besides, unit, first_runs
    )


def _link(builder: MilpBuilder, graph: Graph, there: IntArray, keep: IntArray, run: IntArray) -> None:
    """What is there at a moment was there when the window before it began, or was made in it."""
    for x in np.flatnonzero(there != _ZERO).tolist():
        _imply(builder, int(there[x]), int(keep[x]), int(run[graph.producer[x]]))


def _reads(builder: MilpBuilder, graph: Graph, keep: IntArray, run: IntArray) -> None:
    """Inputs of what runs in a window."""
    for r in np.flatnonzero(run != _ZERO).tolist():
        for x in graph.inputs_of(r).tolist():
            _imply(builder, int(run[r]), int(keep[x]), int(run[graph.producer[x]]))


def _imply(builder: MilpBuilder, need: int, *sources: int) -> None:
    """Add the row need <= sum of sources."""
    if _ONE in sources:
        return
    used = [s for s in sources if s >= 0]
    if need == _ONE:
        builder.add_row(used, [1.0] * len(used), lower=1.0)
    else:
        builder.add_row([*used, need], [1.0] * len(used) + [-1.0], lower=0.0)


def _capacity(builder: MilpBuilder, size: IntArray, keep: IntArray, capacity: int) -> bool:
    """Add the row of memory; False when not even nothing fits."""
    held = np.flatnonzero((keep >= 0) & (size > 0))
    if capacity < 0:
        return False
    if capacity == 0:
        for x in held.tolist():
            builder.add_row([int(keep[x])], [1.0], upper=0.0)
    else:
        builder.add_row(keep[held].tolist(), (size[held] / capacity).tolist(), upper=1.0)
    return True


def emit_moments(graph: Graph, model: MomentsModel, x: FloatArray) -> IntArray:
    """The schedule a solution suggests: in each window the given order, the rest just before it is needed.

    It is valid, unless a `once` op runs twice in it; its peak may exceed the budget between the moments.
    """
    run, keep = _values(model.run, x), _values(model.keep, x)
    n = graph.n_ops
    arrays = graph.in_ptr, graph.in_idx, graph.out_ptr, graph.producer
    stack, ignored = np.empty(n + 1, np.int64), np.zeros(n, np.bool_)
    ran = np.zeros(n, np.bool_)
    buffer = np.empty((len(model.moments) + 2) * (n + 1), np.int64)
    length = 0
    for j in range(len(model.moments) + 1):
        have = keep[j].copy()
        last = j == len(model.moments)
        wanted = graph.is_output if last else keep[j + 1]
        first_runs = run[j] & ~ran & (model.by != model.after)
        begin = length
        for op in np.flatnonzero(first_runs).tolist():
            if not ran[op]:
                length = append_run(op, have, *arrays, stack, buffer, length, ignored)
                ran[buffer[begin:length]] = True
                begin = length
        for t in np.flatnonzero(wanted).tolist():
            op = int(graph.producer[t])
            if not have[t] and (last or op != model.moments[j]):
                length = append_run(op, have, *arrays, stack, buffer, length, ignored)
        if not last:
            length = append_run(int(model.moments[j]), have, *arrays, stack, buffer, length, ignored)
        ran[buffer[begin:length]] = True
    return buffer[:length].copy()
