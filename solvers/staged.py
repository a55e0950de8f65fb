"""Schedules staged along the given order: what the exact programs over them share.

Stage t runs op t for the first time; before it, in the same stage, earlier ops may run once more.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hremate.graph import BoolArray, Graph, IntArray

#: How many thresholds `threshold_orders` tries.
_THRESHOLDS = 16


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one op with the same users, as one."""

    producer: int
    #: Bytes, > 0.
    size: int
    users: tuple[int, ...]
    is_output: bool
    #: Last stage in which it may be read; n for a graph output, -1 when it never is.
    last_need: int


def tensor_groups(graph: Graph) -> tuple[tuple[TensorGroup, ...], list[int]]:
    """The tensors of more than 0 bytes, and for each op the last stage in which running it can help.

    A tensor of 0 bytes is kept for ever, so that nothing runs again for its sake.
    """
    n = graph.n_ops
    last = list(range(n))
    groups: list[TensorGroup] = []
    for i in range(n - 1, -1, -1):
        merged: dict[tuple[tuple[int, ...], bool], int] = {}
        for x in graph.outputs_of(i):
            if graph.size[x]:
                key = (tuple(graph.users_of(x).tolist()), bool(graph.is_output[x]))
                merged[key] = merged.get(key, 0) + int(graph.size[x])
        for (users, is_output), size in merged.items():
            last_need = n if is_output else max((last[j] for j in users), default=-1)
            groups.append(TensorGroup(i, size, users, is_output, last_need))
            if not graph.once[i]:
                last[i] = max(last[i], min(last_need, n - 1))
    return tuple(groups[::-1]), last


def stage_runs(order: Iterable[int], n: int) -> BoolArray | None:
    """Whether op i runs in stage t, bool[n, n]; None when the first runs do not follow the given order."""
    runs = np.zeros((n, n), np.bool_)
    t = 0
    for i in order:
        if i > t or t == n:
            # Runs after the last first run belong to no stage.
            return None
        runs[t, i] = True
        t += i == t
    return runs if t == n else None


def threshold_orders(graph: Graph) -> list[IntArray]:
    """Cheap staged schedules, from keeping everything to keeping little.

    From one stage to the next a tensor is kept while its bytes times the stages until its next first use
    stay within a threshold; what is missing is computed again just in time.
    """
    n = graph.n_ops
    users = [graph.users_of(x).tolist() for x in range(graph.n_tensors)]
    inputs = [graph.inputs_of(i).tolist() for i in range(n)]
    producer, size = graph.producer.tolist(), graph.size.tolist()
    pinned = (graph.is_output | graph.once[graph.producer]).tolist()
    longest = [size[x] * (users[x][-1] - producer[x]) for x in range(graph.n_tensors) if users[x]]
    levels = np.quantile(longest or [0], np.linspace(0.0, 1.0, _THRESHOLDS))
    orders = []
    for threshold in np.unique(levels)[::-1]:
        order: list[int] = []
        kept: set[int] = set()
        for t in range(n):
            stage = {t}
            missing = [x for x in inputs[t] if x not in kept]
            while missing:
                i = producer[missing.pop()]
                if i not in stage:
                    stage.add(i)
                    missing += [x for x in inputs[i] if x not in kept]
            order += sorted(stage)
            kept.update(x for i in stage for x in graph.outputs_of(i))
            for x in sorted(kept):
                following = bisect.bisect_right(users[x], t)
                wait = users[x][following] - t if following < len(users[x]) else None
                if not pinned[x] and (wait is None or size[x] * wait > threshold):
                    kept.remove(x)
        orders.append(np.array(order, np.int64))
    return orders


def first_runs(order: IntArray) -> IntArray:
    """The ops of a schedule by their first runs, int64[n]."""
    _, first = np.unique(order, return_index=True)
    result: IntArray = order[np.sort(first)]
    return result


def depth_first_order(graph: Graph) -> IntArray:
    """A depth-first post-order: each op right after what only it was missing, int64[n]."""
    ptr, idx = graph.predecessors
    order: list[int] = []
    seen = np.zeros(graph.n_ops, np.bool_)
    sinks = np.flatnonzero(np.diff(graph.successors[0]) == 0)
    for sink in sinks.tolist():
        path = [(sink, False)]
        while path:
            op, entered = path.pop()
            if entered:
                order.append(op)
            elif not seen[op]:
                seen[op] = True
                path.append((op, True))
                path += [(int(p), False) for p in idx[ptr[op] : ptr[op + 1]] if not seen[p]]
    return np.array(order, np.int64)


def reordered(graph: Graph, order: IntArray) -> Graph:
    """The graph with its ops in another topological order: op k of it is op `order[k]` of `graph`."""
    return Graph.from_ops(
        [graph.op(i) for i in order.tolist()],
        [graph.tensor_names[x] for x in graph.outputs.tolist()],
        name=graph.name,
        memory_model=graph.memory_model,
    )
