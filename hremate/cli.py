"""The command line: `hremate solve | compare | frontier | report | validate | ...`.

Exit codes: 0 solved, 1 no schedule within the budget, not valid, or a method of a comparison failed, 2 bad
input or usage, 130 interrupted. The result goes to stdout, everything else to stderr. Modules that take
long to import are imported by the commands that need them.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import hremate
from hremate import _capture_cli, _report_cli
from hremate._cli_parts import (
    BAD_INPUT,
    INTERRUPTED,
    SOLVED,
    UNSOLVED,
    check_target,
    hand_out,
    print_json,
    progress,
    say,
    table_options,
)
from hremate.budget import format_bytes, parse_budget
from hremate.errors import BudgetError, HremateError, MethodError, ScheduleError
from hremate.graph import MEMORY_MODELS, Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hremate.result import Result
    from hremate.schedule import Schedule


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")  # names may hold anything
    parsed = _parser().parse_args(arguments)
    with _logging_to_stderr(), _terminable():
        try:
            code: int = parsed.run(parsed)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader went away: keep the interpreter from flushing into the pipe once more.
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return SOLVED
        except HremateError as error:
            say(f"error: {error}")
            return BAD_INPUT
        except OSError as error:
            where = f"{error.filename}: " if error.filename is not None else ""
            say(f"error: {where}{error.strerror or error}")
            return BAD_INPUT
        except KeyboardInterrupt:
            say("interrupted")
            return INTERRUPTED
    return code


# -- commands -------------------------------------------------------------------------------------


def _solve(args: argparse.Namespace) -> int:
    from hremate.solve import solve
    from hremate.solvers.registry import get_method

    options = _options(get_method(args.method).load().Params, args.option)
    for path in (args.output, args.plot, args.trace):
        check_target(path)
    _check_picture(args.plot)
    graph = _read(args.graph, args)
    best: list[Schedule] = []
    try:
        result = solve(
            graph,
            args.budget,
            args.method,
            seed=args.seed,
            n_jobs=args.jobs,
            time_limit=args.time_limit,
            polish=args.polish,
            progress=progress(args.verbose),
            callback=lambda schedule, _peak, _time: best.__setitem__(slice(None), [schedule]),
            **options,
        )
    except KeyboardInterrupt:
        if not best:
            raise
        result = _best_so_far(graph, args, best[0])
    try:
        if result.solved and result.schedule is not None:
            _write(graph, result, result.schedule, args)
        else:
            for path in (args.output, args.plot, args.trace):
                if path is not None:
                    say(f"no schedule within the budget, {path} is not written")
    finally:
        if args.json:
            print_json(result.to_dict())
        else:
            print(_describe(graph, result))
    if result.stats.interrupted:
        say("interrupted; this is the best schedule found so far")
        return INTERRUPTED
    return SOLVED if result.solved else UNSOLVED


def _compare(args: argparse.Namespace) -> int:
    from hremate.compare import compare

    for path in (args.output, args.plot):
        check_target(path)
    _check_picture(args.plot)
    comparison = compare(
        [_read(path, args) for path in args.graphs],
        None if args.budgets is None else _words(args.budgets),
        None if args.methods is None else _words(args.methods),
        time_limit=args.time_limit,
        seed=args.seed,
        seeds=None if args.seeds is None else _numbers(args.seeds),
        repetitions=args.repetitions,
        n_jobs=args.jobs,
        resume=args.resume,
        progress=progress(args.verbose),
    )
    hand_out(comparison, args)
    if comparison.interrupted:
        say("interrupted; these are the cells so far")
        return INTERRUPTED
    if comparison.failed:
        say("a method failed where it should not; the reasons are in its cells")
        return UNSOLVED
    return SOLVED


def _validate(args: argparse.Namespace) -> int:
    from hremate.io import read_schedule
    from hremate.simulate import base_peak
    from hremate.validate import validate

    graph = _read(args.graph, args)
    file = read_schedule(args.schedule)
    if file.graph_sha256 is not None and file.graph_sha256 != graph.sha256:
        say(f"warning: the schedule was written for another graph (or version of it): {file.graph}")
    budget = file.budget if args.budget is None else parse_budget(args.budget, base_peak(graph))
    try:
        check = validate(graph, file.schedule, budget)
    except ScheduleError as error:
        print(f"not valid: {error}")
        return UNSOLVED
    for what, told, found in (("peak", file.peak, check.peak), ("time", file.time, check.time)):
        if told is not None and told != found:
            say(f"warning: the schedule file says {what} {told}, it is {found}")
    overhead = check.time / graph.total_time - 1 if graph.total_time > 0 else 0.0
    within = "" if budget is None else f" within the budget of {format_bytes(budget)} ({budget} bytes)"
    print(
        f"valid{within}: peak {format_bytes(check.peak)} ({check.peak} bytes), "
        f"time {check.time:.6g} {graph.units[0]}, overhead {overhead:.3%}, "
        f"{check.recomputes} of {len(file.schedule)} steps recompute"
    )
    return SOLVED


def _info(args: argparse.Namespace) -> int:
    from hremate._text import graph_facts, phase_names
    from hremate.bounds import memory_lower_bound
    from hremate.simulate import base_peak

    graph = _read(args.graph, args)
    base, floor = base_peak(graph), memory_lower_bound(graph)
    budget = None
    if "budget" in graph.metadata:
        with suppress(BudgetError):
            budget = parse_budget(graph.metadata["budget"], base)
    facts = {
        "graph": graph.name,
        "ops": graph.n_ops,
        "tensors": graph.n_tensors,
        "memory_model": graph.memory_model,
        "base_peak": base,
        "base_time": graph.total_time,
        "time_unit": graph.units[0],
        "resident": graph.resident,
        "memory_lower_bound": floor.bytes,
        "memory_lower_bound_op": None if floor.op is None else graph.op_names[floor.op],
        "memory_lower_bound_need": floor.need,
        "outputs": len(graph.outputs) + len(graph.resident_outputs),
        "output_bytes": int(graph.size[graph.outputs].sum()),
        "phases": {name: int((graph.phase == code).sum()) for code, name in phase_names(graph)},
        "budget": budget,
        "sha256": graph.sha256,
    }
    if args.json:
        print_json(facts)
    else:
        print(graph_facts(graph, facts))
    return SOLVED


def _generate(args: argparse.Namespace) -> int:
    from hremate.generate import generate
    from hremate.io import write_graph

    check_target(args.output)
    graph = generate(args.kind, ops=args.ops, seed=args.seed)
    write_graph(graph, args.output)
    say(f"{args.output}: {graph.n_ops} ops, {graph.n_tensors} tensors")
    return SOLVED


def _convert(args: argparse.Namespace) -> int:
    from hremate.io import write_graph

    check_target(args.output)
    graph = _read(args.graph, args)
    write_graph(graph, args.output)
    say(f"{args.output}: {graph.n_ops} ops, {graph.n_tensors} tensors, {graph.memory_model}")
    return SOLVED


def _methods(args: argparse.Namespace) -> int:
    from hremate._text import table
    from hremate.solvers.registry import METHODS

    methods = list(METHODS.values())
    if args.json:
        keys = ("name", "summary", "exact", "limits", "source")
        print_json({"methods": [{key: getattr(m, key) for key in keys} for m in methods]})
    else:
        rows = [["name", "proves", "meant for", "what it does", "source"]]
        rows += [[m.name, "yes" if m.exact else "no", m.limits, m.summary, m.source] for m in methods]
        print(table(rows, left=5, indent=""))
    return SOLVED


# -- parts ----------------------------------------------------------------------------------------


def _read(path: str, args: argparse.Namespace) -> Graph:
    from hremate.io import read_graph

    return read_graph(path, memory_model=args.memory_model, keep_all=args.keep_all)


def _check_picture(path: str | None) -> None:
    """Raise before the work, not after it, where no picture can be drawn."""
    if path is not None:
        from hremate.plot import check_picture

        check_picture(path)


def _write(graph: Graph, result: Result, schedule: Schedule, args: argparse.Namespace) -> None:
    """The files that `solve` was asked for."""
    if args.output is not None:
        from hremate.io import write_schedule

        write_schedule(schedule, args.output, graph, budget=result.budget, method=result.method)
    if args.plot is not None:
        from hremate.plot import plot_memory

        plot_memory(graph, schedule, budget=result.budget, path=args.plot)
    if args.trace is not None:
        from hremate.trace import write_trace

        write_trace(graph, schedule, args.trace, budget=result.budget)


def _words(text: str) -> list[str]:
    """The words of a list separated by commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int]:
    """The whole numbers of a list separated by commas."""
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise MethodError(f"expected whole numbers separated by commas, not {text!r}") from None


def _describe(graph: Graph, result: Result) -> str:
    from hremate._text import phase_table, recompute_table

    parts = [result.summary()]
    if result.solved and result.schedule is not None:
        parts += [phase_table(graph, result.schedule), recompute_table(graph, result.schedule)]
    return "\n\n".join(part for part in parts if part)


def _best_so_far(graph: Graph, args: argparse.Namespace, schedule: Schedule) -> Result:
    """The result of a solve that was interrupted before its method could return."""
    from hremate.result import Stats
    from hremate.simulate import base_peak
    from hremate.solvers.base import Run, finish

    budget = graph.metadata["budget"] if args.budget is None else args.budget
    run = Run(seed=args.seed, stats=Stats(interrupted=True))
    return finish(graph, parse_budget(budget, base_peak(graph)), run, args.method, schedule.order)


def _options(params: Any, settings: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` settings as the fields of a `Params` dataclass, with their types."""
    hints = get_type_hints(params)
    known = [f.name for f in fields(params)]
    options: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise MethodError(f"option {setting!r} is not of the form KEY=VALUE")
        key = key.replace("-", "_")
        if key not in known:
            raise MethodError(f"no option {key!r}; known: {', '.join(known) or 'none'}")
        options[key] = _typed(key, text, hints[key])
    return options


def _typed(key: str, text: str, hint: Any) -> Any:
    """`text` as the first of the types in `hint` that can hold it."""
    kinds = get_args(hint) or (hint,)
    if type(None) in kinds and text.lower() in ("none", ""):
        return None
    if bool in kinds and text.lower() in ("true", "yes", "1", "false", "no", "0"):
        return text.lower() in ("true", "yes", "1")
    for kind in (int, float, str):
        if kind in kinds:
            with suppress(ValueError):
                return kind(text)
    if text in kinds:  # a Literal
        return text
    names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise MethodError(f"option {key!r}: cannot read {text!r} as {names}")


@contextmanager
def _logging_to_stderr() -> Iterator[None]:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("hremate: %(message)s"))
    logger = logging.getLogger("hremate")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does."""

    def interrupt(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread, where signals never arrive
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


# -- arguments ------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hremate",
        description="Schedule computation graphs with rematerialization under a memory budget.",
        epilog="Exit codes: 0 solved, 1 no schedule within the budget, not valid, or a method of a "
        "comparison failed, 2 bad input or usage, 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"hremate {hremate.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    reading = argparse.ArgumentParser(add_help=False)
    reading.add_argument("--memory-model", choices=MEMORY_MODELS, help="instead of what the file says")
    reading.add_argument(
        "--keep-all", action="store_true", help="keep ops of a Huawei file that do not lead to its output"
    )
    graph = argparse.ArgumentParser(add_help=False, parents=[reading])
    graph.add_argument("graph", metavar="GRAPH", help="JSON or Huawei text, maybe gzip")
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument("--seed", type=int, default=0, metavar="N", help="of everything random (%(default)s)")
    run.add_argument("--jobs", type=int, default=1, metavar="N", help="processes; -1: one per core (1)")
    run.add_argument("--verbose", action="store_true", help="tell the progress on stderr, terminal or not")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print one JSON object on stdout")

    def command(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        result = commands.add_parser(name, help=text, description=text.capitalize() + ".", parents=parents)
        result.set_defaults(run=run)
        return result

    _capture_cli.add_parser(commands)
    solve = command("solve", _solve, "find a schedule within a memory budget", graph, run, as_json)
    solve.add_argument(
        "--budget", metavar="B",
        help="bytes, 12GiB (2^30), 800MB (10^6), or 60%% of the base peak; default: the limit in the file",
    )  # fmt: skip
    solve.add_argument(
        "--method", default="hierarchical", metavar="M", help="see 'hremate methods' (%(default)s)"
    )
    solve.add_argument("--time-limit", type=float, metavar="S", help="seconds of wall time")
    solve.add_argument(
        "--polish", type=float, metavar="S",
        help="seconds at most to improve what the method found, within the time limit; 0: not at all; "
        "default: part of the time limit for hierarchical, else 0",
    )  # fmt: skip
    solve.add_argument("-o", "--output", metavar="SCHEDULE", help="write the schedule to this file")
    solve.add_argument("--plot", metavar="FILE", help="draw memory over time; .png, .svg or .pdf")
    solve.add_argument("--trace", metavar="FILE", help="write a trace for Perfetto or chrome://tracing")
    solve.add_argument(
        "--option", action="append", default=[], metavar="KEY=VALUE", help="a parameter of the method"
    )

    compare = command("compare", _compare, "solve graphs by several methods at several budgets", reading, run)
    compare.add_argument("graphs", nargs="+", metavar="GRAPH", help="JSON or Huawei text, maybe gzip")
    compare.add_argument(
        "--budgets", metavar="B,B", help="as for solve, separated by commas; default: the limit in each file"
    )
    compare.add_argument(
        "--methods", metavar="M,M",
        help="see 'hremate methods'; all; default: every heuristic, and exact for small graphs",
    )  # fmt: skip
    compare.add_argument(
        "--time-limit", type=float, default=60.0, metavar="S", help="seconds of each cell (%(default)g)"
    )
    compare.add_argument(
        "--seeds", metavar="N,N", help="solve every cell with each of these, instead of --seed"
    )
    compare.add_argument(
        "--repetitions", type=int, default=1, metavar="N", help="runs of each cell and seed (%(default)s)"
    )
    compare.add_argument(
        "--resume", metavar="FILE", help="keep each result in this file, and take from it what it has already"
    )
    table_options(compare, "cell")
    compare.add_argument(
        "--plot", metavar="FILE", help="draw overhead against budget of the first graph; .png, .svg or .pdf"
    )

    _report_cli.add_parsers(commands, graph, run)

    validate = command("validate", _validate, "check a schedule independently of the solvers", graph)
    validate.add_argument("schedule", metavar="SCHEDULE", help="hremate-schedule/1 JSON")
    validate.add_argument("--budget", metavar="B", help="as for solve; default: the schedule's own")

    command("info", _info, "describe a graph", graph, as_json)

    generate = command("generate", _generate, "make a synthetic graph")
    generate.add_argument("kind", metavar="KIND", help="e.g. transformer; an unknown one lists them all")
    generate.add_argument("--ops", type=int, required=True, metavar="N", help="number of ops, about")
    generate.add_argument("--seed", type=int, default=0, metavar="S", help="(%(default)s)")
    generate.add_argument("-o", "--output", required=True, metavar="FILE", help="graph file to write")

    convert = command("convert", _convert, "rewrite a graph of any format as hremate-graph/1", graph)
    convert.add_argument("output", metavar="OUT", help="graph file to write; gzip when it ends in .gz")

    command("methods", _methods, "list the methods of solve", as_json)
    return parser
