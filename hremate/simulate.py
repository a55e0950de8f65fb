"""The memory and time of a schedule: the one definition that every solver uses.

A *copy* of a tensor is one execution of its producer. A read uses the latest copy. A copy lives from its
step to its last read before the next copy is made, or to the end if it is the last copy of a graph
output. The memory of a step under the two models of a graph:

- `coexist`: live bytes before the step (inputs included) + all outputs of the op + workspace;
- `reuse`: outputs may overwrite inputs that die at this step:
  max(live + workspace, live - dying inputs + outputs).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hremate._jit import kernel
from hremate.errors import ScheduleError
from hremate.graph import Graph, IntArray
from hremate.schedule import Schedule


@dataclass(frozen=True)
class Simulation:
    """What running a schedule costs."""

    #: Largest memory of a step, bytes.
    peak: int
    #: Step at which the peak is first reached.
    peak_step: int
    #: Sum of the times of all steps (math.fsum).
    time: float
    #: Memory of each step, bytes, int64[steps].
    memory: IntArray
    #: Steps beyond the first run of each op.
    recomputes: int


def simulate(graph: Graph, schedule: Schedule | Iterable[int]) -> Simulation:
    """Run `schedule` on paper: its memory step by step, its peak and its time.

    Takes time linear in the arcs of the steps; a million steps take well under a second.

    Raises
    ------
    ScheduleError
        A step names no op or reads a tensor that is not yet computed, some op never runs, or a `once`
        op runs again.
    """
    order = (schedule if isinstance(schedule, Schedule) else Schedule(schedule)).order
    if not len(order):
        raise ScheduleError("the schedule is empty")
    bad = np.flatnonzero((order < 0) | (order >= graph.n_ops))
    if len(bad):
        raise ScheduleError(f"step {bad[0]}: no op {order[bad[0]]} (the graph has {graph.n_ops} ops)")
    memory = step_memory(graph, order)
    runs = np.bincount(order, minlength=graph.n_ops)
    if not runs.all():
        raise ScheduleError(f"op {graph.op_names[int(np.argmin(runs))]!r} never runs")
    again = np.flatnonzero(graph.once & (runs > 1))
    if len(again):
        raise ScheduleError(
            f"op {graph.op_names[again[0]]!r} may run only once and runs {runs[again[0]]} times"
        )
    peak_step = int(np.argmax(memory))
    return Simulation(
        peak=int(memory[peak_step]),
        peak_step=peak_step,
        time=math.fsum(graph.time[order].tolist()),
        memory=memory,
        recomputes=len(order) - graph.n_ops,
    )


def step_memory(graph: Graph, order: IntArray) -> IntArray:
    """Bytes at each step of `order` (int64[steps]); ops may be missing, as in a part of a schedule.

    Raises
    ------
    ScheduleError
        A step reads a tensor that is not yet computed.
    """
    memory = np.empty(len(order), np.int64)
    unborn = memory_kernel(
        order,
        graph.in_ptr,
        graph.in_idx,
        graph.out_ptr,
        graph.size,
        graph.workspace,
        graph.outputs,
        graph.memory_model == "reuse",
        memory,
    )
    if unborn >= 0:
        seen: set[int] = set()
        for step, i in enumerate(order.tolist()):
            if any(int(x) == unborn for x in graph.inputs_of(i)) and int(graph.producer[unborn]) not in seen:
                raise ScheduleError(
                    f"step {step}: op {graph.op_names[i]!r} reads {graph.tensor_names[unborn]!r} "
                    "before it is computed"
                )
            seen.add(i)
    return memory


def base_peak(graph: Graph) -> int:
    """Peak of the given order without recomputation, bytes: what a budget in percent refers to."""
    return int(step_memory(graph, np.arange(graph.n_ops)).max())


@kernel
def memory_kernel(  # type: ignore[no-untyped-def]
    order, in_ptr, in_idx, out_ptr, size, workspace, outputs, reuse, memory
):
    """Fill `memory[p]` with the bytes of step p of `order`; return a tensor read before it exists, or -1.

    One backward sweep finds where each copy dies, one forward sweep adds up. A graph output that is
    never computed does not count as read.

    Parameters
    ----------
    order : int64[L], op at each step; all other arrays as in `Graph`.
    reuse : bool, the memory model.
    memory : int64[L], filled.
    """
    steps = len(order)
    last_read = np.full(len(size), -1, np.int64)  # last read of the copy being traced, -1 when none is
    for x in outputs:
        last_read[x] = steps
    freed = np.zeros(steps + 1, np.int64)  # bytes that die after each step
    dying_inputs = np.zeros(steps, np.int64)
    for p in range(steps - 1, -1, -1):
        i = order[p]
        for x in range(out_ptr[i], out_ptr[i + 1]):
            end = last_read[x] if last_read[x] >= 0 else p
            freed[end] += size[x]
            last_read[x] = -1
        for a in range(in_ptr[i], in_ptr[i + 1]):
            x = in_idx[a]
            if last_read[x] < 0:
                last_read[x] = p
                dying_inputs[p] += size[x]
    live = 0
    for p in range(steps):
        i = order[p]
        made = 0
        for x in range(out_ptr[i], out_ptr[i + 1]):
            made += size[x]
        if reuse:
            memory[p] = max(live + workspace[i], live - dying_inputs[p] + made)
        else:
            memory[p] = live + made + workspace[i]
        live += made - freed[p]
    for x in range(len(size)):
        if 0 <= last_read[x] < steps:
            return x
    return -1
