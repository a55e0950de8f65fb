"""Readers and writers of graphs and schedules.

`read_graph` tells the formats apart by content: `hremate-graph/1` JSON, the node-link JSON of the
Moccasin and Checkmate data, and the text of the Huawei challenge, each plain or gzip. Whatever is wrong
with a file, a reader raises a subclass of `HremateError` that names the file and the op, tensor or line:
`FormatError` for a structure that is not there (a missing field, an object where a list should be), the
subclasses of `GraphError` for values and names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hremate._files import Source, named, read_text, write_text
from hremate._gc import paused_collection
from hremate._huawei import looks_like_huawei, parse_huawei
from hremate._nodelink import looks_like_node_link, parse_node_link
from hremate.errors import FormatError, InvalidValueError, ScheduleError, VersionError
from hremate.graph import Graph, Op
from hremate.schedule import Schedule

GRAPH_FORMAT = "hremate-graph/1"
SCHEDULE_FORMAT = "hremate-schedule/1"
_GRAPH_KEYS = frozenset(("format", "name", "units", "resident", "memory_model", "ops", "outputs"))
_SCHEDULE_KEYS = frozenset(
    ("format", "graph", "graph_sha256", "budget", "peak", "time", "method", "order")
)
_SUFFIX = re.compile(r"(\.(json|txt))?(\.gz)?$", re.IGNORECASE)


# -- graphs ---------------------------------------------------------------------------------------


def read_graph(path: Source, *, memory_model: str | None = None, keep_all: bool = False) -> Graph:
    """Read a graph in any known format.

    Parameters
    ----------
    path : path-like
        The file; gzip is told by content, whatever the name.
    memory_model : str, optional
        "coexist" or "reuse", instead of what the file says.
    keep_all : bool
        Keep the ops of a Huawei file that do not lead to its output.

    Returns
    -------
    Graph
        Fields of the file that hremate does not know are in `metadata`; the memory limit of a Huawei
        file is `metadata["budget"]`, the budget of `solve` when none is given.

    Raises
    ------
    FormatError
        The file cannot be read or is in no known format; VersionError for a version this release does
        not read.
    GraphError
        What the file describes is no graph: see its subclasses in `hremate.errors`.
    """
    with named(path):
        text = read_text(path, _check_graph_start)
        name = _SUFFIX.sub("", Path(path).name) or "graph"
        if text.lstrip().startswith("{"):
            with paused_collection():
                document = _parse_json(text)
                if looks_like_node_link(document) and "format" not in document:
                    graph = parse_node_link(document, name)
                else:
                    _check_version(document, GRAPH_FORMAT)
                    graph = _graph_of(document, name)
        else:
            graph = parse_huawei(text, name, keep_all=keep_all)
        return graph if memory_model is None else graph.with_memory_model(memory_model)


def write_graph(graph: Graph, path: Source) -> None:
    """Write `graph` as `hremate-graph/1`, gzip when the name ends in `.gz`; whole or not at all.

    Raises
    ------
    InvalidValueError
        The metadata cannot be written as JSON.
    OSError
        The file cannot be written.
    """
    try:
        text = json.dumps(graph.to_dict(), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"the metadata of graph {graph.name!r} is not JSON: {error}") from None
    write_text(path, text + "\n")


def _check_graph_start(head: str) -> None:
    if not (_starts_object(head) or looks_like_huawei(head)):
        raise FormatError(
            "neither a graph in JSON (an object) nor a Huawei challenge file "
            f"(first line '<output op name> <limit>'); it starts with {head.lstrip()[:40]!r}"
        )


def _graph_of(document: dict[str, Any], default_name: str) -> Graph:
    """The graph of an `hremate-graph/1` document."""
    if "ops" not in document:
        raise FormatError("the graph has no 'ops'")
    entries = document["ops"]
    if not isinstance(entries, list):
        raise FormatError("'ops' is no list")
    units = document.get("units", {})
    if not isinstance(units, dict):
        raise FormatError("'units' is no object")
    outputs = document.get("outputs", [])
    if not isinstance(outputs, list):
        raise FormatError("'outputs' is no list")
    for output in outputs:
        _string(output, "graph output")
    metadata = {key: value for key, value in document.items() if key not in _GRAPH_KEYS}
    return Graph.from_ops(
        [_op_of(i, entry) for i, entry in enumerate(entries)],
        outputs,
        name=_string(document.get("name", default_name), "name"),
        memory_model=_string(document.get("memory_model", "coexist"), "memory_model"),
        resident=document.get("resident", 0),
        units=(
            _string(units.get("time", "us"), "units: time"),
            _string(units.get("memory", "bytes"), "units: memory"),
        ),
        metadata=_without_nan(metadata),
    )


def _op_of(index: int, entry: Any) -> Op:
    """One element of `ops`; ranges of numbers are for `Graph.from_ops` to check."""
    if not isinstance(entry, dict):
        raise FormatError(f"op {index} is no object")
    name = entry.get("name")
    if not isinstance(name, str):
        if name is None:
            raise FormatError(f"op {index} has no name")
        raise InvalidValueError(f"op {index}: name is {_shown(name)}; expected text")
    where = f"op {name!r}"
    if "time" not in entry:
        raise FormatError(f"{where} has no time")
    inputs = entry.get("inputs", [])
    outputs = entry.get("outputs", [])
    if not isinstance(inputs, list):
        raise FormatError(f"{where}: 'inputs' is no list")
    if not isinstance(outputs, list):
        raise FormatError(f"{where}: 'outputs' is no list")
    for x in inputs:
        if not isinstance(x, str):
            raise InvalidValueError(f"{where}: input {_shown(x)} is no tensor name")
    made = []
    for k, output in enumerate(outputs):
        if not isinstance(output, dict) or "name" not in output or "size" not in output:
            raise FormatError(f"{where}: output {k} is no object with 'name' and 'size'")
        if not isinstance(output["name"], str):
            raise InvalidValueError(f"{where}: output name {_shown(output['name'])} is no text")
        made.append((output["name"], output["size"]))
    phase = entry.get("phase")
    if phase is not None:
        _string(phase, f"{where}: phase")
    return Op(
        name,
        entry["time"],
        tuple(inputs),
        tuple(made),
        entry.get("workspace", 0),
        phase,
        _string(entry.get("type", ""), f"{where}: type"),
        _string(entry.get("scope", ""), f"{where}: scope"),
        entry.get("once", False),
    )


# -- schedules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScheduleFile:
    """A schedule as it lies in a file: the order, and what was said about it when it was written."""

    schedule: Schedule
    #: Name of the graph it is for.
    graph: str | None = None
    #: `Graph.sha256` of that graph.
    graph_sha256: str | None = None
    #: Bytes.
    budget: int | None = None
    #: Bytes.
    peak: int | None = None
    #: In the time unit of the graph.
    time: float | None = None
    method: str | None = None
    #: Fields that hremate does not interpret.
    metadata: Mapping[str, Any] = field(default_factory=dict)


def read_schedule(path: Source) -> ScheduleFile:
    """Read an `hremate-schedule/1` file. Whether it is valid for a graph is for `validate` to say.

    Raises
    ------
    FormatError
        The file cannot be read or is no schedule; VersionError for an unknown version.
    ScheduleError
        `order` holds something that cannot be an op index.
    """
    with named(path):
        document = _parse_json(read_text(path, _check_schedule_start))
        _check_version(document, SCHEDULE_FORMAT)
        order = document.get("order")
        if not isinstance(order, list):
            raise FormatError("the schedule has no list 'order'")
        for step, i in enumerate(order):
            if type(i) is not int or not -(2**31) <= i < 2**31:
                raise ScheduleError(f"step {step}: {_shown(i)} is no op index")
        header: dict[str, Any] = {}
        for key, kind in _HEADER_TYPES.items():
            value = document.get(key)
            if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
                raise FormatError(f"'{key}' is {_shown(value)}, which is of the wrong type")
            header[key] = value
        extra = {key: value for key, value in document.items() if key not in _SCHEDULE_KEYS}
        return ScheduleFile(Schedule(order), **header, metadata=_without_nan(extra))


_HEADER_TYPES: dict[str, type | tuple[type, ...]] = {
    "graph": str,
    "graph_sha256": str,
    "budget": int,
    "peak": int,
    "time": (int, float),
    "method": str,
}


def write_schedule(
    schedule: Schedule,
    path: Source,
    graph: Graph,
    *,
    budget: int | None = None,
    method: str | None = None,
) -> None:
    """Write `schedule` of `graph` as `hremate-schedule/1`, gzip when the name ends in `.gz`.

    Peak and time are computed here, so that the header cannot contradict the order.

    Raises
    ------
    ScheduleError
        The schedule is not valid for the graph.
    OSError
        The file cannot be written; nothing is left behind.
    """
    from hremate.simulate import simulate  # loads numba, which reading does not need

    simulation = simulate(graph, schedule)
    document = {
        "format": SCHEDULE_FORMAT,
        "graph": graph.name,
        "graph_sha256": graph.sha256,
        "budget": budget,
        "peak": simulation.peak,
        "time": simulation.time,
        "method": method,
        "order": schedule.order.tolist(),
    }
    write_text(path, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def _check_schedule_start(head: str) -> None:
    if not _starts_object(head):
        raise FormatError(f"no schedule in JSON (an object); it starts with {head.lstrip()[:40]!r}")


# -- JSON -----------------------------------------------------------------------------------------


def _starts_object(head: str) -> bool:
    return re.match(r'\s*\{\s*("|\}|$)', head) is not None


def _parse_json(text: str) -> dict[str, Any]:
    """The object that `text` is, or FormatError with line and column."""
    try:
        document = json.loads(text, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise FormatError(f"line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise FormatError("not JSON that can be read: nested too deeply") from None
    except ValueError as error:
        # The interpreter refuses to convert integers of thousands of digits.
        match = re.search(r"[0-9]{1000,}", text)
        if match is None:
            raise FormatError(f"not JSON that can be read: {error}") from None
        line = text.count("\n", 0, match.start()) + 1
        column = match.start() - text.rfind("\n", 0, match.start())
        raise InvalidValueError(
            f"line {line}, column {column}: a number of {len(match[0])} digits; it must be below 2^63"
        ) from None
    if not isinstance(document, dict):
        raise FormatError("not a JSON object")
    return document


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen = set()
        for key, _ in pairs:
            if key in seen:
                owner = result.get("name")
                where = f"the object named {owner[:80]!r}" if isinstance(owner, str) else "an object"
                raise FormatError(f"{where} has the key {key[:80]!r} twice")
            seen.add(key)
    return result


def _check_version(document: dict[str, Any], expected: str) -> None:
    found = document.get("format")
    kind = expected.split("/")[0]
    if found == expected:
        return
    if isinstance(found, str) and found.split("/")[0] == kind:
        raise VersionError(f"format is {found[:40]!r}; this release reads {expected!r}")
    if found is None:
        raise FormatError(f"no field 'format'; expected {expected!r}")
    raise FormatError(f"format is {_shown(found)}; expected {expected!r}")


def _without_nan(metadata: dict[str, Any]) -> dict[str, Any]:
    """Refuse NaN and infinity in fields that are only passed on: JSON cannot hold them."""
    for key, value in metadata.items():
        try:
            json.dumps(value, allow_nan=False)
        except (ValueError, RecursionError):
            raise FormatError(f"field {key[:80]!r} holds a number that is not finite") from None
    return metadata


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidValueError(f"{what} is {_shown(value)}; expected text")
    return value


def _shown(value: Any) -> str:
    """`value` in an error message, cut short."""
    text = json.dumps(value) if not isinstance(value, (dict, list)) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
