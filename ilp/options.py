"""The options of a leaf: the frontier of what to save and what to run again, and menus chosen from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, IntArray
from hremate.ilp.leaf import (
    ALL_CHARGED,
    OUTPUTS_CHARGED,
    OUTPUTS_FREE,
    Leaf,
    Option,
    cut_problem,
    just_in_time,
    make_option,
)
from hremate.solvers.base import Deadline
from hremate.solvers.cut_model import hull, solve_cut

#: Branch-and-bound nodes times forward ops and arcs of one solve; vertices of the hull times these.
NODE_WORK, HULL_WORK = 10**5, 3 * 10**5
#: The hull alone suffices on leaves of more forward ops and arcs than this, where it has enough vertices.
DENSE_WEIGHT = 4000
#: Choices of the cut that are made options when time is up.
LATE_OPTIONS = 12
#: What a byte of the peak counts beside a byte that is kept, in the scenarios of a menu.
WEIGHTS, TIGHT_WEIGHTS = (0.0, 0.3, 1.0), (0.0, 0.3, 1.0, 3.0, 10.0)


@dataclass(frozen=True)
class FrontierParams:
    """How finely the frontier of a leaf is drawn."""

    #: Capacities between keep-all and keep-least at which the cut ILP of a leaf is solved.
    grid: int = 24
    #: Branch-and-bound nodes of each of these solves, fewer on leaves beyond `NODE_WORK`.
    node_limit: int = 200

    def __post_init__(self) -> None:
        if self.grid < 0:
            raise MethodError("Expected grid >= 0.")
        if self.node_limit < 1:
            raise MethodError("Expected node_limit >= 1.")


def frontier(leaf: Leaf, params: FrontierParams, *, deadline: Deadline) -> list[Option]:
    """Options of a leaf, from save-all to recompute-all, each expanded just in time.

    The vertices of the convex hull come from parametric minimum cuts, what lies between them from the cut
    ILP, in three modes of pricing interface tensors (`cut_problem`). Save-all and recompute-all are always
    among them; an expired deadline leaves out only what lies between.
    """
    reruns: dict[bytes, BoolArray] = {}
    for mode in (OUTPUTS_FREE, OUTPUTS_CHARGED, ALL_CHARGED):
        if deadline.expired:
            break
        problem = cut_problem(leaf, mode)
        weight = len(problem.time) + len(problem.in_idx)
        vertices = hull(problem, limit=max(params.grid, min(200, HULL_WORK // max(1, weight))))
        for rerun in vertices:
            reruns.setdefault(rerun.tobytes(), rerun)
        most, least = problem.kept_bytes(vertices[0]), problem.kept_bytes(vertices[-1])
        if most == least or (weight > DENSE_WEIGHT and len(vertices) >= params.grid):
            continue
        nodes = max(1, min(params.node_limit, NODE_WORK // max(1, weight)))
        for g in range(1, params.grid):
            if deadline.expired:
                break
            cut = solve_cut(problem, most - (most - least) * g // params.grid, node_limit=nodes)
            if cut is not None:
                reruns.setdefault(cut.rerun.tobytes(), cut.rerun)
    forward = np.arange(leaf.n_forward)
    nothing, everything = np.zeros(leaf.n_forward, np.bool_), ~leaf.once[: leaf.n_forward]
    options = [make_option(leaf, forward, just_in_time(leaf, rerun)) for rerun in (nothing, everything)]
    found = list(reruns.values())
    if deadline.expired and len(found) > LATE_OPTIONS:
        found = [found[k] for k in np.linspace(0, len(found) - 1, LATE_OPTIONS).round().astype(int)]
    options += [make_option(leaf, forward, just_in_time(leaf, rerun)) for rerun in found]
    return pareto(options)


def pareto(options: Iterable[Option]) -> list[Option]:
    """Drop options that another one beats in backward time, saved bytes, peak and tensors read.

    The rest comes sorted by time, then saved bytes.
    """
    ordered = sorted(options, key=lambda o: (o.time, o.saved_bytes, o.backward.peak, o.read_bytes, o.key))
    kept: list[Option] = []
    for option in ordered:
        reads = set(option.backward.reads)
        if not any(
            other.saved_bytes <= option.saved_bytes
            and other.backward.peak <= option.backward.peak
            and other.forward.peak <= option.forward.peak
            and reads.issuperset(other.backward.reads)
            for other in kept
        ):
            kept.append(option)
    return kept


def menu(
    options: Sequence[Option],
    price: float,
    size: int,
    *,
    wanted: Sequence[Option] = (),
    spread: float = 3.0,
    tight: bool = False,
) -> list[Option]:
    """Choose `size` options by the memory price of the whole graph.

    `wanted` options, the fastest and the one that saves and reads least come first; then a greedy
    k-median: each next option lowers most the sum of regrets of
    time + p (saved + read + mu peak) over prices p = price * 2^e, e = -spread .. spread step 1/2, and
    mu in {0, 0.3, 1}.

    Parameters
    ----------
    price : float
        Time units per byte.
    tight : bool
        Whether peaks matter more: the option of the lowest peak comes first too, and mu goes up to 10.
    """
    if not options:
        return list(wanted)
    time = np.array([o.time for o in options])
    kept = np.array([o.saved_bytes + o.read_bytes for o in options], np.float64)
    peak = np.array([o.backward.peak for o in options], np.float64)
    prices = price * 2.0 ** np.arange(-spread, spread + 0.25, 0.5)
    scenarios = [(p, mu) for p in prices for mu in (TIGHT_WEIGHTS if tight else WEIGHTS)]
    cost = np.stack([time + p * (kept + mu * peak) for p, mu in scenarios])
    index = {o.key: k for k, o in enumerate(options)}
    chosen: list[int] = []
    extra: list[Option] = []
    for option in wanted:
        if option.key not in index:
            extra.append(option)
        elif index[option.key] not in chosen:
            chosen.append(index[option.key])
    extremes = [np.lexsort((kept, time)), np.lexsort((time, kept))]
    if tight:
        extremes.append(np.lexsort((time, np.maximum(peak, [o.forward.peak for o in options]))))
    for k in (int(order[0]) for order in extremes):
        if k not in chosen:
            chosen.append(k)
    best = cost[:, chosen].min(axis=1)
    while len(chosen) + len(extra) < min(size, len(options)):
        total = np.minimum(best[:, None], cost).sum(axis=0)
        k = int(np.argmin(total))
        if k in chosen or total[k] >= best.sum() * (1 - 1e-12):
            break
        chosen.append(k)
        best = np.minimum(best, cost[:, k])
    return extra + [options[k] for k in sorted(chosen)]


def thinned(options: Sequence[Option], most: int) -> list[Option]:
    """At most `most` options, spread evenly over the row by saved + read bytes, both ends among them."""
    ordered = sorted(options, key=lambda o: (o.saved_bytes + o.read_bytes, o.time, o.key))
    if len(ordered) <= most:
        return ordered
    places = np.unique(np.linspace(0, len(ordered) - 1, most).round().astype(np.int64))
    return [ordered[k] for k in places.tolist()]


def neighbours(options: Sequence[Option], used: Option, reach: int) -> list[Option]:
    """The `reach` options on either side of `used` in the order of saved + read bytes."""
    ordered = sorted(options, key=lambda o: (o.saved_bytes + o.read_bytes, o.time, o.key))
    place = next((k for k, o in enumerate(ordered) if o.key == used.key), None)
    if place is None:
        weight = used.saved_bytes + used.read_bytes
        place = sum(o.saved_bytes + o.read_bytes < weight for o in ordered)
    return ordered[max(0, place - reach) : place + reach + 1]


def projected(leaf: Leaf, rerun: BoolArray) -> Option:
    """The option in which the block runs again exactly its share of `rerun` (bool[ops of the graph])."""
    share = rerun[leaf.ops[: leaf.n_forward]]
    return make_option(leaf, np.arange(leaf.n_forward), just_in_time(leaf, share))


def fast_forward(leaf: Leaf, targets: Sequence[int], saved: Iterable[int] = ()) -> IntArray | None:
    """The forward ops, in the given order, that make the bundles `targets` from `saved` internal tensors.

    None when an op that may run only once would have to run again.
    """
    have = set(saved)
    needed: set[int] = set()
    stack: list[int] = leaf.producer[np.isin(leaf.bundle, targets)].tolist()
    while stack:
        i = stack.pop()
        if i in needed:
            continue
        needed.add(i)
        stack += [
            int(leaf.producer[x])
            for x in leaf.inputs_of(i)
            if leaf.producer[x] >= 0 and x not in have and not leaf.pinned[x]
        ]
    if any(leaf.once[i] for i in needed):
        return None
    return np.array(sorted(needed), np.int64)
