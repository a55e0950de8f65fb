"""Pictures with matplotlib: memory of a schedule, overhead against budget, anytime curves; and block trees.

Each `plot_` function returns a `matplotlib.figure.Figure` that belongs to no window, and writes it where
`path` is given; the suffix chooses the format (png, svg, pdf, ...). Colours are those of Okabe and Ito,
which colour-blind readers tell apart. matplotlib (extra `plot`) is imported when a picture is drawn.
"""

from __future__ import annotations

import io
import os
import secrets
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hremate._files import Source
from hremate._timeline import BANDS, MICROSECONDS, Timeline, timeline
from hremate._tree_plot import block_tree_dot, write_block_tree
from hremate.budget import format_bytes
from hremate.errors import InvalidValueError, MissingExtraError
from hremate.graph import Graph, IntArray
from hremate.result import Result
from hremate.schedule import Schedule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "block_tree_dot",
    "check_picture",
    "plot_anytime",
    "plot_memory",
    "plot_overhead",
    "write_block_tree",
]

#: Of each of `BANDS`.
BAND_COLORS = ("#56B4E9", "#D55E00", "#009E73", "#9A9A9A")
LINE_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
#: Anytime curves that span more than this ratio of wall times are drawn on a logarithmic axis.
LOG_RATIO = 30
#: A schedule with more steps is drawn in this many columns, each with its largest memory.
MAX_COLUMNS = 2000


def check_picture(path: Source) -> None:
    """Raise, before the work that leads to a picture, where it could not be written to `path`.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    InvalidValueError
        The suffix names no type of picture.
    """
    figure, _ = _figure(1.0, 1.0)
    _picture_type(figure, path)


def plot_memory(
    graph: Graph,
    schedule: Schedule | Iterable[int],
    *,
    budget: int | None = None,
    by: str = "time",
    path: Source | None = None,
) -> Figure:
    """Memory of `schedule` over time, in parts: kept from first runs, recomputed, backward, running op.

    Parameters
    ----------
    graph : Graph
    schedule : Schedule or sequence of int
        A valid schedule.
    budget : int, optional
        Bytes; a dashed line.
    by : str
        What runs along the axis: "time", in the unit of the graph, or "step".
    path : path, optional
        File to write.

    Raises
    ------
    ScheduleError
        The schedule is not valid for the graph.
    InvalidValueError
        `by` is neither.
    MissingExtraError
        matplotlib is not installed.
    """
    if by not in ("time", "step"):
        raise InvalidValueError(f"by is {by!r}; expected 'time' or 'step'")
    line = timeline(graph, schedule)
    time_label, time_scale = _time_unit(graph.units[0], float(line.start[-1]))
    timed = by == "time" and line.start[-1] > 0
    edges = line.start / time_scale if timed else np.arange(len(line.order) + 1.0)
    figure, axes = _figure(9.0, 4.2)
    top = max(line.peak, budget or 0)
    unit, scale = _byte_unit(top)
    starts, shown = _columns(line)
    x = np.append(edges[starts], edges[-1])
    below = np.zeros(len(x))
    for band, color, label in zip(line.bands[:, shown], BAND_COLORS, BANDS, strict=True):
        above = below + np.append(band, band[-1]) / scale
        axes.fill_between(x, below, above, step="post", color=color, linewidth=0, label=label)
        below = above
    if budget is not None:
        axes.axhline(
            budget / scale, color="black", linewidth=1, linestyle="--", label=f"budget {format_bytes(budget)}"
        )
    middle = (edges[line.peak_step] + edges[line.peak_step + 1]) / 2
    axes.plot(
        [middle], [line.peak / scale], "v", color="black", markersize=6,
        label=f"peak {format_bytes(line.peak)}",
    )  # fmt: skip
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylim(0, 1.08 * top / scale if top else 1)
    axes.set_xlabel(time_label if timed else "step")
    axes.set_ylabel(f"memory ({unit})")
    overhead = line.time / graph.total_time - 1 if graph.total_time > 0 else 0.0
    again = len(line.order) - graph.n_ops
    facts = f"{again} recomputed of {len(line.order)} steps, overhead {overhead:.2%}"
    axes.set_title(f"{_plain(graph.name)}: {facts}")
    _legend_below(axes)
    return _finished(figure, path)


def plot_overhead(curves: Mapping[str, Iterable[Any]], *, path: Source | None = None) -> Figure:
    """Overhead against budget, one curve for each method, with the lower bound.

    Parameters
    ----------
    curves : mapping of str to rows
        Label -> results for one graph at several budgets: the `points` of a frontier, or the rows of a
        comparison. Several results at one budget are shown as their median, with a bar from the best to
        the worst. Rows without a schedule within the budget are left out.
    path : path, optional
        File to write.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    figure, axes = _figure(7.5, 4.6)
    bounds: dict[float, float] = {}
    title = ""
    for k, (label, rows) in enumerate(curves.items()):
        known = [row for row in rows if isinstance(row, Result)]
        found: dict[float, list[float]] = {}
        for row in known:
            title = row.graph
            share = 100 * row.budget / row.base_peak if row.base_peak else 100.0
            if row.solved and row.overhead is not None:
                found.setdefault(share, []).append(100 * row.overhead)
            if row.lower_bound is not None and row.base_time > 0:
                bound = max(100 * (row.lower_bound / row.base_time - 1), 0.0)
                bounds[share] = max(bounds.get(share, 0.0), bound)
        if not found:
            continue
        shares = sorted(found)
        middle = [statistics.median(found[share]) for share in shares]
        spread = [
            [m - min(found[share]) for share, m in zip(shares, middle, strict=True)],
            [max(found[share]) - m for share, m in zip(shares, middle, strict=True)],
        ]
        axes.errorbar(
            shares, middle, yerr=spread if any(map(any, spread)) else None, capsize=3, linewidth=1.6,
            color=LINE_COLORS[k % len(LINE_COLORS)], marker=MARKERS[k % len(MARKERS)], markersize=5,
            label=_plain(label),
        )  # fmt: skip
    if bounds:
        shares = sorted(bounds)
        values = [bounds[share] for share in shares]
        # What holds at a budget holds below it, so between two budgets the bound is that of the larger.
        axes.fill_between(shares, 0, values, step="pre", color="#9A9A9A", alpha=0.25, linewidth=0)
        axes.step(
            shares, values, where="pre", color="#606060", linestyle="--", linewidth=1.2, zorder=4,
            label="lower bound",
        )  # fmt: skip
    axes.set_xlabel("budget (% of the base peak)")
    axes.set_ylabel("overhead (% of the base time)")
    axes.set_ylim(bottom=0)
    axes.set_title(_plain(title))
    axes.grid(color="#E4E4E4", linewidth=0.6)
    axes.legend(frameon=False)
    return _finished(figure, path)


def plot_anytime(curves: Mapping[str, Result], *, path: Source | None = None) -> Figure:
    """How the overhead of the best schedule fell with wall time, from `stats.trajectory`.

    Parameters
    ----------
    curves : mapping of str to Result
        Label -> result for one graph and budget. A result without a trajectory is a point at its end.
    path : path, optional
        File to write.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    figure, axes = _figure(7.5, 4.6)
    bound, title = 0.0, ""
    for k, (label, result) in enumerate(curves.items()):
        base = result.base_time if result.base_time > 0 else 1.0
        title = f"{result.graph}, budget {format_bytes(result.budget)}"
        bound = max(bound, (result.lower_bound or 0.0) / base - 1)
        if not result.solved or result.time is None:
            continue
        moments = [*result.stats.trajectory, (result.wall_time, result.time)]
        seconds = [moment for moment, _ in moments]
        overheads = [100 * (time / base - 1) for _, time in moments]
        axes.step(
            seconds, overheads, where="post", linewidth=1.6, color=LINE_COLORS[k % len(LINE_COLORS)],
            marker=MARKERS[k % len(MARKERS)], markersize=4, label=_plain(label),
        )  # fmt: skip
    if bound > 0:
        axes.axhline(100 * bound, color="#606060", linestyle="--", linewidth=1.2, label="lower bound")
    seconds = [moment for r in curves.values() for moment, _ in r.stats.trajectory if moment > 0]
    if seconds and max(r.wall_time for r in curves.values()) > LOG_RATIO * min(seconds):
        axes.set_xscale("log")
    axes.set_xlabel("wall time (s)")
    axes.set_ylabel("overhead (% of the base time)")
    axes.set_title(_plain(title))
    axes.grid(color="#E4E4E4", linewidth=0.6)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(frameon=False)
    return _finished(figure, path)


def _columns(line: Timeline) -> tuple[IntArray, IntArray]:
    """First step of each column, and the step of the largest memory in it."""
    steps = len(line.order)
    starts = np.unique(np.linspace(0, steps, min(steps, MAX_COLUMNS), endpoint=False).astype(np.int64))
    columns = zip(starts.tolist(), [*starts[1:].tolist(), steps], strict=True)
    shown = [first + int(np.argmax(line.memory[first:end])) for first, end in columns]
    return starts, np.array(shown, np.int64)


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("pictures need matplotlib: pip install 'hremate[plot]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend_below(axes: Any) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=6, frameon=False, fontsize="small")


def _time_unit(unit: str, longest: float) -> tuple[str, float]:
    """The label of an axis of times up to `longest`, and by what they are divided."""
    if unit not in MICROSECONDS:
        return (f"time ({unit})" if unit not in ("", "abstract") else "time"), 1.0
    fitting = [name for name, scale in MICROSECONDS.items() if longest * MICROSECONDS[unit] >= 10 * scale]
    shown = fitting[-1] if fitting else unit
    return f"time ({shown})", MICROSECONDS[shown] / MICROSECONDS[unit]


def _byte_unit(nbytes: int) -> tuple[str, int]:
    """The unit in which `format_bytes` would write `nbytes`, and its bytes."""
    unit = format_bytes(nbytes).split()[1]
    return unit, 1 << 10 * ("B", "KiB", "MiB", "GiB", "TiB").index(unit)


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula, nor hides (labels that begin with an underscore)."""
    return f" {text}".replace("$", r"\$") if text.startswith("_") else text.replace("$", r"\$")


def _picture_type(figure: Figure, path: Source) -> str:
    """The type of picture that a file name asks for."""
    suffix = Path(path).suffix[1:].lower() or "png"
    if suffix not in figure.canvas.get_supported_filetypes():
        raise InvalidValueError(f"{os.fspath(path)}: no pictures of type {suffix!r}; use .png, .svg or .pdf")
    return suffix


def _finished(figure: Figure, path: Source | None) -> Figure:
    """`figure`, written to `path` as a whole or not at all."""
    if path is None:
        return figure
    suffix = _picture_type(figure, path)
    import matplotlib

    picture = io.BytesIO()
    # Equal figures give equal files.
    metadata = {"Date": None} if suffix in ("svg", "svgz") else {}
    with matplotlib.rc_context({"svg.hashsalt": "hremate"}):
        figure.savefig(picture, format=suffix, dpi=160, metadata=metadata or None)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(picture.getvalue())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return figure
