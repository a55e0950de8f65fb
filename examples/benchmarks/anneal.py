"""Annealing on graphs with published figures, as Markdown tables.

    python examples/benchmarks/anneal.py DATA [--part layered|proved|challenge|captured|speed]

DATA is a folder with the sub-folders `public` (rl100.json.gz, cm1-fcn8.json.gz, huawei-example1.txt, ...) and
`captured`. Seconds are CPU time of this process, so that other load does not count; overheads are % of the
sum of all op times. A row gives the best and the median of the seeds, and the goal.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from statistics import median

import hremate as hr
from hremate.solvers import anneal as solver
from hremate.solvers.anneal import anneal
from hremate.solvers.base import Deadline, Run

#: Per graph: budgets in % of the base peak and the overheads (%) to reach.
LAYERED = {
    "rl100": {90: 0.0, 80: 0.0, 70: 2.144},
    "rl250": {90: 0.0, 80: 0.0, 70: 0.899},
    "rl500": {90: 0.0, 80: 0.848, 70: 3.997},
    "rl1000": {90: 0.105, 80: 1.519, 70: 4.786},
}
PROVED = {
    "cm1-fcn8": {90: 0.0294, 80: 0.1361, 70: 0.8915},
    "cm2-resnet50": {90: 0.1085, 80: 0.2786, 70: 0.5645},
}
CAPTURED = {
    "mlp-8": {80: 12.584, 60: 20.973, 50: 29.36, 40: 46.14, 30: 151.008},
    "unet": {80: 2.95, 60: 7.46, 50: 10.04, 40: 13.64, 30: 26.29},
    "mlp-mixer-8": {80: 3.535, 60: 7.440, 50: 10.807, 40: 14.212, 30: 17.73},
    "resnet50": {80: 2.170, 60: 5.780, 50: 9.309, 40: 13.030, 30: 17.921},
    "gpt2-5": {80: 3.287, 60: 12.14, 50: 20.16},
    "encdec-transformer-4": {80: 2.96, 60: 6.29, 50: 8.86, 40: 11.676, 30: 16.56},
    "resnet101": {80: 2.082, 60: 5.856, 50: 9.056, 40: 12.980, 30: 18.10},
    "gpt2-12": {80: 3.009, 60: 6.5775, 50: 11.506, 40: 17.368, 30: 23.64},
    "diffusion-unet": {80: 4.90, 60: 9.74, 50: 12.21, 40: 16.54},
    "llama-16": {80: 2.501, 60: 4.960, 50: 7.23, 40: 11.68, 30: 16.03},
    "gpt2-xl-48": {80: 2.176, 60: 4.572, 50: 6.270, 40: 10.380, 30: 14.73},
}
#: Total times to reach on the first example of the Huawei challenge.
CHALLENGE = {"coexist": 38_062, "reuse": 36_316}
#: Graphs of more ops get three times as long.
LARGE = 1_000


class CpuDeadline(Deadline):
    """A moment on the CPU clock of this process."""

    def __init__(self, seconds: float | None = None) -> None:
        self.start = time.process_time()
        self.end = None if seconds is None else self.start + seconds

    @property
    def remaining(self) -> float:
        return math.inf if self.end is None else max(0.0, self.end - time.process_time())

    @property
    def expired(self) -> bool:
        return self.remaining <= 0

    @property
    def elapsed(self) -> float:
        return time.process_time() - self.start

    def within(self, seconds: float) -> CpuDeadline:
        return CpuDeadline(min(seconds, self.remaining))


def row(graph: hr.Graph, budget: int, label: str, goal: float, seconds: float, seeds: int) -> None:
    """One line of a table: `goal` in % of overhead."""
    if graph.n_ops > LARGE:
        seconds *= 3
    bound = hr.time_lower_bound(graph, budget, deadline=CpuDeadline(20.0))
    lower = bound.time
    found, used = [], []
    for seed in range(seeds):
        run = Run(
            seed=seed, deadline=CpuDeadline(seconds), lower_bound=lower, bounded=True, bound_order=bound.order
        )
        run.listen(None)
        result = solver.solve(graph, budget, run, solver.Params())
        if result.solved and result.schedule is not None:
            hr.validate(graph, result.schedule, budget)
            found.append(percent(graph, result.time))
            used.append(run.stats.trajectory[-1][0])
    middle = f"{median(found):.4f}" if len(found) == seeds else "-"
    best = f"{min(found):.4f}" if found else "-"
    print(f"| {graph.name} ({graph.n_ops:,}) | {label} | {best} | {middle} | {goal:.4f} | "
          f"{percent(graph, lower):.4f} | {median(used) if used else seconds:.1f} |", flush=True)  # fmt: skip


def percent(graph: hr.Graph, total: float | None) -> float:
    """Overhead of a total time in percent."""
    return math.inf if total is None else 100 * (total / graph.total_time - 1)


def table(folder: Path, goals: dict[str, dict[int, float]], args: argparse.Namespace) -> None:
    """Every graph of `goals` in `folder` at its budgets."""
    print("\n| graph (ops) | budget | best | median | goal | bound | s to the best |")
    print("|---|---|---|---|---|---|---|")
    for name, budgets in goals.items():
        path = folder / f"{name}.json.gz"
        if args.graph not in (None, name) or not path.exists():
            continue
        graph = hr.read_graph(path)
        for share, goal in budgets.items():
            if args.budget in (None, share):
                budget = hr.base_peak(graph) * share // 100
                row(graph, budget, f"{share} %", goal, args.time_limit, args.seeds)


def challenge(folder: Path, args: argparse.Namespace) -> None:
    """The first example of the challenge at its limit, half the time."""
    print("\n| graph (ops) | memory model | best | median | goal | bound | s to the best |")
    print("|---|---|---|---|---|---|---|")
    for model, goal in CHALLENGE.items():
        graph = hr.read_graph(folder / "huawei-example1.txt", memory_model=model)
        budget = int(graph.metadata["budget"])
        row(graph, budget, model, percent(graph, goal), args.time_limit / 2, args.seeds)


def speed() -> None:
    """Moves evaluated per second of CPU time, from a schedule near the budget."""
    print("\n| graph | ops | moves / s |")
    print("|---|---|---|")
    for kind, ops in (("layered", 100), ("transformer", 100), ("layered", 3000), ("transformer", 3000)):
        graph = hr.generate(kind, ops, seed=1)
        budget = hr.base_peak(graph) * 8 // 10
        first = anneal(graph, range(graph.n_ops), budget, deadline=CpuDeadline(5.0), softness=math.inf)
        found = anneal(graph, first.order, budget, deadline=CpuDeadline(5.0))
        print(f"| {kind} | {graph.n_ops:,} | {found.proposals / 5.0:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--part", choices=["layered", "proved", "challenge", "captured", "speed"])
    parser.add_argument("--graph", help="only this one")
    parser.add_argument("--budget", type=int, help="only this one, in percent")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="of each (%(default)g)")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()

    small = hr.generate("transformer", 60)
    hr.solve(small, "70%", "anneal", proposals=1_000)  # compiles the kernels
    if args.part in (None, "layered"):
        table(args.data / "public", LAYERED, args)
    if args.part in (None, "proved"):
        table(args.data / "public", PROVED, args)
    if args.part in (None, "challenge"):
        challenge(args.data / "public", args)
    if args.part in (None, "captured"):
        table(args.data / "captured", CAPTURED, args)
    if args.part in (None, "speed"):
        speed()


if __name__ == "__main__":
    main()
