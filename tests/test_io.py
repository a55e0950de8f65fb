"""Readers and writers: every format goes round, every kind of bad file has its own error."""

from __future__ import annotations

import gzip
import json
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle import random_graph
from samples import NODE_LINK

import hremate as hr
from hremate import errors, io

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
EXAMPLE = {
    "format": "hremate-graph/1",
    "name": "small",
    "units": {"time": "ms", "memory": "bytes"},
    "resident": 7,
    "memory_model": "reuse",
    "ops": [
        {"name": "a", "type": "aten.a", "scope": "h.0", "phase": "forward", "time": 1.5, "workspace": 3,
         "once": True, "inputs": ["w"], "outputs": [{"name": "x", "size": 4}, {"name": "x2", "size": 0}]},
        {"name": "b", "phase": "loss", "time": 2, "inputs": ["x", "w", "x"], "outputs": []},
        {"name": "c", "phase": "backward", "time": 0, "inputs": ["x2"],
         "outputs": [{"name": "y", "size": 2}]},
    ],
    "outputs": ["y"],
    "source": {"captured": [1, None, "è"]},
}  # fmt: skip
HUAWEI = "Z 350\n0 A-op3 0 5 10 1\n7 B 1 0 0 20 2.5\n3 Z 3 0 7 0 1 30 3\n4 dead 1 3 0 1 1\n"


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    document = json.loads(json.dumps(EXAMPLE))
    change(document)
    return json.dumps(document)


def read(tmp_path: Path, content: str | bytes, name: str = "graph.json", **options: Any) -> hr.Graph:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return hr.read_graph(path, **options)


# -- hremate-graph/1 ------------------------------------------------------------------------------


def test_a_graph_file_gives_every_field(tmp_path: Path) -> None:
    graph = read(tmp_path, json.dumps(EXAMPLE))
    assert (graph.name, graph.units) == ("small", ("ms", "bytes"))
    assert (graph.resident, graph.memory_model) == (7, "reuse")
    assert graph.op(0) == hr.Op("a", 1.5, ("w",), (("x", 4), ("x2", 0)), 3, "forward", "aten.a", "h.0", True)
    assert graph.op(1).inputs == ("x", "w")
    assert [graph.tensor_names[x] for x in graph.outputs] == ["y"]
    assert graph.metadata == {"source": {"captured": [1, None, "è"]}}


def test_missing_optional_fields_have_defaults(tmp_path: Path) -> None:
    text = '{"format":"hremate-graph/1","ops":[{"name":"a","time":1}]}'
    graph = read(tmp_path, text, "net.v2.json")
    assert (graph.name, graph.units, graph.memory_model, graph.n_tensors) == (
        "net.v2", ("us", "bytes"), "coexist", 0,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["g.json", "g.json.gz"])
def test_graphs_go_round_with_the_same_hash(tmp_path: Path, name: str) -> None:
    for seed in range(40):
        graph = random_graph(seed)
        hr.write_graph(graph, tmp_path / name)
        again = hr.read_graph(tmp_path / name)
        assert again.to_dict() == graph.to_dict()
        assert again.sha256 == graph.sha256
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_the_written_bytes_depend_on_the_graph_alone(tmp_path: Path) -> None:
    for name in ("one.json.gz", "two.json.gz"):
        hr.write_graph(random_graph(3), tmp_path / name)
    assert (tmp_path / "one.json.gz").read_bytes() == (tmp_path / "two.json.gz").read_bytes()


def test_gzip_is_told_by_content_not_by_name(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(json.dumps(EXAMPLE).encode()), "plain.json").n_ops == 3
    assert read(tmp_path, json.dumps(EXAMPLE), "wrong.json.gz").n_ops == 3


def test_a_byte_order_mark_and_odd_names_are_accepted(tmp_path: Path) -> None:
    text = changed(lambda d: d["ops"][2].update(name="\ud800 \u2028 \0"))
    assert read(tmp_path, b"\xef\xbb\xbf" + text.encode()).op_names[2] == "\ud800 \u2028 \0"


def test_a_pipe_can_be_read(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, gzip.compress(json.dumps(EXAMPLE).encode()))
    os.close(writer)
    try:
        assert hr.read_graph(f"/dev/fd/{reader}").n_ops == 3
    finally:
        os.close(reader)


def test_the_memory_model_can_be_overridden(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(EXAMPLE), memory_model="coexist").memory_model == "coexist"
    with pytest.raises(hr.InvalidValueError, match="memory_model"):
        read(tmp_path, json.dumps(EXAMPLE), memory_model="other")


def op(index: int, **fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda d: d["ops"][index].update(fields)


def size_of_x(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda d: d["ops"][0]["outputs"][0].update(size=value)


BAD_GRAPHS: list[tuple[str, Callable[[dict[str, Any]], Any], type[Exception], str]] = [
    ("cycle", op(0, inputs=["y"]), hr.CycleError, "'a' -> 'c'|a -> c -> a|c -> a -> c"),
    ("self-loop", op(2, inputs=["y"]), hr.CycleError, "op 'c' reads its own output"),
    ("disorder", lambda d: d["ops"].reverse(), hr.OrderError, "op 'c' reads tensor 'x2'"),
    ("two ops of one name", op(1, name="a"), hr.DuplicateNameError, "two ops are named 'a'"),
    ("tensor made twice", op(1, outputs=[{"name": "x", "size": 1}]), hr.DuplicateNameError, "'x' is made"),
    ("unknown output", lambda d: d.update(outputs=["q"]), hr.UnknownTensorError, "'q'"),
    ("no ops", lambda d: d.update(ops=[]), hr.EmptyGraphError, "no ops"),
    ("negative size", size_of_x(-1), hr.InvalidValueError, "op 'a'.*'x'.*negative"),
    ("fractional size", size_of_x(1.5), hr.InvalidValueError, "op 'a'.*'x'.*1.5"),
    ("NaN size", size_of_x(float("nan")), hr.InvalidValueError, "op 'a'.*'x'.*nan"),
    ("infinite size", size_of_x(float("inf")), hr.InvalidValueError, "op 'a'.*'x'.*inf"),
    ("size as text", size_of_x("4"), hr.InvalidValueError, "op 'a'.*'x'.*'4'"),
    ("size true", size_of_x(True), hr.InvalidValueError, "op 'a'.*'x'.*True"),
    ("size null", size_of_x(None), hr.InvalidValueError, "op 'a'.*'x'.*None"),
    ("size 2^63", size_of_x(2**63), hr.InvalidValueError, "op 'a'.*'x'.*below 2\\^63"),
    ("size of 4,000 digits", size_of_x(10**4000), hr.InvalidValueError, "op 'a'.*'x'.*below 2\\^63"),
    ("sizes that overflow together", size_of_x(2**62), hr.InvalidValueError, "add up"),
    ("negative time", op(1, time=-0.5), hr.InvalidValueError, "op 'b'.*negative"),
    ("NaN time", op(1, time=float("nan")), hr.InvalidValueError, "op 'b'.*finite"),
    ("infinite time", op(1, time=float("inf")), hr.InvalidValueError, "op 'b'.*finite"),
    ("time of 400 digits", op(1, time=10**400), hr.InvalidValueError, "op 'b'.*finite"),
    ("time as text", op(1, time="2"), hr.InvalidValueError, "op 'b'.*'2'"),
    ("time false", op(1, time=False), hr.InvalidValueError, "op 'b'.*False"),
    ("no time", lambda d: d["ops"][1].pop("time"), hr.FormatError, "op 'b' has no time"),
    ("negative workspace", op(0, workspace=-3), hr.InvalidValueError, "op 'a': workspace"),
    ("workspace a list", op(0, workspace=[3]), hr.InvalidValueError, "op 'a': workspace"),
    ("negative resident", lambda d: d.update(resident=-1), hr.InvalidValueError, "resident"),
    ("resident as text", lambda d: d.update(resident="1"), hr.InvalidValueError, "resident"),
    ("unknown phase", op(0, phase="sideways"), hr.InvalidValueError, "op 'a': phase.*sideways"),
    ("phase a list", op(0, phase=["forward"]), hr.InvalidValueError, "op 'a': phase"),
    ("once a number", op(0, once=1), hr.InvalidValueError, "op 'a': once"),
    ("type a number", op(0, type=1), hr.InvalidValueError, "op 'a': type"),
    ("scope null", op(0, scope=None), hr.InvalidValueError, "op 'a': scope"),
    ("unknown memory model", lambda d: d.update(memory_model="x"), hr.InvalidValueError, "memory_model"),
    ("memory model a list", lambda d: d.update(memory_model=[]), hr.InvalidValueError, "memory_model"),
    ("op name a number", op(1, name=5), hr.InvalidValueError, "op 1: name is 5"),
    ("op name empty", op(1, name=""), hr.InvalidValueError, "op 1"),
    ("op without name", lambda d: d["ops"][1].pop("name"), hr.FormatError, "op 1 has no name"),
    ("op a number", lambda d: d["ops"].append(5), hr.FormatError, "op 3 is no object"),
    ("inputs as text", op(1, inputs="x"), hr.FormatError, "op 'b': 'inputs'"),
    ("inputs null", op(1, inputs=None), hr.FormatError, "op 'b': 'inputs'"),
    ("input a number", op(1, inputs=[5]), hr.InvalidValueError, "op 'b': input 5"),
    ("outputs an object", op(0, outputs={"x": 4}), hr.FormatError, "op 'a': 'outputs'"),
    ("output as text", op(0, outputs=["x"]), hr.FormatError, "op 'a': output 0"),
    ("output without size", op(0, outputs=[{"name": "x"}]), hr.FormatError, "op 'a': output 0"),
    ("output name a list", op(0, outputs=[{"name": [], "size": 1}]), hr.InvalidValueError, "op 'a'"),
    ("no ops at all", lambda d: d.pop("ops"), hr.FormatError, "'ops'"),
    ("ops an object", lambda d: d.update(ops={}), hr.FormatError, "'ops' is no list"),
    ("graph outputs as text", lambda d: d.update(outputs="y"), hr.FormatError, "'outputs' is no list"),
    ("graph output a number", lambda d: d.update(outputs=[1]), hr.InvalidValueError, "graph output"),
    ("units as text", lambda d: d.update(units="us"), hr.FormatError, "'units'"),
    ("unit a number", lambda d: d.update(units={"time": 1}), hr.InvalidValueError, "units"),
    ("graph name a number", lambda d: d.update(name=1), hr.InvalidValueError, "name"),
    ("no format", lambda d: d.pop("format"), hr.FormatError, "'format'"),
    ("format a number", lambda d: d.update(format=1), hr.FormatError, "format is 1"),
    ("later version", lambda d: d.update(format="hremate-graph/2"), hr.VersionError, "hremate-graph/2"),
    ("a schedule", lambda d: d.update(format="hremate-schedule/1"), hr.FormatError, "hremate-schedule/1"),
    ("NaN in an unknown field", lambda d: d.update(extra=[float("nan")]), hr.FormatError, "'extra'"),
]


@pytest.mark.parametrize(("change", "error", "message"), [pytest.param(*c[1:], id=c[0]) for c in BAD_GRAPHS])
def test_a_bad_graph_has_its_own_error_that_names_file_and_place(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(errors.HremateError, match=message) as caught:
        read(tmp_path, changed(change), "the file.json")
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"{tmp_path}/the file.json: ")
    assert len(str(caught.value)) < 400


GOOD = json.dumps(EXAMPLE)
BAD_FILES: list[tuple[str, bytes, type[Exception], str]] = [
    ("empty", b"", hr.FormatError, "empty"),
    ("blanks", b" \n\t ", hr.FormatError, "empty"),
    ("blanks without end", b" " * 70000 + b"{}", hr.FormatError, "blanks"),
    ("prose", b"This is no graph.\n", hr.FormatError, "neither"),
    ("a JSON list", b"[1, 2]", hr.FormatError, "neither"),
    ("binary", b"\x89PNG\r\n\x1a\n" + bytes(100), hr.FormatError, "not a text file"),
    ("not JSON", b'{"format": "hremate-graph/1",\n "ops": oops}', hr.FormatError, "line 2, column 9"),
    ("cut short", GOOD[:200].encode(), hr.FormatError, "line 1, column"),
    ("trailing data", GOOD.encode() + b"\n{}", hr.FormatError, "line 2, column 1: not JSON"),
    ("invalid UTF-8", GOOD.replace("small", "\n\u00e9").encode("latin-1"), hr.FormatError, "UTF-8"),
    ("UTF-16", GOOD.encode("utf-16"), hr.FormatError, "not a text file"),
    ("deep nesting", b'{"a":' * 10**5, hr.FormatError, "nested too deeply"),
    ("deep lists", b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}", hr.FormatError, "nested too deeply"),
    ("a key twice", GOOD.replace('"time": 2', '"time": 2, "time": 3').encode(), hr.FormatError,
     "named 'b' has the key 'time' twice"),
    ("a number of 10,000 digits", GOOD.replace('"size": 4', '"size":\n' + "9" * 10000).encode(),
     hr.InvalidValueError, "line 2, column 1: a number of 10000 digits"),
    ("truncated gzip", gzip.compress(GOOD.encode())[:-12], hr.FormatError, "truncated"),
    ("gzip header only", gzip.compress(GOOD.encode())[:5], hr.FormatError, "truncated"),
    ("damaged gzip", gzip.compress(GOOD.encode())[:40] + bytes(60), hr.FormatError, "damaged|truncated"),
    ("gzip of nothing", gzip.compress(b""), hr.FormatError, "empty"),
    ("gzip of garbage", gzip.compress(bytes(10**6)), hr.FormatError, "not a text file"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "error", "message"), [pytest.param(*c[1:], id=c[0]) for c in BAD_FILES])
def test_a_file_that_is_no_graph_has_its_own_error(
    tmp_path: Path, content: bytes, error: type[Exception], message: str
) -> None:
    with pytest.raises(errors.HremateError, match=message) as caught:
        read(tmp_path, content, "the file")
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"{tmp_path}/the file: ")


@pytest.mark.parametrize("path", ["missing.json", "", ".", "a\0b"])
def test_what_cannot_be_opened_is_a_format_error(tmp_path: Path, path: str) -> None:
    for reader in (hr.read_graph, hr.read_schedule):
        with pytest.raises(hr.FormatError, match="cannot be read"):
            reader(f"{tmp_path}/{path}" if path else path)


@pytest.mark.parametrize("start", [b"", b"{", b"\x00", b"abc def\n", b'{"format": "x'])
def test_garbage_of_100_MB_is_refused_before_it_is_parsed(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "garbage"
    with open(path, "wb") as file:
        file.write(start)
        block = random.Random(1).randbytes(1 << 20)
        for _ in range(100):
            file.write(block)
    with pytest.raises(hr.FormatError, match="not a text file"):
        hr.read_graph(path)


# -- node-link JSON -------------------------------------------------------------------------------

ORDERED: dict[str, Any] = {
    "graph": {"order": ["x", "z", "y"]},
    "nodes": [{"id": name, "duration": 1, "out_cost": 10} for name in "xyz"],
    "edges": [{"source": "x", "target": "y"}, {"source": "x", "target": "z"}, {"source": "x", "target": "z"}],
}


def node_link(change: Callable[[dict[str, Any]], Any], base: dict[str, Any] = NODE_LINK) -> str:
    document = json.loads(json.dumps(base))
    change(document)
    return json.dumps(document)


def test_node_link_with_costs_and_backward_is_sorted_stably(tmp_path: Path) -> None:
    graph = read(tmp_path, json.dumps(NODE_LINK), "fcn8.json")
    assert (graph.name, graph.op_names) == ("fcn8", ("n5", "n7", "n9"))
    assert graph.op(2) == hr.Op("n9", 4.5, ("t5", "t7"), (("t9", 50),), 0, "backward", "", "grad")
    assert not len(graph.outputs)


def test_node_link_with_durations_follows_its_own_order(tmp_path: Path) -> None:
    graph = read(tmp_path, json.dumps(ORDERED))
    assert graph.op_names == ("x", "z", "y")
    assert (graph.phase == -1).all()
    assert graph.op(1).inputs == ("x",)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (node_link(lambda d: d["links"].append({"source": 9, "target": 5})), hr.CycleError, "n5"),
        (node_link(lambda d: d["links"].append({"source": 9, "target": 9})), hr.CycleError, "op 'n9'"),
        (node_link(lambda d: d["links"].append({"source": 1, "target": 9})), hr.UnknownTensorError, "edge 3"),
        (node_link(lambda d: d["links"].append([5, 9])), hr.FormatError, "edge 3"),
        (node_link(lambda d: d["nodes"][1].update(id=5)), hr.DuplicateNameError, "id 5"),
        (node_link(lambda d: d["nodes"][1].update(id=None)), hr.InvalidValueError, "node 1"),
        (node_link(lambda d: d["nodes"][1].pop("id")), hr.FormatError, "node 1"),
        (node_link(lambda d: d["nodes"][1].pop("cost_ram")), hr.FormatError, "node 9"),
        (node_link(lambda d: d["nodes"][1].update(cost_cpu=-1)), hr.InvalidValueError, "op 'n9'"),
        (node_link(lambda d: d["nodes"][1].update(backward="no")), hr.InvalidValueError, "node 9.*backward"),
        (node_link(lambda d: d.update(nodes={})), hr.FormatError, "'nodes'"),
        (node_link(lambda d: d.update(nodes=[], links=[])), hr.EmptyGraphError, "no ops"),
        (node_link(lambda d: d.update(directed=False)), hr.FormatError, "directed"),
        (node_link(lambda d: d["graph"].update(order="x"), ORDERED), hr.FormatError, "graph.order"),
        (node_link(lambda d: d["graph"]["order"].pop(), ORDERED), hr.FormatError, "'y'"),
        (node_link(lambda d: d["graph"]["order"].append("x"), ORDERED), hr.DuplicateNameError, "'x' twice"),
        (node_link(lambda d: d["graph"]["order"].append("q"), ORDERED), hr.UnknownTensorError, "'q'"),
        (node_link(lambda d: d["graph"]["order"].reverse(), ORDERED), hr.OrderError, "op 'y'"),
    ],
)
def test_a_bad_node_link_file_has_its_own_error(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(errors.HremateError, match=message) as caught:
        read(tmp_path, text)
    assert type(caught.value) is error


# -- Huawei challenge text ------------------------------------------------------------------------


def test_a_huawei_file_gives_ops_by_id_and_its_limit_as_budget(tmp_path: Path) -> None:
    graph = read(tmp_path, HUAWEI, "example.txt")
    assert (graph.name, graph.memory_model, graph.metadata) == ("example", "coexist", {"budget": 350})
    assert graph.op_names == ("A-op3#0", "B#7", "Z#3")
    assert graph.op(0) == hr.Op("A-op3#0", 1.0, (), (("A-op3#0", 10),), 5, None, "A")
    assert graph.op(2) == hr.Op("Z#3", 3.0, ("A-op3#0", "B#7"), (("Z#3", 30),), 1, None, "Z")
    assert [graph.tensor_names[x] for x in graph.outputs] == ["Z#3"]


def test_ops_that_lead_nowhere_are_dropped_and_counted_unless_all_are_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="hremate"):
        assert read(tmp_path, HUAWEI).n_ops == 3
    assert "dropped 1 of 4 ops" in caplog.text
    assert read(tmp_path, HUAWEI, keep_all=True).n_ops == 4


def test_a_repeated_output_name_means_its_last_line(tmp_path: Path) -> None:
    graph = read(tmp_path, "Z 9\n0 Z 0 0 1 1\n1 Z 1 0 0 1 1\n2 Y 1 1 0 1 1\n")
    assert graph.op_names == ("Z#0", "Z#1")
    assert graph.outputs.tolist() == [1]


def test_huawei_lines_may_come_in_any_order(tmp_path: Path) -> None:
    text = "Z 9\r\n9 Z 2 2 1 0 1 1\r\n\r\n2 Y 1 1 0 1 1\r\n1 X 0 0 1 1\r\n"
    graph = read(tmp_path, text, memory_model="reuse")
    assert (graph.op_names, graph.memory_model) == (("X#1", "Y#2", "Z#9"), "reuse")


def test_the_budget_of_a_huawei_file_survives_conversion(tmp_path: Path) -> None:
    hr.write_graph(read(tmp_path, HUAWEI, "h.txt"), tmp_path / "h.json")
    assert hr.read_graph(tmp_path / "h.json").metadata == {"budget": 350}


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("Z 350\n", hr.EmptyGraphError, "no ops"),
        ("Q 350\n0 Z 0 1 1 1\n", hr.UnknownTensorError, "line 1.*'Q'"),
        ("Z 3.5\n0 Z 0 1 1 1\n", hr.InvalidValueError, "line 1: the memory limit"),
        ("Z -3\n0 Z 0 1 1 1\n", hr.InvalidValueError, "line 1.*negative"),
        ("Z 9\n0 Z 1 1 1\n", hr.FormatError, "line 2"),
        ("Z 9\n0 Z 0 1 1 1 1\n", hr.FormatError, "line 2: 0 inputs make 6 fields, found 7"),
        ("Z 9\n0 Z -1 1 1 1\n", hr.InvalidValueError, "line 2: the number of inputs"),
        ("Z 9\n0 Z 0 1 1 1\n0 Y 0 1 1 1\n", hr.DuplicateNameError, "line 3: id 0 was used on line 2"),
        ("Z 9\nx Z 0 1 1 1\n", hr.InvalidValueError, "line 2: the id is 'x'"),
        ("Z 9\n0 Z 1 5 1 1 1\n", hr.UnknownTensorError, "line 2: op 'Z#0' reads the unknown id 5"),
        ("Z 9\n0 Z 1 0 1 1 1\n", hr.CycleError, "op 'Z#0' reads its own output"),
        ("Z 9\n0 Z 1 1 1 1 1\n1 Y 1 0 1 1 1\n", hr.CycleError, "Z#0"),
        ("Z 9\n0 Z 0 -1 1 1\n", hr.InvalidValueError, "line 2: a memory size is -1"),
        (f"Z 9\n0 Z 0 1 {2**63} 1\n", hr.InvalidValueError, "line 2.*below 2\\^63"),
        ("Z 9\n0 Z 0 1 " + "9" * 10000 + " 1\n", hr.InvalidValueError, "line 2.*below 2\\^63"),
        ("Z 9\n0 Z 0 1 1 nan\n", hr.InvalidValueError, "line 2: the time"),
        ("Z 9\n0 Z 0 1 1 inf\n", hr.InvalidValueError, "line 2: the time"),
        ("Z 9\n0 Z 0 1 1 -1\n", hr.InvalidValueError, "line 2: the time"),
        ("Z 9\n0 Z 0 1 1 fast\n", hr.InvalidValueError, "line 2: the time is 'fast'"),
    ],
)
def test_a_bad_huawei_file_names_its_line(
    tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(errors.HremateError, match=message) as caught:
        read(tmp_path, text)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 400


# -- schedules ------------------------------------------------------------------------------------

SCHEDULE = json.dumps(
    {
        "format": "hremate-schedule/1",
        "graph": "small",
        "budget": 9,
        "peak": 7,
        "time": 3.5,
        "order": [0, 1, 0, 2],
    }
)


def test_a_schedule_goes_round_with_its_header(tmp_path: Path) -> None:
    graph = random_graph(1)
    schedule = hr.Schedule(np.arange(graph.n_ops))
    for name in ("s.json", "s.json.gz"):
        hr.write_schedule(schedule, tmp_path / name, graph, budget=123, method="none")
        file = hr.read_schedule(tmp_path / name)
        assert file.schedule == schedule
        cost = hr.simulate(graph, schedule)
        assert (file.graph, file.graph_sha256, file.budget) == (graph.name, graph.sha256, 123)
        assert (file.peak, file.time, file.method) == (cost.peak, cost.time, "none")


def test_only_valid_schedules_are_written(tmp_path: Path) -> None:
    with pytest.raises(hr.ScheduleError):
        hr.write_schedule(hr.Schedule([0]), tmp_path / "s.json", random_graph(1, min_ops=3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda d: d.update(format="hremate-schedule/9"), hr.VersionError, "hremate-schedule/9"),
        (lambda d: d.update(format="hremate-graph/1"), hr.FormatError, "hremate-graph/1"),
        (lambda d: d.pop("order"), hr.FormatError, "order"),
        (lambda d: d.update(order="012"), hr.FormatError, "order"),
        (lambda d: d.update(order=[0, "1"]), hr.ScheduleError, 'step 1: "1"'),
        (lambda d: d.update(order=[0, 1.0]), hr.ScheduleError, "step 1: 1.0"),
        (lambda d: d.update(order=[True]), hr.ScheduleError, "step 0: true"),
        (lambda d: d.update(order=[0, 10**30]), hr.ScheduleError, "step 1"),
        (lambda d: d.update(order=[[0]]), hr.ScheduleError, "step 0"),
        (lambda d: d.update(budget="9"), hr.FormatError, "'budget'"),
        (lambda d: d.update(peak=7.5), hr.FormatError, "'peak'"),
        (lambda d: d.update(time=[]), hr.FormatError, "'time'"),
        (lambda d: d.update(graph=4), hr.FormatError, "'graph'"),
    ],
)
def test_a_bad_schedule_file_has_its_own_error(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], error: type[Exception], message: str
) -> None:
    document = json.loads(SCHEDULE)
    change(document)
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document))
    with pytest.raises(errors.HremateError, match=message) as caught:
        hr.read_schedule(path)
    assert type(caught.value) is error


def test_unknown_fields_of_a_schedule_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(SCHEDULE.replace("{", '{"by": "hand", ', 1))
    assert io.read_schedule(path).metadata == {"by": "hand"}


# -- writing --------------------------------------------------------------------------------------


def test_permissions_follow_the_umask_and_then_the_file(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    mask = os.umask(0o027)
    try:
        hr.write_graph(random_graph(1), path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    path.chmod(0o604)
    hr.write_graph(random_graph(2), path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    hr.write_graph(random_graph(1), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert hr.read_graph(tmp_path / "real.json").n_ops == random_graph(1).n_ops
    hr.write_graph(random_graph(1), os.devnull)
    assert not Path(os.devnull).is_file()


def test_metadata_that_is_no_json_is_refused(tmp_path: Path) -> None:
    graph = hr.Graph.from_ops([hr.Op("a", 1.0)], metadata={"x": {1, 2}})
    with pytest.raises(hr.InvalidValueError, match="metadata"):
        hr.write_graph(graph, tmp_path / "g.json")
    assert list(tmp_path.iterdir()) == []


# -- the shared graphs ----------------------------------------------------------------------------


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no graphs in {SHARED}")
def test_every_shared_graph_is_read_and_goes_round(tmp_path: Path) -> None:
    files = sorted(SHARED.glob("*/*"))
    assert len(files) > 20
    for file in files:
        graph = hr.read_graph(file)
        hr.write_graph(graph, tmp_path / "g.json.gz")
        assert hr.read_graph(tmp_path / "g.json.gz").sha256 == graph.sha256, file


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"no graphs in {SHARED}")
def test_the_huawei_examples_have_the_op_counts_that_lead_to_their_outputs() -> None:
    total = {f: hr.read_graph(SHARED / "public" / f"huawei-example{f}.txt").total_time for f in (3, 4)}
    assert total == {3: 28548.0, 4: 28548.0}
