"""Simulated annealing over sequences of executions.

A state is a schedule of any peak; its cost is its time plus a weighted overflow, the bytes above the budget
summed over all steps. Moves drop a tensor over a stretch and make it again before its next use, remove
executions, exchange one recomputation for another, and reorder. A *cold* run forgets what its start looks
like: the weight of the overflow grows slowly from next to nothing, so that the order settles by memory
before time counts. A *warm* run keeps the weight high and refines its start; a *soft* one lowers it at first,
so that the start is half forgotten. Each wins on some graphs, so `solve` runs them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import joblib
import numpy as np

from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import simulate
from hremate.solvers import cut
from hremate.solvers._anneal_kernel import ROUND
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.incumbent import Incumbent, announcer
from hremate.solvers.repair import repair
from hremate.solvers.sequence import Sequence

#: Shares of the moves drop, remove, move, exchange, tree, block, pull and push.
SHARES = (0.25, 0.2, 0.15, 0.2, 0.1, 0.04, 0.03, 0.03)
#: Most that the weight changes in one round of proposals.
FASTEST = 1.01
#: Proposals per op of the graph, by default; fewer per op below so many ops; and at most so many in all.
PROPOSALS_PER_OP, FEW_OPS, MOST_PROPOSALS = 15_000, 100, 20_000_000
#: Proposals times ops between two looks at the clock, in rounds.
CHUNK_WORK, LONGEST_CHUNK, CHUNKS = 20_000, 40, 100
#: Share of a time limit that the cut may take for a start.
CUT_SHARE = 0.1
#: Proposals below which a run is not worth a process of its own.
PARALLEL_PROPOSALS = 1_000_000


@dataclass(frozen=True)
class Params:
    """Parameters of `anneal`."""

    #: Moves proposed in all when no time limit is given; default: 15,000 for each op, fewer below 100 ops.
    proposals: int | None = None
    #: Long runs from different seeds; with a time limit at least one for each process.
    restarts: int = 1

    def __post_init__(self) -> None:
        if self.proposals is not None and self.proposals < 1:
            raise MethodError("Expected proposals >= 1.")
        if self.restarts < 1:
            raise MethodError("Expected restarts >= 1.")


@dataclass(frozen=True)
class Setting:
    """One way to anneal."""

    #: First and last temperature, in mean op times, > 0.
    temperature: tuple[float, float] = (0.1, 0.004)
    #: Factor by which overflow is cheaper at first; infinite where the start is not to matter.
    softness: float = 1.0
    #: Share of the run over which the weight of the overflow grows to its full size; afterwards, and where
    #: the share is 0, it is left to the share of states within the budget.
    growth: float = 0.8


WARM = Setting()
REHEATED = Setting((0.3, 0.01))
COLD = (
    Setting((0.3, 0.01), softness=math.inf),
    Setting((3.0, 0.03), softness=math.inf, growth=0.0),
)
SOFT = (Setting((0.3, 0.01), softness=30.0), Setting((0.1, 0.01), softness=3.0))
#: Graphs of more ops than this get few moves for each op, and only these runs in turn, equal shares each:
#: there a schedule gets better as a whole or hardly at all.
HUGE_GRAPH = 20_000
LONG = (Setting((0.1, 0.004), softness=100.0), Setting((0.3, 0.004), softness=30.0),
        Setting((0.1, 0.004), softness=10.0))  # fmt: skip
#: Shares of the time, or of the proposals: of each short run, of the restarts, and of the soft runs.
SHORT_PART, RESTART_PART, SOFT_PART = 0.05, 0.44, 0.36
#: Restarts are long cold runs where a short one's overhead is at most so many times the least so far; else so
#: many short warm ones, which differ by the luck of their seeds.
NEAR, WARM_RESTARTS = 1.2, 7
#: Short runs of fewer moves for each op than this leave too much undone; then there are so many soft restarts
#: from the best schedule instead, or one soft run for all the rest where no start was within the budget.
FEW_MOVES, SOFT_RESTARTS = 400, 2


@dataclass(frozen=True)
class Annealed:
    """Outcome of one run."""

    #: The quickest schedule within the budget that was met; when there was none, that of least overflow.
    order: IntArray
    #: Bytes.
    peak: int
    #: Sum of the times of its steps.
    time: float
    #: Moves proposed.
    proposals: int


def anneal(
    graph: Graph,
    start: Schedule | Iterable[int],
    budget: int,
    *,
    seed: int = 0,
    deadline: Deadline | None = None,
    proposals: int | None = None,
    temperature: tuple[float, float] = WARM.temperature,
    shares: tuple[float, ...] = SHARES,
    softness: float = 1.0,
    growth: float = WARM.growth,
    goal: float = 0.0,
    on_best: Callable[[IntArray], object] | None = None,
) -> Annealed:
    """One annealing run from `start`, after FastSA [1]_, with moves that know about copies.

    Parameters
    ----------
    start : Schedule or iterable of int
        A valid schedule of `graph`, of any peak.
    budget : int
        Bytes.
    seed : int
        Equal seeds give equal results unless the deadline ends the run.
    deadline : Deadline, optional
        When to stop; the temperature falls with the share of the time or of the proposals used up.
    proposals : int, optional
        Moves to propose. Without it and without a deadline: as many as `Params.proposals` says.
    temperature : (float, float)
        First and last, > 0, in mean op times.
    shares : tuple of 8 floats
        Relative shares of the moves, see `SHARES`.
    softness : float
        Factor, >= 1, by which overflow is cheaper at first than usual; infinite for a cold run, to which its
        start hardly matters.
    growth : float
        Share of the run over which overflow becomes as expensive as usual; 0 for as soon as it can.
    goal : float
        Time at which to stop, because nothing can beat it.
    on_best : callable, optional
        Called with the best order so far whenever it improved, within the budget or not.

    Returns
    -------
    Annealed
        Never worse than `start`: within the budget first, then time; outside it, by overflow.

    Raises
    ------
    ScheduleError
        `start` is not valid.
    KeyboardInterrupt
        Ctrl-C; `on_best` has then seen all but the last tenth of a second.

    References
    ----------
    .. [1] Imanishi et al., "FastSA", NeurIPS 2023.
    """
    order = (start if isinstance(start, Schedule) else Schedule(start)).order
    simulate(graph, order)  # refuses what is no schedule
    sequence = Sequence(graph, order, budget, seed, softness=softness)
    deadline = deadline or Deadline()
    if proposals is None and math.isinf(deadline.remaining):
        proposals = default_proposals(graph)
    unit = graph.total_time / graph.n_ops or 1.0
    hot, low = (t * unit for t in temperature)
    ends: FloatArray = np.cumsum(shares) / np.sum(shares)
    rounds = max(1, min(LONGEST_CHUNK, CHUNK_WORK // graph.n_ops))
    if proposals is not None:
        rounds = max(1, min(rounds, proposals // (CHUNKS * ROUND)))
    progress, done, limit = 0.0, 0, deadline.remaining
    while sequence.best_time > goal:
        before = progress
        progress = done / proposals if proposals is not None else 0.0
        if not math.isinf(limit):
            progress = max(progress, 1.0 - deadline.remaining / limit if limit > 0 else 1.0)
        if progress >= 1:
            break
        rate = FASTEST
        if softness > 1 and progress < growth:
            rate = min(FASTEST, sequence.stiffness ** ((progress - before) / (growth * rounds)))
        step = rounds * ROUND if proposals is None else min(rounds * ROUND, proposals - done)
        if sequence.run(step, hot * (low / hot) ** progress, rate, ends) and on_best is not None:
            on_best(sequence.best)
        done += step
    best = sequence.best
    result = simulate(graph, best)
    return Annealed(best, result.peak, result.time, done)


def default_proposals(graph: Graph) -> int:
    """Moves proposed where neither a number nor a time limit is given."""
    n = graph.n_ops
    return min(int(PROPOSALS_PER_OP * n * min(1.0, n / FEW_OPS)) + ROUND, MOST_PROPOSALS)


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The best schedule of several annealing runs; the smallest peak met when none fits the budget."""
    search = _Portfolio(graph, budget, run, params)
    try:
        search.run_all()
    except KeyboardInterrupt:
        run.stats.interrupted = True
    run.stats.timed_out |= run.deadline.expired
    run.stats.counts["proposals"] = search.proposals
    return finish(graph, budget, run, "anneal", search.incumbent.best)


class _Portfolio:
    """Runs from several starts, and what they found."""

    def __init__(self, graph: Graph, budget: int, run: Run, params: Params) -> None:
        self.graph = graph
        self.budget = budget
        self.run = run
        self.params = params
        self.incumbent = Incumbent(graph, budget, announcer(run, "anneal"), run.lower_bound)
        self.given: IntArray = np.arange(graph.n_ops)
        self.total = params.proposals or default_proposals(graph)
        self.proposals = 0
        self.runs = 0
        #: Starts of warm runs: repaired schedules of others within the budget, no two equal.
        self.starts: list[IntArray] = []
        #: Of the time limit, when the starts have taken theirs.
        self.seconds = run.deadline.remaining

    def run_all(self) -> None:
        """Short runs, warm from all that others found and cold; restarts of what did best; soft runs.

        The best start may lie in a pit that others do not lead to. Huge graphs get the soft runs only.
        """
        timed = not math.isinf(self.run.deadline.remaining)
        self.incumbent.offer(self.given)
        self.gather()
        self.seconds = self.run.deadline.remaining
        restarts = max(self.params.restarts, self.run.n_jobs if timed else 1)
        if self.graph.n_ops > HUGE_GRAPH:
            for setting in LONG:
                self.restart([(self.best, setting)] * restarts, 1 / len(LONG))
            return
        starts = self.starts or [self.best]
        ends = [self.anneal(start, WARM, SHORT_PART) for start in starts]
        starts = [starts[k] for k in sorted(range(len(starts)), key=lambda k: ends[k])]
        restart_part = RESTART_PART - (len(starts) - 1) * SHORT_PART
        self.anneal(self.best, REHEATED, SHORT_PART)
        outcomes = [self.anneal(self.given, setting, SHORT_PART) for setting in COLD]
        ranking = sorted(range(len(COLD)), key=lambda k: (*outcomes[k], k))
        if self.near(*outcomes[ranking[0]]):
            cold = [(self.given, COLD[ranking[k % len(COLD)]]) for k in range(restarts)]
            self.restart(cold, restart_part)
        elif self.proposals < FEW_MOVES * self.graph.n_ops * self.runs:
            if not self.starts:
                self.restart([(self.best, SOFT[0])] * restarts, restart_part + SOFT_PART)
                return
            self.restart([(self.best, SOFT[0])] * max(restarts, SOFT_RESTARTS), restart_part)
        else:
            warm = [(starts[k % len(starts)], WARM) for k in range(max(restarts, WARM_RESTARTS))]
            self.restart(warm, restart_part)
        for setting in (*SOFT, SOFT[0]):
            self.anneal(self.best, setting, SOFT_PART / 3)

    @property
    def best(self) -> IntArray:
        """The best schedule so far, the given order where there is none."""
        best = self.incumbent.best
        return self.given if best is None else best

    def near(self, over: bool, time: float) -> bool:
        """Whether the outcome of a cold run is near that of the best schedule."""
        if over or self.incumbent.order is None:
            return self.incumbent.order is None
        base = self.graph.total_time
        return time - base <= NEAR * (self.incumbent.time - base)

    def gather(self) -> None:
        """Take in the schedules that others found, and that of the cut."""
        run = self.run
        if run.warm_start is not None:
            self.start_from(run.warm_start.order)
        if run.bound_order is not None:
            self.start_from(run.bound_order)
        if self.incumbent.meets_bound:
            return
        timed_out = run.stats.timed_out
        inner = replace(run, deadline=run.deadline.within(CUT_SHARE * run.deadline.remaining))
        self.start_from(cut.cut_search(self.graph, self.budget, inner, cut.Params()))
        run.stats.timed_out = timed_out
        if run.stats.interrupted:
            raise KeyboardInterrupt

    def start_from(self, order: IntArray) -> None:
        """Make a schedule a start, once it is repaired, if it is within the budget."""
        order = repair(self.graph, order, self.budget)
        if self.incumbent.offer(order) <= 0 and not any(np.array_equal(order, s) for s in self.starts):
            self.starts.append(order)

    def share(self, part: float) -> tuple[int | None, float]:
        """Proposals and seconds of a run that gets `part` of the whole."""
        if math.isinf(self.seconds):
            return max(ROUND, int(part * self.total)), math.inf
        return self.params.proposals, part * self.seconds

    def anneal(self, start: IntArray, setting: Setting, part: float) -> tuple[bool, float]:
        """One run, unless nothing is left to gain; returns how good it was: over budget, then its time."""
        if self.incumbent.meets_bound or self.run.deadline.expired:
            return True, math.inf
        proposals, seconds = self.share(part)
        job = _Job(self.graph, start, self.budget, setting, self.seed(), proposals, seconds,
                   self.incumbent.lower_bound)  # fmt: skip
        found = job.run(self.run.deadline, lambda order: self.incumbent.offer(order))
        return self.take(found)

    def take(self, found: Annealed) -> tuple[bool, float]:
        self.proposals += found.proposals
        self.incumbent.offer(repair(self.graph, found.order, self.budget))
        over = found.peak > self.budget
        return over, float(found.peak) if over else found.time

    def seed(self) -> int:
        """A new seed for each run."""
        self.runs += 1
        return int(np.random.default_rng([self.run.seed, self.runs]).integers(2**31))

    def restart(self, runs: list[tuple[IntArray, Setting]], part: float) -> None:
        """A run of each start and setting; they share `part` of the whole, in parallel where that pays."""
        restarts = len(runs)
        proposals, _ = self.share(part / restarts)
        work = math.inf if proposals is None else proposals
        if self.run.n_jobs == 1 or restarts == 1 or work < PARALLEL_PROPOSALS:
            for start, setting in runs:
                self.anneal(start, setting, part / restarts)
            return
        if self.incumbent.meets_bound or self.run.deadline.expired:
            return
        workers = min(self.run.n_jobs, restarts)
        batches = -(-restarts // workers)
        proposals, seconds = self.share(part / restarts)
        if not math.isinf(seconds):
            seconds = self.share(part / batches)[1]
        jobs = [
            _Job(self.graph, start, self.budget, setting, self.seed(), proposals, seconds,
                 self.incumbent.lower_bound)
            for start, setting in runs
        ]  # fmt: skip
        for k, found in enumerate(self._parallel(jobs, workers)):
            if isinstance(found, str):
                self.run.stats.degraded.append(f"anneal: {found}; run in this process")
                found = jobs[k].run(self.run.deadline)
            self.take(found)

    def _parallel(self, jobs: list[_Job], workers: int) -> list[Annealed | str]:
        """What each job found, or why it failed."""
        results: list[Annealed | str] = ["not run"] * len(jobs)
        try:
            parallel = joblib.Parallel(n_jobs=workers, return_as="generator_unordered")
            for k, found in parallel(joblib.delayed(_numbered)(k, job) for k, job in enumerate(jobs)):
                results[k] = found
        except Exception as error:  # whatever the user's joblib backend raises when it breaks
            results = [f"{type(error).__name__}" if isinstance(found, str) else found for found in results]
        return results


@dataclass(frozen=True, eq=False)
class _Job:
    """A run that can go to another process."""

    graph: Graph
    start: IntArray
    budget: int
    setting: Setting
    seed: int
    proposals: int | None
    #: May be infinite.
    seconds: float
    goal: float

    def run(
        self, deadline: Deadline | None = None, on_best: Callable[[IntArray], object] | None = None
    ) -> Annealed:
        deadline = deadline or Deadline()
        if not math.isinf(self.seconds):
            deadline = deadline.within(self.seconds)
        return anneal(
            self.graph, self.start, self.budget, seed=self.seed, deadline=deadline,
            proposals=self.proposals, temperature=self.setting.temperature,
            softness=self.setting.softness, growth=self.setting.growth, goal=self.goal, on_best=on_best,
        )  # fmt: skip


def _numbered(k: int, job: _Job) -> tuple[int, Annealed]:
    return k, job.run()
