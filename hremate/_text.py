"""Text for people (where the time of a schedule goes, what a graph is made of) and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hremate.budget import format_bytes
from hremate.graph import PHASES, Graph
from hremate.schedule import Schedule


def table(rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> str:
    """Rows in columns; the first `left` columns to the left, the others to the right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if c < left else cell.rjust(width)
            for c, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A padded Markdown table; the first row is its header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def phase_names(graph: Graph) -> list[tuple[int, str]]:
    """(code, name) of the phases that ops of the graph have, in the order of training."""
    codes = [*range(len(PHASES)), -1]
    names = [*PHASES, "no phase"]
    return [(code, name) for code, name in zip(codes, names, strict=True) if (graph.phase == code).any()]


def phase_table(graph: Graph, schedule: Schedule) -> str:
    """Time spent in each phase, first runs and recomputation apart."""
    again = np.bincount(schedule.order, minlength=graph.n_ops) - 1
    unit = _unit(graph)
    rows = [["phase", "ops", f"first runs{unit}", "again", f"recompute{unit}", "of base time"]]

    def row(name: str, ops: Any) -> list[str]:
        first = math.fsum(graph.time[ops].tolist())
        extra = math.fsum((graph.time[ops] * again[ops]).tolist())
        share = extra / graph.total_time if graph.total_time > 0 else 0.0
        runs = int(again[ops].sum())
        return [name, str(len(ops)), _number(first), str(runs), _number(extra), f"{share:.2%}"]

    phases = phase_names(graph)
    rows += [row(name, np.flatnonzero(graph.phase == code)) for code, name in phases]
    if len(phases) > 1:
        rows.append(row("all", np.arange(graph.n_ops)))
    return table(rows)


def recompute_table(graph: Graph, schedule: Schedule, limit: int = 5) -> str:
    """The op types (ops, where the graph has no types) whose recomputation costs most; "" when nothing is."""
    again = np.bincount(schedule.order, minlength=graph.n_ops) - 1
    labels = graph.op_types if any(graph.op_types) else graph.op_names
    cost: dict[str, list[float]] = {}
    for i in np.flatnonzero(again).tolist():
        entry = cost.setdefault(labels[i] or "(no type)", [0, 0.0])
        entry[0] += int(again[i])
        entry[1] += float(again[i] * graph.time[i])
    if not cost:
        return ""
    worst = sorted(cost.items(), key=lambda item: (-item[1][1], item[0]))
    kind = "op type" if any(graph.op_types) else "op"
    rows = [[f"most recomputed {kind}", "again", f"recompute{_unit(graph)}", "of base time"]]
    for label, (count, cost_again) in worst[:limit]:
        share = cost_again / graph.total_time if graph.total_time > 0 else 0.0
        rows.append([label, f"{count:.0f}", _number(cost_again), f"{share:.2%}"])
    if len(worst) > limit:
        rows.append([f"{len(worst) - limit} more", "", "", ""])
    return table(rows)


def graph_facts(graph: Graph, facts: dict[str, Any]) -> str:
    """The result of `hremate info` for people; `facts` is its JSON object."""
    unit = _unit(graph)
    base, floor = facts["base_peak"], facts["memory_lower_bound"]
    share = f" = {floor / base:.1%} of the base peak" if base else ""
    once = f", {int(graph.once.sum())} of them at most once" if graph.once.any() else ""
    rows = [
        ["ops", f"{graph.n_ops}{once}"],
        ["tensors", f"{graph.n_tensors}, {format_bytes(int(graph.size.sum()))} together"],
        ["memory model", graph.memory_model],
        ["total time", f"{_number(graph.total_time)}{unit}"],
        ["base peak", f"{format_bytes(base)} ({base} bytes)"],
        ["lower bound", f"{format_bytes(floor)} ({floor} bytes){share}"],
        ["", f"what {facts['memory_lower_bound_need']}"],
        ["resident", format_bytes(graph.resident) + ", beside the peak"],
        ["outputs", f"{facts['outputs']}, {format_bytes(facts['output_bytes'])} together"],
    ]  # fmt: skip
    if facts["budget"] is not None:
        rows.append(["budget", f"{format_bytes(facts['budget'])} ({facts['budget']} bytes), from the file"])
    phases = [["phase", "ops", f"time{unit}", "share"]]
    for code, name in phase_names(graph):
        ops = graph.phase == code
        spent = math.fsum(graph.time[ops].tolist())
        part = spent / graph.total_time if graph.total_time > 0 else 0.0
        phases.append([name, str(int(ops.sum())), _number(spent), f"{part:.1%}"])
    return f"{graph.name}\n{table(rows, left=2)}\n\n{table(phases)}"


def finite(value: Any) -> Any:
    """A JSON document with null for what JSON lacks: infinity and NaN."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, list):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _unit(graph: Graph) -> str:
    """The unit of time, to be put behind a word; nothing for abstract times."""
    return "" if graph.units[0] in ("", "abstract") else f" ({graph.units[0]})"


def _number(value: float) -> str:
    """A time, with as many digits as are worth reading."""
    return f"{value:.0f}" if value == int(value) or abs(value) >= 1e6 else f"{value:.2f}"
