"""The bound on time as Markdown: one moment, several moments, and the scan over all ops.

    python examples/benchmarks/bounds.py examples/graphs/*.json.gz --budgets 80%,60%,50%,40%,30%

Each cell is the bound above the base time in percent, the number of moments it takes, and CPU seconds; an `=`
says that the search also came by a schedule of that very time. The last column is the CPU time of the bound
with each op as the only moment, at one price of memory.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import hremate as hr
from hremate.solvers.base import Deadline
from hremate.solvers.cut_model import any_order_bounds, rooms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="+", metavar="GRAPH")
    parser.add_argument("--budgets", default="80%,60%,50%,40%,30%", help="separated by commas (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="wall seconds of each")
    args = parser.parse_args()
    budgets = args.budgets.split(",")

    cell(hr.generate("transformer", 60), "50%", args.time_limit)  # compiles the kernels
    print(f"| graph (ops) | {' | '.join(budgets)} | all ops once |")
    print("|---|" + "---|" * len(budgets) + "---|")
    for path in args.graphs:
        graph = hr.read_graph(path)
        cells = [cell(graph, budget, args.time_limit) for budget in budgets]
        name = f"{graph.name} ({graph.n_ops:,})"
        print(f"| {name} | {' | '.join(cells)} | {scan_seconds(graph):.2f} s |", flush=True)


def cell(graph: hr.Graph, budget: str, seconds: float) -> str:
    nbytes = hr.parse_budget(budget, hr.base_peak(graph))
    floor = hr.memory_lower_bound(graph).bytes
    if nbytes < floor:
        return "infeasible"
    start = time.process_time()
    bound = hr.time_lower_bound(graph, nbytes, deadline=Deadline(seconds))
    used = time.process_time() - start
    met = bound.order is not None and graph.time[bound.order].sum() <= bound.time + 1e-6 * graph.total_time
    percent = 100 * (bound.time / graph.total_time - 1)
    return f"{percent:.3f}{'=' if met else ''} (K = {len(bound.moments)}, {used:.1f} s)"


def scan_seconds(graph: hr.Graph) -> float:
    """CPU seconds of the Lagrangian bound with each op as the moment."""
    budget = hr.base_peak(graph) // 2
    price = graph.total_time / float(graph.size.sum())
    start = time.process_time()
    any_order_bounds(graph, np.arange(graph.n_ops), rooms(graph, budget)[0], price)
    return time.process_time() - start


if __name__ == "__main__":
    main()
