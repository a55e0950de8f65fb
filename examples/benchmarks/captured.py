"""Overhead of schedules at several budgets, as a Markdown table.

    python examples/benchmarks/captured.py examples/graphs/*.json.gz --budgets 70%,50%,40%
    python examples/benchmarks/captured.py examples/graphs/*.json.gz --method hierarchical --method anneal

With several methods, and with polish and without, a graph has one row for each.

Each cell is overhead / its lower bound in percent, or the overhead alone where it is proved optimal in any
order, and the CPU seconds that solve and bound took in this process (all threads; the compilation of kernels
does not count). CPU time is used because it depends less on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from itertools import product

import hremate as hr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="+", metavar="GRAPH")
    parser.add_argument("--budgets", default="70%,50%,40%", help="separated by commas (%(default)s)")
    parser.add_argument("--method", action="append", help="maybe several (hierarchical)")
    parser.add_argument("--polish", type=float, action="append", metavar="S", help="as in solve")
    parser.add_argument("--time-limit", type=float, metavar="S", help="wall seconds of each solve")
    parser.add_argument("--large", type=float, metavar="S", help="those of graphs of more than 1,000 ops")
    args = parser.parse_args()
    budgets = args.budgets.split(",")
    methods = args.method or ["hierarchical"]

    for method in methods:
        compile_kernels(method)
    print(f"| graph (ops) | method | {' | '.join(budgets)} |")
    print("|---|---|" + "---|" * len(budgets))
    for path, method, polish in product(args.graphs, methods, args.polish or [None]):
        graph = hr.read_graph(path)
        limit = args.large if args.large is not None and graph.n_ops > 1_000 else args.time_limit
        cells = [cell(graph, budget, method, limit, polish) for budget in budgets]
        label = method if polish is None else f"{method}, polish {polish:g} s"
        print(f"| {graph.name} ({graph.n_ops:,}) | {label} | {' | '.join(cells)} |", flush=True)
    print(f"\n{setting()}")


def cell(graph: hr.Graph, budget: str, method: str, time_limit: float | None, polish: float | None) -> str:
    """Overhead, bound and seconds of one solve, or why there is no schedule."""
    nbytes = hr.parse_budget(budget, hr.base_peak(graph))
    start = time.process_time()
    result = hr.solve(graph, nbytes, method, time_limit=time_limit, polish=polish)
    seconds = time.process_time() - start
    print(f"{graph.name} {budget}: {result.status}, {result.wall_time:.1f} s wall", file=sys.stderr)
    if not result.solved or result.overhead is None:
        return str(result.status).replace("_", " ")
    hr.validate(graph, result.schedule or (), result.budget)
    figures = f"{100 * result.overhead:.3f}"
    if result.proof != "any-order" and result.lower_bound is not None:
        figures += f" / {100 * (result.lower_bound / graph.total_time - 1):.3f}"
    return f"{figures} ({seconds:.1f} s)"


def compile_kernels(method: str) -> None:
    """Solve something small, so that compilation is not part of the first measurement."""
    graph = hr.generate("transformer", 60)
    hr.solve(graph, "70%", method)


def setting() -> str:
    """What the figures were measured with."""
    from importlib.metadata import version

    import pyscipopt

    scip = pyscipopt.Model().version()
    return (
        f"hremate {hr.__version__}, Python {platform.python_version()}, NumPy {version('numpy')}, "
        f"numba {version('numba')}, SCIP {scip:.1f} (PySCIPOpt {version('pyscipopt')}), "
        f"{os.cpu_count()} cores"
    )


if __name__ == "__main__":
    main()
