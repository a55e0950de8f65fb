"""Brute force on tiny graphs: slow, obvious, exact; what every solver is checked against.

The search walks over states (which copies are kept, which ops have run). A kept tensor may be dropped at any
moment, for nothing. Times and sizes of the graphs made here are small integers, so that sums of times are
exact and budgets coincide.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Iterator
from functools import cached_property

from hremate import Graph, Op


class _Masks:
    """The graph as bit masks over its tensors."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.n = graph.n_ops
        self.reads = [mask(graph.inputs_of(i)) for i in range(self.n)]
        self.makes = [mask(graph.outputs_of(i)) for i in range(self.n)]
        self.outputs = mask(graph.outputs)
        self.time = graph.time.tolist()
        self.workspace = graph.workspace.tolist()
        self.reuse = graph.memory_model == "reuse"

    @cached_property
    def size(self) -> list[int]:
        """Bytes of every set of tensors."""
        sizes = self.graph.size.tolist()
        total = [0] * (1 << len(sizes))
        for x, nbytes in enumerate(sizes):
            for kept in range(1 << x):
                total[kept | 1 << x] = total[kept] + nbytes
        return total

    def drops(self, live: int) -> Iterator[int]:
        """The sets left after dropping one tensor."""
        bits = live
        while bits:
            bit = bits & -bits
            bits ^= bit
            yield live ^ bit

    def runs(self, i: int, live: int) -> Iterator[tuple[int, int]]:
        """(memory of the step, kept set after it) for each way to run op i with `live` kept before.

        A fresh copy makes the old one unreadable, so old copies of what op i makes are dropped first.
        """
        if self.reads[i] & ~live or self.makes[i] & live:
            return
        made = self.size[self.makes[i]]
        if not self.reuse:
            yield self.size[live] + made + self.workspace[i], live | self.makes[i]
            return
        dying = self.reads[i]
        while True:  # every subset of the inputs may die here and be overwritten
            after = live & ~dying
            yield max(self.size[live] + self.workspace[i], self.size[after] + made), after | self.makes[i]
            if not dying:
                return
            dying = (dying - 1) & self.reads[i]


def mask(items: Iterable[int]) -> int:
    return sum(1 << int(x) for x in items)


_State = tuple[int, int, int]
#: (time, memory, op that runs or -1, next state)
_Move = tuple[float, int, int, _State]


def _any_order_moves(m: _Masks, state: _State) -> Iterator[_Move]:
    """State: (kept tensors, ops that have run, unused)."""
    live, ran, _ = state
    for kept in m.drops(live):
        yield 0.0, 0, -1, (kept, ran, 0)
    for i in range(m.n):
        if not (ran >> i & 1 and m.graph.once[i]):
            for memory, after in m.runs(i, live):
                yield m.time[i], memory, i, (after, ran | 1 << i, 0)


def _staged_moves(m: _Masks, state: _State) -> Iterator[_Move]:
    """State: (kept tensors, stage, slot). Stage t visits slots 0..t; only slot t has to run its op."""
    live, t, i = state
    slots = [] if t == m.n else [(t, i + 1)] if i < t else [(t + 1, 0)]
    for kept in m.drops(live):
        yield 0.0, 0, -1, (kept, t, i)
    for following in slots:
        if i < t:
            yield 0.0, 0, -1, (live, *following)
        if i == t or not m.graph.once[i]:
            for memory, after in m.runs(i, live):
                yield m.time[i], memory, i, (after, *following)


def _search(graph: Graph, budget: float, staged: bool, by_peak: bool) -> tuple[float, int, list[int]] | None:
    """Dijkstra: least (time, peak), or least (peak, time) with `by_peak`; returns time, peak, order.

    Both pairs are compared first entry first, and adding a step keeps that order, so the first label of a
    state is its best; (peak, time) is exact in its first entry only.
    """
    m = _Masks(graph)
    moves = _staged_moves if staged else _any_order_moves
    start: _State = (0, 0, 0)
    label: dict[_State, tuple[float, float]] = {start: (0.0, 0.0)}
    origin: dict[_State, tuple[_State, int]] = {}
    done: set[_State] = set()
    queue: list[tuple[tuple[float, float], _State]] = [((0.0, 0.0), start)]
    while queue:
        here, state = heapq.heappop(queue)
        if state in done:
            continue
        done.add(state)
        finished = state[1] == m.n if staged else state[1] == (1 << m.n) - 1
        if finished and not m.outputs & ~state[0]:
            order: list[int] = []
            while state in origin:
                state, op = origin[state]
                if op >= 0:
                    order.append(op)
            time, peak = here[::-1] if by_peak else here
            return time, int(peak), order[::-1]
        time, peak = here[::-1] if by_peak else here
        for cost, memory, op, following in moves(m, state):
            if memory > budget or following in done:
                continue
            there = (time + cost, max(peak, memory))
            if by_peak:
                there = there[::-1]
            if following not in label or there < label[following]:
                label[following] = there
                origin[following] = (state, op)
                heapq.heappush(queue, (there, following))
    return None


def optimal_order(graph: Graph, budget: float, *, staged: bool = False) -> list[int] | None:
    """A schedule of least time within `budget` bytes, or None when there is none."""
    found = _search(graph, budget, staged, by_peak=False)
    return None if found is None else found[2]


def optimal_time(graph: Graph, budget: float) -> float | None:
    """Least time of a schedule within `budget` bytes, over all orders; None when there is none."""
    found = _search(graph, budget, staged=False, by_peak=False)
    return None if found is None else found[0]


def optimal_staged(graph: Graph, budget: float) -> float | None:
    """Least time over schedules staged along the given order.

    Stage t runs op t for the first time; before it, in the same stage, each earlier op may run once more,
    by increasing index.
    """
    found = _search(graph, budget, staged=True, by_peak=False)
    return None if found is None else found[0]


def min_peak(graph: Graph, *, staged: bool = False) -> int:
    """The smallest budget for which there is a schedule."""
    found = _search(graph, float("inf"), staged, by_peak=True)
    assert found is not None
    return found[1]


def frontier(graph: Graph, *, staged: bool = False) -> list[tuple[int, float]]:
    """All (budget, least time) at which the least time changes, by ascending budget."""
    points: list[tuple[int, float]] = []
    budget = float("inf")
    while (found := _search(graph, budget, staged, by_peak=False)) is not None:
        points.append((found[1], found[0]))
        budget = found[1] - 1
    return points[::-1]


def breakpoints(graph: Graph, *, staged: bool = False) -> list[int]:
    """The budgets that matter, ascending: one too small, then each at which the least time changes."""
    budgets = [budget for budget, _ in frontier(graph, staged=staged)]
    return ([budgets[0] - 1] if budgets[0] > 0 else []) + budgets


def random_graph(
    seed: int | random.Random,
    max_ops: int = 7,
    memory_model: str | None = None,
    *,
    min_ops: int = 1,
    max_tensors: int = 8,
) -> Graph:
    """A tiny graph with a bit of everything: zero sizes, workspaces, several or no outputs, once, outputs.

    `seed` may be a `random.Random`, also the one hypothesis hands out (`st.randoms()`).
    """
    rng = seed if isinstance(seed, random.Random) else random.Random(seed)
    n = rng.randint(min_ops, max_ops)
    density = rng.choice([0.3, 0.5, 0.8])
    allow_once = rng.random() < 0.3
    ops: list[Op] = []
    tensors: list[str] = []
    for i in range(n):
        recent = tensors[-4:] if rng.random() < 0.7 else tensors
        inputs = [x for x in recent if rng.random() < density]
        if tensors and not inputs and rng.random() < 0.7:
            inputs = [tensors[-1]]
        count = min(rng.choices([0, 1, 2], [1, 8, 2])[0], max_tensors - len(tensors))
        outputs = tuple((f"t{i}_{k}", rng.choice([0, 1, 1, 2, 3, 4])) for k in range(count))
        ops.append(
            Op(
                name=f"op{i}",
                time=float(rng.choice([0, 1, 1, 2, 3, 5])),
                inputs=tuple(inputs) + (("weight",) if rng.random() < 0.1 else ()),
                outputs=outputs,
                workspace=rng.choice([0, 0, 0, 1, 2]),
                once=allow_once and rng.random() < 0.3,
            )
        )
        tensors += [name for name, _ in outputs]
    kept = [x for x in tensors if rng.random() < 0.15] + tensors[-1:]
    model = memory_model or rng.choice(["coexist", "reuse"])
    return Graph.from_ops(ops, kept, name="tiny", memory_model=model)
