"""Bounds that hold for every schedule, in any order and with any recomputation: on memory, and on time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate._bounds_kernel import working_set_kernel
from hremate.graph import Graph
from hremate.solvers.time_bound import TimeBound, time_lower_bound

__all__ = ["MemoryBound", "TimeBound", "memory_lower_bound", "time_lower_bound"]


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
