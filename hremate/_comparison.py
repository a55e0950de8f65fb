"""What `compare` returns: rows, their medians, and the tables made of them."""

from __future__ import annotations

import csv
import enum
import io
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from hremate._comparison_table import LEGEND, comparison_table, runs_legend
from hremate._files import Source
from hremate._text import finite
from hremate.budget import format_bytes
from hremate.errors import MissingExtraError
from hremate.result import Result, Status

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure


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
class Summary:
    """The runs of one graph, budget and method together.

    A run without a schedule within the budget counts as infinitely slow, so a median is None where half
    of the runs or more found nothing.
    """

    graph: str
    #: Bytes.
    budget: int
    method: str
    #: Number of runs, and of those with a schedule within the budget.
    runs: int
    solved: int
    overhead_median: float | None
    #: Over the runs that found something.
    overhead_min: float | None
    overhead_max: float | None
    time_median: float | None
    #: Seconds, over all runs.
    wall_time_median: float
    #: The largest proved by any run.
    lower_bound: float | None


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Rows are ordered by graph, then budget, method, seed and repetition, each in the order given. After
    Ctrl-C the rows not reached are missing; the last one may be a result cut short
    (`stats.interrupted`).
    """

    rows: tuple[Row, ...]
    #: One per graph; they say which rows were planned.
    grids: tuple[Grid, ...]
    #: Seconds of wall time for each row, None for no limit.
    time_limit: float | None
    seeds: tuple[int, ...]
    n_jobs: int
    #: Runs for each seed.
    repetitions: int = 1
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Whether a method raised something other than a refusal."""
        return any(row.status is Outcome.FAILED for row in self.rows)

    @property
    def runs(self) -> int:
        """Rows planned for each graph, budget and method."""
        return len(self.seeds) * self.repetitions

    def summary(self) -> tuple[Summary, ...]:
        """Medians over seeds and repetitions, one for each graph, budget and method with a row."""
        cells = (runs for _, columns in self._cells() for column in columns for runs in column)
        return tuple(_summary(runs) for runs in cells if runs)

    def to_dict(self) -> dict[str, Any]:
        """`{"rows": [...]}`, rows with the keys of `Result.to_dict`: plain numbers, None where unknown.

        With several runs of each cell also `summary`, with the fields of `Summary`.
        """
        document: dict[str, Any] = {"rows": [row.to_dict() for row in self.rows]}
        if self.runs > 1:
            document["summary"] = [asdict(entry) for entry in self.summary()]
        result: dict[str, Any] = finite(document)
        return result

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_csv(self) -> str:
        """One line per row below a header, without `stats`; empty where unknown."""
        text = io.StringIO()
        writer = csv.DictWriter(text, _keys(), extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.to_dict()["rows"])
        return text.getvalue()

    def to_dataframe(self) -> pandas.DataFrame:
        """One line per row, columns as in `to_csv`; NaN or None where unknown.

        Raises
        ------
        MissingExtraError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("to_dataframe needs pandas: pip install pandas") from None
        return pandas.DataFrame([row.to_dict() for row in self.rows], columns=_keys())

    def to_markdown(self) -> str:
        """A table per graph, methods x budgets, with the reasons of empty cells below it.

        Cells of several runs show their median, see `Summary`.
        """
        limit = "no time limit" if self.time_limit is None else f"at most {self.time_limit:g} s each"
        jobs = {1: "1 process", -1: "a process per core"}.get(self.n_jobs, f"{self.n_jobs} processes")
        seeds = ("seed " if len(self.seeds) == 1 else "seeds ") + ", ".join(map(str, self.seeds))
        if self.repetitions > 1:
            seeds += f" {self.repetitions} times"
        parts = []
        for grid, columns in self._cells():
            unit = "" if grid.time_unit in ("", "abstract") else f" {grid.time_unit}"
            parts.append(
                f"**{' '.join(grid.graph.split())}**: {grid.ops:,} ops, base peak "
                f"{format_bytes(grid.base_peak)}, base time {grid.base_time:.6g}{unit}; {limit}, "
                f"{seeds}, {jobs}"
            )
            cells = [[[row.to_dict() for row in runs] for runs in column] for column in columns]
            parts.append(comparison_table(grid.budgets, grid.methods, cells))
        parts.append(LEGEND if self.runs == 1 else runs_legend(self.runs))
        return "\n\n".join(parts) + "\n"

    def plot(self, path: Source | None = None, *, graph: str | None = None) -> Figure:
        """Overhead against budget for each method of one graph, with the lower bound.

        Drawn by `hremate.plot.plot_overhead`: medians, and bars from the best run to the worst.

        Parameters
        ----------
        path : path, optional
            File to write; its suffix chooses the format.
        graph : str, optional
            Name of the graph; default: the first one.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        from hremate.plot import plot_overhead

        wanted = self.grids[0].graph if graph is None else graph
        methods = next((grid.methods for grid in self.grids if grid.graph == wanted), ())
        return plot_overhead(
            {m: [row for row in self.rows if (row.graph, row.method) == (wanted, m)] for m in methods},
            path=path,
        )

    def __str__(self) -> str:
        return self.to_markdown().rstrip("\n")

    def _cells(self) -> Iterator[tuple[Grid, list[list[list[Row]]]]]:
        """Each grid with the rows of its cells, by budget and method."""
        start = 0
        for grid in self.grids:
            columns = []
            for _ in grid.budgets:
                column = []
                for _ in grid.methods:
                    column.append(list(self.rows[start : start + self.runs]))
                    start += self.runs
                columns.append(column)
            yield grid, columns


def _summary(runs: Sequence[Row]) -> Summary:
    solved = [row for row in runs if isinstance(row, Result) and row.solved]
    overheads = [row.overhead for row in solved if row.overhead is not None]
    times = [row.time for row in solved if row.time is not None]
    nothing = [math.inf] * (len(runs) - len(solved))
    bounds = [row.lower_bound for row in runs if isinstance(row, Result) and row.lower_bound is not None]
    return Summary(
        graph=runs[0].graph,
        budget=runs[0].budget,
        method=runs[0].method,
        runs=len(runs),
        solved=len(solved),
        overhead_median=_median(overheads + nothing),
        overhead_min=min(overheads, default=None),
        overhead_max=max(overheads, default=None),
        time_median=_median(times + nothing),
        wall_time_median=statistics.median(row.wall_time for row in runs),
        lower_bound=max(bounds, default=None),
    )


def _median(values: Sequence[float]) -> float | None:
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else None


def _keys() -> list[str]:
    """The keys of `Result.to_dict`, in order, without `stats`."""
    blank = Unanswered("", "", Outcome.REFUSED, 0, 0, 0.0, 0, 0, 0.0, None, "")
    return [key for key in blank.to_dict() if key != "stats"]
