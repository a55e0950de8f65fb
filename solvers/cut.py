"""The method `cut`: keep and re-run as the cut model says, each re-run just before it is needed.

The cut at the peak step of the given order decides what is dropped there. Where the schedule then still
exceeds the budget, its worst step is the next moment: what has run before it may run again after it, and
a cut decides, round after round, at a few target budgets. One cut is a bound as well, so the answer comes
with its distance from the optimum; on transformers and residual networks that is a few hundredths of a
per cent. Where it is more, the same starts over from the given order with ops of the backward part shifted
(`hremate.solvers.shift`), and the schedule is shifted after each cut. Where memory is high at many moments
at once, and the graph is not too large, the program of several moments (`hremate.solvers.moment_search`)
closes what is left of the gap.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError, SolverError
from hremate.graph import Graph, IntArray
from hremate.partition.phases import split_position
from hremate.result import Result
from hremate.schedule import Schedule
from hremate.simulate import step_memory
from hremate.solvers._emit_kernel import emit, sequence_moment
from hremate.solvers.base import Run, finish
from hremate.solvers.cut_model import Cut, CutProblem, prove_cut, solve_cut
from hremate.solvers.incumbent import meets
from hremate.solvers.repair import repair
from hremate.solvers.shift import later, shifted, sooner
from hremate.solvers.time_bound import SEVERAL_WEIGHT, time_lower_bound

#: Budgets that the rounds aim at, as shares of the wanted one.
TARGETS = (1.0, 0.985, 0.97, 0.95, 0.9, 0.8, 0.7)
#: Graphs of up to `SEVERAL_WEIGHT` ops and arcs get their first cut solved in SCIP, and so many nodes before.
MOST_NODES = 200
#: A schedule this close to the bound, as a share of the base time, is not worth another start.
CLOSE_ENOUGH = 1e-4
#: A round that does not lower the peak by this share of it in so many rounds ends the target.
STALLED_ROUNDS = 12


@dataclass(frozen=True)
class Params:
    """Parameters of the cut method."""

    #: Branch-and-bound nodes of a cut times ops and arcs of the graph.
    work: int = 1_500_000
    #: Cuts per target budget.
    rounds: int = 60
    #: Branch-and-bound nodes that the first cut gets in SCIP, on graphs of up to some 10,000 ops.
    prove_nodes: int = 50
    #: Whether the program of several moments is tried where the gap is open.
    moments: bool = True

    def __post_init__(self) -> None:
        if self.work < 1:
            raise MethodError("Expected work >= 1.")
        if self.rounds < 1:
            raise MethodError("Expected rounds >= 1.")
        if self.prove_nodes < 0:
            raise MethodError("Expected prove_nodes >= 0.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Schedule `graph` within `budget` bytes by cuts; the smallest peak reached when that fails."""
    return finish(graph, budget, run, "cut", cut_search(graph, budget, run, params))


def cut_search(graph: Graph, budget: int, run: Run, params: Params) -> IntArray:
    """The order that `solve` hands in."""
    search = _Cuts(graph, budget, run, params)
    try:
        search.run_starts()
        search.run_moments()
    except KeyboardInterrupt:
        run.stats.interrupted = True
    run.stats.timed_out |= run.deadline.expired
    return search.order


class _Cuts:
    """The best schedule so far: the fastest within the budget, else the one of smallest peak."""

    def __init__(self, graph: Graph, budget: int, run: Run, params: Params) -> None:
        self.graph = graph
        self.budget = budget
        self.run = run
        self.params = params
        self.weight = graph.n_ops + len(graph.in_idx)
        self.order: IntArray = np.arange(graph.n_ops)
        self.rank = self._rank(self.order, int(step_memory(graph, self.order).max()))

    def _rank(self, order: IntArray, peak: int) -> tuple[bool, float]:
        over = peak > self.budget
        return over, float(peak) if over else float(self.graph.time[order].sum())

    def offer(self, order: IntArray, peak: int) -> None:
        rank = self._rank(order, peak)
        if rank < self.rank:
            self.order, self.rank = order, rank
            if not rank[0] and self.run.callback is not None:
                self.run.callback(Schedule(order), peak, rank[1])

    def run_moments(self) -> None:
        """The schedule that several moments at once suggest, where the one at hand may be improved."""
        if not self.rank[0] and meets(self.graph, self.rank[1], self.run.lower_bound):
            return
        order = self.run.bound_order
        if not self.run.bounded and self.params.moments and self.weight <= SEVERAL_WEIGHT:
            order = time_lower_bound(
                self.graph, self.budget, deadline=self.run.deadline, seed=self.run.seed
            ).order
        if order is not None:
            self.offer(order, int(step_memory(self.graph, order).max()))

    @property
    def near_bound(self) -> bool:
        over, time = self.rank
        return not over and time <= self.run.lower_bound + CLOSE_ENOUGH * self.graph.total_time

    def run_starts(self) -> None:
        """The given order, then with ops shifted, for as long as the gap is open."""
        given: IntArray = np.arange(self.graph.n_ops)
        split = split_position(self.graph)
        first = split if split < self.graph.n_ops else 0
        self.run_targets(given, shift=False)
        for start in (later, sooner):
            if self.near_bound or self.run.deadline.expired:
                return
            self.run_targets(start(self.graph, given, first), shift=True)

    def run_targets(self, start: IntArray, *, shift: bool) -> None:
        """Rounds of cuts at one target budget after another, until a schedule fits."""
        for share in TARGETS:
            if self.run.deadline.expired:
                return
            found = self.rounds(start, int(share * self.budget), shift)
            if found is not None:
                repaired = repair(self.graph, found, self.budget)
                self.offer(repaired, int(step_memory(self.graph, repaired).max()))
                return

    def rounds(self, order: IntArray, target: int, shift: bool) -> IntArray | None:
        """Cut at the worst step until the schedule fits the budget; None when that stalls.

        Parameters
        ----------
        order : int64[n]
            The order to start from.
        target : int
            Bytes that a cut aims at.
        shift : bool
            Whether steps are shifted after each cut.
        """
        graph = self.graph
        nodes = max(1, self.params.work // self.weight)
        if self.weight <= SEVERAL_WEIGHT:
            nodes = min(nodes, MOST_NODES)
        lowest, stalled = np.inf, 0
        for _ in range(self.params.rounds):
            memory = step_memory(graph, order)
            step = int(np.argmax(memory))
            self.offer(order, int(memory[step]))
            if memory[step] <= self.budget:
                return order
            if memory[step] < lowest * (1 - 1e-4):
                lowest, stalled = float(memory[step]), 0
            else:
                stalled += 1
            if stalled > STALLED_ROUNDS or self.run.deadline.expired:
                return None
            after = self.cut_at(order, step, target, nodes)
            if after is None:
                return None
            order = shifted(graph, after) if shift else after
        return None

    def cut_at(self, order: IntArray, step: int, target: int, nodes: int) -> IntArray | None:
        """`order` after a cut at `step` that leaves `target` bytes; None when nothing can be dropped."""
        graph = self.graph
        _, tensors, *arrays = sequence_moment(
            order, step, graph.time, graph.size, graph.once, graph.is_output, graph.in_ptr, graph.in_idx,
            graph.out_ptr, graph.producer,
        )  # fmt: skip
        problem = CutProblem(*arrays)
        op = int(order[step])
        read = int(graph.size[graph.inputs_of(op)].sum())
        made, workspace = int(graph.out_bytes[op]), int(graph.workspace[op])
        reuse = graph.memory_model == "reuse"
        needed = max(read + workspace, made) if reuse else read + made + workspace
        cut = solve_cut(problem, target - needed, node_limit=nodes, deadline=self.run.deadline)
        if cut is None:
            return None
        if len(order) == graph.n_ops and self.weight <= SEVERAL_WEIGHT and self.params.prove_nodes > 0:
            cut = self.proved(problem, target - needed, cut)
        dropped = np.zeros(graph.n_tensors, np.bool_)
        made_again = problem.producer >= 0
        made_again[made_again] = cut.rerun[problem.producer[made_again]]
        dropped[tensors[made_again]] = True
        if not dropped.any():
            return None
        result: IntArray = emit(
            order, step, dropped, graph.is_output, graph.in_ptr, graph.in_idx, graph.out_ptr, graph.producer
        )
        return result

    def proved(self, problem: CutProblem, capacity: int, cut: Cut) -> Cut:
        """`cut` improved by SCIP; as it is when SCIP fails."""
        try:
            return prove_cut(
                problem, capacity, cut, unit=max(self.graph.total_time, 1e-300) / 100, seed=self.run.seed,
                deadline=self.run.deadline, node_limit=self.params.prove_nodes,
            )  # fmt: skip
        except SolverError as error:
            self.run.stats.degraded.append(f"cut: {error}")
            return cut
