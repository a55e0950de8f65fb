"""The cut model: what to keep and what to run again across one moment of a schedule.

At the moment at which op v first runs, each tensor made before and needed after is kept, or its producer
runs again later, which in turn needs its inputs kept or made again. The least time to run again such that
the kept bytes fit beside v is a 0-1 program; relaxed with a multiplier on the memory row it is a minimum
cut (`hremate.solvers._cut_kernel`). With what has run before v taken from the given order the optimum
bounds the staged schedules of that order (`moment_problem`); with ancestors and descendants of v alone it
bounds every schedule (`any_order_problem`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.simulate import step_memory
from hremate.solvers import _cut_kernel as kernels
from hremate.solvers._moment_kernel import moment_arrays, scan_moments
from hremate.solvers.base import Deadline
from hremate.solvers.milp import MilpBuilder
from hremate.solvers.scip import MilpSolver

#: Nodes times ops and arcs between two looks at the clock, and for Ctrl-C.
_WORK_PER_CALL = 20_000


@dataclass(frozen=True)
class CutProblem:
    """A cut problem in local indices: n ops that may run again, m tensors that may be kept."""

    #: Time of each op, float64[n].
    time: FloatArray
    #: Bytes of each tensor, int64[m].
    size: IntArray
    #: Op that makes each tensor, int64[m]; -1 where it can only be kept.
    producer: IntArray
    #: Tensors needed after the moment, bool[m].
    crossing: BoolArray
    #: CSR op -> tensors it reads that may be missing.
    in_ptr: IntArray
    in_idx: IntArray

    def arrays(self) -> tuple[FloatArray, IntArray, IntArray, BoolArray, IntArray, IntArray]:
        """The arguments that the kernels share."""
        return self.time, self.size, self.producer, self.crossing, self.in_ptr, self.in_idx

    def kept(self, rerun: BoolArray) -> BoolArray:
        """Tensors that must be kept when exactly the ops in `rerun` run again, bool[m]."""
        keep: BoolArray = kernels.kept_tensors(
            self.producer, self.crossing, self.in_ptr, self.in_idx, rerun
        )
        return keep

    def kept_bytes(self, rerun: BoolArray) -> int:
        return int(self.size[self.kept(rerun)].sum())

    def rerun_time(self, rerun: BoolArray) -> float:
        return float(self.time[rerun].sum())


@dataclass(frozen=True)
class Cut:
    """An answer to a cut problem."""

    #: No choice within the capacity re-runs less time than this.
    bound: float
    #: Multiplier of the capacity in the relaxation, time units per byte.
    price: float
    #: Ops to run again, bool[n], within the capacity.
    rerun: BoolArray


def hull(problem: CutProblem, *, limit: int = 200) -> list[BoolArray]:
    """Vertices of the lower convex hull of (kept bytes, re-run time), from keep-all to keep-least.

    Each is the set of ops to run again, bool[n]; at most `limit` are found, by bisection of the
    multiplier's breakpoints.
    """
    network = kernels.build_network(
        problem.size, problem.producer, problem.crossing, problem.in_ptr, problem.in_idx
    )

    free = np.zeros(len(problem.time), np.int8)

    def vertex(price: float) -> tuple[int, float, BoolArray]:
        rerun, _ = kernels.closure(problem.time, problem.size, network, free, price, False)
        return problem.kept_bytes(rerun), problem.rerun_time(rerun), rerun

    nothing = np.zeros(len(problem.time), np.bool_)
    first = (problem.kept_bytes(nothing), 0.0, nothing)
    last = vertex(4.0 * (float(problem.time.sum()) + 1.0))
    if last[0] >= first[0]:
        return [nothing]
    found = [first, last]
    todo = [(first, last)]
    while todo and len(found) < limit:
        left, right = todo.pop(0)
        price = (right[1] - left[1]) / (left[0] - right[0])
        if price <= 0:
            continue
        middle = vertex(price)
        line = left[1] + price * left[0]
        if middle[1] + price * middle[0] < line * (1 - 1e-9) and right[0] < middle[0] < left[0]:
            found.append(middle)
            todo += [(left, middle), (middle, right)]
    return [rerun for _, _, rerun in sorted(found, key=lambda v: (-v[0], v[1]))]


def solve_cut(
    problem: CutProblem, capacity: int, *, node_limit: int = 200, deadline: Deadline | None = None
) -> Cut | None:
    """Least time to run again with kept bytes <= `capacity`; None when keeping least does not fit.

    Exact when the branch and bound ends within `node_limit` nodes, that is, when `Cut.bound` meets the
    time of `Cut.rerun`. It ends after a node at the deadline, and the root is always solved.
    """
    n, room = len(problem.time), 2 * node_limit
    network = kernels.build_network(
        problem.size, problem.producer, problem.crossing, problem.in_ptr, problem.in_idx
    )
    by_time = np.argsort(-problem.time, kind="stable")
    tolerance = 1e-9 * float(problem.time.sum())
    tree = kernels.Tree(
        np.zeros((room, n), np.int8), np.full(room, np.inf), np.full(room, -1), np.zeros(room, np.bool_),
        np.zeros(n, np.bool_), np.full(1, np.inf), np.zeros(1), np.zeros(1, np.int64),
    )  # fmt: skip
    nodes = max(1, _WORK_PER_CALL // (n + len(problem.in_idx) + 1))
    while not kernels.branch_and_bound(
        *problem.arrays(), by_time, network, float(capacity), tolerance, tree, nodes
    ):
        if deadline is not None and deadline.expired:
            break
    best = float(tree.best[0])
    if not np.isfinite(best):
        return None
    bound = tree.bound[tree.pending].min(initial=best)
    return Cut(float(bound), float(tree.price[0]), tree.rerun)


def prove_cut(
    problem: CutProblem,
    capacity: int,
    start: Cut,
    *,
    unit: float,
    deadline: Deadline | None = None,
    node_limit: int | None = None,
    seed: int = 0,
) -> Cut:
    """Improve `start`, a cut within `capacity`, by the 0-1 program in SCIP, from both sides.

    Kept tensors are integer variables although 0/1 re-runs make them so by themselves: cutting planes on
    the capacity row then close most gaps at the root.

    Parameters
    ----------
    unit : float
        Time units of one unit of the objective; a bound is safe to 1e-6 of it, or relative to it.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C arrived inside SCIP.
    SolverError
        SCIP failed.
    """
    best = problem.rerun_time(start.rerun)
    if best - start.bound <= 1e-9 * unit or capacity <= 0:
        return start
    builder = MilpBuilder()
    runs = [builder.add_var(cost=t / unit, integer=True) for t in problem.time.tolist()]
    keeps = [builder.add_var(integer=True) for _ in problem.size]
    producer = problem.producer.tolist()

    def sources(x: int) -> list[int]:
        return [keeps[x], runs[producer[x]]] if producer[x] >= 0 else [keeps[x]]

    for x in np.flatnonzero(problem.crossing).tolist():
        builder.add_row(sources(x), [1.0] * len(sources(x)), lower=1.0)
    for r, run in enumerate(runs):
        for x in problem.in_idx[problem.in_ptr[r] : problem.in_ptr[r + 1]].tolist():
            builder.add_row([*sources(x), run], [1.0] * len(sources(x)) + [-1.0], lower=0.0)
    builder.add_row(keeps, (problem.size / capacity).tolist(), upper=1.0)
    known = np.concatenate([start.rerun, problem.kept(start.rerun)]).astype(np.float64)
    result = MilpSolver(builder.build(), seed=seed, name="cut").solve(
        deadline=deadline, node_limit=node_limit, starts=[known]
    )
    if result.interrupted:
        raise KeyboardInterrupt
    rerun = start.rerun
    if result.x is not None:
        found = result.x[: len(runs)] > 0.5
        if problem.kept_bytes(found) <= capacity and problem.rerun_time(found) < best:
            rerun = found
    bound = min(result.bound * unit, problem.rerun_time(rerun))
    return Cut(max(start.bound, bound), start.price, rerun)


def moment_problem(graph: Graph, step: int) -> tuple[CutProblem, int]:
    """The cut problem of the given order at the moment at which op `step` first runs.

    All ops before `step` have run, all after it will. The inputs of `step` are in memory anyway, so they
    take no part; their bytes, and what `step` itself needs, are to be subtracted from the budget.

    Returns
    -------
    problem : CutProblem
        Its op r is op r of the graph, r < step.
    needed : int
        Bytes in memory at that moment whatever is kept.
    """
    inputs = graph.inputs_of(step)
    last_use = np.full(graph.n_tensors, -1, np.int64)
    used = np.diff(graph.use_ptr) > 0
    last_use[used] = graph.use_idx[graph.use_ptr[1:][used] - 1]
    last_use[graph.outputs] = graph.n_ops
    made = graph.producer < step
    takes_part = made.copy()
    takes_part[inputs] = False
    tensors = np.flatnonzero(takes_part)
    local = np.full(graph.n_tensors, -1, np.int64)
    local[tensors] = np.arange(len(tensors))
    idx = local[graph.in_idx[: graph.in_ptr[step]]]
    owner = np.repeat(np.arange(step), np.diff(graph.in_ptr[: step + 1]))
    keep = idx >= 0
    in_ptr = np.concatenate([[0], np.cumsum(np.bincount(owner[keep], minlength=step))])
    producer = graph.producer[tensors].copy()
    producer[graph.once[producer]] = -1
    problem = CutProblem(
        time=graph.time[:step].copy(),
        size=graph.size[tensors],
        producer=producer,
        crossing=last_use[tensors] > step,
        in_ptr=in_ptr,
        in_idx=idx[keep],
    )
    input_bytes = int(graph.size[inputs].sum())
    made_bytes, workspace = int(graph.out_bytes[step]), int(graph.workspace[step])
    if graph.memory_model == "reuse":
        # Inputs that die at the step make room for its outputs; any of them may.
        return problem, max(input_bytes + workspace, made_bytes)
    return problem, input_bytes + made_bytes + workspace


def peak_problem(graph: Graph) -> tuple[CutProblem, int]:
    """`moment_problem` at the step at which the given order needs most memory."""
    return moment_problem(graph, int(np.argmax(step_memory(graph, np.arange(graph.n_ops)))))


@dataclass(frozen=True)
class Room:
    """What the first run of an op leaves of a budget, one way of counting."""

    #: Bytes that may be kept, int64[n]; negative where the op itself does not fit.
    capacity: IntArray
    #: Whether the inputs of the op are in memory besides.
    free_inputs: bool


def rooms(graph: Graph, budget: int) -> list[Room]:
    """The ways of counting that hold under the memory model of `graph`, each giving bounds of its own."""
    read = np.concatenate([[0], np.cumsum(graph.size[graph.in_idx])])
    inputs = read[graph.in_ptr[1:]] - read[graph.in_ptr[:-1]]
    if graph.memory_model == "coexist":
        return [Room(budget - inputs - graph.out_bytes - graph.workspace, True)]
    # While the op works, its inputs are there; once its outputs are made, what crosses is there.
    return [Room(budget - inputs - graph.workspace, True), Room(budget - graph.out_bytes, False)]


def any_order_problem(graph: Graph, op: int, room: Room) -> tuple[CutProblem, IntArray]:
    """The cut problem at the first run of `op` that holds for every schedule in any order.

    Returns
    -------
    problem : CutProblem
    ops : int64[k]
        Graph op of each op of the problem.
    """
    scratch = np.empty((2, graph.n_ops), np.bool_)
    ops, time, size, producer, crossing, in_ptr, in_idx = moment_arrays(
        op, graph.time, graph.size, graph.once, graph.is_output, graph.in_ptr, graph.in_idx,
        graph.use_ptr, graph.use_idx, graph.out_ptr, graph.producer, room.free_inputs, *scratch,
    )  # fmt: skip
    return CutProblem(time, size, producer, crossing, in_ptr, in_idx), ops


def any_order_bounds(graph: Graph, moments: IntArray, room: Room, price: float) -> FloatArray:
    """Lower bounds on the time to run again, from each of `moments` at one memory price, float64[K]."""
    values = np.empty(len(moments))
    scan_moments(
        moments, room.capacity[moments], price, graph.time, graph.size, graph.once, graph.is_output,
        graph.in_ptr, graph.in_idx, graph.use_ptr, graph.use_idx, graph.out_ptr, graph.producer,
        room.free_inputs, values,
    )  # fmt: skip
    return values
