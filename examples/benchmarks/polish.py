"""What polish gains on schedules of several methods, as a Markdown table.

    python examples/benchmarks/polish.py examples/graphs/*.json.gz --budgets 80%,40% --methods cut

Each cell is overhead before > after / its lower bound in percent and the CPU seconds of polish alone (all
threads of this process; neither the bound nor the compilation of kernels counts); * marks what is proved
optimal in any order. CPU time is used because it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import sys
import time

from captured import setting

import hremate as hr
from hremate.solve import BOUND_SECONDS
from hremate.solvers.base import Deadline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="+", metavar="GRAPH")
    parser.add_argument("--budgets", default="80%,60%,50%,40%,30%", help="separated by commas (%(default)s)")
    parser.add_argument("--methods", default="cut,hierarchical", help="separated by commas (%(default)s)")
    parser.add_argument("--method-limit", type=float, default=20.0, metavar="S", help="(%(default)g)")
    parser.add_argument("--polish", type=float, default=30.0, metavar="S", help="wall seconds (%(default)g)")
    args = parser.parse_args()
    budgets, methods = args.budgets.split(","), args.methods.split(",")

    compile_kernels(methods)
    print(f"| graph (ops) | from | {' | '.join(budgets)} |")
    print("|---|---|" + "---|" * len(budgets))
    for path in args.graphs:
        graph = hr.read_graph(path)
        bounds = [bound(graph, b) for b in budgets]
        for method in methods:
            cells = [
                cell(graph, budget, method, least, args.method_limit, args.polish)
                for budget, least in zip(budgets, bounds, strict=True)
            ]
            print(f"| {graph.name} ({graph.n_ops:,}) | {method} | {' | '.join(cells)} |", flush=True)
    print(f"\n{setting()}")


def cell(
    graph: hr.Graph, budget: str, method: str, least: float, method_limit: float, seconds: float
) -> str:
    """Overhead before and after polish, its bound and the CPU seconds, or why there is no schedule."""
    before = hr.solve(graph, budget, method, time_limit=method_limit, lower_bound=least, polish=0)
    if before.schedule is None or before.status is hr.Status.INFEASIBLE:
        return str(before.status).replace("_", " ")
    start = time.process_time()
    after = hr.improve(graph, before.schedule, budget, time_limit=seconds, lower_bound=least)
    used = time.process_time() - start
    print(f"{graph.name} {budget} {method}: {after.status}, {after.wall_time:.1f} s wall", file=sys.stderr)
    if not after.solved or after.overhead is None:
        return str(after.status).replace("_", " ")
    hr.validate(graph, after.schedule or (), after.budget)
    first = f"{100 * before.overhead:.3f}" if before.solved and before.overhead is not None else "-"
    mark = "*" if after.proof == "any-order" else ""
    bound_text = f"{100 * (least / graph.total_time - 1):.3f}"
    return f"{first} > {100 * after.overhead:.3f}{mark} / {bound_text} ({used:.0f} s)"


def bound(graph: hr.Graph, budget: str) -> float:
    """A time that no schedule within the budget can beat, as far as is known after some seconds."""
    nbytes = hr.parse_budget(budget, hr.base_peak(graph))
    return hr.time_lower_bound(graph, nbytes, deadline=Deadline(BOUND_SECONDS)).time


def compile_kernels(methods: list[str]) -> None:
    """Solve something small, so that compilation is not part of the first measurement."""
    graph = hr.generate("transformer", 60)
    for method in methods:
        hr.solve(graph, "70%", method, polish=1)


if __name__ == "__main__":
    main()
