"""Polish: a schedule improved by windows and annealing in turn, each making room for the other.

A round anneals a while from the best schedule, then solves windows (`windows`) that cover it, those with most
recomputation first. Where all that may change is one small program, the window is the whole
schedule. When a round of windows gains nothing, the next one looks further: windows of a larger reach, with
other ops side by side.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import joblib
import numpy as np

from hremate.errors import ScheduleError, SolverError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.simulate import simulate
from hremate.solvers.anneal import Setting, anneal
from hremate.solvers.base import Deadline, Run
from hremate.solvers.incumbent import Incumbent, announcer
from hremate.solvers.shift import shift_and_repair
from hremate.solvers.window_model import Slots, TooLarge, WindowModel
from hremate.solvers.windows import Window, WindowAnswer, Windows, combine, solve_window

#: Reaches of windows tried in turn.
REACHES = (1.0, 3.0, 10.0, 100.0)
#: Free runs of a window: at first, and the least and the most as it turns out how hard they are.
RUNS, LEAST_RUNS, MOST_RUNS = 800, 100, 2400
#: Branch-and-bound nodes of a window; seconds, and share of the remaining time, where there is a time limit.
NODES, SECONDS, SHARE = 150, 15.0, 0.25
#: With less time than this a window is not begun.
LEAST_SECONDS = 0.5
#: Windows that are solved from the same schedule and then combined.
BATCH = 4
#: Free runs of a batch from which starting workers pays.
PARALLEL_RUNS = 1000
#: Longer schedules are only annealed.
MOST_STEPS = 20_000
#: Proposals of the first annealing for each op of small graphs, and of large ones times the root of ops.
PROPOSALS_PER_OP, PROPOSALS = 2000, 12_000_000
#: Longest annealing, in first ones.
MOST_EFFORT = 16
#: Proposals of each annealing for each op of schedules that are only annealed.
LONG_PROPOSALS_PER_OP = 10
#: Annealings in turn. Schedules that are only annealed, with few moves for each op, get the soft ones: there
#: a schedule gets better as a whole or hardly at all.
SETTINGS = (
    Setting((0.1, 0.004)), Setting((0.1, 0.004), softness=100.0),
    Setting((0.03, 0.004)), Setting((0.1, 0.004), softness=30.0),
    Setting((0.3, 0.004)), Setting((0.1, 0.004), softness=10.0),
)  # fmt: skip
SOFT_SETTINGS = tuple(setting for setting in SETTINGS if setting.softness > 1)
#: After any step.
_EVER = 2**62


@dataclass(frozen=True)
class PolishParams:
    """When polishing ends before the deadline."""

    #: Rounds; None for no limit.
    rounds: int | None = None
    #: Rounds in a row without gain.
    patience: int = 6
    #: Windows of one round.
    windows: int = 16

    def __post_init__(self) -> None:
        if self.rounds is not None and self.rounds < 0:
            raise ValueError(f"rounds is {self.rounds}; expected >= 0")
        for name in ("patience", "windows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected >= 1")


def polish(
    graph: Graph, order: IntArray, budget: int, run: Run, params: PolishParams | None = None
) -> IntArray:
    """A schedule at least as good as `order`: within the budget if it can be, then of least time.

    Stops when `run.lower_bound` is met, when `run.deadline` passes, on Ctrl-C (`run.stats.interrupted` is
    then set), or as `params` say. Repeatable for a seed, whatever `run.n_jobs`, unless the deadline strikes.

    Parameters
    ----------
    order : int64[L]
        A valid schedule of any peak.
    budget : int
        Bytes.

    Raises
    ------
    ScheduleError
        `order` is not valid.
    """
    search = _Polish(graph, order, budget, run, params or PolishParams())
    try:
        search.rounds()
    except KeyboardInterrupt:
        run.stats.interrupted = True
    run.stats.timed_out |= run.deadline.expired and not search.best.meets_bound
    return search.order


class _Polish:
    """The best schedule so far, and how hard to look."""

    def __init__(
        self, graph: Graph, order: IntArray, budget: int, run: Run, params: PolishParams
    ) -> None:
        self.graph = graph
        self.budget = budget
        self.run = run
        self.params = params
        self.best = Incumbent(graph, budget, announcer(run, "polish"), run.lower_bound)
        self.offer(order)
        self.windows: Windows | None = None
        self.level = 0
        self.most_runs = RUNS
        self.effort = 1
        self.round = 0
        #: (schedule, reach) whose window over everything is settled.
        self.settled: set[tuple[bytes, float]] = set()
        self.rng = np.random.default_rng(run.seed)

    @property
    def order(self) -> IntArray:
        """The quickest schedule within the budget, or else the one of smallest peak."""
        found = self.best.best
        assert found is not None
        return found

    @property
    def over(self) -> bool:
        return self.best.meets_bound or self.run.deadline.expired or self.run.stats.interrupted

    @property
    def long(self) -> bool:
        """Whether the schedule is too long for windows."""
        return len(self.order) > MOST_STEPS

    def offer(self, order: IntArray) -> bool:
        """Take in a valid schedule, shifted and repaired as well; return whether that is an improvement."""
        before = self.best.time
        self.best.offer(order)
        self.best.offer(shift_and_repair(self.graph, order, self.budget))
        return self.best.time < before

    def note(self, order: IntArray) -> None:
        self.best.offer(order)

    def rounds(self) -> None:
        """Annealing, which is quick, and windows in turn."""
        idle = 0
        for number in itertools.count():
            if self.over or number == self.params.rounds or idle == self.params.patience:
                return
            self.round = number
            annealed = self.anneal()
            if self.over:
                return
            gained = self.solve_windows()
            # The longer annealing pays, or nothing else does, the more of it.
            longer = annealed or not gained
            self.effort = min(2 * self.effort, MOST_EFFORT) if longer else max(1, self.effort // 2)
            idle = 0 if gained or annealed else idle + 1

    def anneal(self) -> bool:
        """Anneal from the best schedule; return whether that improves it."""
        n = self.graph.n_ops
        proposals = int(self.effort * min(PROPOSALS_PER_OP * n, PROPOSALS / n**0.5))
        settings: Sequence[Setting] = SETTINGS
        if self.long:
            proposals, settings = LONG_PROPOSALS_PER_OP * n, SOFT_SETTINGS
        setting = settings[self.round % len(settings)]
        deadline = self.run.deadline.within(max(1.0, SHARE * self.run.deadline.remaining))
        before = self.best.time
        found = anneal(
            self.graph, self.order, self.budget, seed=self.run.seed + self.round, deadline=deadline,
            proposals=proposals, temperature=setting.temperature, softness=setting.softness,
            growth=setting.growth, on_best=self.note,
        )  # fmt: skip
        self.offer(found.order)
        return self.best.time < before

    def solve_windows(self) -> bool:
        """A round of windows at the present level; return whether that improves the best schedule."""
        if self.long:
            return False
        if self.windows is None:
            self.windows = Windows(self.graph, self.budget, self.run.deadline)
        before = self.best.time
        results: list[bool] = []
        for batch in self.batches(REACHES[min(self.level, len(REACHES) - 1)]):
            results += self.solve_batch(batch)
            if self.over:
                break
        gained = self.best.time < before
        self.level = 0 if gained else self.level + 1
        if results and sum(results) < len(results) / 2:
            self.most_runs = max(LEAST_RUNS, self.most_runs // 2)
        elif results and all(results):
            self.most_runs = min(MOST_RUNS, 2 * self.most_runs)
        return gained

    def batches(self, reach: float) -> Iterator[list[Window]]:
        """Windows that may be solved side by side, best prospects first."""
        order = self.order
        if (order.tobytes(), reach) in self.settled:
            return
        everything = np.ones(self.graph.n_ops, np.bool_)
        whole = Window(everything, 0, _EVER, reach)
        assert self.windows is not None
        try:
            slots = self.windows.slots(order, whole)
        except TooLarge:
            return
        free = np.bincount(slots.op[slots.free], minlength=self.graph.n_ops)
        if free.sum() <= self.most_runs:
            yield [whole]
            return
        again = np.ones(len(order), np.bool_)
        again[np.unique(order, return_index=True)[1]] = False
        spent = np.where(again, self.graph.time[order], 0.0)  # on recomputation: what there is to gain
        region = self.regions(free, self.most_runs // 2)
        gain = np.bincount(region, np.bincount(order, spent, self.graph.n_ops))
        mixed = self.rng.permutation(len(gain))
        spans = self.spans(np.bincount(slots.step[slots.free], minlength=len(order)))

        def joined(pairs: Iterable[tuple[int, int]]) -> list[tuple[float, Window]]:
            return [
                (gain[list(pair)].sum(), Window(np.isin(region, pair), 0, _EVER, reach)) for pair in pairs
            ]

        # Neighbouring regions, all ops among some steps, and regions far from each other, by turns first.
        kinds = [
            joined((k, k + 1) for k in range(self.level % 2, len(gain) - 1, 2)),
            [(spent[a:b].sum(), Window(everything, a, b, reach)) for a, b in spans],
            joined(zip(mixed[::2].tolist(), mixed[1::2].tolist(), strict=False)),
        ]
        left = self.params.windows
        for kind in range(len(kinds)):
            ranked = sorted(kinds[(self.round + kind) % len(kinds)], key=lambda entry: -entry[0])[:left]
            left -= len(ranked)
            for start in range(0, len(ranked), BATCH):
                yield [window for _, window in ranked[start : start + BATCH]]

    def spans(self, free: IntArray) -> list[tuple[int, int]]:
        """Ranges of steps with about as many free runs (int64[L] for each step) as a window may have."""
        piece = np.cumsum(free) // self.most_runs
        edges = [0, *(np.flatnonzero(np.diff(piece)) + 1).tolist(), len(free)]
        return list(itertools.pairwise(edges))

    def regions(self, free: IntArray, most: int) -> IntArray:
        """Neighbouring ops with at most `most` free runs together (or one op), int64[n]."""
        region = np.zeros(self.graph.n_ops, np.int64)
        filled, number = int(self.rng.integers(most)), 0
        for i, runs in enumerate(free.tolist()):
            if filled and filled + runs > most:
                filled, number = 0, number + 1
            filled += runs
            region[i] = number
        return region

    def solve_batch(self, batch: Sequence[Window]) -> list[bool]:
        """Solve windows from the best schedule and combine what they find; return which were settled.

        One that is too large to be built is not.
        """
        assert self.windows is not None
        order = self.order
        whole = batch[0].last == _EVER and batch[0].ops.all()
        models: list[WindowModel] = []
        too_large: list[bool] = []
        for window in batch:
            if self.over:
                break
            try:
                model = self.windows.model(order, window)
            except TooLarge:
                too_large.append(False)
                continue
            if model is not None:
                models.append(model)
        answers = self.answers(models)
        found = [
            (answer.time, k) for k, answer in enumerate(answers)
            if answer.runs is not None and answer.time < self.best.time
        ]  # fmt: skip
        changes: list[tuple[Slots, BoolArray]] = []
        for _, k in sorted(found):
            runs = answers[k].runs
            assert runs is not None
            try:
                together = combine(order, [*changes, (models[k].slots, runs)])
                fits = simulate(self.graph, together).peak <= self.budget
            except ScheduleError:
                continue
            if fits:
                changes.append((models[k].slots, runs))
                self.best.offer(together)
        if changes:
            self.offer(combine(order, changes))
        if whole and answers and not too_large and all(answer.proved for answer in answers):
            self.settled.add((self.order.tobytes(), batch[0].reach))
        counts = self.run.stats.counts
        counts["windows"] = counts.get("windows", 0) + len(answers)
        for answer in answers:
            if answer.failure and answer.failure not in self.run.stats.degraded:
                self.run.stats.degraded.append(answer.failure)
        return [answer.proved for answer in answers] + too_large

    def answers(self, models: Sequence[WindowModel]) -> list[WindowAnswer]:
        """The answer to each model, by joblib where that pays; it is the same for any number of workers."""
        remaining = self.run.deadline.remaining
        seconds = min(SECONDS, SHARE * remaining) if remaining < float("inf") else None
        seed = self.run.seed + self.round
        answers: list[WindowAnswer] = []
        if self.run.n_jobs != 1 and len(models) > 1 and sum(m.n_runs for m in models) >= PARALLEL_RUNS:
            try:
                parallel = joblib.Parallel(n_jobs=self.run.n_jobs, return_as="generator")
                answers.extend(parallel(joblib.delayed(solved)(model, seconds, seed) for model in models))
            except Exception as error:  # whatever the user's joblib backend raises when it breaks
                self.run.stats.degraded.append(
                    f"polish: the pool broke ({type(error).__name__}); solved in this process"
                )
        for model in models[len(answers) :]:
            if self.over:
                break
            if seconds is not None:
                seconds = min(seconds, self.run.deadline.remaining)
                if seconds < LEAST_SECONDS:
                    break
            answers.append(solved(model, seconds, seed))
            self.run.stats.interrupted |= answers[-1].interrupted
        return answers


def solved(model: WindowModel, seconds: float | None, seed: int) -> WindowAnswer:
    """What a worker does: solve one window."""
    try:
        return solve_window(model, deadline=Deadline(seconds), node_limit=NODES, seed=seed)
    except SolverError as error:
        return WindowAnswer(None, float("inf"), False, 0, False, str(error))
