"""A schedule as a trace for Perfetto and chrome://tracing: ops as slices, memory as a counter.

The format is the Trace Event Format (JSON object form): complete events `X` with `ts` and `dur` in
microseconds, counter events `C`, metadata events `M` for names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from hremate._files import Source, write_text
from hremate._timeline import BANDS, KINDS, MICROSECONDS, timeline
from hremate.graph import PHASES, Graph
from hremate.schedule import Schedule

_PROCESS = 1
#: Shown above the slices of each kind of steps.
_TRACKS = ("forward, first runs", "recomputed", "backward")


def trace(
    graph: Graph, schedule: Schedule | Iterable[int], *, budget: int | None = None
) -> dict[str, Any]:
    """The trace of `schedule` as a JSON object.

    Parameters
    ----------
    graph : Graph
    schedule : Schedule or sequence of int
        A valid schedule.
    budget : int, optional
        Bytes; a second counter.

    Returns
    -------
    dict
        `traceEvents` with one slice per step, on the track of its kind, and counters `memory` (bytes),
        `memory by origin` and `budget`. Times are in microseconds by the time unit of the graph (`ns`,
        `us`, `ms`, `s`); any other unit counts as one microsecond. They are whole nanoseconds, the grid of
        the viewers, on which slices that overlap by a rounding are dropped.

    Raises
    ------
    ScheduleError
        The schedule is not valid for the graph.
    """
    line = timeline(graph, schedule)
    moments = np.rint(line.start * (1000.0 * MICROSECONDS.get(graph.units[0], 1.0)))
    start = (moments / 1000.0).tolist()
    duration = (np.diff(moments) / 1000.0).tolist()
    events: list[dict[str, Any]] = [_name("process_name", 0, f"{graph.name}, time in {graph.units[0]}")]
    for track, name in enumerate(_TRACKS):
        events.append(_name("thread_name", track + 1, name))
        events.append({**_name("thread_sort_index", track + 1, ""), "args": {"sort_index": track + 1}})
    runs = [0] * graph.n_ops
    phase = graph.phase.tolist()
    columns = zip(
        line.order.tolist(), line.kind.tolist(), line.memory.tolist(), line.bands.T.tolist(), strict=True
    )
    for step, (op, kind, memory, bands) in enumerate(columns):
        runs[op] += 1
        events.append(
            {
                "name": graph.op_names[op], "cat": KINDS[kind], "ph": "X", "pid": _PROCESS, "tid": kind + 1,
                "ts": start[step], "dur": duration[step],
                "args": {
                    "step": step, "op": op, "run": runs[op], "type": graph.op_types[op],
                    "scope": graph.op_scopes[op], "phase": PHASES[phase[op]] if phase[op] >= 0 else None,
                    "memory": memory,
                },
            }
        )  # fmt: skip
        events.append(_counter("memory", start[step], {"bytes": memory}))
        events.append(_counter("memory by origin", start[step], dict(zip(BANDS, bands, strict=True))))
    events.append(_counter("memory", start[-1], {"bytes": 0}))
    events.append(_counter("memory by origin", start[-1], dict.fromkeys(BANDS, 0)))
    if budget is not None:
        events += [_counter("budget", moment, {"bytes": budget}) for moment in (start[0], start[-1])]
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(
    graph: Graph, schedule: Schedule | Iterable[int], path: Source, *, budget: int | None = None
) -> None:
    """Write `trace` to a file, gzip when its name ends in `.gz`; whole or not at all.

    Raises
    ------
    ScheduleError
        The schedule is not valid for the graph.
    OSError
        The file cannot be written; nothing is left behind.
    """
    document = trace(graph, schedule, budget=budget)
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def _name(kind: str, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": thread, "args": {"name": name}}


def _counter(name: str, moment: float, values: dict[str, int]) -> dict[str, Any]:
    return {"name": name, "ph": "C", "pid": _PROCESS, "ts": moment, "args": values}
