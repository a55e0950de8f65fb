"""The method `mincut`: which forward values to save, from the minimum cut of the joint graph.

The memory-budget partitioner of PyTorch (torch._functorch.partitioners, `choose_saved_values_set`; Horace
He and Shangdi Yu, Transcending Runtime-Memory Tradeoffs in Checkpointing by being Fusion Aware, MLSys
2023, sections 3 and 4): the plan of least run time saves what the backward part reads, views made anew. A
knapsack over its saved values, bytes against the time to make them again, decides which ops may not run
again; the cut of least bytes under that ban decides what is saved instead of the others. The capacity is a
ratio between saving all and recomputing all. The partitioner has no notion of peak memory: here the
capacity is swept and the true peak of each schedule counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hremate.errors import MethodError
from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.result import Result
from hremate.solvers import _cut_kernel as kernels
from hremate.solvers.base import Run, finish
from hremate.solvers.chain import training_split
from hremate.solvers.cut_model import CutProblem
from hremate.solvers.expand import Expansion, Sweep, recompute_once

#: Entries of the table of the knapsack, one byte each.
LARGEST_TABLE = 10**8


@dataclass(frozen=True)
class Params:
    """Parameters of mincut."""

    #: Share of the bytes between recomputing all (0) and saving all (1); None tries `grid` + 1 of them.
    ratio: float | None = None
    grid: int = 40
    #: Integer units of memory in the knapsack, fewer where its table would exceed `LARGEST_TABLE`.
    units: int = 10_000

    def __post_init__(self) -> None:
        if self.ratio is not None and not 0.0 <= self.ratio <= 1.0:
            raise MethodError("Expected 0 <= ratio <= 1.")
        for name in ("grid", "units"):
            if getattr(self, name) < 1:
                raise MethodError(f"Expected {name} >= 1.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The fastest of the schedules over a row of ratios that fits `budget`.

    Raises
    ------
    MethodError
        The graph has no backward part.
    """
    split = training_split(graph, "mincut")
    partition = Partition(graph, split, params.units)
    expansion = Expansion(graph)
    sweep = Sweep(graph, budget, run)
    ratios = [params.ratio] if params.ratio is not None else np.linspace(1.0, 0.0, params.grid + 1).tolist()
    seen: set[bytes] = set()
    for ratio in ratios:
        kept = partition.saved(ratio)
        if kept.tobytes() not in seen:
            seen.add(kept.tobytes())
            sweep.offer(recompute_once(expansion, split, kept))
        if run.deadline.expired:
            run.stats.timed_out = True
            break
    return finish(graph, budget, run, "mincut", sweep.order)


def joint_problem(graph: Graph, split: int) -> CutProblem:
    """The cut problem between the forward and the backward part; local ids are those of the graph.

    What must stay whatever is decided takes no part: it counts 0 bytes.
    """
    n_tensors = int(graph.out_ptr[split])
    read = np.zeros(graph.n_tensors, np.bool_)
    read[graph.in_idx[graph.in_ptr[split] :]] = True
    producer = graph.producer[:n_tensors].copy()
    producer[graph.once[producer]] = -1
    return CutProblem(
        time=graph.time[:split].copy(),
        size=np.where(graph.is_output, 0, graph.size)[:n_tensors],
        producer=producer,
        crossing=read[:n_tensors],
        in_ptr=graph.in_ptr[: split + 1].copy(),
        in_idx=graph.in_idx[: graph.in_ptr[split]].copy(),
    )


class Partition:
    """The plans of one graph, for all ratios."""

    def __init__(self, graph: Graph, split: int, units: int) -> None:
        self.graph = graph
        self.problem = joint_problem(graph, split)
        problem = self.problem
        self.network = kernels.build_network(
            problem.size, problem.producer, problem.crossing, problem.in_ptr, problem.in_idx
        )
        # The plan of least run time: only ops that take no time may run again.
        free = np.zeros(split, np.int8)
        free[problem.time > 0] = kernels.KEEP
        self.fastest = self._cut(free)
        saved = np.flatnonzero(self.fastest & (problem.producer >= 0) & (problem.size > 0))
        #: The ops of the knapsack: those that make the saved values, last first, as ties go to the first
        #: listed and what is made late is best saved: its backward part comes soon.
        self.ops = np.unique(problem.producer[saved])[::-1]
        held = np.zeros(split, np.int64)
        np.add.at(held, problem.producer[saved], problem.size[saved])
        self.bytes = held[self.ops]
        units = max(1, min(units, LARGEST_TABLE // max(1, len(self.ops))))
        #: Bytes of a unit.
        self.unit = max(1, -(-int(self.bytes.sum()) // units))
        self.table = knapsack(-(-self.bytes // self.unit), problem.time[self.ops], units)

    def saved(self, ratio: float) -> BoolArray:
        """The tensors to save at `ratio`, bool[tensors of the graph]."""
        banned = np.zeros(len(self.problem.time), np.int8)
        if ratio >= 1.0:
            kept = self.fastest
        else:
            capacity = int(ratio * int(self.bytes.sum())) // self.unit
            banned[self.ops[chosen(self.table, -(-self.bytes // self.unit), capacity)]] = kernels.KEEP
            kept = self._cut(banned)
        result = np.zeros(self.graph.n_tensors, np.bool_)
        result[: len(kept)] = kept
        return result

    def _cut(self, banned: npt.NDArray[np.int8]) -> BoolArray:
        """Tensors kept by the cut of least bytes when the `banned` ops (int8[split]) do not run again."""
        problem = self.problem
        rerun, _ = kernels.closure(
            np.zeros(len(problem.time)), problem.size, self.network, banned, 1.0, False
        )
        return problem.kept(rerun)


def knapsack(weight: IntArray, value: FloatArray, capacity: int) -> BoolArray:
    """Which items the best knapsack of each capacity takes, bool[items, capacity + 1], read by `chosen`.

    Entry (i, w): the best choice among the items 0..i that weighs at most w takes item i.
    """
    best = np.zeros(capacity + 1)
    takes = np.zeros((len(weight), capacity + 1), np.bool_)
    for i, (w, v) in enumerate(zip(weight.tolist(), value.tolist(), strict=True)):
        if w > capacity:
            continue
        with_item = best[: capacity + 1 - w] + v
        takes[i, w:] = with_item > best[w:]
        best[w:] = np.maximum(best[w:], with_item)
    return takes


def chosen(takes: BoolArray, weight: IntArray, capacity: int) -> BoolArray:
    """The items of the best knapsack of weight at most `capacity`, bool[items]."""
    items = np.zeros(len(weight), np.bool_)
    left = min(capacity, takes.shape[1] - 1)
    for i in range(len(weight) - 1, -1, -1):
        if takes[i, left]:
            items[i] = True
            left -= int(weight[i])
    return items
