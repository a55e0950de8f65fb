"""`compare`: graphs x methods x budgets at equal time limits, as one table.

Whatever one method does, the others still run: a refusal or a failure is a cell with its reason.
"""

from __future__ import annotations

import csv
import enum
import io
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hremate._comparison_table import LEGEND, comparison_table
from hremate._files import Source
from hremate._text import finite
from hremate.bounds import time_lower_bound
from hremate.budget import format_bytes
from hremate.errors import MethodError, MissingExtraError
from hremate.graph import Graph
from hremate.io import read_graph
from hremate.result import Result, Status
from hremate.solve import BOUND_SECONDS, solve
from hremate.solvers.base import Deadline
from hremate.solvers.registry import METHODS, get_method, make_params

#: By default, graphs beyond this many ops are spared `exact`, which rarely proves anything there.
EXACT_OPS = 100

_logger = logging.getLogger(__name__)


class Outcome(str, enum.Enum):
    """Why a cell of a comparison has no result."""

    #: The method cannot take this graph, or needs an optional package.
    REFUSED = "refused"
    #: The method raised something else.
    FAILED = "failed"
    #: Ctrl-C came before the method had anything to return.
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Unanswered:
    """A cell of a comparison that has no result, and why. Fields as in `Result`."""

    graph: str
    method: str
    status: Outcome
    budget: int
    base_peak: int
    base_time: float
    ops: int
    seed: int
    wall_time: float
    memory_lower_bound: int | None
    reason: str

    @property
    def solved(self) -> bool:
        return False

    def to_dict(self) -> dict[str, Any]:
        """The keys of `Result.to_dict`, None for everything that only a result has."""
        known = {f.name: getattr(self, f.name) for f in fields(self)}
        blank = Result(**{**known, "status": Status.NO_SOLUTION}, schedule=None, peak=None, time=None)
        return {**blank.to_dict(), "status": self.status.value}


Row = Result | Unanswered


@dataclass(frozen=True)
class Grid:
    """The cells planned for one graph: budgets x methods."""

    graph: str
    ops: int
    #: Bytes.
    base_peak: int
    base_time: float
    time_unit: str
    #: As asked for.
    budgets: tuple[str, ...]
    methods: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Rows are ordered by graph, then budget, then method, each in the order given. After Ctrl-C the rows
    not reached are missing; the last one may be a result cut short (`stats.interrupted`).
    """

    rows: tuple[Row, ...]
    #: One per graph; they say which rows were planned.
    grids: tuple[Grid, ...]
    #: Seconds of wall time for each row, None for no limit.
    time_limit: float | None
    seed: int
    n_jobs: int
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether a method raised something other than a refusal."""
        return any(row.status is Outcome.FAILED for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """`{"rows": [...]}`, rows with the keys of `Result.to_dict`: plain numbers, None where unknown."""
        rows: list[Any] = finite([row.to_dict() for row in self.rows])
        return {"rows": rows}

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_csv(self) -> str:
        """One line per row below a header, without `stats`; empty where unknown."""
        rows = self.to_dict()["rows"]
        keys = [key for key in _keys() if key != "stats"]
        text = io.StringIO()
        writer = csv.DictWriter(text, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_markdown(self) -> str:
        """A table per graph, methods x budgets, with the reasons of empty cells below it."""
        limit = "no time limit" if self.time_limit is None else f"at most {self.time_limit:g} s each"
        jobs = {1: "1 process", -1: "a process per core"}.get(self.n_jobs, f"{self.n_jobs} processes")
        rows = iter([row.to_dict() for row in self.rows])
        parts = []
        for grid in self.grids:
            columns = [[next(rows, None) for _ in grid.methods] for _ in grid.budgets]
            unit = "" if grid.time_unit in ("", "abstract") else f" {grid.time_unit}"
            parts.append(
                f"**{' '.join(grid.graph.split())}**: {grid.ops:,} ops, base peak "
                f"{format_bytes(grid.base_peak)}, base time {grid.base_time:.6g}{unit}; {limit}, "
                f"seed {self.seed}, {jobs}"
            )
            parts.append(comparison_table(grid.budgets, grid.methods, columns))
        parts.append(LEGEND)
        return "\n\n".join(parts) + "\n"

    def __str__(self) -> str:
        return self.to_markdown().rstrip("\n")


def compare(
    graphs: Graph | Source | Iterable[Graph | Source],
    budgets: int | str | Iterable[int | str] | None = None,
    methods: str | Iterable[str] | None = None,
    *,
    time_limit: float | None = 60.0,
    seed: int = 0,
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> Comparison:
    """Solve every graph at every budget by every method, one after the other.

    Parameters
    ----------
    graphs : Graph or path, or several of them
    budgets : int or str, or several of them, optional
        As for `solve`. Default: the limit that each graph carries.
    methods : str or several, optional
        Names of methods, or "all". Default: every heuristic, and `exact` for graphs of at most
        `EXACT_OPS` ops.
    time_limit : float, optional
        Seconds of wall time of each solve; None for no limit. A method that overruns it shows the time
        it took. The first use of a kernel on a machine includes its compilation.
    seed, n_jobs
        As for `solve`.
    progress : callable, optional
        Called with one line of text after each cell.
    options : mapping, optional
        Method name -> fields of its `Params`.

    Returns
    -------
    Comparison
        A method that cannot take a graph, lacks its optional package or fails has a row with the reason
        (`Unanswered`). After Ctrl-C the rows so far are returned, with `interrupted` set.

    Raises
    ------
    MethodError
        Unknown method or option, nothing to compare, or an argument out of range; before anything runs.
    BudgetError
        A budget cannot be read, or there is none; before anything runs.
    FormatError, GraphError
        A file cannot be read as a graph; before anything runs.
    KeyboardInterrupt
        Ctrl-C before the first solve.

    Examples
    --------
    >>> from hremate import generate
    >>> print(compare(generate("transformer", 60), ["80%", "60%"], ["beam", "none"]).rows[1].status)
    no_solution
    """
    tell = progress if progress is not None else _silent
    settings: dict[str, Any] = {"seed": seed, "n_jobs": n_jobs, "time_limit": time_limit}
    loaded = [g if isinstance(g, Graph) else read_graph(g) for g in _several(graphs)]
    asked = [None] if budgets is None else _several(budgets)
    chosen = [_methods(graph, methods) for graph in loaded]
    given = _options(options, chosen)
    if not loaded or not asked or not all(chosen):
        raise MethodError("nothing to compare: Expected at least one graph, budget and method.")
    solve(loaded[0], "100%", "none", **settings)  # checks the arguments, answers without a search
    # Read the budgets, and know what rows without a result still tell; no time for the bounds.
    frames = [
        [solve(graph, budget, "none", seed=seed, time_limit=0) for budget in asked] for graph in loaded
    ]
    grids = tuple(
        _grid(graph, asked, names, row) for graph, names, row in zip(loaded, chosen, frames, strict=True)
    )
    cells = [
        (graph, frame, label, method)
        for graph, grid, row in zip(loaded, grids, frames, strict=True)
        for frame, label in zip(row, grid.budgets, strict=True)
        for method in grid.methods
    ]

    rows: list[Row] = []
    interrupted = False
    bounded: tuple[Result, float | None] | None = None
    try:
        for graph, frame, label, method in cells:
            if bounded is None or bounded[0] is not frame:
                bounded = frame, _bound(graph, frame, time_limit)
            options_here = {**settings, "lower_bound": bounded[1], **given.get(method, {})}
            row = _solve_cell(graph, frame, method, options_here)
            rows.append(row)
            tell(f"{len(rows)}/{len(cells)} {graph.name} at {label}: {method}, {_outcome(row)}")
            interrupted = _was_interrupted(row)
            if interrupted:
                break
    except KeyboardInterrupt:  # between two cells
        interrupted = True
    return Comparison(tuple(rows), grids, time_limit, seed, n_jobs, interrupted)


def _bound(graph: Graph, frame: Result, time_limit: float | None) -> float | None:
    """The bound that all cells of a graph and budget share; None where no cell will search."""
    if frame.status is not Status.NO_SOLUTION:
        return None
    seconds = BOUND_SECONDS if time_limit is None else min(BOUND_SECONDS, float(time_limit))
    return time_lower_bound(graph, frame.budget, deadline=Deadline(seconds)).time


def _solve_cell(graph: Graph, frame: Result, method: str, settings: dict[str, Any]) -> Row:
    """One row; `frame` is any result for the same graph and budget."""
    start = time.monotonic()
    try:
        return solve(graph, frame.budget, method, **settings)
    except (MethodError, MissingExtraError) as error:
        status, reason = Outcome.REFUSED, str(error)
    except KeyboardInterrupt:
        status, reason = Outcome.INTERRUPTED, "Ctrl-C before the method returned anything"
    except Exception as error:  # whatever it is, it must not cost the other rows
        _logger.debug("%s on %s at %d bytes", method, graph.name, frame.budget, exc_info=True)
        status, reason = Outcome.FAILED, f"{type(error).__name__}: {error}"
    return Unanswered(
        graph=frame.graph,
        method=method,
        status=status,
        budget=frame.budget,
        base_peak=frame.base_peak,
        base_time=frame.base_time,
        ops=frame.ops,
        seed=frame.seed,
        wall_time=time.monotonic() - start,
        memory_lower_bound=frame.memory_lower_bound,
        reason=reason,
    )


def _several(value: Any) -> list[Any]:
    """`value` as a list, a single one included."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _methods(graph: Graph, methods: str | Iterable[str] | None) -> list[str]:
    if methods is None:
        return [
            m.name for m in METHODS.values()
            if not m.exact or (m.name == "exact" and graph.n_ops <= EXACT_OPS)
        ]  # fmt: skip
    names = _several(methods)
    return list(METHODS) if names == ["all"] else [get_method(name).name for name in names]


def _options(
    options: Mapping[str, Mapping[str, Any]] | None, chosen: Sequence[Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """`options` once they are known to fit their methods."""
    given = {method: dict(values) for method, values in (options or {}).items()}
    for method, values in given.items():
        if not any(method in names for names in chosen):
            raise MethodError(f"options for {get_method(method).name!r}, which is not compared")
        try:
            make_params(get_method(method), values)
        except (TypeError, ValueError) as error:
            raise MethodError(f"method {method!r}: {error}") from error
    return given


def _grid(
    graph: Graph, budgets: Sequence[int | str | None], methods: Sequence[str], row: Sequence[Result]
) -> Grid:
    """`row` holds a result for each of the budgets."""
    labels = [
        format_bytes(frame.budget) if not isinstance(budget, str)
        else f"{budget} ({format_bytes(frame.budget)})"
        for budget, frame in zip(budgets, row, strict=True)
    ]  # fmt: skip
    return Grid(
        graph=graph.name,
        ops=graph.n_ops,
        base_peak=row[0].base_peak,
        base_time=graph.total_time,
        time_unit=graph.units[0],
        budgets=tuple(labels),
        methods=tuple(methods),
    )


def _was_interrupted(row: Row) -> bool:
    return row.stats.interrupted if isinstance(row, Result) else row.status is Outcome.INTERRUPTED


def _outcome(row: Row) -> str:
    """What became of a cell, in a few words."""
    text = str(row.status).replace("_", " ")
    if isinstance(row, Result) and row.solved and row.overhead is not None:
        text += f", overhead {row.overhead:.3%}"
    elif isinstance(row, Unanswered):
        text += f" ({row.reason})"
    return f"{text}, {row.wall_time:.1f} s"


def _keys() -> list[str]:
    """The keys of `Result.to_dict`, in order."""
    blank = Unanswered("", "", Outcome.REFUSED, 0, 0, 0.0, 0, 0, 0.0, None, "")
    return list(blank.to_dict())


def _silent(message: str) -> None:
    pass
