"""What a solver gives back."""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from typing import Any

from hremate.budget import format_bytes
from hremate.schedule import Schedule


class Status(str, enum.Enum):
    """How a solve ended."""

    #: Within the budget and proved best; `Result.proof` says over which class of schedules.
    OPTIMAL = "optimal"
    #: Within the budget.
    FEASIBLE = "feasible"
    #: Proved: no schedule in any order fits the budget.
    INFEASIBLE = "infeasible"
    #: Nothing within the budget was found; infeasibility is not proved.
    NO_SOLUTION = "no_solution"

    def __str__(self) -> str:
        return self.value


@dataclass
class Stats:
    """Numbers about a run, for people and plots; none of them changes the answer."""

    #: Wall seconds of each named stage, in order.
    seconds: dict[str, float] = field(default_factory=dict)
    #: Time of the best schedule within the budget that each stage found (time units of the graph).
    stage_time: dict[str, float] = field(default_factory=dict)
    #: (wall seconds, time of the best schedule within the budget so far), whenever that improved.
    trajectory: list[tuple[float, float]] = field(default_factory=list)
    #: Counts: blocks, classes, options, MILP variables and so on.
    counts: dict[str, int] = field(default_factory=dict)
    #: Failures that were survived by a fallback, each naming where and why.
    degraded: list[str] = field(default_factory=list)
    #: Whether the run was cut short by the time limit.
    timed_out: bool = False
    #: Whether the run was cut short by Ctrl-C.
    interrupted: bool = False


@dataclass(frozen=True)
class Result:
    """A schedule with what is known about it.

    Without a schedule within the budget, `schedule`, `peak` and `time` describe the smallest peak that
    was reached (None when nothing was).
    """

    graph: str
    method: str
    status: Status
    #: Bytes.
    budget: int
    #: Peak of the given order without recomputation, bytes.
    base_peak: int
    #: Sum of all op times.
    base_time: float
    schedule: Schedule | None
    peak: int | None
    time: float | None
    #: Number of ops of the graph.
    ops: int
    seed: int
    wall_time: float
    #: Total time that no schedule within the budget can beat, in any order.
    lower_bound: float | None = None
    #: The same among schedules staged along a fixed order (see `proof`).
    order_lower_bound: float | None = None
    #: What an `optimal` or `infeasible` rests on: "any-order", "staged" or None.
    proof: str | None = None
    #: Peak in bytes that no schedule can stay below, in any order.
    memory_lower_bound: int | None = None
    #: Why there is no schedule within the budget, for people.
    reason: str = ""
    stats: Stats = field(default_factory=Stats)

    @property
    def solved(self) -> bool:
        """Whether `schedule` fits the budget."""
        return self.status in (Status.OPTIMAL, Status.FEASIBLE)

    @property
    def overhead(self) -> float | None:
        """time / base_time - 1."""
        if self.time is None:
            return None
        return self.time / self.base_time - 1 if self.base_time > 0 else 0.0

    @property
    def gap(self) -> float | None:
        """(time - lower_bound) / base_time, for a schedule within the budget."""
        if self.time is None or self.lower_bound is None or not self.solved:
            return None
        return (self.time - self.lower_bound) / self.base_time if self.base_time > 0 else 0.0

    @property
    def steps(self) -> int | None:
        return None if self.schedule is None else len(self.schedule)

    @property
    def recomputes(self) -> int | None:
        """Steps beyond the first run of each op."""
        return None if self.schedule is None else len(self.schedule) - self.ops

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `--json`: plain numbers, None where unknown; without the schedule."""
        return {
            "graph": self.graph,
            "method": self.method,
            "status": self.status.value,
            "budget": self.budget,
            "base_peak": self.base_peak,
            "peak": self.peak,
            "time": self.time,
            "base_time": self.base_time,
            "overhead": self.overhead,
            "lower_bound": self.lower_bound,
            "order_lower_bound": self.order_lower_bound,
            "proof": self.proof,
            "memory_lower_bound": self.memory_lower_bound,
            "gap": self.gap,
            "wall_time": self.wall_time,
            "ops": self.ops,
            "steps": self.steps,
            "recomputes": self.recomputes,
            "seed": self.seed,
            "reason": self.reason,
            "stats": asdict(self.stats),
        }

    def summary(self) -> str:
        """The result at a glance, a few lines of text."""
        share = self.budget / self.base_peak if self.base_peak else 0.0
        lines = [
            f"{self.graph}: {self.method}, {str(self.status).replace('_', ' ')}"
            + (f" ({self.proof})" if self.proof else "")
            + f" in {self.wall_time:.1f} s"
            + (", interrupted" if self.stats.interrupted else "")
            + (", out of time" if self.stats.timed_out else ""),
            f"  budget     {format_bytes(self.budget)}, {share:.1%} of the base peak "
            f"{format_bytes(self.base_peak)}",
        ]
        if self.peak is not None and self.overhead is not None and self.recomputes is not None:
            times = self.peak / self.budget if self.budget else float("inf")
            filled = f"{times:.1%} of" if times <= 100 else "more than 100 times"
            verdict = "" if self.solved else ": ABOVE IT, the smallest reached"
            lines += [
                f"  peak       {format_bytes(self.peak)}, {filled} the budget{verdict}",
                f"             {self._bar()}",
                f"  overhead   {self.overhead:.3%} (time {self.time:.6g} against {self.base_time:.6g})",
                f"  recomputed {self.recomputes} of {self.steps} steps ({self.ops} ops)",
            ]
        # That every op runs at least once is no news.
        if self.gap is not None and (self.lower_bound or 0.0) > self.base_time:
            lines.append(f"  proved     at most {max(self.gap, 0.0):.3%} of the base time above the optimum")
        if self.reason:
            lines.append(f"  reason     {self.reason}")
        lines += [f"  degraded   {event}" for event in self.stats.degraded]
        return "\n".join(lines)

    def _bar(self, width: int = 50) -> str:
        """Peak (#) and budget (|) on a line as long as the base peak."""
        peak = self.peak or 0
        scale = max(self.base_peak, self.budget if self.solved else 0, peak, 1)
        filled = round(width * peak / scale)
        line = "#" * filled + "." * (width - filled)
        mark = round(width * self.budget / scale)
        return f"[{line[:mark]}|{line[mark:]}]"

    def __str__(self) -> str:
        return self.summary()
