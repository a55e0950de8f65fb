"""The `hierarchical` method: blocks, options of each block, one hierarchical ILP that merges them.

1. Partition the given order, with the ops of the backward part that free memory run as soon as they can,
   into blocks (`hremate.partition`).
2. Price memory with the cut model of the whole graph (`hremate.solvers.cut_model`).
3. Draw the frontier of options of each class of equal blocks (`hremate.ilp.options`).
4. Choose menus by the price, solve the H-ILP, refine the menus around its answer, solve again. Where cuts
   alone stay far from the bound, a chain of many small blocks goes first (`hremate.ilp.chains`).
5. Expand to a flat schedule, repair it, check it exactly; tighten and solve again if it does not fit.

Source: Gusak et al., ICML 2025 (HiRemate); the H-ILP here does not pin phantoms and has exact memory rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from hremate.errors import SolverError
from hremate.graph import Graph, IntArray
from hremate.ilp.bundles import bundles, pinned_tensors
from hremate.ilp.cache import OptionCache
from hremate.ilp.chains import chain_orders
from hremate.ilp.flat import annealed, price_memory
from hremate.ilp.inner import InnerParams
from hremate.ilp.leaves import LeafTask
from hremate.ilp.level import LevelParams, LevelSearch, Stopped, timed
from hremate.ilp.nest import Solver, make_nest
from hremate.ilp.options import FrontierParams
from hremate.ilp.plans import Params, Plan, plans, reruns_of, tree_of
from hremate.partition.evaluate import evaluate
from hremate.partition.phases import split_position
from hremate.partition.subgraph import subgraph
from hremate.partition.tree import check_tree
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import base_peak, simulate
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.beam import beam_search
from hremate.solvers.cut import Params as CutParams
from hremate.solvers.cut import cut_search
from hremate.solvers.cut_model import Cut
from hremate.solvers.exact import solve_staged
from hremate.solvers.incumbent import OPTIMAL_GAP, meets
from hremate.solvers.passes import PassSearch, imitate
from hremate.solvers.repair import repair
from hremate.solvers.shift import shift_and_repair, sooner

#: Graphs of up to this many ops are one leaf.
LEAF_OPS = 60
#: A partition whose blocks have more interface tensors than this in all is not worth a H-ILP.
MOST_INTERFACE = 2000
#: How the H-ILPs inside a block are worked on.
INNER_LEVEL = LevelParams(menu=5, refinements=1, node_limit=1, seconds=5.0, gap=1e-2, tight=True)
#: Share of the remaining time that the flat cut may take, and seconds on graphs of up to so many ops.
RESERVE_SHARE, RESERVE_SECONDS, LARGE_GRAPH = 0.15, 10.0, 5000
#: Share of the remaining time that the cut which prices memory may take.
CUT_SHARE = 0.05
#: Share of the remaining time that the options of one plan may take.
OPTION_SHARE, NESTED_OPTION_SHARE = 0.3, 0.5
#: Share of the remaining time that a H-ILP may take beyond `Params.milp_seconds`.
MILP_SHARE = 0.15
#: Share of the remaining time that passes, and the flat beam search, may take.
PASS_SHARE, BEAM_SHARE = 0.2, 0.15
#: Share of the remaining time of a plan that passes which imitate its answer may take.
IMITATION_SHARE = 0.1
#: Passes: at least and at most so many, in between of so many ops in all.
PASSES, MOST_PASSES, PASS_OPS = 8, 32, 320_000
#: Passes that come before everything else, so that there is a schedule early, and their share of the time.
EARLY_PASSES, EARLY_SHARE = 2, 0.02
#: Beyond so many ops chains wait until blocks have failed, and blocks end where flat schedules are better.
HUGE_GRAPH = 20_000
#: On graphs without phases, shares of the remaining time of beam search and of blocks, before annealing; and
#: the share of bytes that no block decides about beyond which blocks are not tried.
PHASELESS_BEAM, PHASELESS_BLOCKS, MOST_SHARED = 0.05, 0.15, 0.4
#: Share of the remaining time that chains of blocks may take.
CHAIN_SHARE = 0.3
#: An answer this close to the bound of the cut model is not worth another partition (share of base time).
CLOSE_ENOUGH = 2e-4
#: An answer this far from that bound is worth trying with more ways to save memory.
FAR_OFF = 5e-3
#: A plan that gains less than this over the ones before ends the trying of further ones.
WORTHWHILE = 3e-4


@dataclass(frozen=True)
class Answer:
    """A flat schedule of the whole graph."""

    order: IntArray
    peak: int
    time: float


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Schedule `graph` within `budget` bytes by the hierarchy.

    A graph of up to `LEAF_OPS` ops is one leaf. Else partitions are tried until one comes close to the
    bound of the cut model, the plans are exhausted, or the time limit strikes. If no partition gives a
    schedule within the budget, flat methods over the whole graph (cuts, then beam search) have the last
    word; `stats.degraded` says so. `stats.stage_time` tells what each stage found by itself.
    """
    order = _freeing_order(graph, params)
    if (np.diff(order) > 0).all():
        search = _Search(graph, budget, run, params)
    else:
        search = _Search(subgraph(graph, order), budget, _reordered(run, order), params)
    try:
        search.run_plans()
    except Stopped:
        run.stats.timed_out |= run.deadline.expired
    except KeyboardInterrupt:
        run.stats.interrupted = True
    search.wind_up()
    best, bound = search.best, search.order_bound
    # A schedule that beats the bound is not staged; nothing is proved about its like.
    proved = (
        search.solved
        and best is not None
        and bound is not None
        and abs(best.time - bound) <= OPTIMAL_GAP * graph.total_time
    )
    return finish(
        graph,
        budget,
        run,
        "hierarchical",
        None if best is None else order[best.order],
        status=Status.OPTIMAL if proved else None,
        proof="staged" if proved else None,
        order_lower_bound=bound,
    )


def _freeing_order(graph: Graph, params: Params) -> IntArray:
    """The given order, int64[n], with backward ops that free memory run as soon as they can.

    Graphs of one leaf, whose bound is about the given order, and blocks asked for as such keep that order.
    """
    given = np.arange(graph.n_ops)
    if graph.n_ops <= LEAF_OPS or params.tree is not None:
        return given
    return sooner(graph, given, split_position(graph))


def _reordered(run: Run, order: IntArray) -> Run:
    """`run` for the graph whose op k is op `order[k]`."""
    place = np.argsort(order)

    def improved(schedule: Schedule, peak: int, total: float) -> None:
        assert run.callback is not None
        run.callback(Schedule(order[schedule.order]), peak, total)

    return replace(
        run,
        warm_start=None if run.warm_start is None else Schedule(place[run.warm_start.order]),
        bound_order=None if run.bound_order is None else place[run.bound_order],
        callback=None if run.callback is None else improved,
    )


class _Search:
    """The state of one solve: the best answer and what all plans share."""

    def __init__(self, graph: Graph, budget: int, run: Run, params: Params) -> None:
        self.graph = graph
        self.budget = budget
        self.run = run
        self.params = params
        self.best: Answer | None = None
        self.base_peak = base_peak(graph)
        self.cut: Cut | None = None
        #: Schedules of flat methods, by name; looked at when the hierarchy is done.
        self.reserves: dict[str, IntArray] = {}
        self.passes = PassSearch(graph, budget, run.seed)
        #: Whether chains of blocks are to be tried once blocks alone have failed.
        self.chains_wait = False
        #: Bound on the time of schedules staged along the given order, where the MILP gave one.
        self.order_bound: float | None = None
        self.solver = Solver(run, None if params.cache_dir is None else OptionCache(params.cache_dir))
        self.offer(np.arange(graph.n_ops), "given order")
        if run.warm_start is not None:
            self.offer(run.warm_start.order, "warm start")

    # -- the course of a solve ------------------------------------------------------------------

    def run_plans(self) -> None:
        """Try one plan after another; raises Stopped when time is up."""
        self.check_time()
        flat = self.params.flat_start and not self.params.particular
        if self.run.bound_order is not None:
            self.reserves["bound"] = self.run.bound_order
            if flat and self.optimal(self.run.bound_order):
                self.offer(self.run.bound_order, "bound")
                return
        if self.graph.n_ops > LEAF_OPS:
            self.make_passes(EARLY_PASSES, EARLY_SHARE)
        with timed(self.run, "cut"):
            deadline = self.run.deadline.within(CUT_SHARE * self.run.deadline.remaining)
            self.cut = price_memory(self.graph, self.budget, self.params.cut_nodes, deadline)
        if flat and split_position(self.graph) == self.graph.n_ops:
            self.run_without_phases()
            return
        if self.graph.n_ops <= LEAF_OPS and not self.params.particular:
            self.solve_as_leaf()
            if self.solved:
                return
        self.reserve_cut()
        if self.params.flat_start:
            self.reserve_passes()
        if flat:
            for stage, order in self.reserves.items():
                if self.optimal(order):
                    self.offer(order, stage)
                    return
        self.chains_wait = self.graph.n_ops > HUGE_GRAPH
        if not self.chains_wait:
            self.search_chains()
        self.try_plans()
        if not self.solved and not self.params.flat_start:
            self.reserve_passes()
        if not self.solved and not any(map(self.fits, self.reserves.values())):
            self.run.stats.degraded.append("no schedule from blocks within the budget; used beam search")
            self.search_beam()

    def run_without_phases(self) -> None:
        """Beam search, some time for the one leaf, or for blocks that promise something, then annealing."""
        leaf = self.graph.n_ops <= LEAF_OPS
        if not leaf:
            self.search_beam(PHASELESS_BEAM * self.run.deadline.remaining)
        if leaf or self.promising_blocks:
            with self.part(PHASELESS_BLOCKS):
                if leaf:
                    self.solve_as_leaf()
                else:
                    self.try_plans()
        if not self.best_possible:
            self.anneal()

    @property
    def promising_blocks(self) -> bool:
        """Whether blocks decide about much of what a graph without phases keeps."""
        first = plans(self.graph, self.params)[0]
        return evaluate(self.graph, tree_of(self.graph, self.params, first)).score <= MOST_SHARED

    def try_plans(self) -> None:
        """One plan after another, until one is close to the bound or the next ones promise little."""
        skip_to_tight, first = False, True
        for plan in plans(self.graph, self.params):
            if self.gap <= (FAR_OFF if plan.tight else CLOSE_ENOUGH):
                break
            if self.best_possible:
                break
            if skip_to_tight and not plan.tight:
                continue
            self.check_time()
            if plan.tight and not self.solved and self.chains_wait:
                self.search_chains()
            if not first and self.behind_reserves:
                break
            before = self.gap
            self.run_and_imitate(plan)
            if self.solved and not first and before - self.gap < WORTHWHILE:
                if plan.tight:
                    break
                skip_to_tight = True
            first = False

    def run_and_imitate(self, plan: Plan) -> None:
        """A plan, and passes along the order that drop what its answer drops, when memory is short."""
        deadline, known = self.run.deadline, self.best
        with self.part(1 - IMITATION_SHARE):
            self.run_plan(plan)
        self.imitate(known, deadline)

    def run_plan(self, plan: Plan) -> None:
        """Partition, options, and the H-ILP with its refinements."""
        graph, params, run = self.graph, self.params, self.run
        with timed(run, "partition"):
            tree = tree_of(graph, params, plan)
            check_tree(graph, tree)
            pinned = pinned_tensors(graph, tree, self.budget, self.base_peak)
            names = bundles(graph, tree, pinned, self.budget)
            nests = [
                make_nest(graph, block, pinned, str(j), names) for j, block in enumerate(tree.blocks)
            ]
        leaves = [nest.leaf for nest in nests]
        shared = sum(int(leaf.shared.sum()) for leaf in leaves)
        if shared > MOST_INTERFACE:
            run.stats.degraded.append(
                f"{len(leaves)} blocks share {shared} tensors, too many for the H-ILP; not tried"
            )
            return
        task = LeafTask(
            FrontierParams(grid=params.grid),
            low_peak_width=params.width if plan.tight else 0,
            inner=InnerParams(INNER_LEVEL),
            seed=run.seed,
        )
        share = NESTED_OPTION_SHARE if plan.inner else OPTION_SHARE
        with timed(run, "options"):
            options = self.solver.options_of(nests, task, share * run.deadline.remaining)
        run.stats.counts |= {
            "blocks": self.solver.n_blocks, "classes": self.solver.n_classes, "levels": 1 + tree.depth,
            "options": sum({id(o): len(o) for o in options}.values()),
        }  # fmt: skip
        left = run.deadline.remaining
        seconds = max(params.milp_seconds, MILP_SHARE * left if left < float("inf") else 0.0)
        price = self.cut.price if self.cut is not None and self.cut.price > 0 else 0.0
        rerun = None
        if self.cut is not None:
            rerun = np.zeros(graph.n_ops, np.bool_)
            rerun[: len(self.cut.rerun)] = self.cut.rerun
        LevelSearch(
            graph, tree, leaves, options, self.budget, run,
            LevelParams(
                params.menu, params.refinements, params.node_limit, seconds, tight=plan.tight
            ),
            price=price or graph.total_time / max(1, self.base_peak),
            reruns=reruns_of(tree, plan), rerun=rerun, offer=self.offer,
        ).search()  # fmt: skip

    def imitate(self, known: Answer | None, deadline: Deadline) -> None:
        """Passes that imitate the best answer if it is none `known` before, and far from the bound."""
        interrupted = False
        if self.best is not None and self.best is not known and self.solved and self.gap > FAR_OFF:
            with timed(self.run, "imitation"):
                found = imitate(self.graph, self.budget, self.best.order, deadline)
                self.offer(found.best, "imitation")
            interrupted = found.interrupted
        self.check_time(interrupted)

    def search_chains(self) -> None:
        """Chains of many blocks, where cuts of the whole graph stay far from the bound."""
        cut = self.reserves["flat cut"]
        self.chains_wait = False
        if self.params.particular or self.near_bound(cut):
            return
        known = self.best
        with timed(self.run, "chain"):
            seconds = CHAIN_SHARE * self.run.deadline.remaining
            alone = Run(seed=self.run.seed, deadline=self.run.deadline.within(seconds))
            for order in chain_orders(self.graph, self.budget, alone):
                self.offer(order, "chain")
                self.offer(shift_and_repair(self.graph, order, self.budget), "chain")
        self.check_time()
        self.imitate(known, self.run.deadline.within(IMITATION_SHARE * self.run.deadline.remaining))

    def solve_as_leaf(self) -> None:
        """Solve a small graph as one leaf: beam search, then the segment-alive MILP from its answer."""
        self.search_beam()
        assert self.best is not None
        if self.best_possible:
            return
        with timed(self.run, "exact"):
            try:
                exact = solve_staged(
                    self.graph, self.budget, seed=self.run.seed, node_limit=self.params.node_limit,
                    deadline=self.run.deadline.within(self.params.milp_seconds),
                    start=self.best.order,
                )  # fmt: skip
            except SolverError as error:
                self.run.stats.degraded.append(f"exact on the whole graph: {error}")
                return
            self.order_bound = exact.bound if np.isfinite(exact.bound) else None
            if exact.order is not None:
                self.offer(exact.order, "exact")
                self.offer(repair(self.graph, exact.order, self.budget), "repair")
        self.check_time(exact.interrupted)

    def reserve_cut(self) -> None:
        """The flat schedule by cuts."""
        seconds = RESERVE_SHARE * self.run.deadline.remaining
        if self.run.deadline.end is not None and self.graph.n_ops <= LARGE_GRAPH:
            seconds = min(seconds, RESERVE_SECONDS)
        with timed(self.run, "flat cut"):
            run = Run(
                seed=self.run.seed, deadline=self.run.deadline.within(seconds),
                lower_bound=self.run.lower_bound, bounded=self.run.bounded, bound_order=self.run.bound_order,
            )  # fmt: skip
            self.reserves["flat cut"] = cut_search(self.graph, self.budget, run, CutParams())
        self.check_time(run.stats.interrupted)

    def reserve_passes(self) -> None:
        """Flat schedules by passes and beams, where that by cuts is far from the bound."""
        if self.near_bound(self.reserves["flat cut"]):
            return
        n, width = self.graph.n_ops, self.params.width
        self.make_passes(width * min(MOST_PASSES, max(PASSES, PASS_OPS // n)), PASS_SHARE)
        if n > LARGE_GRAPH:
            return
        with timed(self.run, "beam"):
            found = beam_search(
                self.graph, self.budget, width=8 * width, seed=self.run.seed,
                deadline=self.run.deadline.within(BEAM_SHARE * self.run.deadline.remaining),
            )  # fmt: skip
            self.reserves["beam"] = found.best
        self.check_time(found.interrupted)

    def make_passes(self, passes: int, share: float) -> None:
        """So many flat passes in all, within a share of the remaining time."""
        with timed(self.run, "passes"):
            deadline = self.run.deadline.within(share * self.run.deadline.remaining)
            found = self.passes.run(passes, deadline)
            self.reserves["passes"] = found.best
        self.check_time(found.interrupted)

    def wind_up(self) -> None:
        """Weigh the flat schedules against the hierarchy's."""
        if self.solved and not self.params.flat_start:
            return
        if not self.solved and any(map(self.fits, self.reserves.values())):
            self.run.stats.degraded.append("no schedule from blocks within the budget; used a flat method")
        for stage, order in self.reserves.items():
            self.offer(order, stage)

    def fits(self, order: IntArray) -> bool:
        return simulate(self.graph, order).peak <= self.budget

    @property
    def behind_reserves(self) -> bool:
        """Whether, on a huge graph, blocks are behind a flat schedule, so that their time is better used."""
        if self.graph.n_ops <= HUGE_GRAPH or not self.params.flat_start:
            return False
        if not self.solved or self.best is None:
            return False
        times = [float(self.graph.time[order].sum()) for order in self.reserves.values() if self.fits(order)]
        return min(times, default=float("inf")) < self.best.time - WORTHWHILE * self.graph.total_time

    def near_bound(self, order: IntArray) -> bool:
        """Whether a schedule fits and is not far off the bound of the cut model."""
        return self.fits(order) and self.distance(float(self.graph.time[order].sum())) <= FAR_OFF

    def optimal(self, order: IntArray) -> bool:
        """Whether a schedule meets the bound on time."""
        return self.fits(order) and meets(self.graph, self.graph.time[order].sum(), self.run.lower_bound)

    def search_beam(self, seconds: float = float("inf")) -> None:
        with timed(self.run, "beam"):
            found = beam_search(
                self.graph, self.budget, width=8 * self.params.width, seed=self.run.seed,
                deadline=self.run.deadline.within(seconds),
            )  # fmt: skip
            self.offer(found.best, "beam")
        self.check_time(found.interrupted)

    def anneal(self) -> None:
        """Anneal for the rest of the time, from the best schedule among other starts.

        On a graph of one leaf, the first half goes without that schedule: it may lie in a pit, and more time
        around it gains little there.
        """
        assert self.best is not None
        starts: list[IntArray | None] = [self.best.order]
        if self.graph.n_ops <= LEAF_OPS and self.solved:
            starts.insert(0, None)
        for k, start in enumerate(starts):
            with timed(self.run, "anneal"):
                seconds = self.run.deadline.remaining / (len(starts) - k)
                part = replace(self.run, deadline=self.run.deadline.shortened(seconds))
                interrupted = annealed(self.graph, self.budget, part, start, self.offer)
            self.check_time(interrupted)

    # -- pieces ---------------------------------------------------------------------------------

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """A share of the remaining time; its end stops what runs in it, and no more."""
        deadline = self.run.deadline
        self.run.deadline = deadline.shortened(share * deadline.remaining)
        try:
            yield
        except Stopped:
            if self.run.stats.interrupted:
                raise
        finally:
            self.run.deadline = deadline

    def offer(self, order: IntArray, stage: str) -> bool:
        """Take a schedule in if it is better than the best so far; whether it is."""
        simulation = simulate(self.graph, order)
        answer = Answer(order, simulation.peak, simulation.time)
        fits = answer.peak <= self.budget
        if fits:
            times = self.run.stats.stage_time
            times[stage] = min(answer.time, times.get(stage, answer.time))
        if self.best is not None:
            if self.solved and (not fits or answer.time >= self.best.time):
                return False
            if not self.solved and not fits and answer.peak >= self.best.peak:
                return False
        self.best = answer
        if fits and self.run.callback is not None:
            self.run.callback(Schedule(order), answer.peak, answer.time)
        return True

    @property
    def solved(self) -> bool:
        return self.best is not None and self.best.peak <= self.budget

    @property
    def best_possible(self) -> bool:
        """Whether the best schedule meets the bound on time."""
        best = self.best
        return self.solved and best is not None and meets(self.graph, best.time, self.run.lower_bound)

    def distance(self, time: float) -> float:
        """Distance of a time from the bound, as a share of the base time; infinite without a bound."""
        if self.cut is None:
            return float("inf")
        return (time - self.graph.total_time - self.cut.bound) / max(self.graph.total_time, 1e-300)

    @property
    def gap(self) -> float:
        """Distance of the best answer from the bound of the cut model."""
        return self.distance(self.best.time) if self.solved and self.best is not None else float("inf")

    def check_time(self, interrupted: bool = False) -> None:
        self.run.stats.interrupted |= interrupted
        if interrupted or self.run.deadline.expired:
            raise Stopped
