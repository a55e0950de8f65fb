"""`report`: one HTML page about a graph and its schedules, which needs nothing but a browser.

The page shows memory over time with the live tensors of every step, what is recomputed and what that
costs, where time and memory go by scope, and two schedules beside each other. It loads nothing from the
network. The parts of the page lie beside this module: `_report.html`, `_report.css`, `_report.js`.
"""

from __future__ import annotations

import html
import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from hremate._files import Source, write_text
from hremate._text import finite, phase_names
from hremate._timeline import MICROSECONDS, timeline
from hremate.bounds import memory_lower_bound
from hremate.budget import format_bytes, parse_budget
from hremate.errors import ScheduleError
from hremate.graph import Graph
from hremate.io import ScheduleFile, read_schedule
from hremate.partition.tree import BlockTree
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import base_peak
from hremate.validate import validate

#: A schedule of the graph, a result that has one, or a file.
Subject = Schedule | Result | ScheduleFile | Source

#: Levels of module paths by which a report can group ops, at most.
MAX_LEVELS = 6

_logger = logging.getLogger(__name__)


def report(
    graph: Graph,
    schedules: Subject | Iterable[Subject] | Mapping[str, Subject],
    path: Source,
    *,
    budget: int | str | None = None,
    tree: BlockTree | None = None,
) -> None:
    """Write an HTML page about `schedules` of `graph`.

    Parameters
    ----------
    graph : Graph
    schedules : Schedule, Result, ScheduleFile or path; several of them; or a mapping from labels
        Valid schedules. Without a label they are called by their method and budget, where these are known.
    path : path
        File to write, as a whole or not at all; gzip when its name ends in `.gz`.
    budget : int or str, optional
        Budget line of schedules that do not tell their own, as for `solve`.
    tree : BlockTree, optional
        Ops can then be grouped by the blocks of its first level.

    Raises
    ------
    ScheduleError
        No schedule is given, a result has none, or one is not valid for the graph; names which.
    FormatError
        A file is no schedule.
    BudgetError
        `budget` cannot be read.
    OSError
        The file cannot be written; nothing is left behind.
    """
    common = None if budget is None else parse_budget(budget, base_peak(graph))
    views = [_view(graph, subject, common) for subject in _labelled(schedules)]
    if not views:
        raise ScheduleError("a report needs at least one schedule")
    document = {
        "graph": _graph_facts(graph),
        **_op_columns(graph),
        "tensors": {
            "name": list(graph.tensor_names),
            "size": graph.size.tolist(),
            "producer": graph.producer.tolist(),
        },
        "groupings": _groupings(graph, tree),
        "schedules": views,
    }
    write_text(path, _page(f"{graph.name} · hremate", document))


def _page(title: str, document: Mapping[str, Any]) -> str:
    """The page about `document`; whatever its texts hold, they stay text."""
    data = json.dumps(finite(document), separators=(",", ":"), allow_nan=False)
    for character in "<>&":  # so that no name ends the script element or begins a comment in it
        data = data.replace(character, f"\\u{ord(character):04x}")
    parts = {
        "title": html.escape(title).encode("ascii", "xmlcharrefreplace").decode(),
        "style": _resource("_report.css"),
        "script": _resource("_report.js"),
        "data": data,
    }
    page = _resource("_report.html")
    return re.sub(r"\{\{(title|style|script|data)\}\}", lambda match: parts[match[1]], page)


def _resource(name: str) -> str:
    return resources.files("hremate").joinpath(name).read_text(encoding="utf-8").rstrip("\n")


# -- schedules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Labelled:
    """What a report shows of a schedule beside what its order says."""

    label: str
    schedule: Schedule
    budget: int | None
    status: str | None = None
    lower_bound: float | None = None
    wall_time: float | None = None
    sha256: str | None = None
    #: The file it was read from, if it was.
    path: str | None = None

    @property
    def place(self) -> str:
        """What an error calls it."""
        return self.path or self.label


def _labelled(schedules: Subject | Iterable[Subject] | Mapping[str, Subject]) -> list[_Labelled]:
    if isinstance(schedules, Mapping):
        return [_subject(subject, label) for label, subject in schedules.items()]
    if isinstance(schedules, (Schedule, Result, ScheduleFile, str, os.PathLike)):
        schedules = [schedules]
    found = [_subject(subject, None) for subject in schedules]
    labels: list[str] = []
    for entry in found:
        label, k = entry.label, 2
        while label in labels:
            label, k = f"{entry.label} ({k})", k + 1
        labels.append(label)
    return [replace(entry, label=label) for entry, label in zip(found, labels, strict=True)]


def _subject(subject: Subject, label: str | None) -> _Labelled:
    if isinstance(subject, Schedule):
        given = np.array_equal(subject.order, np.arange(len(subject)))
        return _Labelled(label or ("given order" if given else "schedule"), subject, None)
    if isinstance(subject, Result):
        name = label or f"{subject.method}, {format_bytes(subject.budget)}"
        if subject.schedule is None:
            raise ScheduleError(f"the result {name!r} has no schedule")
        return _Labelled(
            name, subject.schedule, subject.budget, str(subject.status).replace("_", " "),
            subject.lower_bound, subject.wall_time,
        )  # fmt: skip
    if isinstance(subject, ScheduleFile):
        name = subject.method or "schedule"
        if subject.budget is not None:
            name += f", {format_bytes(subject.budget)}"
        return _Labelled(
            label or name, subject.schedule, subject.budget, sha256=subject.graph_sha256
        )
    file = read_schedule(subject)
    entry = _subject(file, label or (Path(subject).name if file.method is None else None))
    return replace(entry, path=str(subject))


def _view(graph: Graph, entry: _Labelled, budget: int | None) -> dict[str, Any]:
    """A schedule as the page wants it, checked."""
    if entry.sha256 is not None and entry.sha256 != graph.sha256:
        _logger.warning("%s was written for another graph (or version of it)", entry.place)
    try:
        check = validate(graph, entry.schedule)
    except ScheduleError as error:
        raise ScheduleError(f"{entry.place}: {error}") from None
    line = timeline(graph, entry.schedule)
    return {
        "label": entry.label,
        "status": entry.status,
        "budget": entry.budget if entry.budget is not None else budget,
        "lower_bound": entry.lower_bound,
        "wall_time": entry.wall_time,
        "peak": check.peak,
        "peak_step": line.peak_step,
        "time": check.time,
        "overhead": check.time / graph.total_time - 1 if graph.total_time > 0 else 0.0,
        "recomputes": check.recomputes,
        "order": line.order.tolist(),
        "kind": line.kind.tolist(),
        "memory": line.memory.tolist(),
        "bands": line.bands.tolist(),
        "copy": line.copy.tolist(),
        "birth": line.birth.tolist(),
        "death": line.death.tolist(),
    }


# -- the graph ------------------------------------------------------------------------------------


def _graph_facts(graph: Graph) -> dict[str, Any]:
    floor = memory_lower_bound(graph)
    return {
        "name": graph.name,
        "ops": graph.n_ops,
        "tensors": graph.n_tensors,
        "base_peak": base_peak(graph),
        "base_time": graph.total_time,
        "time_unit": "" if graph.units[0] == "abstract" else graph.units[0],
        "microseconds": MICROSECONDS.get(graph.units[0]),
        "memory_lower_bound": floor.bytes,
        "memory_model": graph.memory_model,
        "resident": graph.resident,
    }


def _op_columns(graph: Graph) -> dict[str, Any]:
    """The ops by columns; types and scopes, which repeat, by number."""
    types, type_of = _numbered(graph.op_types)
    scopes, scope_of = _numbered(graph.op_scopes)
    return {
        "ops": {
            "name": list(graph.op_names),
            "type": type_of,
            "scope": scope_of,
            "phase": graph.phase.tolist(),
            "time": graph.time.tolist(),
            "workspace": graph.workspace.tolist(),
        },
        "types": types,
        "scopes": scopes,
    }


def _groupings(graph: Graph, tree: BlockTree | None) -> list[dict[str, Any]]:
    """The ways in which the page can group ops: by blocks, scopes, types, phases; none that tells nothing."""
    found: list[tuple[str, list[str]]] = []
    if tree is not None:
        block_of = [""] * graph.n_ops
        for k, block in enumerate(tree.blocks):
            for op in block.ops.tolist():
                block_of[op] = f"block {k}"
        found.append(("Block", block_of))
    parts = [scope.split(".") if scope else [] for scope in graph.op_scopes]
    before = 1
    for level in range(1, min(max(map(len, parts)), MAX_LEVELS) + 1):
        names = [".".join(part[:level]) for part in parts]
        if len(set(names)) > before:
            found.append((f"Scope, level {level}", names))
            before = len(set(names))
    found.append(("Op type", list(graph.op_types)))
    phases = dict(phase_names(graph))
    found.append(("Phase", [phases[code] for code in graph.phase.tolist()]))
    result: list[dict[str, Any]] = []
    for label, names in found:
        distinct, group = _numbered(names)
        if len(distinct) > 1 or (label == "Phase" and not result):
            result.append({"label": label, "names": distinct, "group": group})
    return result


def _numbered(texts: Iterable[str]) -> tuple[list[str], list[int]]:
    """The distinct texts in order of appearance, and the number of each text among them."""
    number: dict[str, int] = {}
    numbers = [number.setdefault(text, len(number)) for text in texts]
    return list(number), numbers
