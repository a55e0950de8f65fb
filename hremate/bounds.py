"""Bounds that hold for every schedule, in any order and with any recomputation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from hremate._bounds_kernel import working_set_kernel
from hremate.errors import SolverError
from hremate.graph import Graph, IntArray
from hremate.simulate import step_memory
from hremate.solvers.base import Deadline
from hremate.solvers.cut_model import (
    Cut,
    CutProblem,
    Room,
    any_order_bounds,
    any_order_problem,
    moment_problem,
    prove_cut,
    rooms,
    solve_cut,
)

#: Share of the base time taken off a bound, far above the rounding of the kernels.
SHAVED = 1e-9
#: Ops and arcs times moments of one scan; larger graphs are scanned at fewer moments.
SCAN_WORK = 3 * 10**7
#: One in so many of the moments is scanned again at other prices.
PROMISING = 20
#: Ops and arcs times moments between two looks at the deadline.
CHUNK_WORK = 10**6
#: The best moments by what is known of them (fewer on large graphs, by ops and arcs times moments), and the
#: branch-and-bound nodes each then gets.
TIERS = ((40, 1), (5, 100))
TIER_WORK = 2 * 10**6
#: Nodes times (ops and arcs) that the very best moment gets, and its most nodes.
NODE_WORK, MOST_NODES = 3 * 10**6, 5000


#: Graphs of up to so many ops and arcs get the best few moments solved in SCIP, each for so long.
PROVED_WEIGHT = 20_000
PROVED_MOMENTS, PROVED_SECONDS, PROVED_NODES = 3, 10.0, 20_000


@dataclass(frozen=True)
class MemoryBound:
    """A peak that no schedule of a graph can stay below."""

    bytes: int
    #: The op responsible; None when the graph outputs are.
    op: int | None
    #: What needs the bytes, for people: "op 'addmm_7' needs by itself".
    need: str


def memory_lower_bound(graph: Graph) -> MemoryBound:
    """The largest of three floors of the peak, any order, under the memory model of the graph.

    1. An op holds its working set when it runs: inputs, outputs and workspace. (`reuse`: the larger of
       inputs + workspace and of outputs + inputs that cannot die there.)
    2. Before an op v runs, some producer p of its inputs was the last to run; at that step the other
       inputs of v were alive beside the working set of p. The cheapest p counts.
    3. The same with the end of the schedule, which needs all graph outputs, in the place of v.

    Resident tensors are not counted. Takes time linear in the arcs for graphs of bounded degree.
    """
    n = graph.n_ops
    floor = np.empty((2, n + 1), np.int64)
    working_set_kernel(
        graph.in_ptr, graph.in_idx, graph.out_ptr, graph.use_ptr, graph.use_idx, graph.producer, graph.size,
        graph.workspace, graph.out_bytes, graph.once, graph.is_output, graph.outputs,
        graph.memory_model == "reuse", floor,
    )  # fmt: skip
    row, column = np.unravel_index(int(np.argmax(floor)), floor.shape)  # the op's own step on a tie
    nbytes = int(floor[row, column])
    if column == n:
        return MemoryBound(nbytes, None, "the graph outputs need at the end")
    name = graph.op_names[column]
    need = f"op {name!r} needs by itself" if row == 0 else f"it takes to make the inputs of op {name!r}"
    return MemoryBound(nbytes, int(column), need)


@dataclass(frozen=True)
class TimeBound:
    """A total time that no schedule of a graph within a budget can beat, in any order."""

    #: Time units of the graph.
    time: float
    #: The op at whose first run the bound arises; None when it is the sum of all times.
    op: int | None


def time_lower_bound(graph: Graph, budget: int, *, deadline: Deadline | None = None) -> TimeBound:
    """The cut model at the first runs of many ops, the best few solved to integers.

    At the first run of op v all its ancestors have run and none of its descendants; what is then kept
    fits beside v, and the rest of what is needed later runs again (`hremate.solvers.cut_model`). Valid for
    every schedule in any order, with any number of recomputations, under both memory models.

    Parameters
    ----------
    budget : int
        Bytes.
    deadline : Deadline, optional
        When it passes, the best bound so far is returned.
    """
    deadline = deadline or Deadline()
    best = max(_room_bound(graph, budget, room, deadline) for room in rooms(graph, budget))
    extra = max(0.0, best[0] - SHAVED * graph.total_time)
    where = best[1] if extra > 0 else None
    return TimeBound(_round_up(graph, graph.total_time + extra), where)


def _room_bound(graph: Graph, budget: int, room: Room, deadline: Deadline) -> tuple[float, int]:
    """(time that must run again, op at whose first run that shows), from one way of counting room."""
    weight = graph.n_ops + len(graph.in_idx)
    moments = _candidates(graph)
    values = np.zeros(len(moments))
    for number, price in enumerate(_prices(graph, budget)):
        chosen = np.argsort(-values, kind="stable")
        chosen = chosen if number == 0 else chosen[: max(8, len(moments) // PROMISING)]
        for chunk in np.array_split(chosen, -(-len(chosen) * weight // CHUNK_WORK)):
            if deadline.expired:
                break
            found = any_order_bounds(graph, moments[chunk], room, price)
            values[chunk] = np.maximum(values[chunk], found)
    # A moment that leaves no room at all proves infeasibility, which is for the memory bound to tell.
    values[~np.isfinite(values)] = 0.0
    known = list(zip(values.tolist(), moments.tolist(), strict=True))
    proving = weight <= PROVED_WEIGHT
    last = (PROVED_MOMENTS, 100) if proving else (1, max(1, min(MOST_NODES, NODE_WORK // weight)))
    for count, nodes in (*TIERS, last):
        known.sort(key=lambda entry: (-entry[0], entry[1]))
        for k in range(min(len(known), count, max(2, TIER_WORK // weight))):
            bound, op = known[k]
            if deadline.expired or bound <= 0:
                break
            problem, _ = any_order_problem(graph, op, room)
            cut = solve_cut(problem, int(room.capacity[op]), node_limit=nodes)
            if cut is not None and proving and (count, nodes) == last:
                cut = _proved(graph, problem, int(room.capacity[op]), cut, deadline)
            known[k] = (bound if cut is None else max(bound, cut.bound)), op
    return max(known, key=lambda entry: (entry[0], -entry[1]))


def _proved(graph: Graph, problem: CutProblem, capacity: int, cut: Cut, deadline: Deadline) -> Cut:
    try:
        return prove_cut(
            problem, capacity, cut, unit=max(graph.total_time, 1e-300) / 100,
            deadline=deadline.within(PROVED_SECONDS), node_limit=PROVED_NODES,
        )  # fmt: skip
    except SolverError:
        return cut  # a weaker bound is a bound


def _candidates(graph: Graph) -> IntArray:
    """Ops to look at: all of them, or on large graphs those at which the given order needs most memory."""
    count = max(8, SCAN_WORK // (graph.n_ops + len(graph.in_idx)))
    if count >= graph.n_ops:
        return np.arange(graph.n_ops)
    memory = step_memory(graph, np.arange(graph.n_ops))
    chosen: IntArray = np.sort(np.argsort(-memory, kind="stable")[:count])
    return chosen


def _prices(graph: Graph, budget: int) -> list[float]:
    """Memory prices at which all moments are compared: that of the given order's peak step, and around."""
    step = int(np.argmax(step_memory(graph, np.arange(graph.n_ops))))
    problem, needed = moment_problem(graph, step)
    cut = solve_cut(problem, budget - needed, node_limit=1)
    price = cut.price if cut is not None else 0.0
    if price <= 0:
        price = graph.total_time / max(1, int(graph.size.sum()))
    return [price, price / 2, price * 2]


def _round_up(graph: Graph, bound: float) -> float:
    """`bound` rounded up to the common quantum of the times, where they have one that is not tiny."""
    exponent = 0
    times = np.unique(graph.time)
    for time in times.tolist():
        exponent = min(exponent, int(Decimal(repr(time)).normalize().as_tuple().exponent))
        if exponent < -6:
            return bound
    scale = 10**-exponent
    units = [round(time * scale) for time in times.tolist()]
    quantum = math.gcd(*units)
    if quantum == 0 or graph.total_time * scale >= 2**50:
        return bound
    # The tolerance of rounding is far below the quantum and far above the rounding of the sum.
    steps = math.ceil(bound * scale / quantum - 1e-3)
    return max(bound, steps * quantum / scale)
