"""`frontier`: time against memory budget, from the smallest budget within reach to the base peak.

`min_budget` finds where it begins.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from hremate._answers import with_bounds
from hremate._arguments import budget_bytes, job_count, seconds_or_none, seed_number
from hremate._files import Source
from hremate._text import finite, markdown
from hremate.bounds import MemoryBound, memory_lower_bound
from hremate.budget import format_bytes
from hremate.errors import MethodError
from hremate.graph import Graph
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solve import solve
from hremate.solvers.base import Deadline
from hremate.solvers.registry import get_method, make_params

if TYPE_CHECKING:
    from matplotlib.figure import Figure


#: Who searches for the smallest budget: `cut` is quick, `beam` gets lower on small graphs.
SEARCHERS = ("cut", "beam")


@dataclass(frozen=True)
class MinBudget:
    """The smallest budget of a graph, between what is proved and what was found."""

    #: Peak in bytes that no schedule can stay below, in any order.
    lower_bound: int
    #: Where that comes from, for people: "op 'addmm_7' needs by itself".
    need: str
    #: Smallest peak found, bytes: a budget that can be met.
    budget: int
    #: A schedule with that peak.
    schedule: Schedule
    #: Peak of the given order without recomputation, bytes.
    base_peak: int
    #: Whether Ctrl-C ended the search.
    interrupted: bool = False

    @property
    def optimal(self) -> bool:
        """Whether `budget` is proved to be the smallest."""
        return self.budget <= self.lower_bound

    def __str__(self) -> str:
        def share(nbytes: int) -> str:
            return f" ({nbytes / self.base_peak:.1%} of the base peak)" if self.base_peak else ""

        if self.optimal:
            return f"{format_bytes(self.budget)}{share(self.budget)}, the smallest possible: what {self.need}"
        return (
            f"{format_bytes(self.budget)}{share(self.budget)} found; none below "
            f"{format_bytes(self.lower_bound)}{share(self.lower_bound)}, what {self.need}"
        )


@dataclass(frozen=True)
class Frontier:
    """Results at rising budgets; times never rise with the budget, nor do the lower bounds."""

    #: Ascending budgets, each with a schedule within it; the last is the base peak.
    points: tuple[Result, ...]
    min_budget: MinBudget
    #: Unit of `time` in the points.
    time_unit: str = ""
    #: Whether Ctrl-C came before all points were solved: the others have the schedules known by then.
    interrupted: bool = False

    def to_dict(self) -> dict[str, Any]:
        """`{"points": [...]}`, points with the keys of `Result.to_dict`: plain numbers, None if unknown."""
        points: list[Any] = finite([point.to_dict() for point in self.points])
        return {"points": points}

    def to_json(self) -> str:
        """`to_dict` as one line of JSON."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_csv(self) -> str:
        """One line per point below a header, without `stats`; empty where unknown."""
        points = self.to_dict()["points"]
        text = io.StringIO()
        keys = [key for key in points[0] if key != "stats"]
        writer = csv.DictWriter(text, keys, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(points)
        return text.getvalue()

    def to_markdown(self) -> str:
        """A table with a row for each point, and what is known of the smallest budget."""
        unit = "" if self.time_unit in ("", "abstract") else f" ({self.time_unit})"
        rows = [["budget", "of base peak", "peak", f"time{unit}", "overhead %", "lower bound %", "reruns"]]
        for point in self.points:
            base = point.base_time if point.base_time > 0 else 1.0
            bound = None if point.lower_bound is None else max(100 * (point.lower_bound / base - 1), 0.0)
            rows.append(
                [
                    format_bytes(point.budget),
                    f"{point.budget / point.base_peak:.1%}" if point.base_peak else "-",
                    format_bytes(point.peak or 0),
                    f"{point.time:.6g}",
                    f"{100 * (point.overhead or 0.0):.3f}" + (" opt" if _proved(point) else ""),
                    "-" if bound is None else f"{bound:.3f}",
                    str(point.recomputes),
                ]
            )
        first = self.points[0]
        title = f"**{' '.join(first.graph.split())}**: {first.ops:,} ops, {first.method}, seed {first.seed}"
        end = "; interrupted" if self.interrupted else ""
        return f"{title}{end}\n\n{markdown(rows)}\n\nSmallest budget: {self.min_budget}.\n"

    def __str__(self) -> str:
        return self.to_markdown().rstrip("\n")

    def plot(self, path: Source | None = None) -> Figure:
        """Overhead against budget with the lower bound, as `hremate.plot.plot_overhead` draws it.

        Raises
        ------
        MissingExtraError
            matplotlib is not installed.
        """
        from hremate.plot import plot_overhead

        return plot_overhead({self.points[0].method: self.points}, path=path)


def min_budget(
    graph: Graph,
    method: str | Iterable[str] = SEARCHERS,
    *,
    precision: float = 0.01,
    time_limit: float | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    progress: Callable[[str], None] | None = None,
) -> MinBudget:
    """The smallest budget that can be met: a proven lower bound, and the best schedule found.

    Looks for a schedule at the lower bound, then halves the interval between the largest budget at which
    nothing was found and the smallest peak known. A method may fail at a budget that can be met, so the
    answer is a budget that can be met, not always the smallest one.

    Parameters
    ----------
    graph : Graph
    method : str or several
        Who searches, the next where the one before finds nothing; see
        `hremate.solvers.registry.METHODS`.
    precision : float
        The search ends when the interval is at most this share of the base peak, > 0.
    time_limit : float, optional
        Seconds of wall time of the whole search; half of them for the budget of the lower bound.
    seed, n_jobs, progress
        As for `solve`.

    Raises
    ------
    MethodError
        Unknown method, a method that cannot take this graph, or an argument out of range.

    Examples
    --------
    >>> from hremate import Op
    >>> g = Graph.from_ops([Op("a", 1.0, (), (("x", 8),)), Op("b", 2.0, ("x",), (("y", 4),))], ["y"])
    >>> min_budget(g).budget
    12
    """
    if isinstance(precision, bool) or not isinstance(precision, (int, float)) or not 0 < precision <= 1:
        raise MethodError(f"Expected 0 < precision <= 1, not {precision!r}.")
    methods = [get_method(name).name for name in ([method] if isinstance(method, str) else method)]
    if not methods:
        raise MethodError("Expected at least one method to search with.")
    tell = progress if progress is not None else _silent
    seed, n_jobs = seed_number(seed), job_count(n_jobs)
    deadline = Deadline(seconds_or_none(time_limit, "time_limit"))
    floor = memory_lower_bound(graph)
    best = Schedule(np.arange(graph.n_ops))
    base = best_peak = simulate(graph, best).peak
    failed = floor.bytes - 1  # the largest budget at which nothing was found
    slack = max(precision * base, 1)
    ask, interrupted = floor.bytes, False
    while best_peak > floor.bytes and best_peak - failed > slack and not (interrupted or deadline.expired):
        # Halving takes as many rounds as the interval has binary digits; the first is worth the most.
        rounds = 2 if ask == floor.bytes else math.ceil(math.log2((best_peak - failed) / slack))
        share = deadline.within(deadline.remaining / rounds)
        for k, name in enumerate(methods):
            seconds = None if share.end is None else share.remaining / (len(methods) - k)
            try:
                result = solve(
                    graph, ask, name, seed=seed, n_jobs=n_jobs, time_limit=seconds, warm_start=best,
                    lower_bound=graph.total_time, polish=0,
                )  # fmt: skip
            except KeyboardInterrupt:
                interrupted = True
                break
            if result.schedule is not None and result.peak is not None and result.peak < best_peak:
                best, best_peak = result.schedule, result.peak
            interrupted = result.stats.interrupted
            if result.solved or interrupted:
                break
        met = best_peak <= ask
        tell(f"{format_bytes(ask)}: {'met' if met else 'not met'}; smallest peak so far "
             f"{format_bytes(best_peak)}")  # fmt: skip
        failed = failed if met else ask
        ask = (failed + best_peak) // 2
    return MinBudget(floor.bytes, floor.need, best_peak, best, base, interrupted)


def frontier(
    graph: Graph,
    n: int = 12,
    *,
    method: str = "hierarchical",
    time_limit: float | None = None,
    seed: int = 0,
    n_jobs: int = 1,
    smallest: int | str | None = None,
    polish: float | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Frontier:
    """Solve `graph` at `n` budgets, evenly spaced from the smallest within reach to the base peak.

    Budgets are solved in ascending order, each from the fastest schedule known that fits; at last every
    point gets the fastest schedule that any of them found and that fits it. So time falls with the budget
    by construction, and points are better than those of separate solves: to compare methods, use
    `hremate.compare`. A lower bound on time holds for every smaller budget too.

    Parameters
    ----------
    graph : Graph
    n : int
        Number of points, >= 2. A graph whose smallest budget is its base peak has a single one.
    method, seed, n_jobs, polish, **options
        As for `solve`.
    time_limit : float, optional
        Seconds of wall time for each point, and for the search for the smallest budget.
    smallest : int or str, optional
        Where to begin, as a budget of `solve`. Default: what `min_budget` finds. Below that
        nothing is known, so a smaller one is raised to it.
    progress : callable, optional
        Called with one line of text after each step.

    Returns
    -------
    Frontier
        After Ctrl-C the points solved so far, and at the others what was known by then.

    Raises
    ------
    MethodError
        Unknown method or option, a method that cannot take this graph, or an argument out of range;
        `none`, which recomputes nothing.
    BudgetError
        `smallest` cannot be read.

    Examples
    --------
    >>> from hremate import generate
    >>> [round(p.overhead, 2) for p in frontier(generate("chain", 30), 3, method="beam").points][-1]
    0.0
    """
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 2:
        raise MethodError(f"Expected n >= 2 points, not {n!r}.")
    entry = get_method(method)
    if entry.name == "none":
        raise MethodError("method 'none' recomputes nothing; its only point is the base peak")
    make_params(entry, options)
    settings: dict[str, Any] = {"seed": seed, "n_jobs": n_jobs, "time_limit": time_limit, **options}
    seconds_or_none(polish, "polish")
    tell = progress if progress is not None else _silent
    first = None if smallest is None else budget_bytes(graph, smallest)
    least = min_budget(graph, time_limit=time_limit, seed=seed, n_jobs=n_jobs, progress=progress)
    begin = least.budget if first is None else min(max(first, least.budget), least.base_peak)
    budgets = np.unique(np.linspace(begin, least.base_peak, int(n)).astype(np.int64)).tolist()
    budgets[-1] = least.base_peak  # floating point may end a byte off
    budgets[0] = begin
    known = [least.schedule]
    points: list[Result] = []
    interrupted = least.interrupted
    for budget in budgets:
        start = _fastest(graph, known, budget)
        point = None
        if not interrupted:
            try:
                point = solve(graph, budget, method, polish=polish, warm_start=start, **settings)
            except KeyboardInterrupt:
                interrupted = True
            interrupted = interrupted or (point is not None and point.stats.interrupted)
        if point is None:
            known_so_far = solve(graph, budget, "greedy", seed=seed, time_limit=0, warm_start=start)
            point = replace(known_so_far, method=entry.name)
        points.append(point)
        if point.schedule is not None:
            known.append(point.schedule)
        tell(f"{len(points)}/{len(budgets)} {format_bytes(budget)}: overhead {point.overhead or 0.0:.3%}, "
             f"{point.wall_time:.1f} s")  # fmt: skip
    return Frontier(
        tuple(_monotone(graph, points)), least, time_unit=graph.units[0], interrupted=interrupted
    )


def _fastest(graph: Graph, known: Sequence[Schedule], budget: int) -> Schedule:
    """The fastest of the schedules within `budget`; the earliest of equals."""
    costs = [simulate(graph, schedule) for schedule in known]
    fitting = [k for k, cost in enumerate(costs) if cost.peak <= budget]
    return known[min(fitting, key=lambda k: (costs[k].time, k))]


def _monotone(graph: Graph, points: Sequence[Result]) -> list[Result]:
    """The points with the fastest schedule and the largest lower bound that any of them has for them."""
    floor = memory_lower_bound(graph)
    bound = 0.0
    result: list[Result] = []
    for point in reversed(points):
        bound = max(bound, point.lower_bound or 0.0)
        result.append(_with_best(point, points, bound, floor))
    return result[::-1]


def _with_best(point: Result, points: Sequence[Result], bound: float, floor: MemoryBound) -> Result:
    fitting = [p for p in points if p.peak is not None and p.peak <= point.budget and p.time is not None]
    best = min(fitting, key=lambda p: p.time or 0.0)
    if not point.solved or (best.time or 0.0) < (point.time or 0.0):
        point = replace(
            point, schedule=best.schedule, peak=best.peak, time=best.time, status=Status.FEASIBLE,
            proof=None, reason="",
        )  # fmt: skip
    return with_bounds(point, floor, bound)


def _proved(point: Result) -> bool:
    return point.status is Status.OPTIMAL and point.proof == "any-order"


def _silent(message: str) -> None:
    pass
