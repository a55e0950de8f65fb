"""The commands `hremate frontier` and `hremate report`."""

from __future__ import annotations

import argparse
from typing import Any

from hremate._cli_parts import (
    INTERRUPTED,
    SOLVED,
    check_target,
    hand_out,
    progress,
    say,
    table_options,
)
from hremate.graph import Graph


def add_parsers(subparsers: Any, graph: argparse.ArgumentParser, run: argparse.ArgumentParser) -> None:
    """Add the commands to what `argparse.ArgumentParser.add_subparsers` returned.

    Parameters
    ----------
    subparsers
    graph : parent parser with GRAPH, --memory-model and --keep-all.
    run : parent parser with --seed, --jobs and --verbose.
    """
    text = "solve a graph at budgets from the smallest within reach to the base peak"
    frontier = subparsers.add_parser(
        "frontier", help=text, description=text.capitalize() + ".", parents=[graph, run]
    )
    frontier.add_argument(
        "--points", type=int, default=12, metavar="N", help="number of budgets (%(default)s)"
    )
    frontier.add_argument(
        "--method", default="hierarchical", metavar="M", help="see 'hremate methods' (%(default)s)"
    )
    frontier.add_argument(
        "--time-limit", type=float, metavar="S",
        help="seconds of wall time of each point, and of the search for the smallest budget",
    )  # fmt: skip
    frontier.add_argument(
        "--smallest", metavar="B",
        help="begin at this budget, as for solve; default: the smallest that is found",
    )  # fmt: skip
    table_options(frontier, "point")
    frontier.add_argument("--plot", metavar="FILE", help="draw overhead against budget; .png, .svg or .pdf")
    frontier.set_defaults(run=run_frontier)

    text = "write an HTML page about schedules of a graph"
    report = subparsers.add_parser(
        "report", help=text, description=text.capitalize() + ".", parents=[graph]
    )
    report.add_argument("schedules", nargs="+", metavar="SCHEDULE", help="hremate-schedule/1 JSON")
    report.add_argument("-o", "--output", required=True, metavar="FILE", help="page to write")
    report.add_argument("--budget", metavar="B", help="budget line of schedules that do not tell their own")
    report.add_argument("--blocks", type=int, metavar="N", help="group ops by about so many blocks, too")
    report.set_defaults(run=run_report)


def run_frontier(args: argparse.Namespace) -> int:
    """Solve the points and print them; returns the exit code."""
    from hremate.frontier import frontier
    from hremate.plot import check_picture

    for path in (args.output, args.plot):
        check_target(path)
    if args.plot is not None:
        check_picture(args.plot)
    found = frontier(
        _read(args),
        args.points,
        method=args.method,
        time_limit=args.time_limit,
        seed=args.seed,
        n_jobs=args.jobs,
        smallest=args.smallest,
        progress=progress(args.verbose),
    )
    hand_out(found, args)
    if found.interrupted:
        say("interrupted; the points not reached have the best schedule known by then")
        return INTERRUPTED
    return SOLVED


def run_report(args: argparse.Namespace) -> int:
    """Write the page; returns the exit code."""
    from hremate.partition.intervals import intervals
    from hremate.report import report

    check_target(args.output)
    graph = _read(args)
    tree = None if args.blocks is None else intervals(graph, args.blocks)
    report(graph, args.schedules, args.output, budget=args.budget, tree=tree)
    count = len(args.schedules)
    say(f"{args.output}: {count} schedule{'' if count == 1 else 's'} of {graph.name}")
    return SOLVED


def _read(args: argparse.Namespace) -> Graph:
    from hremate.io import read_graph

    return read_graph(args.graph, memory_model=args.memory_model, keep_all=args.keep_all)
