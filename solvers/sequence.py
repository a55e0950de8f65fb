"""A schedule under local search: the arrays of the `anneal` kernels behind one object.

Memory is counted in units of the greatest common divisor of all sizes, so that a peak fits the budget here
exactly when it does in bytes; only where sums over a whole profile could exceed 2^60 are they coarser, and
then sizes are rounded up.
"""

from __future__ import annotations

import numpy as np

from hremate.graph import FloatArray, Graph, IntArray
from hremate.solvers._anneal_kernel import (
    BEST_OVERFLOW,
    BEST_STEPS,
    BEST_TIME,
    search,
)
from hremate.solvers._anneal_moves_kernel import GROUP
from hremate.solvers._anneal_state_kernel import (
    BLOCK,
    OVERFLOW,
    SHIFT,
    STEPS,
    VACANT,
    Net,
    State,
    load,
    unload,
)

#: Slots per run when a sequence is laid out, and the share of filled slots at which it is laid out anew.
SLOTS_PER_RUN, FILLED = 1.5, 0.8
#: Room for runs of an op beyond what the busiest op has.
MORE_RUNS = 8
#: Tensors with more readers than this have their reads counted.
MANY_READERS = 64
#: Changes that one move may log.
LOG = 8 * GROUP
#: Usual weight of a tensor's overflow at one step, in op times; and share of the steps over which a tensor is
#: dropped: at the softest, overflow weighs one op time over such a stretch.
HARD, TYPICAL_GAP = 2.0, 0.1


class Sequence:
    """A sequence under search within `budget` bytes.

    Parameters
    ----------
    order : int64[steps]
        A valid schedule of `graph`, of any peak.
    seed : int
        Of the random moves.
    softness : float
        Factor, >= 1, by which overflow is cheaper at first than usual, see `stiffness`.
    """

    def __init__(
        self, graph: Graph, order: IntArray, budget: int, seed: int = 0, *, softness: float = 1.0
    ) -> None:
        self.graph = graph
        self.net, self.budget = _net(graph, budget)
        self._rng = np.random.default_rng(seed).integers(0, 2**64, 1, np.uint64)
        self._mark = np.zeros(graph.n_ops + 1, np.int64)
        self._group = np.zeros(GROUP, np.int64)
        self._span = np.zeros(2, np.int64)
        #: Proposals and acceptances of each move.
        self.tally = np.zeros((8, 3), np.int64)
        g = self.net
        size = float(g.size.mean()) if len(g.size) else 0.0
        hard = HARD * float(g.time.mean()) / max(size, 1.0) or 1.0
        #: Factor between the usual weight of overflow and that at first: `softness`, or less where more of
        #: it would change nothing.
        self.stiffness = min(softness, max(2.0, HARD * len(order) * TYPICAL_GAP))
        self.numbers = np.array([hard / self.stiffness, np.inf, np.inf, 0.0])
        self._best = np.asarray(order, np.int32)
        self.lay_out(order)

    def lay_out(self, order: IntArray) -> None:
        """Make `order` the current sequence, evenly spread."""
        graph, g = self.graph, self.net
        slots = int(SLOTS_PER_RUN * len(order)) + 16
        room = int(np.bincount(order, minlength=graph.n_ops).max()) + MORE_RUNS
        blocks = (g.halves * (slots + 1) + BLOCK - 1) // BLOCK
        self.state = State(
            np.empty(slots + 1, np.int32),
            np.empty((graph.n_ops, room), np.int32),
            np.empty(graph.n_ops, np.int32),
            np.empty((graph.n_tensors, room), np.int32),
            np.empty(blocks * BLOCK, np.int64),
            np.empty(blocks, np.int64),
            np.empty(blocks, np.int64),
            np.empty(4, np.int64),
            np.empty(1, np.float64),
            np.empty(graph.n_ops, np.int32),
            np.empty(graph.n_ops, np.int32),
            np.empty((LOG, 5), np.int64),
            np.empty((int(g.row.max(initial=-1)) + 1, (slots >> SHIFT) + 1), np.int32),
        )
        best = np.empty(slots + 1, np.int32)
        best[: min(len(self._best), slots)] = self._best[:slots]
        self._best = best
        load(g, self.state, np.asarray(order, np.int32), self.budget)
        self._note_best()

    def _note_best(self) -> None:
        overflow, time = int(self.state.scalar[OVERFLOW]), float(self.state.time[0])
        numbers = self.numbers
        better = time < numbers[BEST_TIME] if overflow == 0 else overflow < numbers[BEST_OVERFLOW]
        if better:
            numbers[BEST_OVERFLOW] = overflow
            if overflow == 0:
                numbers[BEST_TIME] = time
            numbers[BEST_STEPS] = unload(self.state, self._best)

    @property
    def order(self) -> IntArray:
        """The current sequence, int64[steps]."""
        order = np.empty(int(self.state.scalar[STEPS]), np.int64)
        unload(self.state, order)
        return order

    @property
    def best_time(self) -> float:
        """Time of the best sequence within the budget, infinite before there is one."""
        return float(self.numbers[BEST_TIME])

    @property
    def best(self) -> IntArray:
        """The quickest sequence within the budget so far; before there is one, that of least overflow."""
        return self._best[: int(self.numbers[BEST_STEPS])].astype(np.int64)

    def run(self, proposals: int, temperature: float, rate: float, shares: FloatArray) -> bool:
        """Make `proposals` moves; whether the best improved.

        `temperature` in units of time; `rate` >= 1, by which the weight of the overflow changes at most in
        `ROUND` proposals; `shares` float64[8], upper ends of the shares of the moves.
        """
        state = self.state
        if state.scalar[STEPS] > FILLED * (len(state.op) - 1) or state.n_runs.max() + 2 > state.runs.shape[1]:
            self.lay_out(self.order)
        improved = search(
            self.net, self.state, self._rng, proposals, temperature, rate, shares, self.numbers,
            self._best, self._mark, self._group, self._span, self.tally,
        )  # fmt: skip
        return bool(improved)


def _net(graph: Graph, budget: int) -> tuple[Net, int]:
    """The graph and the budget in units of memory."""
    sizes, workspace = graph.size, graph.workspace
    quantum = max(1, int(np.gcd.reduce(np.concatenate([sizes, workspace]))))
    total = int(sizes.sum() + workspace.max(initial=0))
    while total // quantum * (8 * graph.n_ops + 1024) >= VACANT // 2:
        quantum *= 2
    size = -(-sizes // quantum)
    made = np.add.reduceat(np.append(size, 0), graph.out_ptr[:-1])
    made[graph.out_ptr[:-1] == graph.out_ptr[1:]] = 0
    arcs = (graph.producer, graph.out_ptr, graph.in_ptr, graph.in_idx, graph.use_ptr, graph.use_idx)
    producer, out_ptr, in_ptr, in_idx, use_ptr, use_idx = (a.astype(np.int32) for a in arcs)
    many = np.diff(graph.use_ptr) > MANY_READERS
    row = np.where(many, np.cumsum(many) - 1, -1).astype(np.int32)
    net = Net(
        graph.time, -(-workspace // quantum), size, producer, out_ptr, in_ptr, in_idx, use_ptr, use_idx,
        made, graph.is_output, graph.once, 2 if graph.memory_model == "reuse" else 1,
        row,
    )  # fmt: skip
    return net, min(budget, total + 1) // quantum
