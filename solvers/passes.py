"""Passes along the given order that are told by cuts what to drop.

A pass runs the ops of an order one after another; what is missing is made again just in time, and what
stands in the way is evicted by its price (see `hremate.solvers.searcher`). Prices alone see little of the
graph. The cut model sees all of it at the moment of the peak, yet nothing of when memory is needed there. So
a pass takes what a cut would run again as cheap to evict: the cut says which tensors, the pass says when.
Cuts for somewhat less than the budget leave room for what runs again. Each schedule is then repaired, shifted
and repaired, which makes up for much of what a pass evicted in vain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.solvers.base import Deadline
from hremate.solvers.cut_model import CutProblem, peak_problem, solve_cut
from hremate.solvers.found import Found
from hremate.solvers.searcher import Searcher, make_policy

#: Units of work for each op that a pass may take.
_WORK_PER_OP = 4_000
#: Budgets of cuts are whole multiples of this share of the budget, and at least so many of them.
_SHARE, _LEAST_SHARES = 0.01, 50
#: Standard deviations of random changes: of shares and patience, and of the logarithms of discount and reach.
_SHARE_STEP, _PATIENCE_STEP, _DISCOUNT_STEP, _REACH_STEP = 0.02, 0.05, 0.7, 0.7
#: Least discount and reach that random changes lead to.
_LEAST_DISCOUNT, _LEAST_REACH = 1e-3, 1e-3
#: Every so many random changes the best schedule so far takes the place of the cut.
_IMITATE = 3


@dataclass(frozen=True)
class Guide:
    """How a pass sets prices."""

    #: Budget of the cut that says what to drop, as a share of the wanted one.
    share: float
    #: Factor, in (0, 1], on the prices of what the cut drops; 1 where the cut has no say.
    discount: float
    #: Eviction prices as in `hremate.solvers.searcher.make_policy`.
    patience: float
    reach: float


#: Tried in turn. Long stretches are evicted on large graphs, so that neighbours count little.
_GUIDES = (
    Guide(1.0, 1.0, 0.3, 0.05), Guide(1.0, 0.01, 0.4, 0.05), Guide(0.95, 0.3, 0.3, 0.01),
    Guide(0.9, 0.5, 0.3, 0.05), Guide(0.95, 0.01, 0.3, 0.05), Guide(1.0, 0.5, 0.4, 0.05),
    Guide(1.0, 0.01, 0.3, 0.01), Guide(0.95, 0.01, 0.0, 0.0), Guide(1.0, 0.7, 0.4, 0.05),
    Guide(1.0, 0.3, 0.4, 0.05), Guide(0.9, 0.01, 0.3, 0.01), Guide(0.9, 0.3, 0.3, 0.01),
    Guide(1.0, 1.0, 0.4, 0.05), Guide(1.0, 0.3, 0.3, 0.05), Guide(0.9, 0.01, 0.0, 0.0),
    Guide(1.0, 1.0, 0.25, 0.3), Guide(1.0, 1.0, 0.5, 0.3), Guide(1.0, 1.0, 0.3, 0.01),
    Guide(1.0, 1.0, 0.0, 0.0),
)  # fmt: skip

#: The same with a schedule in place of the cut.
_IMITATING_GUIDES = (
    Guide(1.0, 0.3, 0.3, 0.05), Guide(1.0, 0.1, 0.3, 0.05), Guide(1.0, 0.01, 0.3, 0.05),
    Guide(1.0, 0.3, 0.0, 0.0),
)  # fmt: skip


def imitate(graph: Graph, budget: int, order: IntArray, deadline: Deadline | None = None) -> Found:
    """The best of a few passes that take what the schedule `order` makes again as cheap to evict.

    For schedules put together from parts, which know what to drop, yet not when memory is short.
    """
    search = PassSearch(graph, budget)
    search.searcher.deadline = deadline or Deadline()
    with search.found.searching():
        for guide in _IMITATING_GUIDES:
            search.follow(guide, search.run_again(order))
    return search.found


class PassSearch:
    """The best schedule within `budget` bytes of passes along the given order.

    After `_GUIDES` come random changes of the best one. Repeatable for a seed unless a deadline strikes.
    """

    def __init__(self, graph: Graph, budget: int, seed: int = 0) -> None:
        self.graph = graph
        self.budget = budget
        self.found = Found(graph, budget)
        self.searcher = Searcher(graph, 1, seed, Deadline())
        self.rng = np.random.default_rng([seed, 2])
        self.given = np.arange(graph.n_ops)
        #: Passes made, and the guide that random changes start from.
        self.made = 0
        self.best = _GUIDES[0]
        #: Ops that the cut at a share of the budget runs again, bool[n].
        self.cuts: dict[float, BoolArray] = {}

    @cached_property
    def problem(self) -> tuple[CutProblem, int]:
        """The cut problem at the peak, and the bytes that are needed there whatever is kept."""
        return peak_problem(self.graph)

    def run(self, passes: int, deadline: Deadline | None = None) -> Found:
        """So many passes in all, with those of earlier calls; Ctrl-C ends them and keeps what was found."""
        self.searcher.deadline = deadline or Deadline()
        self.found.timed_out = self.found.interrupted = False
        with self.found.searching():
            while self.made < passes and self.found.time > self.graph.total_time:
                self.step()
        return self.found

    def step(self) -> None:
        """The next pass."""
        k = self.made
        guide = _GUIDES[k] if k < len(_GUIDES) else self.changed(self.best)
        imitating = k >= len(_GUIDES) and self.found.order is not None and k % _IMITATE == 0
        before = self.found.time
        self.follow(guide, self.run_again(self.found.best) if imitating else self.rerun(guide))
        if self.found.time < before:
            self.best = guide
        self.made += 1

    def follow(self, guide: Guide, rerun: BoolArray) -> None:
        """A pass to which what the ops of `rerun` make is cheap to evict."""
        graph = self.graph
        bias: FloatArray = np.where(rerun[graph.producer], guide.discount, 1.0)
        policy = make_policy(graph, self.given, (guide.patience, guide.reach, False), bias)
        schedule = self.searcher.follow(
            self.given, self.budget, policy, max_work=_WORK_PER_OP * graph.n_ops
        )
        self.found.take(self.searcher, schedule)

    def rerun(self, guide: Guide) -> BoolArray:
        """Ops that the cut of the guide runs again; none where there is no such cut."""
        rerun = self.cuts.get(guide.share)
        if rerun is None:
            rerun = np.zeros(self.graph.n_ops, np.bool_)
            if guide.discount < 1:
                problem, needed = self.problem
                cut = solve_cut(problem, int(guide.share * self.budget) - needed, node_limit=1)
                if cut is not None:
                    rerun[: len(cut.rerun)] = cut.rerun
                self.cuts[guide.share] = rerun
        return rerun

    def run_again(self, order: IntArray) -> BoolArray:
        """Ops that a schedule runs again."""
        again: BoolArray = np.bincount(order, minlength=self.graph.n_ops) > 1
        return again

    def changed(self, guide: Guide) -> Guide:
        """A guide near the given one."""
        step = self.rng.standard_normal(4)
        shares = round((guide.share + _SHARE_STEP * step[0]) / _SHARE)
        return replace(
            guide,
            share=min(1.0, max(_LEAST_SHARES, shares) * _SHARE),
            discount=float(np.clip(guide.discount * np.exp(_DISCOUNT_STEP * step[1]), _LEAST_DISCOUNT, 1.0)),
            patience=max(0.0, guide.patience + _PATIENCE_STEP * step[2]),
            reach=max(_LEAST_REACH, guide.reach) * float(np.exp(_REACH_STEP * step[3])),
        )
