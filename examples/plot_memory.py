"""Plot the memory of a graph over time: the given order against a schedule with recomputation.

    pip install "hremate[plot]"
    python examples/plot_memory.py examples/graphs/gpt2-12.json.gz --budget 40% -o docs/memory.svg

The same graph, budget, method and versions give the same picture, byte for byte.
"""

from __future__ import annotations

import argparse

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import hremate as hr

GIB = 2.0**30
#: Seconds in a time unit of the graphs at hand.
SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph")
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--method", default="hierarchical")
    parser.add_argument("--time-limit", type=float)
    parser.add_argument("-o", "--output", default="memory.svg", help="SVG, PNG or PDF")
    args = parser.parse_args()

    graph = hr.read_graph(args.graph)
    result = hr.solve(graph, args.budget, args.method, time_limit=args.time_limit)
    print(result)
    if result.schedule is None:
        raise SystemExit("nothing to plot")
    draw(graph, result, args.output)


def draw(graph: hr.Graph, result: hr.Result, path: str) -> None:
    """Memory of every step against the time at which the step runs, for both schedules."""
    plt.rcParams.update({"svg.hashsalt": "hremate", "font.family": "sans-serif"})
    unit = graph.units[0]
    scale, label = (SECONDS[unit] * 1e3, "ms") if unit in SECONDS else (1.0, unit)
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")

    base_edges, base = profile(graph, np.arange(graph.n_ops), scale)
    axes.stairs(base, base_edges, fill=True, color="0.85")
    axes.stairs(base, base_edges, color="0.45", linewidth=1.0, label="given order")

    order = result.schedule.order
    edges, memory = profile(graph, order, scale)
    axes.stairs(memory, edges, color="tab:blue", linewidth=1.2, label="hremate")
    axes.axhline(
        result.budget / GIB, color="tab:red", linestyle="--", linewidth=1.2,
        label=f"budget, {result.budget / result.base_peak:.0%} of the peak",
    )  # fmt: skip

    # A strip along the axis shows when the schedule recomputes.
    again = np.ones(len(order), np.int64)
    again[np.unique(order, return_index=True)[1]] = 0
    change = np.diff(again, prepend=0, append=0)
    first, last = edges[np.flatnonzero(change == 1)], edges[np.flatnonzero(change == -1)]
    axes.broken_barh(
        list(zip(first, last - first, strict=True)), (0, 0.02), color="tab:orange", linewidth=0,
        transform=axes.get_xaxis_transform(), label="recomputation",
    )  # fmt: skip

    axes.set_xlim(0, max(edges[-1], base_edges[-1]))
    axes.set_ylim(0, 1.05 * max(base.max(), memory.max()))
    axes.set_xlabel(f"time ({label})")
    axes.set_ylabel("memory (GiB)")
    axes.set_title(
        f"{graph.name}: peak {result.base_peak / GIB:.2f} to {result.peak / GIB:.2f} GiB "
        f"for {result.overhead:.1%} more time"
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper right")
    figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None, dpi=150)


def profile(graph: hr.Graph, order: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """The times between which each step runs (one more than steps), and its memory in GiB."""
    edges = np.concatenate([[0.0], np.cumsum(graph.time[order])]) * scale
    return edges, hr.simulate(graph, order).memory / GIB


if __name__ == "__main__":
    main()
