"""What the commands share: checks before the work, progress and messages on stderr, JSON on stdout."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

SOLVED, UNSOLVED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def table_options(parser: argparse.ArgumentParser, row: str) -> None:
    """Add the options that choose the form of a table whose rows are called `row`."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown tables, as by default")
    form.add_argument("--csv", action="store_true", help=f"print one line per {row}")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write a file too; .json, .csv or .md chooses its format"
    )


def check_target(path: str | None) -> None:
    """Raise OSError before the work, not after it, where `path` cannot be written."""
    if path is None:
        return
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", path)
    if not os.access(target if os.path.exists(target) else folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def format_of(path: str, default: str) -> str:
    """The format of a table that the name of a file asks for, gzip or not."""
    suffix = os.path.splitext(path.removesuffix(".gz"))[1].lower()
    return {".json": "json", ".csv": "csv", ".md": "markdown"}.get(suffix, default)


def in_format(table: Any, name: str) -> str:
    """A comparison or a frontier as text: "json", "csv" or "markdown"."""
    text: str = {"json": table.to_json, "csv": table.to_csv, "markdown": table.to_markdown}[name]()
    return text + "\n" if name == "json" else text


def hand_out(table: Any, args: argparse.Namespace) -> None:
    """Write and draw a comparison or a frontier where `args` ask for it, and print it whatever happens."""
    from hremate._files import write_text  # reading a command line needs no numpy

    shown = "json" if args.json else "csv" if args.csv else "markdown"
    try:
        if args.output is not None:
            write_text(args.output, in_format(table, format_of(args.output, shown)))
        if args.plot is not None:
            table.plot(args.plot)
    finally:
        print(in_format(table, shown), end="")


def progress(verbose: bool) -> Callable[[str], None] | None:
    """Lines with the time passed on stderr, when it is a terminal or they were asked for."""
    if not (verbose or sys.stderr.isatty()):
        return None
    start = time.monotonic()

    def tell(message: str) -> None:
        print(f"[{time.monotonic() - start:7.1f} s] {message}", file=sys.stderr, flush=True)

    return tell


def say(message: str) -> None:
    with suppress(OSError, ValueError):  # nobody listens on stderr
        print(f"hremate: {message}", file=sys.stderr, flush=True)


def print_json(document: dict[str, Any]) -> None:
    from hremate._text import finite  # reading a command line needs no numpy

    print(json.dumps(finite(document), allow_nan=False))
