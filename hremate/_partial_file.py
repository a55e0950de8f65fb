"""The file from which a comparison that was killed goes on: JSON lines, one for each finished cell.

The first line is `{"format": "hremate-comparison/1"}`. Each other line has a `key` (hash of the graph,
method, budget, options, ...) and a `value`; the last line of a key counts. A line is appended as a whole and
flushed to the disk before the next cell begins, so a crash costs at most the last line.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from hremate._files import Source, named
from hremate._text import finite
from hremate.errors import FormatError, HremateError, VersionError
from hremate.graph import Graph
from hremate.result import Result, Stats, Status
from hremate.schedule import Schedule
from hremate.validate import validate

FORMAT = "hremate-comparison/1"

_logger = logging.getLogger(__name__)


class PartialFile:
    """Values by key, in memory and in a file that only grows.

    Parameters
    ----------
    path : path of the file, made with the first value where there is none.

    Raises
    ------
    FormatError
        Not such a file, or a line other than the last is damaged; VersionError for an unknown version.
    OSError
        The file cannot be read or written.
    """

    def __init__(self, path: Source) -> None:
        self.path = path
        self._values: dict[str, Any] = {}
        self._writable = True
        try:
            with open(path, "r+b") as file:
                data = file.read()
                whole = data.rfind(b"\n") + 1
                with named(path):
                    self._read(data[:whole])
                file.truncate(whole)  # a last line that was cut short
        except FileNotFoundError:
            whole = 0
        if whole == 0:
            self._append({"format": FORMAT})

    def _read(self, data: bytes) -> None:
        for number, line in enumerate(data.split(b"\n")[:-1], 1):
            try:
                entry = json.loads(line)
            except ValueError:
                raise FormatError(f"line {number}: not JSON") from None
            if number == 1:
                found = entry.get("format") if isinstance(entry, dict) else None
                if found != FORMAT:
                    error = VersionError if str(found).startswith("hremate-comparison/") else FormatError
                    raise error(f"line 1: format is {found!r}; expected {FORMAT!r}")
            elif not isinstance(entry, dict) or not isinstance(entry.get("key"), dict):
                raise FormatError(f"line {number}: expected an object with 'key' and 'value'")
            else:
                self._values[_text(entry["key"])] = entry.get("value")

    def get(self, key: Mapping[str, Any]) -> Any:
        """The value stored for `key`, None for none."""
        return self._values.get(_text(key))

    def add(self, key: Mapping[str, Any], value: Any) -> None:
        """Keep `value`. A file that can no longer be written is told once; the comparison goes on."""
        if not self._writable:
            return
        try:
            self._append({"key": dict(key), "value": value})
        except OSError as error:
            self._writable = False
            _logger.warning("%s: %s; the cells from here on are not kept", os.fspath(self.path), error)

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = json.dumps(finite(entry), separators=(",", ":"), allow_nan=False, default=str).encode() + b"\n"
        with open(self.path, "ab") as file:
            end = file.tell()
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)  # no half a line in front of the next one
                raise


def result_to_value(result: Result) -> dict[str, Any]:
    """A result as a JSON object, its schedule included."""
    order = None if result.schedule is None else result.schedule.order.tolist()
    return {"result": result.to_dict(), "order": order}


def result_of_value(graph: Graph, value: Any) -> Result:
    """The result that `result_to_value` wrote, checked against the graph.

    Raises
    ------
    FormatError
        The value is no result, or its figures are not those of its schedule.
    """
    try:
        entry, order = value["result"], value["order"]
        schedule = None if order is None else Schedule(order)
        stats = Stats(**entry["stats"])
        stats.trajectory = [(seconds, time) for seconds, time in stats.trajectory]
        known = {f.name: entry[f.name] for f in fields(Result) if f.name not in ("schedule", "stats")}
        known["status"] = Status(entry["status"])
        result = Result(**known, schedule=schedule, stats=stats)
        if schedule is not None:
            check = validate(graph, schedule, result.budget if result.solved else None)
            if (check.peak, check.time) != (result.peak, result.time):
                raise FormatError("peak or time is not that of the schedule")
    except (HremateError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"a result that cannot be used ({type(error).__name__}: {error})") from None
    return result


def _text(key: Mapping[str, Any]) -> str:
    return json.dumps(key, sort_keys=True, separators=(",", ":"), default=str)
