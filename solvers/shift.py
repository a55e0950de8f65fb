"""Schedules with their steps shifted: sooner where that frees memory, later where it takes some.

Time stays the same, and the peak mostly falls. Which run a step reads from stays, so that what comes out
is valid.
"""

from __future__ import annotations

import numpy as np

from hremate.graph import Graph, IntArray
from hremate.simulate import step_memory
from hremate.solvers import _shift_kernel as kernels
from hremate.solvers.repair import repair


def sooner(graph: Graph, sequence: IntArray, first: int = 0) -> IntArray:
    """`sequence` with steps run as soon as they can where memory does not grow by them, int64[L].

    Parameters
    ----------
    sequence : int64[L]
        A valid schedule.
    first : int
        Steps before this one stay where they are.
    """
    result: IntArray = sequence[kernels.sooner(first, *_unrolled(graph, sequence))]
    return result


def later(graph: Graph, sequence: IntArray, first: int = 0) -> IntArray:
    """`sequence` with steps by which memory grows run right before their first reader, int64[L].

    Parameters as in `sooner`.
    """
    result: IntArray = sequence[kernels.later(first, *_unrolled(graph, sequence))]
    return result


def shifted(graph: Graph, sequence: IntArray) -> IntArray:
    """The one of smallest peak of `sequence` and what `sooner` and `later` make of it, int64[L]."""
    late = later(graph, sequence)
    candidates = (sequence, sooner(graph, sequence), late, sooner(graph, late))
    return min(candidates, key=lambda order: int(step_memory(graph, order).max()))


def shift_and_repair(graph: Graph, sequence: IntArray, budget: int) -> IntArray:
    """`sequence` repaired, shifted, and repaired once more: what falls below the budget makes room.

    Its time is at most that of `sequence`, its peak at most the larger of its peak and `budget` (bytes).
    """
    return repair(graph, shifted(graph, repair(graph, sequence, budget)), budget)


def _unrolled(graph: Graph, sequence: IntArray) -> tuple[IntArray, ...]:
    unrolled: tuple[IntArray, ...] = kernels.unroll(
        np.ascontiguousarray(sequence, np.int64), graph.size, graph.is_output, graph.in_ptr, graph.in_idx,
        graph.out_ptr,
    )  # fmt: skip
    return unrolled
