"""The `hierarchical` method: blocks, options of each block, one hierarchical ILP that merges them.

1. Partition the given order into blocks (`hremate.partition`).
2. Price memory with the cut model of the whole graph (`hremate.solvers.cut_model`).
3. Draw the frontier of options of each class of equal blocks (`hremate.ilp.options`).
4. Choose menus by the price, solve the H-ILP, refine the menus around its answer, solve again.
5. Expand to a flat schedule, repair it, check it exactly; tighten and solve again if it does not fit.

Source: Gusak et al., ICML 2025 (HiRemate); the H-ILP here does not pin phantoms and has exact memory rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError, SolverError
from hremate.graph import Graph, IntArray
from hremate.ilp.leaf import Leaf, Option, make_leaf
from hremate.ilp.leaves import LeafTask, solve_leaves
from hremate.ilp.model import Choice, HierarchicalModel, Unsatisfiable
from hremate.ilp.options import FrontierParams, menu, neighbours, projected
from hremate.ilp.program import Level, Reruns, build_level, diagonal_choice, picks_of, translate_choice
from hremate.partition.intervals import intervals
from hremate.partition.tree import BlockTree, check_tree
from hremate.result import Result, Status
from hremate.schedule import Schedule
from hremate.simulate import base_peak, simulate, step_memory
from hremate.solvers.base import Run, finish
from hremate.solvers.beam import beam_search
from hremate.solvers.cut import Params as CutParams
from hremate.solvers.cut import cut_search
from hremate.solvers.cut_model import Cut, moment_problem, solve_cut
from hremate.solvers.exact import solve_staged
from hremate.solvers.incumbent import OPTIMAL_GAP
from hremate.solvers.repair import repair
from hremate.solvers.scip import MilpSolver

#: Interface tensors below this share of the base peak are always kept.
PINNED_SHARE = 1e-4
#: Graphs of up to this many ops are one leaf.
LEAF_OPS = 60
#: A partition whose blocks have more interface tensors than this in all is not worth a H-ILP.
MOST_INTERFACE = 2000
#: Branch-and-bound nodes times ops and arcs of the cut of the whole graph.
CUT_WORK = 10**6
#: Share of the remaining time, and seconds, that the flat cut may take.
RESERVE_SHARE, RESERVE_SECONDS = 0.1, 10.0
#: Trees of up to this many parts get every re-run when memory is tight.
SMALL_TREE = 8
#: Solves with a smaller budget after an answer that exceeds it (rounding, pinned tensors).
TIGHTENINGS = 3
#: Gap at which a H-ILP is solved, as a share of the base time.
MILP_GAP = 2e-5
#: An answer this close to the bound of the cut model is not worth another partition (share of base time).
CLOSE_ENOUGH = 2e-4
#: An answer this far from that bound is worth trying with more ways to save memory.
FAR_OFF = 1.5e-2
#: A plan that gains less than this over the ones before ends the trying of further ones.
WORTHWHILE = 3e-4


@dataclass(frozen=True)
class Params:
    """Parameters of the hierarchy."""

    #: Number of blocks; 0 tries a few numbers that suit the size.
    blocks: int = 0
    #: Options per block in the H-ILP.
    menu: int = 8
    #: How often menus are refined around the answer and the H-ILP is solved again.
    refinements: int = 2
    #: Capacities at which the cut ILP of a leaf is solved, per pricing mode.
    grid: int = 24
    #: Width of the beam that looks for options of low peak.
    width: int = 1
    #: Branch-and-bound nodes of one H-ILP.
    node_limit: int = 2000
    #: Seconds after which one H-ILP hands in the best it has.
    milp_seconds: float = 15.0
    #: Branch-and-bound nodes of the cut ILP of the whole graph.
    cut_nodes: int = 300
    #: Take the schedule of the flat method `cut` where it is better than that of the hierarchy.
    flat_start: bool = True

    def __post_init__(self) -> None:
        for name in ("blocks", "refinements", "grid"):
            if getattr(self, name) < 0:
                raise MethodError(f"Expected {name} >= 0.")
        for name in ("menu", "width", "node_limit", "cut_nodes"):
            if getattr(self, name) < 1:
                raise MethodError(f"Expected {name} >= 1.")
        if not self.milp_seconds > 0:
            raise MethodError("Expected milp_seconds > 0.")


@dataclass(frozen=True)
class Plan:
    """One attempt: how many blocks, and how hard to look for memory."""

    blocks: int
    #: Offer options of low peak, and re-runs in the forward phase.
    tight: bool


@dataclass(frozen=True)
class Answer:
    """A flat schedule of the whole graph."""

    order: IntArray
    peak: int
    time: float


class _Stop(Exception):
    """The deadline passed or Ctrl-C arrived: hand in what there is."""


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """Schedule `graph` within `budget` bytes by the hierarchy.

    A graph of up to `LEAF_OPS` ops is one leaf. Else partitions are tried until one comes close to the
    bound of the cut model, the plans are exhausted, or the time limit strikes. If no partition gives a
    schedule within the budget, flat methods over the whole graph (cuts, then beam search) have the last
    word; `stats.degraded` says so. `stats.stage_time` tells what each stage found by itself.
    """
    search = _Search(graph, budget, run, params)
    try:
        search.run_plans()
    except _Stop:
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
        None if best is None else best.order,
        status=Status.OPTIMAL if proved else None,
        proof="staged" if proved else None,
        order_lower_bound=bound,
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
        #: The schedule of the flat method `cut`.
        self.reserve: IntArray | None = None
        #: Bound on the time of schedules staged along the given order, where the MILP gave one.
        self.order_bound: float | None = None
        self.frontiers: dict[tuple[str, bool], list[Option]] = {}
        self.offer(np.arange(graph.n_ops), "given order")
        if run.warm_start is not None:
            self.offer(run.warm_start.order, "warm start")

    # -- the course of a solve ------------------------------------------------------------------

    def run_plans(self) -> None:
        """Try one plan after another; raises _Stop when time is up."""
        with self.timed("cut"):
            self.cut = price_memory(self.graph, self.budget, self.params)
        if self.graph.n_ops <= LEAF_OPS and not self.params.blocks:
            self.solve_as_leaf()
            if self.solved:
                return
        self.prepare_reserve()
        skip_to_tight = False
        for plan in plans(self.graph, self.params):
            if self.gap <= (FAR_OFF if plan.tight else CLOSE_ENOUGH):
                break
            if self.solved and self.best is not None and self.best.time <= self.run.lower_bound:
                break
            if skip_to_tight and not plan.tight:
                continue
            self.check_time()
            before = self.gap
            self.run_plan(plan)
            if self.solved and before - self.gap < WORTHWHILE:
                if plan.tight:
                    break
                skip_to_tight = True
        if not self.solved and not self.fits(self.reserve):
            self.run.stats.degraded.append("no schedule from blocks within the budget; used beam search")
            self.search_beam()

    def run_plan(self, plan: Plan) -> None:
        """Partition, options, and the H-ILP with its refinements."""
        graph, params = self.graph, self.params
        with self.timed("partition"):
            tree = intervals(graph, plan.blocks)
            check_tree(graph, tree)
        pinned = graph.size < PINNED_SHARE * self.base_peak
        leaves = [make_leaf(graph, block, pinned) for block in tree.blocks]
        shared = sum(int((leaf.interface & ~leaf.pinned).sum()) for leaf in leaves)
        if shared > MOST_INTERFACE:
            self.run.stats.degraded.append(
                f"{len(leaves)} blocks share {shared} tensors, too many for the H-ILP; not tried"
            )
            return
        with self.timed("options"):
            options = self.options_of(leaves, plan.tight)
        stats = self.run.stats
        stats.counts["blocks"] = len(leaves)
        stats.counts["classes"] = len({leaf.signature for leaf in leaves})
        stats.counts["options"] = sum(
            {leaf.signature: len(o) for leaf, o in zip(leaves, options, strict=True)}.values()
        )
        price = self.cut.price if self.cut is not None and self.cut.price > 0 else 0.0
        price = price or graph.total_time / max(1, self.base_peak)
        last: tuple[Level, Choice] | None = None
        for round_number in range(params.refinements + 1):
            wanted = self.wanted_options(leaves, options, last)
            menus = [
                menu(known, price, params.menu, wanted=chosen)
                for known, chosen in zip(options, wanted, strict=True)
            ]
            before = self.best
            last = self.solve_level(tree, leaves, menus, plan, last)
            if last is None:
                break
            if round_number and self.best is before:
                break

    def wanted_options(
        self, leaves: Sequence[Leaf], options: Sequence[Sequence[Option]], last: tuple[Level, Choice] | None
    ) -> list[list[Option]]:
        """Options that the next menu of each block must hold: those used, their neighbours, the cut's."""
        rerun = np.zeros(self.graph.n_ops, np.bool_)
        if self.cut is not None:
            rerun[: len(self.cut.rerun)] = self.cut.rerun
        wanted: list[list[Option]] = []
        picks = None if last is None else picks_of(*last)
        for j, leaf in enumerate(leaves):
            if last is None or picks is None:
                wanted.append([])
                continue
            used = last[0].menus[j][picks[j]]
            wanted.append([used, projected(leaf, rerun), *neighbours(options[j], used, 3)])
        return wanted

    def solve_level(
        self,
        tree: BlockTree,
        leaves: Sequence[Leaf],
        menus: Sequence[Sequence[Option]],
        plan: Plan,
        last: tuple[Level, Choice] | None,
    ) -> tuple[Level, Choice] | None:
        """Solve the H-ILP of the menus and offer its answer; None when it has none."""
        graph, params, stats = self.graph, self.params, self.run.stats
        pinned = [leaf.tensors[leaf.pinned] for leaf in leaves]
        room = self.budget - int(graph.size[np.unique(np.concatenate(pinned))].sum())
        answer: tuple[Level, Choice] | None = None
        for _ in range(1 + TIGHTENINGS):
            self.check_time()
            with self.timed("model"):
                level = build_level(graph, tree, leaves, menus, room, reruns=reruns_of(tree, plan))
                try:
                    model = HierarchicalModel(level.program)
                except Unsatisfiable:
                    return None
                starts = list(self.starts(level, model, last))
            with self.timed("h-ilp"):
                try:
                    result = MilpSolver(model.milp, seed=self.run.seed, name="H-ILP").solve(
                        deadline=self.run.deadline.within(params.milp_seconds),
                        node_limit=params.node_limit,
                        starts=starts,
                        gap_abs=100 * MILP_GAP,
                    )
                except SolverError as error:
                    stats.degraded.append(f"H-ILP of {len(leaves)} blocks: {error}")
                    return None
            binaries = sum(len(runs) for runs in model.run.values())
            stats.counts["h-ilp solves"] = stats.counts.get("h-ilp solves", 0) + 1
            stats.counts["h-ilp nodes"] = stats.counts.get("h-ilp nodes", 0) + result.nodes
            stats.counts.update(
                {
                    "h-ilp binaries": binaries,
                    "h-ilp variables": model.milp.n_vars,
                    "h-ilp rows": model.milp.n_rows,
                }
            )
            if result.x is None:
                self.tell(f"{len(leaves)} blocks, {binaries} binaries: {result.status.value}")
                self.check_time(result.interrupted)
                return None
            choice = model.choice(result.x)
            answer = level, choice
            order = model.order(choice)
            excess = simulate(graph, order).peak - self.budget
            self.tell(
                f"{len(leaves)} blocks, {binaries} binaries: overhead "
                f"{graph.time[order].sum() / (graph.total_time or 1.0) - 1:.3%}, {result.nodes} nodes, "
                f"{result.seconds:.1f} s"
            )
            self.offer(order, "h-ilp")
            with self.timed("repair"):
                self.offer(repair(graph, order, self.budget), "repair")
            self.check_time(result.interrupted)
            if excess <= 0:
                break
            room -= excess
        return answer

    def starts(
        self, level: Level, model: HierarchicalModel, last: tuple[Level, Choice] | None
    ) -> Iterator[np.ndarray]:
        """Complete solutions of the H-ILP to start from."""
        choices = [diagonal_choice(level, picks) for picks in priced_picks(level)]
        if last is not None:
            old = translate_choice(last[0], level, last[1])
            choices += [] if old is None else [old]
        for choice in choices:
            solution = model.start(choice)
            if solution is not None:
                yield solution

    def solve_as_leaf(self) -> None:
        """Solve a small graph as one leaf: beam search, then the segment-alive MILP from its answer."""
        self.search_beam()
        assert self.best is not None
        if self.solved and self.best.time <= self.run.lower_bound:
            return
        with self.timed("exact"):
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

    def prepare_reserve(self) -> None:
        """The flat cut schedule, to be looked at when the hierarchy is done."""
        seconds = RESERVE_SHARE * self.run.deadline.remaining
        with self.timed("flat cut"):
            run = Run(seed=self.run.seed, deadline=self.run.deadline.within(min(seconds, RESERVE_SECONDS)))
            self.reserve = cut_search(self.graph, self.budget, run, CutParams())
        self.check_time(run.stats.interrupted)

    def wind_up(self) -> None:
        """Weigh the flat cut schedule against the hierarchy's."""
        if self.reserve is None or (self.solved and not self.params.flat_start):
            return
        if not self.solved and self.fits(self.reserve):
            self.run.stats.degraded.append("no schedule from blocks within the budget; used the flat cut")
        self.offer(self.reserve, "flat cut")

    def fits(self, order: IntArray | None) -> bool:
        return order is not None and simulate(self.graph, order).peak <= self.budget

    def search_beam(self) -> None:
        with self.timed("beam"):
            found = beam_search(
                self.graph, self.budget, width=8 * self.params.width, seed=self.run.seed,
                deadline=self.run.deadline,
            )  # fmt: skip
            self.offer(found.smallest if found.order is None else found.order, "beam")
        self.check_time(found.interrupted)

    # -- pieces ---------------------------------------------------------------------------------

    def options_of(self, leaves: Sequence[Leaf], tight: bool) -> list[list[Option]]:
        """The options of each block; equal blocks are solved once."""
        new = {
            leaf.signature: leaf for leaf in leaves if (leaf.signature, tight) not in self.frontiers
        }
        task = LeafTask(
            FrontierParams(grid=self.params.grid),
            low_peak_width=self.params.width if tight else 0,
            seed=self.run.seed,
        )
        solved = solve_leaves(list(new.values()), task, self.run)
        for signature, options in zip(new, solved, strict=True):
            self.frontiers[signature, tight] = options
        return [self.frontiers[leaf.signature, tight] for leaf in leaves]

    def offer(self, order: IntArray, stage: str) -> None:
        """Take a schedule in if it is better than the best so far."""
        simulation = simulate(self.graph, order)
        answer = Answer(order, simulation.peak, simulation.time)
        fits = answer.peak <= self.budget
        if fits:
            times = self.run.stats.stage_time
            times[stage] = min(answer.time, times.get(stage, answer.time))
        if self.best is not None:
            if self.solved and (not fits or answer.time >= self.best.time):
                return
            if not self.solved and not fits and answer.peak >= self.best.peak:
                return
        self.best = answer
        if fits and self.run.callback is not None:
            self.run.callback(Schedule(order), answer.peak, answer.time)

    @property
    def solved(self) -> bool:
        return self.best is not None and self.best.peak <= self.budget

    @property
    def gap(self) -> float:
        """Distance of the best answer from the bound of the cut model, as a share of the base time."""
        if not self.solved or self.best is None or self.cut is None:
            return float("inf")
        return (self.best.time - self.graph.total_time - self.cut.bound) / max(self.graph.total_time, 1e-300)

    def check_time(self, interrupted: bool = False) -> None:
        self.run.stats.interrupted |= interrupted
        if interrupted or self.run.deadline.expired:
            raise _Stop

    def tell(self, message: str) -> None:
        self.run.progress(message)

    def timed(self, stage: str) -> _Timer:
        return _Timer(self.run.stats.seconds, stage)


class _Timer:
    """Adds the seconds of a `with` block to a named stage."""

    def __init__(self, seconds: dict[str, float], stage: str) -> None:
        self.seconds, self.stage = seconds, stage

    def __enter__(self) -> None:
        self.start = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self.seconds[self.stage] = self.seconds.get(self.stage, 0.0) + time.monotonic() - self.start


def plans(graph: Graph, params: Params) -> list[Plan]:
    """What to try, in order: few large blocks first, then more, then with more ways to save memory."""
    if params.blocks:
        counts = [params.blocks]
    elif graph.n_ops <= 900:
        counts = [6, 10, 15]
    else:
        counts = [8, 12]
    largest = max(1, graph.n_ops // 4)
    counts = sorted({min(count, largest) for count in counts})
    return [Plan(count, False) for count in counts] + [Plan(count, True) for count in counts[::-1]]


def reruns_of(tree: BlockTree, plan: Plan) -> Reruns:
    """Which re-runs a plan offers on a tree."""
    if not plan.tight and any(item.backward for item in tree.items):
        return Reruns.BACKWARD
    return Reruns.ALL if len(tree.items) <= SMALL_TREE else Reruns.WANTED


def price_memory(graph: Graph, budget: int, params: Params) -> Cut | None:
    """The cut of the whole graph at its peak step: the price of memory and what to run again."""
    peak_step = int(np.argmax(step_memory(graph, np.arange(graph.n_ops))))
    problem, needed = moment_problem(graph, peak_step)
    nodes = max(1, min(params.cut_nodes, CUT_WORK // (len(problem.time) + len(problem.in_idx))))
    return solve_cut(problem, budget - needed, node_limit=nodes)


def priced_picks(level: Level) -> list[list[int]]:
    """For a row of memory prices, the option of each block that is cheapest at that price."""
    base = level.program.time_unit * 100 / max(1, level.program.budget)
    result: list[list[int]] = []
    for exponent in np.arange(-4.0, 6.0, 0.5):
        price = base * 2.0**exponent
        picks = [int(np.argmin([_weight(option, price) for option in options])) for options in level.menus]
        if picks not in result:
            result.append(picks)
    return result


def _weight(option: Option, price: float) -> float:
    return option.time + price * (option.saved_bytes + option.read_bytes + 0.3 * option.backward.peak)
