"""What each budget costs on a graph: a table, and a CSV file to plot or keep.

    python examples/frontier.py examples/graphs/gpt2-5.json.gz --points 6 -o frontier.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import hremate as hr


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graph")
    parser.add_argument("--points", type=int, default=6)
    parser.add_argument("--method", default="cut")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each point")
    parser.add_argument("-o", "--output", help="CSV file")
    args = parser.parse_args()

    frontier = hr.frontier(
        hr.read_graph(args.graph), args.points, method=args.method, time_limit=args.time_limit
    )
    print(frontier)
    if args.output:
        Path(args.output).write_text(frontier.to_csv(), encoding="utf-8")


if __name__ == "__main__":
    main()
