"""Certified optima of small graphs, as a Markdown table.

    python examples/benchmarks/proofs.py cm1-fcn8.json.gz:90% cm1-fcn8.json.gz:80%
    python examples/benchmarks/proofs.py rl100.json.gz:90% --method moccasin --time-limit 600

The bounds are what was proved: no schedule staged along the given order, and none in any order, has less
overhead. Seconds are wall time, compilation of kernels left out.
"""

from __future__ import annotations

import argparse
import sys

import hremate as hr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="+", metavar="GRAPH:BUDGET")
    parser.add_argument("--method", default="exact")
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="S", help="of each (%(default)g)")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    compile_kernels(args.method)
    print("| graph (ops) | budget | overhead % | bound, given order | bound, any order | proved | s |")
    print("|---|---|---|---|---|---|---|")
    for case in args.cases:
        path, _, budget = case.rpartition(":")
        graph = hr.read_graph(path)
        result = hr.solve(graph, budget, args.method, time_limit=args.time_limit, seed=args.seed)
        print(row(graph, budget, result), flush=True)


def row(graph: hr.Graph, budget: str, result: hr.Result) -> str:
    """A line of the table; the schedule is checked once more."""
    if result.solved:
        hr.validate(graph, result.schedule or (), result.budget)
    times = (result.time if result.solved else None, result.order_lower_bound, result.lower_bound)
    proved = {"any-order": "optimal, any order", "staged": "optimal, given order"}.get(result.proof or "")
    cells = [
        f"{graph.name} ({graph.n_ops:,})",
        budget,
        *[percent(time, result.base_time) for time in times],
        proved or result.reason or "-",
        f"{result.wall_time:.1f}",
    ]
    print(f"{graph.name} {budget}: {result.status}", file=sys.stderr)
    return f"| {' | '.join(cells)} |"


def percent(time: float | None, base_time: float) -> str:
    """Overhead of a total time in percent."""
    return "-" if time is None else f"{100 * (time / base_time - 1):.4f}"


def compile_kernels(method: str) -> None:
    """Solve something small, so that compilation is not part of the first measurement."""
    graph = hr.generate("transformer", 60)
    hr.solve(graph, "70%", method, time_limit=5.0)


if __name__ == "__main__":
    main()
