"""Pictures: drawn and written where matplotlib is, an error that says what to install where it is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_training import RERUN_F0, RERUN_F1, Params, register, training

import hremate as hr
from hremate._timeline import BANDS
from hremate.frontier import frontier
from hremate.partition.intervals import intervals
from hremate.plot import (
    block_tree_dot,
    check_picture,
    plot_anytime,
    plot_memory,
    plot_overhead,
    write_block_tree,
)
from hremate.simulate import simulate
from hremate.solvers.base import Run, finish

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def matplotlib() -> Any:
    return pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'hremate[plot]'")


def top(axes: Any, x: float) -> float:
    """The upper edge of the stack of areas at the boundary `x` of two steps."""
    edge = 0.0
    for area in axes.collections:
        corners = area.get_paths()[0].vertices
        at = corners[np.abs(corners[:, 0] - x) < 0.5]
        edge = max(edge, at[:, 1].max())
    return edge


def test_memory_is_drawn_as_it_is_with_budget_and_peak(matplotlib: Any) -> None:
    axes = plot_memory(training(), RERUN_F0, budget=45, by="step").axes[0]
    memory = simulate(training(), RERUN_F0).memory
    for step in range(1, 9):
        assert top(axes, step) == max(memory[step - 1], memory[step])
    labels = axes.get_legend_handles_labels()[1]
    assert labels == [*BANDS, "budget 45 B", "peak 40 B"]
    budget, peak = axes.lines
    assert list(budget.get_ydata()) == [45, 45]
    assert [float(v) for v in peak.get_xydata()[0]] == [int(np.argmax(memory)) + 0.5, 40.0]
    assert axes.get_xlabel() == "step" and axes.get_ylabel() == "memory (B)"
    assert axes.get_title() == "training: 1 recomputed of 9 steps, overhead 12.50%"


def test_the_axis_of_time_is_in_a_unit_that_fits(matplotlib: Any) -> None:
    graph = hr.Graph.from_ops([hr.Op("a", 250_000.0, (), (("x", 3 << 30),))], name="$slow$")
    axes = plot_memory(graph, [0]).axes[0]
    assert axes.get_xlabel() == "time (ms)" and axes.get_xlim() == (0, 250)
    assert axes.get_ylabel() == "memory (GiB)"
    axes.figure.canvas.draw()  # the name is no formula


def test_long_schedules_are_drawn_in_columns_that_keep_their_peaks(matplotlib: Any) -> None:
    graph = hr.generate("chain", 3000)
    axes = plot_memory(graph, range(graph.n_ops), by="step").axes[0]
    drawn = max(area.get_paths()[0].vertices[:, 1].max() for area in axes.collections)
    assert drawn == pytest.approx(axes.lines[-1].get_ydata()[0])
    assert len(axes.collections[0].get_paths()[0].vertices) < 4 * 2000 + 10


def test_a_graph_without_time_or_bytes_has_a_picture(matplotlib: Any) -> None:
    plot_memory(hr.Graph.from_ops([hr.Op("a", 0.0)]), [0]).canvas.draw()


def test_overhead_has_a_curve_for_each_method_and_the_bound_below(matplotlib: Any) -> None:
    found = hr.compare(training(), ["90%", "80%"], ["beam", "chen-sqrt", "none"])
    axes = found.plot().axes[0]
    assert axes.get_legend_handles_labels()[1] == ["lower bound", "beam", "chen-sqrt"]  # none has no points
    curves = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert curves["lower bound"] == [[80.0, 12.5], [90.0, 12.5]]
    beam = next(c for c in axes.containers if c.get_label() == "beam").lines[0]
    assert beam.get_xydata().tolist() == [[80.0, 12.5], [90.0, 12.5]]


def test_several_runs_are_drawn_as_median_with_best_and_worst(
    matplotlib: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_seed(graph: hr.Graph, budget: int, run: Run, params: Params) -> hr.Result:
        return finish(graph, budget, run, "by-seed", [RERUN_F0, RERUN_F1][run.seed % 2])

    register(monkeypatch, "by-seed", by_seed)
    axes = hr.compare(training(), 40, "by-seed", seeds=[0, 1, 3]).plot().axes[0]
    line, _, (bar,) = axes.containers[0].lines
    assert line.get_xydata().tolist() == [[80.0, 25.0]]
    assert bar.get_segments()[0].tolist() == [[80.0, 12.5], [80.0, 25.0]]


def test_a_frontier_is_drawn_with_its_bound(matplotlib: Any) -> None:
    found = frontier(training(), 3, method="beam")
    axes = found.plot().axes[0]
    (curve,) = axes.containers
    assert curve.lines[0].get_xdata().tolist() == [60.0, 80.0, 100.0]
    assert "lower bound" in axes.get_legend_handles_labels()[1]


def test_one_of_several_graphs_is_drawn(matplotlib: Any) -> None:
    found = hr.compare([training("one"), training("two")], 40, "beam")
    assert found.plot().axes[0].get_title() == "one"
    assert found.plot(graph="two").axes[0].get_title() == "two"


def test_anytime_curves_follow_the_trajectory(matplotlib: Any) -> None:
    result = hr.solve(training(), 40, "beam")
    result.stats.trajectory[:] = [(0.01, 12.0), (0.5, 9.0)]
    axes = plot_anytime({"beam": result, "nothing": hr.solve(training(), 40, "none")}).axes[0]
    assert axes.lines[0].get_xydata().tolist() == [[0.01, 50.0], [0.5, 12.5], [result.wall_time, 12.5]]
    assert axes.get_legend_handles_labels()[1] == ["beam", "lower bound"]
    result.stats.trajectory.clear()
    assert plot_anytime({"beam": result}).axes[0].lines[0].get_xydata().tolist() == [[result.wall_time, 12.5]]
    plot_anytime({}).canvas.draw()


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_files_are_written_whole_and_equal_for_equal_pictures(
    matplotlib: Any, suffix: str, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        plot_memory(training(), RERUN_F0, budget=45, path=tmp_path / f"{name}.{suffix}")
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"a.{suffix}", f"b.{suffix}"]
    if suffix != "pdf":  # which carries its date
        assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_a_type_of_picture_that_does_not_exist_is_an_error(matplotlib: Any, tmp_path: Path) -> None:
    with pytest.raises(hr.InvalidValueError, match="no pictures of type 'txt'"):
        plot_memory(training(), RERUN_F0, path=tmp_path / "a.txt")
    with pytest.raises(hr.InvalidValueError, match="no pictures of type 'txt'"):
        check_picture("a.txt")
    check_picture(tmp_path / "a.svg")
    with pytest.raises(hr.InvalidValueError, match="by is 'date'"):
        plot_memory(training(), RERUN_F0, by="date")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(hr.MissingExtraError, match=r"hremate\[plot\]"):
        plot_memory(training(), RERUN_F0)
    with pytest.raises(hr.MissingExtraError, match=r"hremate\[plot\]"):
        plot_overhead({})
    with pytest.raises(hr.MissingExtraError, match=r"hremate\[plot\]"):
        check_picture("a.png")


def test_nothing_imports_matplotlib_or_pandas_unasked() -> None:
    code = (
        "import sys, hremate.plot, hremate.report, hremate.frontier, hremate.compare, hremate.trace\n"
        "print([m for m in ('matplotlib', 'pandas', 'selenium') if m in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert run.stdout.strip() == "[]"


# -- block trees ----------------------------------------------------------------------------------


def test_the_tree_has_a_node_for_each_block_with_its_ops() -> None:
    graph = hr.generate("transformer", 200)
    tree = intervals(graph, 4)
    text = block_tree_dot(graph, tree)
    assert text.count(" -> ") == len(tree.blocks) == 4
    for k, block in enumerate(tree.blocks):
        assert f'b{k} [label="block {k}\\n{len(block.forward)} + {len(block.backward)} ops' in text
    assert "h." in text  # the scope they have in common


def test_names_in_the_tree_are_quoted() -> None:
    graph = training('a"; evil -> b; \\')
    assert 'label="a\\"; evil -> b; \\\\\\n8 ops"' in block_tree_dot(graph, intervals(graph, 2))


def test_svg_where_graphviz_is_and_dot_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hr.generate("transformer", 200)
    tree = intervals(graph, 3)
    write_block_tree(graph, tree, tmp_path / "tree.dot")
    assert (tmp_path / "tree.dot").read_text() == block_tree_dot(graph, tree)
    if shutil.which("dot") is not None:
        write_block_tree(graph, tree, tmp_path / "tree.svg")
        assert ET.parse(tmp_path / "tree.svg").getroot().tag.endswith("svg")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(hr.MissingExtraError, match="graphviz"):
        write_block_tree(graph, tree, tmp_path / "other.svg")
