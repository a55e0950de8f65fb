"""The Markdown table of a comparison: methods x budgets of one graph, with numbered notes below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hremate.solvers.incumbent import OPTIMAL_GAP

#: A row of a comparison as `to_dict` gives it; None where the comparison did not get.
Cell = Mapping[str, Any] | None


#: What the cells mean.
LEGEND = (
    "Cells: overhead in % of the base time, wall seconds without those of the lower bound. Bold: least time "
    "of the column; opt: proved optimal over all orders; staged: proved optimal along one order; not met: "
    "the smallest peak reached, in % of the base peak."
)


def comparison_table(
    budgets: Sequence[str], methods: Sequence[str], columns: Sequence[Sequence[Cell]]
) -> str:
    """The table of one graph.

    Parameters
    ----------
    budgets, methods
        Labels of the columns and of the rows.
    columns
        For each budget the cells of the methods.
    """
    notes = _Notes()
    texts = []
    for column in columns:
        done = [cell for cell in column if cell is not None]
        best = min((cell["time"] for cell in done if _solved(cell)), default=None)
        bound = max((c["lower_bound"] for c in done if c["lower_bound"] is not None), default=None)
        cells = [_cell(cell, best, bound, notes) for cell in column]
        texts.append([*cells, _bound_cell(done, bound)])
    rows = [["method", *budgets], *map(list, zip([*methods, "*lower bound*"], *texts, strict=True))]
    table = _markdown([[text.replace("|", "\\|") for text in row] for row in rows])
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


def _cell(cell: Cell, best: float | None, bound: float | None, notes: _Notes) -> str:
    """`best` and `bound` are the least time and the largest lower bound of the column."""
    if cell is None:
        return "-"
    status, slack = cell["status"], OPTIMAL_GAP * cell["base_time"]
    # Every method waits for the same bound, see `solve`.
    seconds = f"{cell['wall_time'] - cell['stats']['seconds'].get('bound', 0.0):.1f} s"
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


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """A padded Markdown table; the first row is its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
