"""`trace`: slices and counters say what the simulator says, in microseconds; and the timeline behind it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate._timeline import KEPT, RECOMPUTED, timeline
from hremate.simulate import simulate
from hremate.trace import trace, write_trace


def training(unit: str = "us", memory_model: str = "coexist") -> hr.Graph:
    """Two forward ops, a loss, two backward ops; the first forward op may run again before the last."""
    ops = [
        hr.Op("f0", 2.0, ("w",), (("x0", 10),), phase="forward", scope="net.0", type="mul"),
        hr.Op("f1", 3.0, ("x0",), (("x1", 10),), 4, phase="forward", scope="net.1", type="mul"),
        hr.Op("loss", 1.0, ("x1",), (("l", 1),), phase="loss"),
        hr.Op("b1", 3.0, ("x1", "l"), (("g1", 10),), phase="backward"),
        hr.Op("b0", 2.0, ("x0", "g1"), (("g0", 10),), phase="backward"),
    ]
    return hr.Graph.from_ops(ops, ["g0"], name="tiny", units=(unit, "bytes"), memory_model=memory_model)


AGAIN = [0, 1, 2, 3, 0, 4]


@st.composite
def graphs_and_schedules(draw: st.DrawFn) -> tuple[hr.Graph, list[int]]:
    """A small random graph, and an order of it in which ops run again at random."""
    n = draw(st.integers(1, 8))
    ops = []
    for i in range(n):
        inputs = draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else []
        made = tuple((f"t{i}.{k}", draw(st.integers(0, 9))) for k in range(draw(st.integers(1, 2))))
        ops.append(
            hr.Op(f"op{i}", float(draw(st.integers(0, 3))), tuple(f"t{j}.0" for j in inputs), made,
                  draw(st.integers(0, 3)))
        )  # fmt: skip
    outputs = [f"t{i}.0" for i in range(n) if draw(st.booleans())]
    model = draw(st.sampled_from(["coexist", "reuse"]))
    order: list[int] = []
    for i in range(n):
        order += draw(st.lists(st.integers(0, i - 1), max_size=2)) if i else []
        order.append(i)
    return hr.Graph.from_ops(ops, outputs, memory_model=model), order


@settings(deadline=None)
@given(graphs_and_schedules())
def test_the_copies_of_a_timeline_account_for_the_memory_of_every_step(
    case: tuple[hr.Graph, list[int]],
) -> None:
    graph, order = case
    line = timeline(graph, order)
    memory = simulate(graph, order).memory
    assert (line.bands >= 0).all() and np.array_equal(line.bands.sum(axis=0), memory)
    if graph.memory_model == "coexist":
        for step, op in enumerate(order):
            alive = (line.birth <= step) & (step <= line.death)
            assert graph.size[line.copy[alive]].sum() + graph.workspace[op] == memory[step]


def test_later_runs_are_recomputed_whatever_the_op() -> None:
    line = timeline(training(), [0, 0, 1, 2, 3, 0, 4])
    assert line.kind.tolist() == [KEPT, RECOMPUTED, KEPT, KEPT, 2, RECOMPUTED, 2]
    assert (line.peak_step, line.peak) == (int(np.argmax(line.memory)), int(line.memory.max()))


def test_each_step_is_a_slice_on_the_track_of_its_kind() -> None:
    slices = [e for e in trace(training(), AGAIN)["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["cat"], e["tid"], e["args"]["run"]) for e in slices] == [
        ("f0", "kept", 1, 1),
        ("f1", "kept", 1, 1),
        ("loss", "kept", 1, 1),
        ("b1", "backward", 3, 1),
        ("f0", "recomputed", 2, 2),
        ("b0", "backward", 3, 1),
    ]
    assert [(e["ts"], e["dur"]) for e in slices] == [(0, 2), (2, 3), (5, 1), (6, 3), (9, 2), (11, 2)]
    assert slices[0]["args"]["scope"] == "net.0" and slices[0]["args"]["phase"] == "forward"


def test_the_counter_is_the_memory_of_the_simulator_and_ends_at_zero() -> None:
    events = trace(training(), AGAIN, budget=99)["traceEvents"]
    counted = [e["args"]["bytes"] for e in events if e["name"] == "memory"]
    assert counted == [*simulate(training(), AGAIN).memory.tolist(), 0]
    assert [e["args"]["bytes"] for e in events if e["name"] == "budget"] == [99, 99]
    for event in (e for e in events if e["name"] == "memory by origin"):
        assert sum(event["args"].values()) in counted


@pytest.mark.parametrize(
    ("unit", "scale"), [("ns", 1e-3), ("us", 1), ("ms", 1e3), ("s", 1e6), ("flops", 1)]
)
def test_times_are_microseconds(unit: str, scale: float) -> None:
    slices = [e for e in trace(training(unit), AGAIN)["traceEvents"] if e["ph"] == "X"]
    assert slices[-1]["ts"] + slices[-1]["dur"] == pytest.approx(13 * scale)


def test_a_file_is_json_and_gzip_by_its_name(tmp_path: Path) -> None:
    write_trace(training(), AGAIN, tmp_path / "t.json")
    write_trace(training(), hr.Schedule(AGAIN), tmp_path / "t.json.gz")
    plain = (tmp_path / "t.json").read_bytes()
    assert json.loads(plain) == trace(training(), AGAIN)
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == plain


def test_a_schedule_that_is_not_valid_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(hr.ScheduleError):
        write_trace(training(), [1, 0], tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []
