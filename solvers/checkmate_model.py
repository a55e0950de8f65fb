"""The Checkmate program of `checkmate` and `checkmate-lp` (Jain et al., MLSys 2020, section 4).

Stages t = 0..n-1, one per op of the given order ("frontier-advancing": R[t,t] = 1, nothing beyond t in stage
t). Binary R[t,i]: op i runs in stage t. Binary S[t,i]: its result is kept from stage t-1 into stage t.
U[t,k]: memory when op k of stage t has run. FREE[t,i,k]: op k, when it runs in stage t, is the last to need
the result of op i there.

    R[t,j] <= R[t,i] + S[t,i]                 for j that reads i
    S[t,i] <= R[t-1,i] + S[t-1,i]
    U[t,0] = sum_i M_i S[t,i] + M_0 R[t,0]
    U[t,k+1] = U[t,k] + M_{k+1} R[t,k+1] - sum_{i read by k} M_i FREE[t,i,k]
    1 - FREE <= h <= kappa (1 - FREE),   h = (1 - R[t,k]) + S[t+1,i] + sum_{j reads i, j > k} R[t,j]

Beyond the paper: graph outputs are kept at the end (S[n,i] = 1), a step adds its workspace, a `once` op runs
in its own stage only. The paper has one tensor per op: the outputs of an op are kept and freed together, and
the outputs of a step never overwrite its inputs. So the memory counted is never below that of
`hremate.simulate`. Under `coexist`, where the outputs of each op have the same users, it is equal and the
program describes all staged schedules (`hremate.solvers.segments`): see `counts_exactly`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.solvers.base import Deadline
from hremate.solvers.milp import Milp, MilpBuilder
from hremate.solvers.staged import stage_runs

#: Memory is counted in units of the common divisor of all sizes while the budget is at most so many of them:
#: SCIP's relative tolerance (1e-6) then stays below one unit. Else the budget is so many units.
MAX_UNITS = 2**18
#: Variables beyond which the program is refused: building it alone would take minutes and gigabytes.
MAX_VARIABLES = 1_000_000
#: Seconds to build the program and to hand it to SCIP, for each variable; a quick machine needs no less.
_BUILD_SECONDS = 1.5e-5


@dataclass(frozen=True)
class CheckmateModel:
    """The program with what is needed to read its solutions and to make some."""

    graph: Graph
    milp: Milp
    #: Variables R[t,i] and S[t,i], -1 for i > t and for S[t,t], int64[n, n].
    run_var: IntArray
    keep_var: IntArray
    #: Variables U[t,k], int64[n, n], -1 for k > t.
    memory_var: IntArray
    #: (t, i, k) of the variables FREE, which are free_first, free_first + 1, ...; int64[f, 3].
    free: IntArray
    free_first: int
    #: Rows of the budget.
    budget_rows: range
    #: Bytes of one memory unit in the rows.
    unit: float
    #: Whether all sizes are whole units.
    exact: bool
    #: Cost 1 of the program is so much time; runs (t, t) cost nothing.
    time_unit: float

    def memory_limit(self, budget: int) -> float:
        """Upper side of the budget rows for a budget in bytes."""
        return _in_units(budget, self.unit, self.exact)

    def runs_of(self, x: FloatArray) -> BoolArray:
        """R of an integer solution, bool[n, n]."""
        return np.asarray((self.run_var >= 0) & (x[self.run_var] == 1.0), np.bool_)

    def counted_peak(self, x: FloatArray) -> float:
        """The largest memory that the program counts in a solution, bytes."""
        t, k = np.nonzero(self.memory_var >= 0)
        used = x[self.memory_var[t, k]] * self.unit + self.graph.workspace[k] * x[self.run_var[t, k]]
        return float(used.max())

    def solution_of(self, order: Iterable[int]) -> FloatArray | None:
        """The solution for a schedule whose first runs follow the given order; None for others.

        Runs are sorted within each stage. Results are kept only as long as they are needed.
        """
        n = self.graph.n_ops
        runs = stage_runs(order, n)
        if runs is None:
            return None
        if (runs & self.graph.once & ~np.eye(n, dtype=np.bool_)).any():
            return None
        keep = least_kept(self.graph, runs)
        x = np.zeros(self.milp.n_vars)
        at = self.run_var >= 0
        x[self.run_var[at]] = runs[at]
        at = self.keep_var >= 0
        x[self.keep_var[at]] = keep[:n][at]
        bytes_of = self.graph.out_bytes / self.unit
        producer, reader = _reads(self.graph)
        last_read = np.full((n, n), -1, np.int64)
        for t in range(n):
            np.maximum.at(last_read[t], producer, np.where(runs[t, reader], reader, -1))
        t, i, k = self.free.T
        freed = runs[t, k] & ~keep[t + 1, i] & (last_read[t, i] <= k)
        x[self.free_first : self.free_first + len(freed)] = freed
        gone = np.zeros((n, n + 1))
        np.add.at(gone, (t, k + 1), np.where(freed, bytes_of[i], 0.0))
        for t in range(n):
            made = np.cumsum(bytes_of[: t + 1] * runs[t, : t + 1])
            x[self.memory_var[t, : t + 1]] = bytes_of[:t] @ keep[t, :t] + made - np.cumsum(gone[t, : t + 1])
        return x


def counts_exactly(graph: Graph) -> bool:
    """Whether the program counts the memory of staged schedules as `hremate.simulate` does.

    A run whose result nobody reads is the exception: its bytes count to the end of the stage.
    """
    if graph.memory_model != "coexist":
        return False
    for i in range(graph.n_ops):
        outputs = [x for x in graph.outputs_of(i) if graph.size[x]]
        lives = {(tuple(graph.users_of(x).tolist()), bool(graph.is_output[x])) for x in graph.outputs_of(i)}
        if outputs and len(lives) > 1:
            return False
    return True


def least_kept(graph: Graph, runs: BoolArray) -> BoolArray:
    """The least S for given R (bool[n, n]): what is kept into each stage, bool[n + 1, n]."""
    n = graph.n_ops
    keep = np.zeros((n + 1, n), np.bool_)
    keep[n] = _kept_at_end(graph)
    producer, reader = _reads(graph)
    for t in range(n - 1, 0, -1):
        read = np.bincount(producer, runs[t, reader], n) > 0
        keep[t, :t] = (~runs[t] & (keep[t + 1] | read))[:t]
    return keep


def build_checkmate_model(
    graph: Graph, budget: int, *, tight: bool, integer: bool, deadline: Deadline | None = None
) -> CheckmateModel | None:
    """Build the program for `graph` under `budget` bytes; None when `deadline` leaves no time for it.

    Parameters
    ----------
    tight : bool
        Replace the row h <= kappa (1 - FREE) by one row for each term of h. The same integer solutions, a
        stronger relaxation; then S and FREE need not be integer.
    integer : bool
        False for the LP relaxation.
    deadline : Deadline, optional
        By when SCIP, too, is to have the program.

    Raises
    ------
    MethodError
        More than `MAX_VARIABLES` variables.
    """
    n = graph.n_ops
    deadline = deadline or Deadline()
    count = n * (n + 1) + n * (n - 1) // 2 + int(graph.predecessors[0][1:].sum())
    if count > MAX_VARIABLES:
        raise MethodError(
            f"the Checkmate program of {graph.name!r} ({n} ops) has {count} variables; "
            f"at most {MAX_VARIABLES} are taken"
        )
    if deadline.remaining < _BUILD_SECONDS * count:
        return None
    free = _free_triples(graph)
    unit, exact = memory_unit(graph, budget)
    positive = graph.time[graph.time > 0]
    time_unit = float(positive.mean()) if len(positive) else 1.0
    builder = MilpBuilder()
    run_var, keep_var, memory_var = (np.full((n, n), -1, np.int64) for _ in range(3))
    auxiliary = integer and not tight
    for t in range(n):
        if deadline.expired:
            return None
        for i in range(t):
            upper = 0.0 if graph.once[i] else 1.0
            run_var[t, i] = builder.add_var(float(graph.time[i]) / time_unit, upper=upper, integer=integer)
            keep_var[t, i] = builder.add_var(integer=auxiliary)
        run_var[t, t] = builder.add_var(lower=1.0)
        for k in range(t + 1):
            memory_var[t, k] = builder.add_var(upper=np.inf)
    free_first = builder.n_vars
    for _ in range(len(free)):
        builder.add_var(integer=auxiliary)

    limit = _in_units(budget, unit, exact)
    for _ in chain(
        _add_supply(builder, graph, run_var, keep_var),
        _add_free(builder, graph, run_var, keep_var, free, free_first, tight),
        _add_memory(builder, graph, unit, run_var, keep_var, memory_var, free, free_first),
    ):
        if deadline.expired:
            return None
    first_row = builder.n_rows
    for t in range(n):
        for k in range(t + 1):
            indices, values = [int(memory_var[t, k])], [1.0]
            if graph.workspace[k]:
                indices.append(int(run_var[t, k]))
                values.append(float(graph.workspace[k] / unit))
            builder.add_row(indices, values, upper=limit)
    return CheckmateModel(
        graph, builder.build(), run_var, keep_var, memory_var, free, free_first,
        range(first_row, builder.n_rows), unit, exact, time_unit,
    )  # fmt: skip


def _free_triples(graph: Graph) -> IntArray:
    """All (t, i, k) with k <= t and k reading i, by t and k, int64[f, 3]."""
    producer, reader = _reads(graph)
    parts = []
    for t, upto in enumerate(graph.predecessors[0][1:].tolist()):
        parts.append(np.column_stack([np.full(upto, t), producer[:upto], reader[:upto]]))
    return np.concatenate(parts).astype(np.int64)


def _add_supply(
    builder: MilpBuilder, graph: Graph, run_var: IntArray, keep_var: IntArray
) -> Iterator[None]:
    """An op that runs finds what it reads; what is kept was there before. Yields stage by stage."""
    n = graph.n_ops
    ptr, idx = graph.predecessors
    for t in range(n):
        for j in range(t + 1):
            for i in idx[ptr[j] : ptr[j + 1]].tolist():
                variables = [int(run_var[t, j]), int(run_var[t, i]), int(keep_var[t, i])]
                builder.add_row(variables, [1.0, -1.0, -1.0], upper=0.0)
        yield
    for t in range(1, n):
        for i in range(t):
            variables, values = [int(keep_var[t, i]), int(run_var[t - 1, i])], [1.0, -1.0]
            if i < t - 1:
                variables.append(int(keep_var[t - 1, i]))
                values.append(-1.0)
            builder.add_row(variables, values, upper=0.0)
        yield
    for i in np.flatnonzero(_kept_at_end(graph)).tolist():
        if i < n - 1:
            builder.add_row([int(run_var[n - 1, i]), int(keep_var[n - 1, i])], [1.0, 1.0], lower=1.0)


def _add_free(
    builder: MilpBuilder,
    graph: Graph,
    run_var: IntArray,
    keep_var: IntArray,
    free: IntArray,
    free_first: int,
    tight: bool,
) -> Iterator[None]:
    """FREE[t,i,k] = 1 iff no hazard is left. Yields stage by stage."""
    n = graph.n_ops
    at_end = _kept_at_end(graph)
    stage = 0
    for f, (t, i, k) in enumerate(free.tolist()):
        if t > stage:
            stage = t
            yield
        users = _users(graph, i)
        hazards = [int(run_var[t, j]) for j in users[(users > k) & (users <= t)]]
        certain = 0.0
        if t + 1 < n:
            hazards.append(int(keep_var[t + 1, i]))
        else:
            certain = float(at_end[i])
        run, freed = int(run_var[t, k]), free_first + f
        # h = 1 + certain - R[t,k] + sum of hazards
        ones = [1.0] * len(hazards)
        if tight:
            builder.add_row([freed, run], [1.0, -1.0], upper=0.0)
            for hazard in hazards:
                builder.add_row([freed, hazard], [1.0, 1.0], upper=1.0)
            if certain:
                builder.add_row([freed], [1.0], upper=0.0)
        else:
            kappa = 1.0 + certain + len(hazards)
            builder.add_row([freed, *hazards, run], [1.0, *ones, -1.0], lower=-certain)
            builder.add_row([freed, *hazards, run], [kappa, *ones, -1.0], upper=kappa - 1.0 - certain)


def _add_memory(
    builder: MilpBuilder,
    graph: Graph,
    unit: float,
    run_var: IntArray,
    keep_var: IntArray,
    memory_var: IntArray,
    free: IntArray,
    free_first: int,
) -> Iterator[None]:
    """The recursion of U within each stage. Yields stage by stage."""
    size = (graph.out_bytes / unit).tolist()
    freed: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for f, (t, i, k) in enumerate(free.tolist()):
        freed.setdefault((t, k), []).append((free_first + f, i))
    for t in range(graph.n_ops):
        indices = [int(keep_var[t, i]) for i in range(t)]
        values = [-size[i] for i in range(t)]
        for k in range(t + 1):
            indices += [int(memory_var[t, k]), int(run_var[t, k])]
            values += [1.0, -size[k]]
            builder.add_row(indices, values, 0.0, 0.0)
            gone = freed.get((t, k), [])
            indices = [int(memory_var[t, k]), *[variable for variable, _ in gone]]
            values = [-1.0, *[size[i] for _, i in gone]]
        yield


def _reads(graph: Graph) -> tuple[IntArray, IntArray]:
    """(producer, reader) of each pair of ops of which the second reads the first, by reader."""
    ptr, idx = graph.predecessors
    return idx, np.repeat(np.arange(graph.n_ops), np.diff(ptr))


def _users(graph: Graph, op: int) -> IntArray:
    """Ops that read some output of `op`, ascending."""
    ptr, idx = graph.successors
    return idx[ptr[op] : ptr[op + 1]]


def _kept_at_end(graph: Graph) -> BoolArray:
    """S[n,i]: ops that make some graph output, bool[n]."""
    flags = np.zeros(graph.n_ops, np.bool_)
    flags[graph.producer[graph.outputs]] = True
    return flags


def memory_unit(graph: Graph, budget: int) -> tuple[float, bool]:
    """Bytes of a memory unit, and whether all sizes are whole units (see `MAX_UNITS`)."""
    divisor = math.gcd(*graph.size.tolist(), *graph.workspace.tolist()) or 1
    if budget // divisor <= MAX_UNITS:
        return float(divisor), True
    return budget / MAX_UNITS, False


def _in_units(nbytes: int, unit: float, exact: bool) -> float:
    return float(nbytes // int(unit)) if exact else nbytes / unit
