"""Make the pictures of the documentation anew, from real solves.

    pip install "hremate[plot]"
    python docs/images/make.py

Those of the tutorial come from the code in it, run literally. graphviz draws the block tree, and chromium
photographs the report; where one is missing, its picture stays as it is, and a line says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hremate as hr
from hremate import cli
from hremate._timeline import timeline
from hremate.partition.nested import Limits, nested
from hremate.plot import BAND_COLORS, LINE_COLORS, write_block_tree

IMAGES = Path(__file__).resolve().parent
ROOT = IMAGES.parent.parent
GRAPHS = ROOT / "examples" / "graphs"
FENCE = re.compile(r"(^<!-- needs \w+ -->\n)?^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TUTORIAL = ("given.svg", "memory.svg", "overhead.svg", "frontier.svg")


def main() -> None:
    plt.rcParams.update({"svg.hashsalt": "hremate", "axes.spines.top": False, "axes.spines.right": False})
    copies()
    memory()
    overhead()
    block_tree()
    tutorial()


def copies() -> None:
    """What is in memory at each step of a graph of four ops, kept and recomputed."""
    graph = hr.Graph.from_ops(
        [
            hr.Op("a", 1.0, (), (("x", 8),)),
            hr.Op("b", 5.0, ("x",), (("y", 2),)),
            hr.Op("c", 5.0, ("y",), (("z", 9),)),
            hr.Op("d", 5.0, ("x", "z"), (("loss", 1),)),
        ],
        ["loss"],
    )
    figure, panels = plt.subplots(
        1, 2, figsize=(9, 3.2), sharey=True, layout="constrained", width_ratios=(4, 5)
    )
    for axes, order in zip(panels, ([0, 1, 2, 3], [0, 1, 2, 0, 3]), strict=True):
        line = timeline(graph, order)
        below = np.zeros(len(order), np.int64)
        for tensor, color in enumerate(("#56B4E9", "#009E73", "#CC79A7", "#9A9A9A")):
            alive = np.zeros(len(order), np.int64)
            for copy, born, dead in zip(line.copy, line.birth, line.death, strict=True):
                if copy == tensor:
                    alive[born : dead + 1] = graph.size[tensor]
            axes.bar(range(len(order)), alive, 0.92, below, color=color, edgecolor="white")
            for step in np.flatnonzero(alive):
                label = graph.tensor_names[tensor]
                middle = below[step] + alive[step] / 2
                axes.text(step, middle, label, ha="center", va="center", fontsize=9 if alive[step] > 1 else 6)
            below += alive
        axes.axhline(18, color="black", linestyle="--", linewidth=1)
        names = [graph.op_names[op] for op in order]
        again = [f"{name}\nagain" if name in names[:k] else name for k, name in enumerate(names)]
        axes.set_xticks(range(len(order)), again)
        axes.set_title(f"peak {line.peak} bytes, time {line.time:g}", fontsize=10)
    panels[0].set_ylabel("memory (bytes)")
    panels[0].text(-0.45, 18.2, "budget 18", fontsize=9, va="bottom")
    panels[0].set_ylim(0, 21)
    save(figure, "copies.svg")


def memory() -> None:
    """A training step in the given order, and within half of the memory."""
    graph = hr.read_graph(GRAPHS / "unet.json.gz")
    result = hr.solve(graph, "50%", "cut")
    figure, panels = plt.subplots(2, 1, figsize=(9, 5.4), sharex=True, sharey=True, layout="constrained")
    end = (result.time or 0.0) / 1e3
    for axes, order, title in (
        (panels[0], range(graph.n_ops), "the given order"),
        (panels[1], result.schedule, f"a schedule for half of the memory: {result.overhead:.1%} more time"),
    ):
        bands(axes, graph, hr.Schedule(order))
        axes.axhline(result.budget / 2**30, color="black", linestyle="--", linewidth=1, label="budget")
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_ylabel("memory (GiB)")
    panels[1].set_xlabel("time (ms)")
    panels[1].set_xlim(0, end)
    panels[0].legend(frameon=False, fontsize=9)
    save(figure, "memory.svg")


def bands(axes: Axes, graph: hr.Graph, schedule: hr.Schedule) -> None:
    """The memory of a schedule in parts, as `plot_memory` draws it."""
    line = timeline(graph, schedule)
    edges, below = line.start / 1e3, np.zeros(len(line.order))
    labels = ("kept from the forward part", "computed again", "backward part", "the running op")
    for band, color, label in zip(line.bands / 2**30, BAND_COLORS, labels, strict=True):
        above = below + band
        axes.stairs(above, edges, baseline=below, fill=True, color=color, linewidth=0, label=label)
        below = above


def overhead() -> None:
    """What memory costs on four training steps."""
    figure, axes = plt.subplots(figsize=(7.5, 4.4), layout="constrained")
    for k, name in enumerate(("unet", "resnet50", "mlp-mixer-8", "gpt2-12")):
        graph = hr.read_graph(GRAPHS / f"{name}.json.gz")
        budgets = range(100, 24, -5)
        results = [hr.solve(graph, f"{percent}%", "cut", time_limit=10) for percent in budgets]
        solved = [(percent, r) for percent, r in zip(budgets, results, strict=True) if r.solved]
        shares = [percent for percent, _ in solved]
        above = [100 * (r.overhead or 0.0) for _, r in solved]
        bounds = [100 * max((r.lower_bound or 0.0) / r.base_time - 1, 0.0) for _, r in solved]
        color = LINE_COLORS[k]
        axes.plot(shares, above, color=color, marker="o", markersize=3.5, linewidth=1.5, label=name)
        axes.fill_between(shares, bounds, above, color=color, alpha=0.25, linewidth=0)
    axes.set_xlabel("budget (% of the base peak)")
    axes.set_ylabel("overhead (% of the base time)")
    axes.set_ylim(0, 45)
    axes.set_xlim(24, 101)
    axes.grid(color="#E4E4E4", linewidth=0.6)
    axes.legend(frameon=False)
    save(figure, "overhead.svg")


def block_tree() -> None:
    """The blocks of a transformer."""
    if not shutil.which("dot"):
        print("tree.svg: graphviz is not installed")
        return
    graph = hr.read_graph(GRAPHS / "gpt2-12.json.gz")
    write_block_tree(graph, nested(graph, Limits(blocks=4, leaf_ops=100)), IMAGES / "tree.svg")


def tutorial() -> None:
    """Run docs/tutorial.md in a folder of its own, and take its pictures."""
    text = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.symlink(ROOT / "examples", "examples")
        names: dict[str, object] = {"__name__": "tutorial"}
        for needs, language, block in FENCE.findall(text):
            if needs:
                continue
            if language == "python":
                exec(compile(block, "tutorial.md", "exec"), names)
            for line in block.splitlines() if language == "sh" else ():
                if line.startswith("hremate "):
                    cli.main(line.split()[1:])
        for name in TUTORIAL:
            shutil.copy(name, IMAGES / f"tutorial-{name}")
            shorten(IMAGES / f"tutorial-{name}")
        photograph(Path("gpt2-5.html").resolve(), IMAGES / "tutorial-report.png")
        os.chdir(ROOT)


def photograph(page: Path, picture: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        print(f"{picture.name}: chromium is not installed")
        return
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--window-size=1280,1000", f"--user-data-dir={profile}", f"--screenshot={picture}",
             page.as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip


def save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / name, metadata={"Date": None})
    plt.close(figure)
    shorten(IMAGES / name)


def shorten(picture: Path) -> None:
    """Paths to a tenth of a point, a point at a time, which makes the file several times smaller."""
    text = picture.read_text(encoding="utf-8")
    picture.write_text(re.sub(r' d="([^"]*)"', _shorter, text), encoding="utf-8")


def _shorter(match: re.Match[str]) -> str:
    lines = re.sub(r"(\.\d)\d+", r"\1", match[1]).splitlines()
    return ' d="' + "\n".join(line for k, line in enumerate(lines) if k == 0 or line != lines[k - 1]) + '"'


if __name__ == "__main__":
    main()
