"""Orders of small peak without recomputation: depth-first post-order, and beams from both ends."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hremate.graph import Graph, IntArray
from hremate.simulate import step_memory
from hremate.solvers import _front_kernel as _f
from hremate.solvers import _order_kernel as _k
from hremate.solvers._post_order_kernel import post_order

#: A peak that no order exceeds (`Graph` keeps all sums below it).
NO_LIMIT = 2**62
#: Units of work between two looks at the clock; a unit is a few nanoseconds.
CHUNK = 3_000_000
#: Partial schedules of a beam share all but their last steps; how many, times the ops of the graph.
_REACH_TIMES_OPS = 400_000
_LEAST_REACH = 16
#: Width that any beam may have as long as it holds no more than so many partial orders times ops.
_WIDE = 48
_WIDE_STATES = 4_000


def new_tree(nodes: int) -> _f.Tree:
    """A history of up to `nodes` nodes that holds the root."""
    tree = _f.Tree(
        np.zeros(nodes, np.int32), np.zeros(nodes, np.int32), np.zeros(nodes, np.int64),
        np.zeros(nodes, np.int64), np.zeros(nodes, np.int64), np.zeros(nodes), np.zeros(nodes, np.int32),
        np.ones(1, np.int64),
    )  # fmt: skip
    return tree


def new_front(candidates: int) -> _f.Front:
    """A front of up to `candidates` candidates."""
    return _f.Front(
        np.zeros(candidates, np.int64), np.zeros(candidates, np.int64), np.zeros(candidates, np.int64),
        np.zeros((candidates, 4), np.int64), np.arange(candidates, dtype=np.int32),
        np.full(1 << (4 * candidates).bit_length(), -1, np.int32),
    )  # fmt: skip


def reach_of(n_ops: int) -> int:
    """Steps back to where the partial schedules of a beam must share their history."""
    return max(_LEAST_REACH, _REACH_TIMES_OPS // n_ops)


def longest_paths(graph: Graph, ticks: IntArray, *, to_end: bool = True) -> IntArray:
    """Longest sum of `ticks` over a path from each op to the end of the graph, or from its start."""
    longest = ticks.astype(np.int64)
    if to_end:
        ptr, idx = graph.successors
        ops = range(graph.n_ops - 1, -1, -1)
    else:
        ptr, idx = graph.predecessors
        ops = range(graph.n_ops)
    for i in ops:
        if ptr[i] < ptr[i + 1]:
            longest[i] += longest[idx[ptr[i] : ptr[i + 1]]].max()
    return longest


def peak_order(
    graph: Graph,
    width: int,
    *,
    backward: bool = False,
    floor: int = 0,
    seed: int = 0,
    max_work: int | None = None,
    tick: Callable[[int], None] = lambda work: None,
) -> IntArray | None:
    """The order of smallest peak that a beam over orders without recomputation finds, int64[n].

    Parameters
    ----------
    width : int
        Partial orders kept.
    backward : bool
        Build the order from its end.
    floor : int
        Bytes. Peaks of at most `floor` are equally good.
    seed : int
        Of the hashes that tell sets of ops apart.
    max_work : int, optional
        Units of work (a few nanoseconds each) after which None is returned.
    tick : callable
        Called with the units of work done since the last call; may raise to end the search.
    """
    n, m = graph.n_ops, graph.n_tensors
    uses = np.diff(graph.use_ptr)
    wanted_bytes = np.where((uses > 0) | graph.is_output, graph.size, 0)
    kept = np.concatenate([[0], np.cumsum(wanted_bytes)])
    kept = kept[graph.out_ptr[1:]] - kept[graph.out_ptr[:-1]]
    arcs = graph.use_ptr[graph.out_ptr]
    source = (np.diff(graph.in_ptr) == 0) & (np.diff(arcs) > 0) & (not backward)
    rng = np.random.default_rng(seed)
    flow = _k.Flow(
        graph.size, graph.producer, graph.out_ptr, graph.in_ptr, graph.in_idx, graph.use_ptr, graph.use_idx,
        graph.is_output, graph.workspace, graph.out_bytes, graph.memory_model == "reuse", backward,
        kept, source, -longest_paths(graph, np.ones(n, np.int64), to_end=not backward),
        rng.integers(0, 2**62, n),
    )  # fmt: skip

    def ints(*shape: int) -> _f.Int32Array:
        return np.zeros(shape, np.int32)

    orders = _k.Orders(
        np.zeros((width, n), np.bool_), ints(width, n), ints(width, m), np.zeros((width, n), np.int64),
        np.zeros((width, n), np.int64), ints(width, n), ints(width, n), ints(width, n), ints(width, n),
        np.zeros((width, 7), np.int64),
    )  # fmt: skip
    tree, front = new_tree(2 * width * (n + 2)), new_front(2 * width)
    room = (width + 2) * (n + 2)
    work = 0
    outcome = _k.LOG_FULL
    while outcome != _k.DONE:
        if outcome == _k.LOG_FULL:
            room *= 2
            log = ints(room)
            for s in range(width):
                _k.start(flow, orders, s)
            active = np.zeros(width, np.bool_)
            active[0] = True
            wanted = ints(len(tree.parent))
            best = np.array([-1, NO_LIMIT, 0, 0])
            tree.size[0] = 1
        before = int(best[3])
        outcome = _k.advance(
            flow, orders, floor, reach_of(n), log, tree, front, active, wanted, best, CHUNK
        )
        tick(int(best[3]) - before)
        work += int(best[3]) - before
        if max_work is not None and work > max_work:
            return None
    parts = []
    node = int(best[0])
    while node:
        parts.append(log[tree.first[node] : tree.last[node]])
        node = int(tree.parent[node])
    order = np.concatenate(parts[::-1]).astype(np.int64)
    return order[::-1].copy() if backward else order


def order_width(n_ops: int, width: int) -> int:
    """Width of an order beam: small graphs afford more than the `width` asked for."""
    return max(width, min(_WIDE, _WIDE_STATES // n_ops))


def smallest_peak_order(graph: Graph, width: int, *, seed: int = 0) -> IntArray:
    """The order of smallest peak among several without recomputation, int64[n].

    Compared are the given order, a depth-first post-order, and beams from both ends; the beams are then
    repeated for as long as one gets below the smallest peak, with all lower peaks equally good.
    """
    best = min(np.arange(graph.n_ops), depth_first(graph), key=lambda order: _peak(graph, order))
    peak = _peak(graph, best)
    floor, going = 0, True
    while going:
        going = floor == 0 and peak > 1
        for backward in (False, True):
            order = peak_order(
                graph, order_width(graph.n_ops, width), backward=backward, floor=floor, seed=seed
            )
            assert order is not None  # without a limit of work
            if _peak(graph, order) < peak:
                best, peak, going = order, _peak(graph, order), peak > 1
        floor = peak - 1
    return best


def _peak(graph: Graph, order: IntArray) -> int:
    return int(step_memory(graph, order).max())


def depth_first(graph: Graph) -> IntArray:
    """Depth-first post-order, int64[n]: first what leads to the graph outputs, then the rest."""
    final = graph.producer[graph.outputs]
    final = final[np.argsort(-graph.out_bytes[final], kind="stable")]
    unread = np.flatnonzero(np.diff(graph.use_ptr[graph.out_ptr]) == 0)[::-1]
    order: IntArray = post_order(
        graph.producer, graph.out_ptr, graph.in_ptr, graph.in_idx, graph.out_bytes,
        np.concatenate([final, unread]),
    )  # fmt: skip
    return order
