"""Passes and beams with recomputation on one graph: the kernels behind arrays that are allocated once."""

from __future__ import annotations

import numpy as np

from hremate.graph import FloatArray, Graph, IntArray
from hremate.solvers import _beam_state_kernel as _s
from hremate.solvers._beam_kernel import advance, spell
from hremate.solvers._beam_step_kernel import follow
from hremate.solvers.base import Deadline
from hremate.solvers.orders import CHUNK, NO_LIMIT, longest_paths, new_front, new_tree, reach_of

#: Charge on a recomputation in prices, in mean op times, so that free ones are not made at will.
_TOLL = 1e-3
#: Ticks of the time of a graph: fine enough to tell times apart, while long schedules fit int64.
_TICKS = 2.0**44
#: A step gives up after this many executions for each op of the graph.
_RUNS_PER_OP = 8


class OutOfTime(Exception):
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

        def ints(*shape: int) -> _s.Int32Array:
            return np.zeros(shape, np.int32)

        self.state = _s.State(
            ran=np.zeros((width, n), np.int8),
            wait=ints(width, n),
            missing=ints(width, n),
            due=ints(width, n),
            ready=ints(width, n),
            ready_at=ints(width, n),
            need=ints(width, m),
            live=ints(width, m),
            live_at=ints(width, m),
            tally=np.zeros((width, 12), np.int64),
            price=np.zeros(width),
            pool=ints(width, 2 * m + 64),
            pool_price=np.zeros((width, 2 * m + 64)),
        )
        rng = np.random.default_rng(seed)
        self.scratch = _s.Scratch(
            ints(m),
            np.zeros(n, np.int64),
            ints(n + 1),
            ints(n + 1),
            np.zeros(n + 1, np.int64),
            rng.integers(0, 2**62, n),
            ints(16 * m + 8 * n + 1024),
            np.zeros(3, np.int64),
            ints(1),
        )
        self.urgency = np.append(longest_paths(graph, self.net.ticks[:-1]), 0)

    def _tick(self) -> None:
        self.count(int(self.scratch.cell[_s.WORK]))

    def count(self, work: int) -> None:
        """Add units of work done; raise once the deadline has passed."""
        self.work += work
        if self.deadline.expired:
            raise OutOfTime

    def _grow_log(self) -> None:
        self.scratch = self.scratch._replace(log=np.concatenate([self.scratch.log, self.scratch.log]))

    def _ticks(self, time: float) -> int:
        """Time as whole ticks, 2^62 for infinity."""
        total = self.graph.total_time
        return 2**62 if time == float("inf") or total == 0 else int(time / total * _TICKS)

    def follow(
        self,
        order: IntArray,
        budget: int,
        policy: _s.Policy,
        max_extra: float = float("inf"),
        max_work: int = NO_LIMIT,
    ) -> IntArray | None:
        """The schedule of a pass along `order` (each op once, topological), or None without room.

        None also when more than `max_extra` would be spent on recomputation, or after about `max_work`
        units of work.
        """
        self.scratch.cell[_s.LOG_SIZE] = 0
        _s.init_slot(self.net, self.state, 0)
        order = np.append(order, self.graph.n_ops)
        at, outcome = 0, _s.MORE_WORK
        goal = self.work + max_work
        while outcome in (_s.MORE_WORK, _s.LOG_FULL):
            if outcome == _s.LOG_FULL:
                self._grow_log()
            outcome, at = follow(
                self.net, self.state, 0, order, at, budget, policy, self.scratch,
                self._ticks(max_extra), _RUNS_PER_OP * len(order) + 64, CHUNK,
            )  # fmt: skip
            self._tick()
            if self.work > goal:
                return None
        if outcome != _s.DONE:
            return None
        log = self.scratch.log[: self.scratch.cell[_s.LOG_SIZE]]
        return (log[(log & 3) == _s.EXEC] >> 2).astype(np.int64)[:-1]

    def beam(
        self,
        budget: int,
        policy: _s.Policy,
        floor: int = 0,
        max_extra: float = float("inf"),
        max_work: int = NO_LIMIT,
    ) -> IntArray | None:
        """The best schedule of a beam over first runs, or None when every state ran out of room.

        Peaks of at most `floor` bytes are equally good. None also when more than `max_extra` would be
        spent on recomputation, or after `max_work` units of work.
        """
        n, width = self.graph.n_ops + 1, self.width
        tree, front = new_tree(2 * width * (n + 2)), new_front(2 * width)
        outcome = _s.LOG_FULL
        goal = self.work + max_work
        while outcome != _s.DONE:
            if outcome == _s.LOG_FULL:
                if tree.size[0] > 1:
                    self._grow_log()
                self.scratch = self.scratch._replace(wanted=np.zeros(len(tree.parent), np.int32))
                for s in range(width):
                    _s.init_slot(self.net, self.state, s)
                self.scratch.cell[_s.LOG_SIZE] = 0
                active = np.zeros(width, np.bool_)
                active[0] = True
                best = np.array([-1, self._ticks(max_extra), NO_LIMIT])
                tree.size[0] = 1
            if len(self.scratch.log) < self.scratch.cell[_s.LOG_SIZE] + CHUNK // 2 + 4 * self.graph.n_tensors:
                self._grow_log()
            outcome = advance(
                self.net, self.state, budget, floor, reach_of(n), policy, self.scratch, tree, front, active,
                self.urgency, best, _RUNS_PER_OP * n + 64, CHUNK,
            )  # fmt: skip
            self._tick()
            if self.work > goal:
                return None
        if best[0] < 0:
            return None
        order = np.empty(int(self.scratch.cell[_s.LOG_SIZE]), np.int64)
        return order[: spell(best[0], tree, self.scratch, order) - 1].copy()


def _net(graph: Graph) -> _s.Net:
    """The graph as the kernels take it, with the end as op n."""
    n = graph.n_ops
    scale = _TICKS / graph.total_time if graph.total_time > 0 else 0.0
    time = np.append(graph.time, 0.0)
    return _s.Net(
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


def make_policy(
    graph: Graph,
    order: IntArray,
    prices: tuple[float, float, bool] = (0.25, 0.3, False),
    bias: FloatArray | None = None,
) -> _s.Policy:
    """The eviction prices (patience, reach, lazy), times `bias` of each tensor, with uses as in `order`."""
    position = np.full(graph.n_ops + 1, graph.n_ops, np.int32)
    position[order] = np.arange(graph.n_ops)
    return _s.Policy(*prices, np.ones(graph.n_tensors) if bias is None else bias, position)
