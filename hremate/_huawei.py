"""The text format of the Huawei operator-scheduling challenge.

The first line is `<output op name> <memory limit>`; each further line is one op:
`id name k in_1 .. in_k run_mem output_mem time`, the inputs being ids. Names repeat, ids do not.
"""

from __future__ import annotations

import logging
import re

from hremate._order import stable_order
from hremate.errors import DuplicateNameError, FormatError, InvalidValueError, UnknownTensorError
from hremate.graph import Graph, Op

_log = logging.getLogger("hremate")
_HEADER = re.compile(r"\s*\S+[ \t]+[-+]?[0-9.][0-9.eE+]*[ \t]*(\r?\n|\r|$)")
_INTEGER = re.compile(r"-?[0-9]+", re.ASCII)
#: What an integer of the format may have at most: enough for 2^63 and a sign.
_MAX_DIGITS = 20
_TYPE = re.compile(r"-op[0-9]+$", re.ASCII)


def looks_like_huawei(text: str) -> bool:
    """Whether the first line is a name and a number."""
    return _HEADER.match(text) is not None


def parse_huawei(text: str, name: str, *, keep_all: bool = False) -> Graph:
    """Build the graph of a challenge file, under `coexist`; the limit becomes `metadata["budget"]`.

    An op and its tensor are called `name#id`. The output is the last line with the name of the first
    line. Ops that do not lead to it are dropped, with their number logged, unless `keep_all`. Lines
    that are not in topological order are sorted, the earliest first.

    Raises
    ------
    FormatError, DuplicateNameError, UnknownTensorError, InvalidValueError, CycleError, EmptyGraphError
        Each names the line or the op.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, fields) for number, fields in lines if fields]
    number, header = lines[0]
    if len(header) != 2:
        raise FormatError(f"line {number}: expected '<output op name> <limit>', found {len(header)} fields")
    output_name, limit = header[0], _integer(header[1], "the memory limit", number)

    names: list[str] = []
    inputs_of: list[list[int]] = []
    costs: list[tuple[int, int, float]] = []
    line_of: dict[int, int] = {}
    index_of: dict[int, int] = {}
    output: int | None = None
    for number, fields in lines[1:]:
        if len(fields) < 6:
            raise FormatError(
                f"line {number}: expected 'id name k in_1 .. in_k run_mem output_mem time', "
                f"found {len(fields)} fields"
            )
        op_id = _integer(fields[0], "the id", number)
        if op_id in index_of:
            raise DuplicateNameError(f"line {number}: id {op_id} was used on line {line_of[op_id]}")
        count = _integer(fields[2], "the number of inputs", number)
        if len(fields) != count + 6:
            raise FormatError(
                f"line {number}: {count} inputs make {count + 6} fields, found {len(fields)}"
            )
        if fields[1] == output_name:
            output = len(names)
        index_of[op_id] = len(names)
        line_of[op_id] = number
        names.append(f"{fields[1]}#{op_id}")
        # Repeated inputs count once.
        inputs_of.append(list(dict.fromkeys(_integer(x, "an input", number) for x in fields[3 : 3 + count])))
        run_bytes, out_bytes = (_integer(x, "a memory size", number) for x in fields[-3:-1])
        costs.append((run_bytes, out_bytes, _time(fields[-1], number)))
    if names and output is None:
        raise UnknownTensorError(f"line 1: no op is called {output_name!r}")

    for op_id, i in index_of.items():
        for k, x in enumerate(inputs_of[i]):
            if x not in index_of:
                raise UnknownTensorError(f"line {line_of[op_id]}: op {names[i]!r} reads the unknown id {x}")
            inputs_of[i][k] = index_of[x]
    ops = [
        Op(
            name=names[i],
            time=costs[i][2],
            inputs=tuple(names[x] for x in inputs_of[i]),
            outputs=((names[i], costs[i][1]),),
            workspace=costs[i][0],
            type=_TYPE.sub("", names[i].rpartition("#")[0]),
        )
        for i in stable_order(inputs_of)
    ]
    graph = Graph.from_ops(
        ops,
        [] if output is None else [names[output]],
        name=name,
        units=("abstract", "bytes"),
        metadata={"budget": limit},
    )
    if keep_all:
        return graph
    pruned = graph.prune()
    if pruned.n_ops < graph.n_ops:
        _log.info(
            "%s: dropped %d of %d ops that do not lead to the output %s",
            name, graph.n_ops - pruned.n_ops, graph.n_ops, output_name,
        )  # fmt: skip
    return pruned


def _integer(text: str, what: str, line: int) -> int:
    """A field that must be an integer in 0 .. 2^63 - 1."""
    if not _INTEGER.fullmatch(text):
        raise InvalidValueError(f"line {line}: {what} is {text[:40]!r}; expected an integer")
    if len(text) > _MAX_DIGITS or not -(2**63) <= int(text) < 2**63:
        raise InvalidValueError(f"line {line}: {what} is {text[:40]}; it must be below 2^63")
    if int(text) < 0:
        raise InvalidValueError(f"line {line}: {what} is {text}; it must not be negative")
    return int(text)


def _time(text: str, line: int) -> float:
    try:
        # Digits as people write them in files: not those of other scripts, no 1_000.
        value = float(text if text.isascii() and "_" not in text else "")
    except ValueError:
        raise InvalidValueError(f"line {line}: the time is {text[:40]!r}; expected a number") from None
    if not 0 <= value < float("inf"):
        raise InvalidValueError(f"line {line}: the time is {text[:40]}; it must be finite and not negative")
    return value
