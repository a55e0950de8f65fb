"""A trace obeys the Trace Event Format to the letter, from the library and from the command line."""

from __future__ import annotations

import gzip
import json
import math
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from oracle import random_graph

import hremate as hr
from hremate.cli import main
from hremate.trace import write_trace

#: Fields that an event of each phase has, and may have besides (Google, "Trace Event Format", 2016).
REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
}
OPTIONAL = {"X": {"args"}, "C": {"cat", "id"}, "M": set[str]()}
#: Names of metadata events, and the argument of each with its type.
METADATA: dict[str, tuple[str, type]] = {
    "process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int),
}  # fmt: skip


def strictly_parsed(text: str) -> dict[str, Any]:
    """JSON without NaN and without a key that comes twice."""

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        assert len(set(keys)) == len(keys)
        return dict(pairs)

    return json.loads(text, parse_constant=refused, object_pairs_hook=once)


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def checked(document: Any) -> list[dict[str, Any]]:
    """The slices of a trace, in which every event has been found to be what the format asks for."""
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    events = document["traceEvents"]
    assert isinstance(events, list)
    named: set[tuple[int, int]] = set()
    for event in events:
        phase = event["ph"]
        assert REQUIRED[phase] <= set(event) <= REQUIRED[phase] | OPTIONAL[phase], event
        assert isinstance(event["name"], str) and event["name"]
        assert isinstance(event["pid"], int) and isinstance(event.get("tid", 0), int)
        if phase != "M":
            assert is_number(event["ts"]) and event["ts"] >= 0
        if phase == "X":
            assert is_number(event["dur"]) and event["dur"] >= 0
            assert isinstance(event["cat"], str) and isinstance(event.get("args", {}), dict)
        elif phase == "C":
            assert event["args"] and all(is_number(value) for value in event["args"].values())
        else:
            argument, kind = METADATA[event["name"]]
            assert set(event["args"]) == {argument} and type(event["args"][argument]) is kind
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
    slices = [event for event in events if event["ph"] == "X"]
    assert {(event["pid"], event["tid"]) for event in slices} <= named
    assert [event["name"] for event in events].count("process_name") == 1
    check_counters([event for event in events if event["ph"] == "C"])
    for track in named:
        check_track([event for event in slices if (event["pid"], event["tid"]) == track])
    return slices


def check_counters(events: list[dict[str, Any]]) -> None:
    """Each counter keeps its series and goes forward in time."""
    for name in {event["name"] for event in events}:
        own = [event for event in events if event["name"] == name]
        assert len({tuple(event["args"]) for event in own}) == 1
        assert all(a["ts"] <= b["ts"] for a, b in pairwise(own))


def check_track(slices: list[dict[str, Any]]) -> None:
    """Slices on one track go forward, and each ends before the next begins."""
    for a, b in pairwise(slices):
        assert a["ts"] <= b["ts"]
        assert nanoseconds(a["ts"]) + nanoseconds(a["dur"]) <= nanoseconds(b["ts"])


def nanoseconds(microseconds: float) -> int:
    """As Perfetto reads a number: digit by digit, down to whole nanoseconds."""
    return int(Decimal(repr(microseconds)) * 1000)


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "flops"])
def test_every_event_has_the_fields_of_its_phase_and_tracks_do_not_overlap(unit: str, tmp_path: Path) -> None:
    for seed in range(40):
        graph = random_graph(seed, max_ops=8)
        graph = hr.Graph.from_ops(
            [graph.op(i) for i in range(graph.n_ops)], [graph.tensor_names[x] for x in graph.outputs],
            name=f"g{seed}", memory_model=graph.memory_model, units=(unit, "bytes"),
        )  # fmt: skip
        order = [i for i in range(graph.n_ops) for _ in range(1 if graph.once[i] else 1 + (i + seed) % 2)]
        write_trace(graph, order, tmp_path / "t.json", budget=7 if seed % 2 else None)
        slices = checked(strictly_parsed((tmp_path / "t.json").read_text("utf-8")))
        assert [event["args"]["op"] for event in slices] == order


def test_names_that_json_must_escape_come_back(tmp_path: Path) -> None:
    name = '"\\\n\0\u2028 é'
    graph = hr.Graph.from_ops([hr.Op(name, 1.0, (), (("x", 1),))], ["x"], name=name)
    write_trace(graph, [0], tmp_path / "t.json")
    (only,) = checked(strictly_parsed((tmp_path / "t.json").read_text("utf-8")))
    assert only["name"] == name


def test_times_that_binary_fractions_miss_leave_no_overlap_on_the_grid_of_viewers(tmp_path: Path) -> None:
    ops = [hr.Op(f"op{i}", 0.1 * (i % 7), (), ((f"x{i}", 1),)) for i in range(500)]
    write_trace(hr.Graph.from_ops(ops), range(500), tmp_path / "t.json")
    slices = checked(strictly_parsed((tmp_path / "t.json").read_text("utf-8")))
    total = sum(nanoseconds(event["dur"]) for event in slices)
    assert total == 100 * sum(i % 7 for i in range(500))


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
def test_solve_writes_a_trace_of_its_schedule(name: str, tmp_path: Path) -> None:
    graph = hr.generate("unet", ops=40, seed=1)
    hr.write_graph(graph, tmp_path / "g.json")
    path = tmp_path / name
    words = ["solve", str(tmp_path / "g.json"), "--budget", "60%", "--method", "greedy", "--trace", str(path)]
    assert main([*words, "-o", str(tmp_path / "s.json")]) == 0
    content = path.read_bytes()
    text = gzip.decompress(content) if name.endswith(".gz") else content
    slices = checked(strictly_parsed(text.decode("utf-8")))
    assert [event["args"]["op"] for event in slices] == list(hr.read_schedule(tmp_path / "s.json").schedule)
    assert sum(event["dur"] for event in slices) == pytest.approx(slices[-1]["ts"] + slices[-1]["dur"])
