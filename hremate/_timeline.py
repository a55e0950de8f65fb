"""What pictures, reports and traces show of a schedule: when each op runs, and who holds the memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hremate.graph import BACKWARD, FloatArray, Graph, IntArray
from hremate.schedule import Schedule
from hremate.simulate import simulate

#: Kinds of steps, by code: first runs of forward ops (and of ops without a phase), later runs of any op,
#: first runs of backward ops.
KINDS = ("kept", "recomputed", "backward")
KEPT, RECOMPUTED, BACKWARD_STEP = range(3)
#: Parts of the memory of a step: copies made before it, by the kind of the step that made them, and what
#: the running op adds (its outputs and workspace).
BANDS = (*KINDS, "running op")
#: Microseconds in a unit of time; other units are abstract.
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


@dataclass(frozen=True, eq=False)
class Timeline:
    """A schedule step by step; `L` steps, `C` copies of tensors in the order in which they are made."""

    #: Op at each step, int64[L].
    order: IntArray
    #: Code of each step in `KINDS`, int8[L].
    kind: npt.NDArray[np.int8]
    #: Time at which each step starts, and the end, float64[L + 1], in the unit of the graph.
    start: FloatArray
    #: Memory of each step, bytes, int64[L].
    memory: IntArray
    #: The same in parts, in the order of `BANDS`, int64[4, L]; the columns add up to `memory`.
    bands: IntArray
    #: Tensor of each copy, int64[C].
    copy: IntArray
    #: First and last step at which each copy is in memory, int64[C]; L where it outlives the schedule.
    birth: IntArray
    death: IntArray
    #: First step of the largest memory, and that memory in bytes.
    peak_step: int
    peak: int
    #: Sum of the times of all steps.
    time: float


def timeline(graph: Graph, schedule: Schedule | Iterable[int]) -> Timeline:
    """Follow `schedule` step by step, by the rules of `simulate`.

    Raises
    ------
    ScheduleError
        The schedule is not valid for the graph.
    """
    simulation = simulate(graph, schedule)
    order = (schedule if isinstance(schedule, Schedule) else Schedule(schedule)).order
    steps = len(order)
    kind = step_kinds(graph, order)
    copy, birth, death = _copies(graph, order)
    change = np.zeros((len(BANDS), steps + 2), np.int64)
    made_by = kind[birth].astype(np.int64)
    # A copy is part of what lies there before a step from the step after its birth to its death.
    np.add.at(change, (made_by, birth + 1), graph.size[copy])
    np.subtract.at(change, (made_by, np.maximum(death, birth) + 1), graph.size[copy])
    bands = np.cumsum(change, axis=1)[:, :steps]
    bands[-1] = simulation.memory - bands[:-1].sum(axis=0)
    return Timeline(
        order=order,
        kind=kind,
        start=np.concatenate([[0.0], np.cumsum(graph.time[order])]),
        memory=simulation.memory,
        bands=bands,
        copy=copy,
        birth=birth,
        death=death,
        peak_step=simulation.peak_step,
        peak=simulation.peak,
        time=simulation.time,
    )


def step_kinds(graph: Graph, order: IntArray) -> npt.NDArray[np.int8]:
    """Code of each step of `order` in `KINDS`, int8[L]."""
    first = np.zeros(len(order), np.bool_)
    first[np.unique(order, return_index=True)[1]] = True
    backward = graph.phase[order] == BACKWARD
    kinds = np.where(first, np.where(backward, BACKWARD_STEP, KEPT), RECOMPUTED)
    return kinds.astype(np.int8)


def _copies(graph: Graph, order: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Tensor, birth and death of each copy, in the order of birth."""
    out_ptr, in_ptr, in_idx = graph.out_ptr.tolist(), graph.in_ptr.tolist(), graph.in_idx.tolist()
    tensors: list[int] = []
    births: list[int] = []
    deaths: list[int] = []
    latest = [-1] * graph.n_tensors  # the copy that a read would use
    for step, op in enumerate(order.tolist()):
        for x in in_idx[in_ptr[op] : in_ptr[op + 1]]:
            deaths[latest[x]] = step
        for x in range(out_ptr[op], out_ptr[op + 1]):
            latest[x] = len(tensors)
            tensors.append(x)
            births.append(step)
            deaths.append(step)
    for x in graph.outputs.tolist():
        deaths[latest[x]] = len(order)
    return np.array(tensors, np.int64), np.array(births, np.int64), np.array(deaths, np.int64)
