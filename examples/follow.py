"""Solve a graph with a hand on it: see each improvement, keep the best schedule on disk, go on from there.

    python examples/follow.py examples/graphs/mlp-8.json.gz --budget 40% -o mlp-8-40.json

Run it again, and it starts from the schedule that it wrote the last time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import hremate as hr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph")
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--method", default="anneal")
    parser.add_argument("--time-limit", type=float, default=10.0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()

    graph = hr.read_graph(args.graph)
    budget = hr.parse_budget(args.budget, hr.base_peak(graph))
    start = hr.read_schedule(args.output).schedule if args.output.exists() else None

    def improved(schedule: hr.Schedule, peak: int, time: float) -> None:
        print(f"overhead {time / graph.total_time - 1:.3%}, peak {hr.format_bytes(peak)}")
        hr.write_schedule(schedule, args.output, graph, budget=budget, method=args.method)

    result = hr.solve(
        graph, budget, args.method, time_limit=args.time_limit, warm_start=start, callback=improved
    )
    print(result)
    if result.solved and result.schedule is not None:
        hr.write_schedule(result.schedule, args.output, graph, budget=budget, method=args.method)


if __name__ == "__main__":
    main()
