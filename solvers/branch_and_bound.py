"""The method `branch-and-bound`: the best schedule over all orders, for tiny graphs.

A* over states (kept tensors, ops that have run), see `hremate.solvers._branch_kernel`. The number of states
grows exponentially with the ops that can be in any order, so it ends within seconds up to about 15 to 20
ops; beyond that it is anytime: the best schedule so far and a bound that holds for every order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hremate.budget import format_bytes
from hremate.errors import MethodError
from hremate.graph import FloatArray, Graph, IntArray
from hremate.result import Result, Status
from hremate.simulate import simulate
from hremate.solvers import _branch_kernel as kernels
from hremate.solvers.base import Deadline, Run, finish
from hremate.solvers.incumbent import Incumbent, announcer

#: Ops and tensors are bits of an int64, whose sign stays free.
MAX_ITEMS = 62
#: Weight of the time to come in the search for a first schedule.
_GREED = 5.0
#: States and candidates to look at between two looks at the clock: some milliseconds.
_WORK = 50_000
#: Calls of the kernel that the search for a first schedule, and each one for the smallest peak, may take.
_SHORT = 4
_LONG = 1_000
#: States of the first arrays; they double.
_FIRST_STATES = 2**14
#: A key is a sum of at most some thousand float64 times; it is off by less than this share.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Params:
    """Parameters of branch and bound."""

    #: States to store before the search gives up, each about 90 bytes.
    max_states: int = 4_000_000

    def __post_init__(self) -> None:
        if self.max_states < 1:
            raise MethodError(f"max_states is {self.max_states}. Expected max_states >= 1.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The best schedule of `graph` within `budget` bytes, over all orders.

    Status `optimal` and `infeasible` carry an any-order proof. When there is no schedule within the budget,
    the smallest peak of any order is looked for in the time that is left.

    Raises
    ------
    MethodError
        More than 62 ops or 62 tensors.
    """
    if graph.n_ops > MAX_ITEMS or graph.n_tensors > MAX_ITEMS:
        raise MethodError(
            f"branch-and-bound takes graphs of at most {MAX_ITEMS} ops and {MAX_ITEMS} tensors; "
            f"{graph.name!r} has {graph.n_ops} and {graph.n_tensors}"
        )
    best = Incumbent(graph, budget, announcer(run, "branch-and-bound"))
    for order in [np.arange(graph.n_ops)] + ([] if run.warm_start is None else [run.warm_start.order]):
        best.offer(order)
    if best.time > graph.total_time:
        proved, bound = _search(graph, budget, run, params, best)
    else:
        proved, bound = True, best.time
    if best.order is not None:
        return finish(
            graph, budget, run, "branch-and-bound", best.order,
            status=Status.OPTIMAL if proved else Status.FEASIBLE,
            proof="any-order" if proved else None,
            lower_bound=best.time if proved else max(bound, graph.total_time),
        )  # fmt: skip
    if not proved:
        return finish(
            graph, budget, run, "branch-and-bound", best.smallest,
            lower_bound=max(bound, graph.total_time),
            reason="no schedule within the budget was found in the time and states given",
        )  # fmt: skip
    smallest, floor = _smallest_peak(graph, budget, run, params, best.smallest)
    result = finish(
        graph, budget, run, "branch-and-bound", smallest,
        status=Status.INFEASIBLE,
        proof="any-order",
        reason=f"all orders were searched: none fits {format_bytes(budget)} ({budget} bytes); "
        f"no schedule has a peak below {floor} bytes",
    )  # fmt: skip
    return replace(result, memory_lower_bound=floor)


def _search(graph: Graph, budget: int, run: Run, params: Params, best: Incumbent) -> tuple[bool, float]:
    """Look for schedules that beat `best`; return whether all were seen, and a bound on their time."""

    def greedy(deadline: Deadline, calls: float) -> int:
        search = _Search(graph, graph.time, budget, run, params)
        code = search.go(deadline, best.time, _GREED, first=True, calls=calls)
        if code == kernels.FOUND:
            best.offer(search.order())
        return code

    if greedy(run.deadline, _SHORT) == kernels.EXHAUSTED:
        return True, best.time
    if run.stats.interrupted:
        return False, graph.total_time
    # Half of the time is for some schedule while there is none.
    deadline = run.deadline
    if best.order is None:
        deadline = deadline.within(deadline.remaining / 2)
    search = _Search(graph, graph.time, budget, run, params)
    code = search.go(deadline, best.time, 1.0)
    run.stats.counts["states"] = search.states
    if search.found:
        best.offer(search.order())
    bound = min(best.time, search.bound * (1.0 - _ROUNDING))
    if code == kernels.EXHAUSTED:
        return True, best.time
    if best.order is None and not run.stats.interrupted:
        del search
        if greedy(run.deadline, math.inf) == kernels.EXHAUSTED:
            return True, best.time
    run.stats.timed_out |= run.deadline.expired
    return False, bound


def _smallest_peak(
    graph: Graph, budget: int, run: Run, params: Params, order: IntArray | None
) -> tuple[IntArray | None, int]:
    """Bisect for the smallest peak of any order, above `budget` bytes, which is too small.

    Returns
    -------
    order of the smallest peak found, `order` at worst; a peak that no order can stay below.
    """
    unit = math.gcd(*graph.size.tolist(), *graph.workspace.tolist()) or 1
    low = budget // unit  # in units: proved too small
    high = math.inf if order is None else simulate(graph, order).peak // unit
    no_time = np.zeros(graph.n_ops)
    while high - low > 1:
        middle = int((low + high) // 2)
        search = _Search(graph, no_time, middle * unit, run, params)
        code = search.go(run.deadline, math.inf, 1.0, first=True, calls=_LONG)
        if code == kernels.FOUND:
            order = search.order()
            high = simulate(graph, order).peak // unit
        elif code == kernels.EXHAUSTED:
            low = middle
        else:
            break
    return order, (low + 1) * unit


class _Search:
    """The search of one graph under one budget, in chunks between which clock and Ctrl-C are heard."""

    def __init__(self, graph: Graph, time: FloatArray, budget: int, run: Run, params: Params) -> None:
        self._budget = budget
        self._run = run
        self._max_states = params.max_states
        by_size = np.argsort(-graph.size, kind="stable")
        self._net = kernels.Net(
            time=time,
            workspace=graph.workspace,
            once=graph.once,
            reads=_masks([graph.inputs_of(i) for i in range(graph.n_ops)]),
            makes=_masks([graph.outputs_of(i) for i in range(graph.n_ops)]),
            size=graph.size,
            by_size=by_size[graph.size[by_size] > 0],
            outputs=int(_masks([graph.outputs])[0]),
            reuse=graph.memory_model == "reuse",
        )
        self._store = _store(min(_FIRST_STATES, params.max_states))

    def go(
        self, deadline: Deadline, upper: float, weight: float, *, first: bool = False, calls: float = math.inf
    ) -> int:
        """Search from the start for schedules that take less than `upper`; return how it ended."""
        self._store.upper[0] = upper
        kernels.start(self._net, self._store, weight)
        try:
            while calls > 0 and not deadline.expired:
                code = int(kernels.search(self._net, self._store, self._budget, weight, first, _WORK))
                if code == kernels.FULL and len(self._store.live) < self._max_states:
                    self._store = _grown(self._store, self._max_states)
                elif code == kernels.PAUSED:
                    calls -= 1
                else:
                    return code
        except KeyboardInterrupt:  # between two calls: kernels do not hear it
            self._run.stats.interrupted = True
        return kernels.PAUSED

    @property
    def states(self) -> int:
        return int(self._store.counts[kernels.STATES])

    @property
    def found(self) -> bool:
        return int(self._store.counts[kernels.BEST]) >= 0

    @property
    def bound(self) -> float:
        """All that is left takes at least this time; for a search of weight 1 that has not ended."""
        s = self._store
        return min(float(s.key[s.heap[0]]), float(s.upper[0]))

    def order(self) -> IntArray:
        """The best schedule found."""
        order = []
        node = int(self._store.counts[kernels.BEST])
        while self._store.parent[node] >= 0:
            order.append(int(self._store.op[node]))
            node = int(self._store.parent[node])
        return np.array(order[::-1], np.int64)


def _masks(rows: list[Iterable[int]]) -> IntArray:
    return np.array([sum(1 << int(x) for x in row) for row in rows], np.int64)


def _store(capacity: int) -> kernels.Store:
    def column(dtype: type) -> np.ndarray:
        return np.empty(capacity, dtype)

    return kernels.Store(
        live=column(np.int64),
        ran=column(np.int64),
        cost=column(np.float64),
        key=column(np.float64),
        left=column(np.int64),
        parent=column(np.int64),
        op=column(np.int64),
        link=column(np.int64),
        dominated=column(np.bool_),
        heap=column(np.int64),
        head=np.full(1 << (2 * capacity - 1).bit_length(), -1, np.int64),
        counts=np.zeros(4, np.int64),
        upper=np.full(1, np.inf),
        left_at=np.full(MAX_ITEMS + 4, -1, np.int64),
    )


def _grown(old: kernels.Store, limit: int) -> kernels.Store:
    """A store of twice the size with the same states."""
    new = _store(min(2 * len(old.live), limit))
    for before, after in zip(old, new, strict=True):
        if before is not old.head:
            after[: len(before)] = before
    kernels.rebuild(new)
    return new
