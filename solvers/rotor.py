"""The method `rotor`: the best schedule of a chain of blocks with options, by dynamic programming.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, Optimal Re-materialization Strategies for
Heterogeneous Chains (ACM TOMS, 2024; Inria RR-9302), section 4, with several options per block as in
Rockmate (Zhao et al., ICML 2023, section 3.3). For a segment a..b in m slots of memory, either block a
saves the tensors of one of its options before the segment a+1..b is run forward and backward, or the
blocks a..j-1 are fast-forwarded, the state before j is kept, and a..j-1 are run again after j..b. Here a
block saves all of its tensors that its backward part reads, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.simulate import base_peak
from hremate.solvers._rotor_kernel import chain_program
from hremate.solvers.base import Run, finish
from hremate.solvers.blocks import Chain, ChainOption
from hremate.solvers.chain_cuts import build_chain
from hremate.solvers.expand import Sweep

#: Slots beyond the budget, as their share: sizes are rounded up, so plans that need a bit more may fit.
MARGIN = 0.15


@dataclass(frozen=True)
class Params:
    """Parameters of rotor."""

    #: Slots of memory in the dynamic program; its time grows in proportion.
    slots: int = 500
    #: Largest number of blocks; the time grows with its cube.
    blocks: int = 200

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise MethodError("Expected slots >= 1.")
        if self.blocks < 2:
            raise MethodError("Expected blocks >= 2.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest schedule of the chain that fits `budget`.

    Raises
    ------
    MethodError
        The graph has no backward part or is no chain; the tensor at fault is named.
    """
    sweep = Sweep(graph, budget, run)
    for fine in (False, True):
        chain = build_chain(graph, "rotor", most=params.blocks, grow=False, fine=fine)
        run.stats.counts["blocks"] = len(chain.blocks)
        options = [
            [chain.option(i, np.flatnonzero(graph.producer < chain.split)), chain.option(i, ())]
            for i in range(len(chain.blocks))
        ]
        solve_chain(chain, options, sweep, params.slots)
        run.stats.timed_out = run.deadline.expired
        if sweep.fits or run.stats.timed_out:
            break
    return finish(graph, budget, run, "rotor", sweep.order)


def solve_chain(chain: Chain, options: Sequence[Sequence[ChainOption]], sweep: Sweep, slots: int) -> None:
    """Offer the schedules of the chain around the budget of `sweep` to it."""
    graph = chain.graph
    budget = sweep.budget
    sweep.offer(np.arange(graph.n_ops))
    if sweep.fits:
        return
    top = int(budget * (1 + MARGIN)) - chain.staying_bytes
    program = Program(chain, options, max(1, top), slots) if top > 0 else None
    if program is None or not program.levels:
        # Nothing fits: the smallest memory at which something does.
        program = Program(chain, options, 2 * base_peak(graph), slots)
        if program.levels:
            sweep.offer(program.schedule(program.levels[0]))
        return
    # The true peak grows with the memory planned for, if not strictly: bisect.
    low, high = 0, len(program.levels) - 1
    place = int(np.searchsorted(program.levels, program.slots_of(budget - chain.staying_bytes), "right")) - 1
    place = max(0, place)
    while low <= high:
        if sweep.offer(program.schedule(program.levels[place])) <= budget:
            low = place + 1
        else:
            high = place - 1
        place = (low + high) // 2
        if sweep.run.deadline.expired:
            break


class Program:
    """The dynamic program of a chain, and the schedules it stands for."""

    def __init__(
        self, chain: Chain, options: Sequence[Sequence[ChainOption]], capacity: int, slots: int
    ) -> None:
        self.chain = chain
        self.options = options
        #: Bytes of a slot.
        self.unit = -(-capacity // slots)
        n = len(chain.blocks)
        left = [chain.leaves(i) for i in range(n + 1)]
        skips = [chain.fast_forward(i) for i in range(n)]
        flat = [(i, option) for i in range(n) for option in options[i]]
        self.skip_ops = [ops for ops, _, _ in skips]
        self.state = -(-chain.state_bytes // self.unit)
        self.skip_peak = self._slots([peak for _, peak, _ in skips])
        self.skip_time = np.array([time for _, _, time in skips])
        self.gradients = self._slots([chain.bytes(left[b + 1][0]) + left[b + 1][1] for b in range(n)])
        self.option_ptr = np.concatenate([[0], np.cumsum([len(o) for o in options])])
        self.saved = self._slots([o.saved_bytes for _, o in flat])
        self.forward_peak = self._slots([o.forward_peak for _, o in flat])
        self.backward_peak = self._slots([o.backward_peak + left[i + 1][1] for i, o in flat])
        self.time = np.array([o.time for _, o in flat])
        self.tail_peak = self._slots([o.tail_peak for _, o in flat])
        self.tail_time = np.array([o.tail_time for _, o in flat])
        self.cost = chain_program(
            self.slots_of(capacity), self.state, self.skip_peak, self.skip_time, self.gradients,
            self.option_ptr, self.saved, self.forward_peak, self.backward_peak, self.time,
            self.tail_peak, self.tail_time,
        )  # fmt: skip
        whole = self.cost[0, n - 1]
        better = whole < np.concatenate([[np.inf], whole[:-1]])
        #: Memories, in slots, at which the least time of the whole chain falls, ascending.
        self.levels: list[int] = np.flatnonzero(better).tolist()

    def slots_of(self, nbytes: int) -> int:
        """Whole slots in `nbytes`."""
        return max(0, nbytes // self.unit)

    def _slots(self, nbytes: Sequence[int]) -> IntArray:
        return -(-np.array(nbytes, np.int64) // self.unit)

    def schedule(self, memory: int) -> IntArray:
        """The schedule of least time in `memory` slots."""
        chain = self.chain
        order: list[int] = []
        ran = [False] * len(chain.blocks)

        def forward(block: int, ops: IntArray) -> None:
            # The first run of a block runs all of its ops.
            order.extend((ops if ran[block] else chain.blocks[block].forward).tolist())
            ran[block] = True

        #: Segments (a, b, memory) and backward parts still to run, the next one last.
        todo: list[tuple[int, int, int] | ChainOption] = [(0, len(chain.blocks) - 1, memory)]
        while todo:
            task = todo.pop()
            if isinstance(task, ChainOption):
                order.extend(task.backward.tolist())
                continue
            a, b, m = task
            k, j = self.decision(a, b, m)
            if k >= 0:
                option = self.options[a][k - int(self.option_ptr[a])]
                forward(a, option.forward if b > a else option.tail)
                todo.append(option)
                if b > a:
                    todo.append((a + 1, b, m - int(self.saved[k])))
            else:
                for i in range(a, j):
                    forward(i, self.skip_ops[i])
                todo += [(a, j - 1, m), (j, b, m - int(self.state[a, j]))]
        return np.array(order, np.int64)

    def decision(self, a: int, b: int, m: int) -> tuple[int, int]:
        """How a..b is run best in m slots: (option of a, -1), or (-1, j) to keep the state before j."""
        best, choice = np.inf, (-1, -1)
        for k in range(int(self.option_ptr[a]), int(self.option_ptr[a + 1])):
            peak = self.forward_peak[k] if b > a else self.tail_peak[k]
            if m < max(peak + self.gradients[b], self.backward_peak[k]):
                continue
            cost = self.time[k] if b > a else self.tail_time[k]
            if b > a:
                cost += self.cost[a + 1, b, m - self.saved[k]] if m >= self.saved[k] else np.inf
            if cost < best:
                best, choice = cost, (k, -1)
        run_time, need = 0.0, 0
        for j in range(a + 1, b + 1):
            need = max(need, self.state[a, j - 1] + self.skip_peak[j - 1] + self.gradients[b])
            run_time += self.skip_time[j - 1]
            if m < max(need, self.state[a, j]):
                continue
            cost = run_time + self.cost[j, b, m - self.state[a, j]] + self.cost[a, j - 1, m]
            if cost < best:
                best, choice = cost, (-1, j)
        return choice
