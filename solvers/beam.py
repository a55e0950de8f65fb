"""Beam search with recomputation, and seeded passes along fixed orders.

A *pass* runs the ops of a fixed order for the first time, one after another; what is missing is made
again just in time, and what stands in the way is evicted by its price (see `searcher`). The beam
chooses the order of first runs as well. Every schedule found is repaired and shifted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.found import Found
from hremate.solvers.orders import NO_LIMIT, depth_first, order_width, peak_order
from hremate.solvers.repair import repair
from hremate.solvers.searcher import Searcher, make_policy

#: Eviction prices tried in turn: (patience, reach, lazy).
_PRICES = [
    (0.0, 0.0, False),
    (0.25, 0.3, False),
    (0.25, 0.0, False),
    (0.0, 0.3, False),
    (0.5, 1.0, False),
    (0.25, 0.0, True),
    (0.5, 0.3, False),
    (0.0, 1.0, False),
    (0.25, 1.0, False),
    (1.0, 0.3, False),
    (0.5, 0.0, False),
    (0.0, 0.3, True),
]
#: Standard deviation of the logarithm of random factors on prices, once all prices were tried as they are.
_NOISE = 0.25
#: A pass ends when it recomputes more than twice the best, and this share of the time of the graph.
_SLACK = 0.01
#: Units of work for each unit of width.
_WORK_PER_WIDTH = 32_000_000
#: Graphs of this many ops get half the work of small ones, larger ones less by the square of their size.
_HALF_WORK_OPS = 4_000
#: Units of work for each op that any pass may take, and that a beam takes for each slot.
_WORK_PER_OP = 600
#: Units of work for each op and each arc that an order beam may take besides.
_WORK_PER_ARC = 100
#: When nothing fits, the width is multiplied once by this, up to this many (states times ops).
_WIDEN = 8
_WIDE_STATES = 20_000


@dataclass(frozen=True)
class Params:
    """Parameters of `beam`."""

    #: Partial schedules kept; more passes are tried in proportion.
    width: int = 8

    def __post_init__(self) -> None:
        if self.width < 1:
            raise MethodError(f"beam: width is {self.width}; expected width >= 1")


def beam_search(
    graph: Graph, budget: int, *, width: int = 8, seed: int = 0, deadline: Deadline | None = None
) -> Found:
    """The best schedule within `budget` bytes that a search of the given width finds.

    In turn: the given order and a depth-first post-order as they are; beams over orders without
    recomputation from both ends; a beam with recomputation; passes along all these orders under several
    eviction prices, then under randomly disturbed ones; a beam under the prices that did best. The work
    is counted: large graphs get fewer passes and no beam with recomputation. When nothing fits, the same
    with a larger width; at last the smallest budget that can be met is searched for by bisection.
    Repeatable for a seed unless the deadline strikes; Ctrl-C ends the search and keeps what was found.

    Returns
    -------
    Found
        `order` (None when nothing fits), `smallest` (the schedule of the smallest peak).
    """
    found = Found(graph, budget)
    deadline = deadline or Deadline()
    with found.searching():
        searcher = Searcher(graph, width, seed, deadline)
        seeds = _search(searcher, found, seed)
        if found.order is None and _working_set(graph) <= budget:
            wide = min(width * _WIDEN, _WIDE_STATES // graph.n_ops)
            if wide > width:
                searcher = Searcher(graph, wide, seed, deadline)
                seeds = _search(searcher, found, seed)
        if found.order is None:
            _shrink(searcher, found, seeds)
    return found


def _working_set(graph: Graph) -> int:
    """Bytes that some op needs by itself."""
    read = np.add.reduceat(np.append(graph.size[graph.in_idx], 0), graph.in_ptr[:-1])
    read[graph.in_ptr[:-1] == graph.in_ptr[1:]] = 0
    if graph.memory_model == "reuse":
        return int(np.maximum(read + graph.workspace, graph.out_bytes).max())
    return int((read + graph.workspace + graph.out_bytes).max())


def _search(searcher: Searcher, found: Found, seed: int) -> list[IntArray]:
    """One search of fixed width; returns the orders its passes followed."""
    graph, budget, width, n = searcher.graph, found.budget, searcher.width, searcher.graph.n_ops
    allowance = int(width * _WORK_PER_WIDTH / (1 + (n / _HALF_WORK_OPS) ** 2))
    share = max(allowance // 4, 2 * _WORK_PER_OP * n)
    beam_fits = width * _WORK_PER_OP * n <= share
    given = np.arange(n)
    seeds = [given, depth_first(graph)]
    if found.take(searcher, given) or found.take(searcher, seeds[1]):
        return seeds
    goal = searcher.work + allowance
    if not beam_fits:  # a large graph: one schedule within the budget before anything else
        found.take(searcher, searcher.follow(given, budget, make_policy(graph, given), max_work=share))
    order_work = share // 4 + _WORK_PER_ARC * (n + len(graph.in_idx))
    for backward in (True, False):
        order = peak_order(
            graph, order_width(n, width), backward=backward, seed=seed, max_work=order_work,
            tick=searcher.count,
        )  # fmt: skip
        if order is not None:
            _add_seed(seeds, order)
            if found.take(searcher, order):
                return seeds
    if beam_fits:
        schedule = searcher.beam(budget, make_policy(graph, given), budget, max_work=share)
        if found.take(searcher, schedule):
            return seeds
        if schedule is not None:
            first_runs = np.sort(np.unique(schedule, return_index=True)[1])
            _add_seed(seeds, schedule[first_runs])
    best = _try_prices(searcher, found, seeds, seed, share, goal)
    if beam_fits and found.time > graph.total_time:
        found.take(
            searcher,
            searcher.beam(budget, make_policy(graph, *best), budget, _slack(graph, found), share),
        )  # fmt: skip
    return seeds


def _slack(graph: Graph, found: Found) -> float:
    """Time on recomputation beyond which a schedule is not worth repairing."""
    return 2 * (found.time - graph.total_time) + _SLACK * graph.total_time


def _add_seed(seeds: list[IntArray], order: IntArray) -> None:
    if not any(np.array_equal(order, other) for other in seeds):
        seeds.append(order)


def _try_prices(
    searcher: Searcher, found: Found, seeds: list[IntArray], seed: int, share: int, goal: int
) -> tuple[IntArray, tuple[float, float, bool], FloatArray]:
    """Passes along all `seeds` under all prices, then under disturbed ones, until the work is `goal`.

    Each pass may take `share` units of work. Returns order, prices and bias of the best pass.
    """
    graph, budget = searcher.graph, found.budget
    undisturbed = np.ones(graph.n_tensors)
    best = seeds[0], _PRICES[0], undisturbed
    rng = np.random.default_rng([seed, 1])
    plain = len(_PRICES) * len(seeds)
    disturbed = len(_PRICES) * (searcher.width - 1)
    for k in range(plain + 2 * disturbed):
        order, prices, bias = seeds[k % len(seeds)], _PRICES[k // len(seeds) % len(_PRICES)], undisturbed
        if k >= plain:  # disturbed ones all around, then around the best so far
            if k < plain + disturbed:
                turn, strength = k - plain, _NOISE
                order, prices = seeds[turn // len(_PRICES) % len(seeds)], _PRICES[turn % len(_PRICES)]
            else:
                (order, prices, bias), strength = best, _NOISE * rng.random()
            bias = bias * np.exp(strength * rng.standard_normal(graph.n_tensors))
        before = found.time
        policy = make_policy(graph, order, prices, bias)
        if found.take(searcher, searcher.follow(order, budget, policy, _slack(graph, found), share)):
            break
        if found.time < before:
            best = order, prices, bias
        if searcher.work > goal:
            break
    return best


def greedy_search(graph: Graph, budget: int, *, deadline: Deadline | None = None) -> Found:
    """One beam of width 1 under one price; when it runs out of room, the same at larger budgets."""
    found = Found(graph, budget)
    searcher = Searcher(graph, 1, 0, deadline or Deadline())
    policy = make_policy(graph, np.arange(graph.n_ops))
    with found.searching():
        low, limit = budget - 1, budget
        while True:
            schedule = searcher.beam(limit, policy, budget)
            if schedule is not None:
                found.add(schedule)
            else:
                low = limit
            if found.order is not None or found.smallest_peak - low <= max(1, found.smallest_peak // 1000):
                break
            limit = NO_LIMIT if found.smallest_peak == NO_LIMIT else (low + found.smallest_peak) // 2
    return found


def _shrink(searcher: Searcher, found: Found, seeds: list[IntArray]) -> None:
    """Bisect for the smallest budget that some pass meets, between the wanted one and the seeds' peaks."""
    graph = searcher.graph
    low = found.budget
    share = max(searcher.width * _WORK_PER_WIDTH // 64, 2 * _WORK_PER_OP * graph.n_ops)
    goal = searcher.work + 4 * share
    while found.smallest_peak - low > max(1, found.smallest_peak // 1000) and searcher.work < goal:
        middle = (low + found.smallest_peak) // 2
        for order, prices in product(seeds, _PRICES[:4]):
            schedule = searcher.follow(order, middle, make_policy(graph, order, prices), max_work=share)
            if schedule is not None:
                found.add(repair(graph, schedule, middle))
                break
            if searcher.work > goal:
                break
        else:
            low = middle


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Search with a beam of `params.width`; without a schedule within the budget, the smallest peak."""
    found = beam_search(graph, budget, width=params.width, seed=run.seed, deadline=run.deadline)
    run.stats.timed_out |= found.timed_out
    run.stats.interrupted |= found.interrupted
    return finish(graph, budget, run, "beam", found.best)
