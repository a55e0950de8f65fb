"""`compare`: graphs x methods x budgets at equal time limits, as one table.

Whatever one method does, the others still run: a refusal or a failure is a cell with its reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hremate._answers import BOUND_SECONDS
from hremate._arguments import seed_number
from hremate._comparison import Comparison, Grid, Outcome, Row, Summary, Unanswered
from hremate._files import Source, named
from hremate._partial_file import PartialFile, result_of_value, result_to_value
from hremate.bounds import time_lower_bound
from hremate.budget import format_bytes
from hremate.errors import MethodError, MissingExtraError
from hremate.graph import Graph
from hremate.io import read_graph
from hremate.result import Result, Status
from hremate.solve import solve
from hremate.solvers.base import Deadline
from hremate.solvers.registry import METHODS, get_method, make_params
from hremate.solvers.time_bound import compile_kernels

__all__ = ["EXACT_OPS", "Comparison", "Grid", "Outcome", "Row", "Summary", "Unanswered", "compare"]

#: By default, graphs beyond this many ops are spared `exact`, which rarely proves anything there.
EXACT_OPS = 100

_logger = logging.getLogger(__name__)


def compare(
    graphs: Graph | Source | Iterable[Graph | Source],
    budgets: int | str | Iterable[int | str] | None = None,
    methods: str | Iterable[str] | None = None,
    *,
    time_limit: float | None = 60.0,
    seed: int = 0,
    seeds: int | Iterable[int] | None = None,
    repetitions: int = 1,
    n_jobs: int = 1,
    resume: Source | None = None,
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
    seeds : int or several of them, optional
        Instead of `seed`: every cell is solved once with each, and has a row for each.
    repetitions : int
        Runs for each seed, >= 1; they differ by the clock alone.
    resume : path, optional
        A file that keeps each result as soon as it is there (JSON lines). Results in it for the same graph
        (by content), method, budget, seed and arguments are not computed again, so a comparison that was
        killed goes on where it stopped. Refusals and failures are tried again. Several processes must
        not share a file.
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
        A file cannot be read as a graph, or `resume` as what it should be; before anything runs.
    OSError
        `resume` cannot be written; before anything runs.
    KeyboardInterrupt
        Ctrl-C before the first solve.

    Examples
    --------
    >>> from hremate import generate
    >>> print(compare(generate("transformer", 60), ["80%", "60%"], ["beam", "none"]).rows[1].status)
    no_solution
    """
    tell = progress if progress is not None else _silent
    chosen_seeds = _seeds(seed, seeds)
    if isinstance(repetitions, bool) or not isinstance(repetitions, (int, np.integer)) or repetitions < 1:
        raise MethodError(f"Expected repetitions >= 1, not {repetitions!r}.")
    runs = [(number, repetition) for number in chosen_seeds for repetition in range(repetitions)]
    settings: dict[str, Any] = {"n_jobs": n_jobs, "time_limit": time_limit}
    loaded = [g if isinstance(g, Graph) else read_graph(g) for g in _several(graphs)]
    asked = [None] if budgets is None else _several(budgets)
    chosen = [_methods(graph, methods) for graph in loaded]
    given = _options(options, chosen)
    if not loaded or not asked or not all(chosen):
        raise MethodError("nothing to compare: Expected at least one graph, budget and method.")
    solve(loaded[0], "100%", "none", **settings)  # checks the arguments, answers without a search
    # Read the budgets, and know what rows without a result still tell; no time for the bounds.
    frames = [[solve(graph, budget, "none", time_limit=0) for budget in asked] for graph in loaded]
    grids = tuple(
        _grid(graph, asked, names, row) for graph, names, row in zip(loaded, chosen, frames, strict=True)
    )
    cells = [
        (graph, frame, label, method, number, repetition)
        for graph, grid, row in zip(loaded, grids, frames, strict=True)
        for frame, label in zip(row, grid.budgets, strict=True)
        for method in grid.methods
        for number, repetition in runs
    ]
    memo = _Memo(resume, settings)

    rows: list[Row] = []
    interrupted = False
    try:
        for graph, frame, label, method, number, repetition in cells:
            own = given.get(method, {})
            key = memo.key(graph, frame, method=method, seed=number, repetition=repetition, options=own)
            row: Row | None = memo.result(graph, key)
            again = "" if row is None else ", from the file"
            if row is None:
                bound = memo.bound(graph, frame, time_limit)
                options_here = {**settings, "seed": number, "lower_bound": bound, **own}
                row = _solve_cell(graph, frame, method, options_here)
                memo.keep(key, row)
            rows.append(row)
            run = label if len(runs) == 1 else f"{label}, seed {number}"
            tell(f"{len(rows)}/{len(cells)} {graph.name} at {run}: {method}, {_outcome(row)}{again}")
            interrupted = _was_interrupted(row)
            if interrupted:
                break
    except KeyboardInterrupt:  # between two cells
        interrupted = True
    return Comparison(
        tuple(rows), grids, time_limit, chosen_seeds, n_jobs, int(repetitions), interrupted
    )


class _Memo:
    """The bound that all cells of a graph and budget share, and what the file of an earlier run has."""

    def __init__(self, path: Source | None, settings: Mapping[str, Any]) -> None:
        self._file = None if path is None else PartialFile(path)
        self._settings = dict(settings)
        self._bound: tuple[Result, float | None] | None = None

    def key(self, graph: Graph, frame: Result, **cell: Any) -> dict[str, Any]:
        """What tells a cell, or a bound, from all others; empty without a file."""
        if self._file is None:
            return {}
        return {"graph": graph.sha256, "budget": frame.budget, **self._settings, **cell}

    def result(self, graph: Graph, key: Mapping[str, Any]) -> Result | None:
        """The result that an earlier run kept."""
        value = None if self._file is None else self._file.get(key)
        if self._file is None or value is None:
            return None
        with named(self._file.path):
            return result_of_value(graph, value)

    def keep(self, key: Mapping[str, Any], row: Row) -> None:
        """Keep a result that is final; what was cut short or not answered is tried again next time."""
        if self._file is not None and isinstance(row, Result) and not row.stats.interrupted:
            self._file.add(key, result_to_value(row))

    def bound(self, graph: Graph, frame: Result, time_limit: float | None) -> float | None:
        """The bound for a graph and budget; None where no cell will search."""
        if self._bound is None or self._bound[0] is not frame:
            key = self.key(graph, frame, bound="time")
            bound = None if self._file is None else self._file.get(key)
            if bound is None and frame.status is Status.NO_SOLUTION:
                compile_kernels()
                seconds = BOUND_SECONDS if time_limit is None else min(BOUND_SECONDS, float(time_limit))
                bound = time_lower_bound(graph, frame.budget, deadline=Deadline(seconds)).time
                if self._file is not None:
                    self._file.add(key, bound)
            self._bound = frame, bound
        return self._bound[1]


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
        seed=settings["seed"],
        wall_time=time.monotonic() - start,
        memory_lower_bound=frame.memory_lower_bound,
        reason=reason,
    )


def _several(value: Any) -> list[Any]:
    """`value` as a list, a single one included."""
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _seeds(seed: int, seeds: int | Iterable[int] | None) -> tuple[int, ...]:
    """The seeds to run, checked."""
    numbers = tuple(seed_number(number) for number in _several(seed if seeds is None else seeds))
    if not numbers:
        raise MethodError("nothing to compare: Expected at least one seed.")
    return numbers


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


def _silent(message: str) -> None:
    pass
