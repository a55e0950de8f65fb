"""A topological order that follows the listing wherever the edges leave a choice."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def stable_order(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """Order the nodes so that each comes after its predecessors, the earliest listed first.

    A listing that is topological is left alone. So is one with a cycle, for the graph to report.

    Parameters
    ----------
    predecessors : for each node the distinct nodes before it.
    """
    n = len(predecessors)
    if all(p < i for i in range(n) for p in predecessors[i]):
        return list(range(n))
    waiting = [len(p) for p in predecessors]
    successors: list[list[int]] = [[] for _ in range(n)]
    for i, before in enumerate(predecessors):
        for p in before:
            successors[p].append(i)
    ready = [i for i in range(n) if not waiting[i]]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in successors[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, j)
    return order if len(order) == n else list(range(n))
