"""The time that no schedule within a budget can beat, in any order, by the cut model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from hremate.graph import Graph, IntArray, Op
from hremate.simulate import step_memory
from hremate.solvers.base import Deadline
from hremate.solvers.cut_model import (
    Room,
    any_order_bounds,
    any_order_problem,
    peak_problem,
    rooms,
    solve_cut,
)
from hremate.solvers.moment_search import search_moments

#: Share of the base time taken off a bound of the kernels, far above their rounding.
SHAVED = 1e-9
#: Ops and arcs times moments of one scan; larger graphs are scanned at fewer moments.
SCAN_WORK = 3 * 10**7
#: One in so many of the moments is scanned again at other prices.
PROMISING = 20
#: Ops and arcs times moments between two looks at the deadline.
CHUNK_WORK = 10**6
#: The best moments by what is known of them (fewer on large graphs, by ops and arcs times moments), and the
#: branch-and-bound nodes each then gets (fewer on large graphs, by ops and arcs times nodes).
TIERS = ((40, 1), (5, 100), (1, 5000))
TIER_WORK, NODE_WORK = 2 * 10**6, 10**6
#: Graphs of up to so many ops and arcs are bounded at several moments at once, in so many rounds. Nodes times
#: variables of each round's program, and of the last one's proof.
SEVERAL_WEIGHT = 20_000
ROUNDS, ROUND_WORK, PROOF_WORK = 16, 3 * 10**5, 6 * 10**6


@dataclass(frozen=True)
class TimeBound:
    """A total time that no schedule of a graph within a budget can beat, in any order."""

    #: Time units of the graph.
    time: float
    #: The ops at whose first runs the bound arises; none when it is the sum of all times.
    moments: tuple[int, ...] = ()
    #: A schedule within the budget that the search for the bound came by, if any. Not validated.
    order: IntArray | None = None


def time_lower_bound(
    graph: Graph, budget: int, *, deadline: Deadline | None = None, seed: int = 0
) -> TimeBound:
    """The cut model: at the first runs of many ops one by one, then at several at once.

    At the first run of op v all its ancestors have run and none of its descendants; what is then kept
    fits beside v, and the rest of what is needed later runs again (`hremate.solvers.cut_model`). From the
    best such moment on, moments are added where the answer still needs too much memory
    (`hremate.solvers.moment_search`). Valid for every schedule in any order, with any number of
    recomputations, under both memory models.

    Parameters
    ----------
    budget : int
        Bytes.
    deadline : Deadline, optional
        When it passes, the best bound so far is returned.
    seed : int
        Of the tie breaking of SCIP.

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C arrived.
    """
    deadline = deadline or Deadline()
    if deadline.expired:
        return TimeBound(graph.total_time)
    extra, op = max(_room_bound(graph, budget, room, deadline) for room in rooms(graph, budget))
    extra = max(0.0, extra - SHAVED * graph.total_time)
    moments: tuple[int, ...] = (op,)
    order = None
    if extra > 0 and graph.n_ops + len(graph.in_idx) <= SEVERAL_WEIGHT:
        found = search_moments(
            graph, budget, op, deadline=deadline, rounds=ROUNDS, round_work=ROUND_WORK,
            proof_work=PROOF_WORK, seed=seed,
        )  # fmt: skip
        order = found.order
        if found.extra > extra:
            extra, moments = found.extra, found.moments
    time = _round_up(graph, graph.total_time + extra)
    return TimeBound(time, moments if extra > 0 else (), order)


def compile_kernels() -> None:
    """Bound five ops, so that compilation takes nothing of the seconds that a bound gets."""
    forward = [Op("0", 1.0, (), (("a", 8),)), Op("1", 1.0, ("a",), (("b", 8),))]
    backward = [Op("3", 1.0, ("b", "c"), (("d", 8),)), Op("4", 1.0, ("a", "d"), (("e", 8),))]
    graph = Graph.from_ops([*forward, Op("2", 1.0, ("b",), (("c", 8),)), *backward], ["e"])
    time_lower_bound(graph, 24)


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
    # The last tier is for graphs that no program of several moments follows for.
    for count, nodes in TIERS if weight > SEVERAL_WEIGHT else TIERS[:-1]:
        known.sort(key=lambda entry: (-entry[0], entry[1]))
        for k in range(min(len(known), count, max(2, TIER_WORK // weight))):
            bound, op = known[k]
            if deadline.expired or bound <= 0:
                break
            problem, _ = any_order_problem(graph, op, room)
            nodes = max(1, min(nodes, NODE_WORK // weight))
            cut = solve_cut(problem, int(room.capacity[op]), node_limit=nodes, deadline=deadline)
            known[k] = (bound if cut is None else max(bound, cut.bound)), op
    return max(known, key=lambda entry: (entry[0], -entry[1]))


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
    problem, needed = peak_problem(graph)
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
