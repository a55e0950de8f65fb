"""Beam search with recomputation, and seeded passes along fixed orders.

A *pass* runs the ops of a fixed order for the first time, one after another; what is missing is made
again just in time, and what stands in the way is evicted by its price (see `_beam_kernel`). The beam
chooses the order of first runs as well. Every schedule found is repaired.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.simulate import simulate
from hremate.solvers import _beam_kernel as _k
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.repair import repair

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
#: Units of work between two looks at the clock; a unit is a few nanoseconds.
_CHUNK = 3_000_000
#: Units of work for each unit of width.
_WORK_PER_WIDTH = 40_000_000
#: Charge on a recomputation in prices, in mean op times, so that free ones are not made at will.
_TOLL = 1e-3
#: A step gives up after this many executions for each op of the graph.
_RUNS_PER_OP = 8
#: When nothing fits, the width is multiplied once by this, up to this many (states times ops).
_WIDEN = 8
_WIDE_STATES = 20_000
#: A budget that no schedule exceeds (`Graph` keeps all sums below it).
_NO_LIMIT = 2**62


@dataclass(frozen=True)
class Params:
    """Parameters of `beam`."""

    #: Partial schedules kept; more passes are tried in proportion.
    width: int = 8

    def __post_init__(self) -> None:
        if self.width < 1:
            raise MethodError(f"beam: width is {self.width}; expected width >= 1")


class _OutOfTime(Exception):
    """The deadline has passed."""


class Searcher:
    """The arrays of one search on one graph, reused from pass to pass."""

    def __init__(self, graph: Graph, width: int, seed: int, deadline: Deadline) -> None:
        n, m = graph.n_ops + 1, graph.n_tensors
        self.graph = graph
        self.width = width
        self.deadline = deadline
        self.work = 0
        self.net = _net(graph)

        def ints(*shape: int) -> _k.Int32Array:
            return np.zeros(shape, np.int32)

        self.state = _k.State(
            ran=np.zeros((width, n), np.int8),
            wait=ints(width, n),
            missing=ints(width, n),
            due=ints(width, n),
            ready=ints(width, n),
            ready_at=ints(width, n),
            need=ints(width, m),
            live=ints(width, m),
            live_at=ints(width, m),
            tally=np.zeros((width, 10), np.int64),
            price=np.zeros(width),
        )
        rng = np.random.default_rng(seed)
        self.scratch = _k.Scratch(
            ints(m),
            np.zeros(n, np.int64),
            ints(n + 1),
            ints(n + 1),
            np.zeros(n + 1, np.int64),
            rng.integers(0, 2**62, n),
            ints(16 * m + 8 * n + 1024),
            np.zeros(3, np.int64),
        )

    def _tick(self) -> None:
        self.work += int(self.scratch.cell[_k.WORK])
        if self.deadline.expired:
            raise _OutOfTime

    def _grow_log(self) -> None:
        self.scratch = self.scratch._replace(log=np.concatenate([self.scratch.log, self.scratch.log]))

    def follow(self, order: IntArray, budget: int, policy: _k.Policy) -> IntArray | None:
        """The schedule of a pass along `order` (each op once, topological), or None without room."""
        self.scratch.cell[_k.LOG_SIZE] = 0
        _k.init_slot(self.net, self.state, 0)
        order = np.append(order, self.graph.n_ops)
        at, outcome = 0, _k.MORE_WORK
        while outcome in (_k.MORE_WORK, _k.LOG_FULL):
            if outcome == _k.LOG_FULL:
                self._grow_log()
            outcome, at = _k.follow(
                self.net, self.state, 0, order, at, budget, policy, self.scratch,
                _RUNS_PER_OP * len(order) + 64, _CHUNK,
            )  # fmt: skip
            self._tick()
        if outcome != _k.DONE:
            return None
        log = self.scratch.log[: self.scratch.cell[_k.LOG_SIZE]]
        return (log[(log & 3) == _k.EXEC] >> 2).astype(np.int64)[:-1]

    def beam(self, budget: int, policy: _k.Policy, floor: int = 0) -> IntArray | None:
        """The best schedule of a beam over first runs, or None when every state ran out of room.

        Peaks of at most `floor` bytes are equally good.
        """
        n, width = self.graph.n_ops + 1, self.width
        nodes = 2 * width * (n + 2)
        tree = _k.Tree(
            np.zeros(nodes, np.int32), np.zeros(nodes, np.int32), np.zeros(nodes, np.int64),
            np.zeros(nodes, np.int64), np.zeros(nodes, np.int64), np.zeros(nodes), np.zeros(nodes, np.int32),
            np.zeros(1, np.int64),
        )  # fmt: skip
        front = _k.Front(
            np.zeros(width, np.bool_), np.zeros(2 * width, np.int64), np.zeros(2 * width, np.int64),
            np.zeros(2 * width, np.int64), np.zeros((2 * width, 4), np.int64), self._urgency(),
            np.zeros(3, np.int64),
        )  # fmt: skip
        outcome = _k.LOG_FULL
        while outcome != _k.DONE:
            if outcome == _k.LOG_FULL:
                if tree.size[0]:
                    self._grow_log()
                for s in range(width):
                    _k.init_slot(self.net, self.state, s)
                self.scratch.cell[_k.LOG_SIZE] = 0
                front.active[:] = False
                front.active[0] = True
                front.best[0] = -1
                tree.size[0] = 1
            outcome = _k.advance(
                self.net, self.state, budget, floor, policy, self.scratch, tree, front,
                _RUNS_PER_OP * n + 64, _CHUNK,
            )  # fmt: skip
            self._tick()
        if front.best[0] < 0:
            return None
        order = np.empty(int(self.scratch.cell[_k.LOG_SIZE]), np.int64)
        return order[: _k.spell(front.best[0], tree, self.scratch, order) - 1].copy()

    def _urgency(self) -> IntArray:
        """Longest path from the start of each op to the end of the graph, ticks."""
        ptr, idx = self.graph.successors
        longest = self.net.ticks.copy()
        for i in range(self.graph.n_ops - 1, -1, -1):
            if ptr[i] < ptr[i + 1]:
                longest[i] += longest[idx[ptr[i] : ptr[i + 1]]].max()
        return longest


def _net(graph: Graph) -> _k.Net:
    """The graph as the kernels take it, with the end as op n."""
    n = graph.n_ops
    # Ticks fine enough to tell times apart, coarse enough that a long schedule fits int64.
    scale = 2.0**44 / graph.total_time if graph.total_time > 0 else 0.0
    time = np.append(graph.time, 0.0)
    return _k.Net(
        time,
        np.append(graph.workspace, 0),
        np.append(graph.once, False),
        graph.size,
        graph.producer,
        np.append(graph.out_ptr, graph.n_tensors),
        np.append(graph.in_ptr, len(graph.in_idx) + len(graph.outputs)),
        np.append(graph.in_idx, graph.outputs),
        graph.use_ptr + np.concatenate([[0], np.cumsum(graph.is_output)]),
        np.insert(graph.use_idx, graph.use_ptr[graph.outputs + 1], n),
        np.append(graph.out_bytes, 0),
        graph.memory_model == "reuse",
        np.rint(time * scale).astype(np.int64),
        _TOLL * graph.total_time / n,
    )


@dataclass
class Found:
    """What a search has come across."""

    graph: Graph
    budget: int
    #: Best schedule within the budget: least time, then least peak.
    order: IntArray | None = None
    time: float = float("inf")
    peak: int = _NO_LIMIT
    #: Schedule of the smallest peak, then least time.
    smallest: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    smallest_peak: int = _NO_LIMIT
    smallest_time: float = float("inf")
    #: Whether the deadline or Ctrl-C cut the search short.
    timed_out: bool = False
    interrupted: bool = False

    def add(self, order: IntArray) -> None:
        """Take a valid schedule in."""
        simulation = simulate(self.graph, order)
        peak, time = simulation.peak, simulation.time
        if (peak, time) < (self.smallest_peak, self.smallest_time):
            self.smallest, self.smallest_peak, self.smallest_time = order, peak, time
        if peak <= self.budget and (time, peak) < (self.time, self.peak):
            self.order, self.time, self.peak = order, time, peak


def beam_search(
    graph: Graph, budget: int, *, width: int = 8, seed: int = 0, deadline: Deadline | None = None
) -> Found:
    """The best schedule within `budget` bytes that a search of the given width finds.

    In turn: the given order and a depth-first post-order as they are; a beam with recomputation; passes
    along these orders and that of a beam without recomputation, under several eviction prices, then
    under randomly disturbed ones; a beam under the prices that did best. When nothing fits, the same
    with a larger width; at last the smallest budget that can be met is searched for by bisection.
    Repeatable for a seed unless the deadline strikes; Ctrl-C ends the search and keeps what was found.

    Returns
    -------
    Found
        `order` (None when nothing fits), `smallest` (the schedule of the smallest peak).
    """
    found = Found(graph, budget)
    deadline = deadline or Deadline()
    try:
        searcher = Searcher(graph, width, seed, deadline)
        seeds = _search(searcher, found, seed)
        if found.order is None and _working_set(graph) <= budget:
            wide = min(width * _WIDEN, _WIDE_STATES // graph.n_ops)
            if wide > width:
                searcher = Searcher(graph, wide, seed, deadline)
                seeds = _search(searcher, found, seed)
        if found.order is None:
            _shrink(searcher, found, seeds)
    except _OutOfTime:
        found.timed_out = True
    except KeyboardInterrupt:
        found.interrupted = True
    if not len(found.smallest):
        found.add(np.arange(graph.n_ops))
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
    graph, budget = searcher.graph, found.budget

    def done(schedule: IntArray | None) -> bool:
        """Take a schedule in; whether no time at all is left to save."""
        if schedule is not None:
            found.add(repair(graph, schedule, budget))
        return found.time <= graph.total_time

    given = np.arange(graph.n_ops)
    depth_first = _k.post_order(searcher.net)
    depth_first = depth_first[depth_first < graph.n_ops]
    seeds = [given, depth_first]
    if done(given) or done(depth_first) or done(searcher.beam(budget, _policy(graph, given), budget)):
        return seeds
    unpressed = searcher.beam(_NO_LIMIT, _policy(graph, given), budget)
    if unpressed is not None:
        if done(unpressed):
            return seeds
        seeds.append(unpressed)

    goal = searcher.work + searcher.width * _WORK_PER_WIDTH
    best = given, _PRICES[0]
    for order, prices, bias in _passes(graph, seeds, searcher.width, seed):
        before = found.time
        if done(searcher.follow(order, budget, _policy(graph, order, prices, bias))):
            return seeds
        if found.time < before:
            best = order, prices
        if searcher.work > goal:
            break
    done(searcher.beam(budget, _policy(graph, *best), budget))
    return seeds


def greedy_search(graph: Graph, budget: int, *, deadline: Deadline | None = None) -> Found:
    """One beam of width 1 under one price; when it runs out of room, the same at larger budgets."""
    found = Found(graph, budget)
    searcher = Searcher(graph, 1, 0, deadline or Deadline())
    policy = _policy(graph, np.arange(graph.n_ops))
    try:
        low, limit = budget - 1, budget
        while True:
            schedule = searcher.beam(limit, policy, budget)
            if schedule is not None:
                found.add(schedule)
            else:
                low = limit
            if found.order is not None or found.smallest_peak - low <= max(1, found.smallest_peak // 1000):
                break
            limit = _NO_LIMIT if found.smallest_peak == _NO_LIMIT else (low + found.smallest_peak) // 2
    except _OutOfTime:
        found.timed_out = True
    except KeyboardInterrupt:
        found.interrupted = True
    if not len(found.smallest):
        found.add(np.arange(graph.n_ops))
    return found


def _policy(
    graph: Graph,
    order: IntArray,
    prices: tuple[float, float, bool] = (0.25, 0.3, False),
    bias: np.ndarray | None = None,
) -> _k.Policy:
    position = np.full(graph.n_ops + 1, graph.n_ops, np.int32)
    position[order] = np.arange(graph.n_ops)
    return _k.Policy(*prices, np.ones(graph.n_tensors) if bias is None else bias, position)


def _passes(
    graph: Graph, seeds: list[IntArray], width: int, seed: int
) -> Iterator[tuple[IntArray, tuple[float, float, bool], np.ndarray | None]]:
    """Order, prices and bias of each pass: every seed under every price, then disturbed ones."""
    for prices in _PRICES:
        for order in seeds:
            yield order, prices, None
    rng = np.random.default_rng([seed, 1])
    for k in range(len(_PRICES) * (width - 1)):
        bias = np.exp(_NOISE * rng.standard_normal(graph.n_tensors))
        yield seeds[k // len(_PRICES) % len(seeds)], _PRICES[k % len(_PRICES)], bias


def _shrink(searcher: Searcher, found: Found, seeds: list[IntArray]) -> None:
    """Bisect for the smallest budget that some pass meets, between the wanted one and the seeds' peaks."""
    graph = searcher.graph
    low = found.budget
    while found.smallest_peak - low > max(1, found.smallest_peak // 1000):
        middle = (low + found.smallest_peak) // 2
        reached = False
        for order in seeds:
            for prices in _PRICES[:4]:
                schedule = searcher.follow(order, middle, _policy(graph, order, prices))
                if schedule is not None:
                    found.add(repair(graph, schedule, middle))
                    reached = True
                    break
            if reached:
                break
        if not reached:
            low = middle


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Search with a beam of `params.width`; without a schedule within the budget, the smallest peak."""
    found = beam_search(graph, budget, width=params.width, seed=run.seed, deadline=run.deadline)
    run.stats.timed_out |= found.timed_out
    run.stats.interrupted |= found.interrupted
    return finish(graph, budget, run, "beam", found.smallest if found.order is None else found.order)
