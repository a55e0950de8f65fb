"""The Markdown table of a comparison: methods x budgets of one graph, with numbered notes below it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hremate._text import markdown
from hremate.solvers.incumbent import OPTIMAL_GAP

#: A row of a comparison as `to_dict` gives it.
Cell = Mapping[str, Any]

#: What the cells mean.
LEGEND = (
    "Cells: overhead in % of the base time, wall seconds without those of the lower bound. Bold: least time "
    "of the column; opt: proved optimal over all orders; staged: proved optimal along one order; not met: "
    "the smallest peak reached, in % of the base peak."
)


def runs_legend(runs: int) -> str:
    """What the cells of several runs mean."""
    return (
        f"Cells: median of {runs} runs of the overhead in % of the base time, [best, worst] where they "
        "differ, median of the wall seconds without those of the lower bound. Bold: least median of the "
        "column; opt: all proved optimal over all orders; k/n: only k of n runs met the budget; not met: "
        "the smallest peak reached by the first run, in % of the base peak."
    )


def comparison_table(
    budgets: Sequence[str], methods: Sequence[str], columns: Sequence[Sequence[Sequence[Cell]]]
) -> str:
    """The table of one graph.

    Parameters
    ----------
    budgets, methods
        Labels of the columns and of the rows.
    columns
        For each budget and method the runs; none where the comparison did not get.
    """
    notes = _Notes()
    texts = []
    for column in columns:
        done = [cell for runs in column for cell in runs]
        best = min((time for runs in column if (time := _median_time(runs)) is not None), default=None)
        bound = max((c["lower_bound"] for c in done if c["lower_bound"] is not None), default=None)
        cells = [
            _runs_cell(runs, best, bound, notes) if len(runs) > 1
            else _cell(runs[0] if runs else None, best, bound, notes)
            for runs in column
        ]  # fmt: skip
        texts.append([*cells, _bound_cell(done, bound)])
    rows = [["method", *budgets], *map(list, zip([*methods, "*lower bound*"], *texts, strict=True))]
    table = markdown([[text.replace("|", "\\|") for text in row] for row in rows])
    return f"{table}\n\n{notes}" if notes else table


class _Notes:
    """Footnotes, equal ones only once."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, note: str) -> str:
        """The mark that stands for `note`."""
        return f"[{self._numbers.setdefault(' '.join(note.split()), len(self._numbers) + 1)}]"

    def __bool__(self) -> bool:
        return bool(self._numbers)

    def __str__(self) -> str:
        return "\n".join(f"- [{number}] {note}" for note, number in self._numbers.items())


def _solved(cell: Mapping[str, Any]) -> bool:
    return cell["status"] in ("optimal", "feasible")


def _median(values: Sequence[float]) -> float | None:
    middle = statistics.median(values) if values else math.inf
    return middle if math.isfinite(middle) else None


def _median_time(runs: Sequence[Cell]) -> float | None:
    """A run without a schedule within the budget counts as infinitely slow."""
    return _median([cell["time"] if _solved(cell) else math.inf for cell in runs])


def _seconds(cell: Cell) -> float:
    """Every method waits for the same bound, see `solve`."""
    seconds: float = cell["wall_time"] - cell["stats"]["seconds"].get("bound", 0.0)
    return seconds


def _runs_cell(runs: Sequence[Cell], best: float | None, bound: float | None, notes: _Notes) -> str:
    """The median of several runs, and how far they spread."""
    solved = [cell for cell in runs if _solved(cell)]
    if not solved:
        return _cell(runs[0], best, bound, notes)
    slack = OPTIMAL_GAP * runs[0]["base_time"]
    overheads = [100 * cell["overhead"] for cell in solved]
    median = _median(overheads + [math.inf] * (len(runs) - len(solved)))
    time = _median_time(runs)
    text = "-" if median is None else f"{median:.3f}"
    if time is not None and best is not None and time <= best + slack:
        text = f"**{text}**"
    if f"{min(overheads):.3f}" != f"{max(overheads):.3f}":
        text += f" [{min(overheads):.3f}, {max(overheads):.3f}]"
    if bound is not None and max(cell["time"] for cell in solved) <= bound + slack:
        text += " opt"
    if len(solved) < len(runs):
        text += f" {len(solved)}/{len(runs)}"
    seconds = statistics.median(_seconds(cell) for cell in runs)
    return f"{text}, {seconds:.1f} s"


def _cell(cell: Cell | None, best: float | None, bound: float | None, notes: _Notes) -> str:
    """`best` and `bound` are the least time and the largest lower bound of the column."""
    if cell is None:
        return "-"
    status, slack = cell["status"], OPTIMAL_GAP * cell["base_time"]
    seconds = f"{_seconds(cell):.1f} s"
    if _solved(cell):
        text = f"{100 * cell['overhead']:.3f}"
        if best is not None and cell["time"] <= best + slack:
            text = f"**{text}**"
        # What one method proves holds for all of them.
        if bound is not None and cell["time"] <= bound + slack:
            text += " opt"
        elif cell["proof"] is not None:
            text += f" {cell['proof']}"
        parts = [text, seconds]
    elif status == "no_solution":
        reached = ""
        if cell["peak"] is not None and cell["base_peak"]:
            reached = f": peak {cell['peak'] / cell['base_peak']:.1%}"
        parts = [f"not met{reached}", seconds]
    else:
        parts = [f"{status} {notes.mark(cell['reason'])}"]
        if status != "refused":
            parts.append(seconds)
    if cell["stats"]["interrupted"]:
        parts.append("interrupted")
    return ", ".join(parts)


def _bound_cell(done: Sequence[Mapping[str, Any]], bound: float | None) -> str:
    """The least overhead possible in any order, as far as proved."""
    if any(cell["status"] == "infeasible" for cell in done):
        return "infeasible"
    if bound is None:
        return "-"
    base = done[0]["base_time"]
    return f"{100 * (bound / base - 1) if base > 0 else 0.0:.3f}"
