"""What the hierarchy costs and what it gains: small graphs against proved optima, large ones against `cut`.

    python examples/benchmarks/hierarchy.py --part optimum
    python examples/benchmarks/hierarchy.py --part depth
    python examples/benchmarks/hierarchy.py --part scale --graphs rnn:100000 --budgets 30% --time-limit 600

`optimum`: overhead of two levels before polish, above the optimum that `exact` proves, on small graphs.
`depth`: overhead of three levels against two on the same graphs. `scale`: hierarchical against other
methods at equal time limits on generated graphs. Overheads in percent; Markdown tables.
"""

from __future__ import annotations

import argparse
import resource
import sys

import hremate as hr

SMALL = ["chain:100", "transformer:70", "unet:60", "resnet:60", "encdec:70", "ssm:60", "rnn:60"]
MEDIUM = ["chain:600", "transformer:600", "unet:600", "ssm:600"]
LARGE = ["transformer:100000", "unet:100000", "rnn:100000", "ssm:100000", "chain:100000"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=["optimum", "depth", "scale"], required=True)
    parser.add_argument("--graphs", help="KIND:OPS[:SEED], separated by commas (default: by part)")
    parser.add_argument("--budgets", default="70%,50%", help="separated by commas (%(default)s)")
    parser.add_argument("--methods", default="hierarchical,cut", help="of the part scale (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="each (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="(%(default)s)")
    args = parser.parse_args()
    chosen = {"optimum": SMALL, "depth": MEDIUM, "scale": LARGE}[args.part]
    graphs = [generated(spec) for spec in (args.graphs.split(",") if args.graphs else chosen)]
    {"optimum": optimum, "depth": depth, "scale": scale}[args.part](graphs, args.budgets.split(","), args)


def generated(spec: str) -> hr.Graph:
    kind, ops, *seed = spec.split(":")
    return hr.generate(kind, int(ops), int(seed[0]) if seed else 0)


def optimum(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Two levels against the proved optimum."""
    print("| graph (ops) | budget | optimum | two levels | points |\n|---|---|---|---|---|")
    losses = []
    for graph in graphs:
        for budget in budgets:
            exact = hr.solve(graph, budget, method="exact", time_limit=args.time_limit)
            if exact.status is not hr.Status.OPTIMAL:
                print(f"{graph.name} {budget}: {exact.status}, left out", file=sys.stderr)
                continue
            two = hierarchy(graph, budget, args, blocks=min(6, graph.n_ops // 8))
            if not two.solved:
                print(f"| {graph.name} ({graph.n_ops}) | {budget} | {percent(exact)} | {two.status} | |")
                continue
            losses.append(100 * (two.overhead - exact.overhead))
            print(
                f"| {graph.name} ({graph.n_ops}) | {budget} | {percent(exact)} | {percent(two)} | "
                f"{losses[-1]:.3f} |",
                flush=True,
            )
    if losses:
        print(f"\nmean of {len(losses)}: {sum(losses) / len(losses):.3f} points")


def depth(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Three levels against two."""
    print("| graph (ops) | budget | two levels | three levels | points |\n|---|---|---|---|---|")
    for graph in graphs:
        for budget in budgets:
            two, three = (hierarchy(graph, budget, args, blocks=6, depth=levels) for levels in (2, 3))
            points = f"{100 * (three.overhead - two.overhead):+.3f}" if two.solved and three.solved else ""
            print(
                f"| {graph.name} ({graph.n_ops}) | {budget} | {percent(two)} | {percent(three)} | {points} |",
                flush=True,
            )


def scale(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Methods at equal time limits, with the lower bound for any order."""
    methods = args.methods.split(",")
    print(f"| graph (ops) | budget | {' | '.join(methods)} | bound | peak memory so far |")
    print("|---|---|" + "---|" * (len(methods) + 2))
    for graph in graphs:
        for budget in budgets:
            results = [
                hr.solve(graph, budget, method=m, time_limit=args.time_limit, n_jobs=args.jobs)
                for m in methods
            ]
            bound = max(r.lower_bound or 0.0 for r in results) / graph.total_time - 1
            cells = " | ".join(f"{percent(r)} ({r.wall_time:.0f} s)" for r in results)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            name = f"{graph.name} ({graph.n_ops:,})"
            print(f"| {name} | {budget} | {cells} | {100 * bound:.3f} | {memory:.1f} GiB |", flush=True)


def hierarchy(graph: hr.Graph, budget: str, args: argparse.Namespace, **options: int) -> hr.Result:
    """The hierarchy alone: no flat schedules, no polish."""
    return hr.solve(
        graph, budget, time_limit=args.time_limit, n_jobs=args.jobs, polish=0, flat_start=False, **options
    )


def percent(result: hr.Result) -> str:
    """The overhead, or why there is no schedule."""
    return f"{100 * result.overhead:.3f}" if result.solved else str(result.status).replace("_", " ")


if __name__ == "__main__":
    main()
