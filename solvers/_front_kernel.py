"""Kernels shared by the beams: the history tree of partial schedules and the best candidates of a round."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hremate._jit import kernel
from hremate.graph import FloatArray, IntArray

Int32Array = npt.NDArray[np.int32]


class Tree(NamedTuple):
    """The history of a beam: one node per step of a slot; node 0 is the empty schedule."""

    #: Node before each node (the root is its own) and number of steps to it, int32[capacity].
    parent: Int32Array
    depth: Int32Array
    #: Log entries first:last of each node, int64[capacity].
    first: IntArray
    last: IntArray
    #: Peak in bytes and price of the last eviction at each node.
    peak: IntArray
    price: FloatArray
    #: Work space for a path, int32[capacity].
    path: Int32Array
    #: Number of nodes, int64[1].
    size: IntArray


class Front(NamedTuple):
    """The best candidates of a round, one for each set of ops that have run after it."""

    #: Candidate steps: parent node, op, hash of the ops run after it, int64[candidates].
    node: IntArray
    op: IntArray
    hash: IntArray
    #: Rank of each candidate, int64[candidates, 4]; less is better, the first column counts most.
    rank: IntArray
    #: Candidates held, best first, then the free ones, int32[candidates].
    sorted: Int32Array
    #: Candidates by hash, linear probing, -1 where empty, int32[power of two].
    table: Int32Array


@kernel
def new_node(tree, parent, first, last, peak, price):  # type: ignore[no-untyped-def]
    """Add the node whose log entries are first:last after node `parent`; return it."""
    node = tree.size[0]
    tree.size[0] += 1
    tree.parent[node] = parent
    tree.depth[node] = tree.depth[parent] + 1
    tree.first[node] = first
    tree.last[node] = last
    tree.peak[node] = peak
    tree.price[node] = price
    return node


@kernel
def path_down(tree, node, top):  # type: ignore[no-untyped-def]
    """Write the nodes from `node` up to, without, node `top` into tree.path; return their number."""
    length = 0
    while node != top:
        tree.path[length] = node
        length += 1
        node = tree.parent[node]
    return length


@kernel
def common_node(tree, a, b):  # type: ignore[no-untyped-def]
    """The last common node of the histories of `a` and `b`."""
    while a != b:
        if tree.depth[a] >= tree.depth[b]:
            a = tree.parent[a]
        else:
            b = tree.parent[b]
    return a


@kernel
def related(tree, a, b, reach):  # type: ignore[no-untyped-def]
    """Whether nodes `a` and `b` have a common node at most `reach` steps before either."""
    lowest = max(tree.depth[a], tree.depth[b]) - reach
    while a != b:
        if tree.depth[a] >= tree.depth[b]:
            a = tree.parent[a]
        else:
            b = tree.parent[b]
        if tree.depth[a] < lowest or tree.depth[b] < lowest:
            return False
    return True


@kernel
def clear(front):  # type: ignore[no-untyped-def]
    """Empty the front."""
    front.table[:] = -1
    for k in range(len(front.sorted)):
        front.sorted[k] = k


@kernel
def less(a0, a1, a2, a3, b):  # type: ignore[no-untyped-def]
    """Whether rank (a0, a1, a2, a3) comes before rank `b`."""
    if a0 != b[0]:
        return a0 < b[0]
    if a1 != b[1]:
        return a1 < b[1]
    if a2 != b[2]:
        return a2 < b[2]
    return a3 < b[3]


@kernel
def _find(front, value):  # type: ignore[no-untyped-def]
    """Cell of the table that holds the candidate of hash `value`, or the empty cell where it would go."""
    mask = len(front.table) - 1
    cell = value & mask
    while front.table[cell] >= 0 and front.hash[front.table[cell]] != value:
        cell = (cell + 1) & mask
    return cell


@kernel
def _forget(front, cell):  # type: ignore[no-untyped-def]
    """Empty a cell of the table and move up what was pushed behind it."""
    mask = len(front.table) - 1
    hole = cell
    cell = (cell + 1) & mask
    while front.table[cell] >= 0:
        home = front.hash[front.table[cell]] & mask
        if ((cell - home) & mask) >= ((cell - hole) & mask):
            front.table[hole] = front.table[cell]
            hole = cell
        cell = (cell + 1) & mask
    front.table[hole] = -1


@kernel
def _place_of(front, held, a0, a1, a2, a3):  # type: ignore[no-untyped-def]
    """How many of the `held` candidates do not come after rank (a0, a1, a2, a3)."""
    low, high = np.int64(0), held
    while low < high:
        middle = (low + high) // 2
        if less(a0, a1, a2, a3, front.rank[front.sorted[middle]]):
            high = middle
        else:
            low = middle + 1
    return low


@kernel
def offer(front, held, node, op, after_hash, a0, a1, a2, a3):  # type: ignore[no-untyped-def]
    """Insert a candidate of rank (a0, a1, a2, a3) among the `held` best; return their new number.

    Equal ranks stay in the order in which they were offered. Takes O(log candidates) and one shift.
    """
    size = len(front.sorted)
    if held == size and not less(a0, a1, a2, a3, front.rank[front.sorted[size - 1]]):
        return held
    cell = _find(front, after_hash)
    twin = front.table[cell]
    if twin >= 0:
        if not less(a0, a1, a2, a3, front.rank[twin]):
            return held
        k = _place_of(front, held, front.rank[twin, 0], front.rank[twin, 1], front.rank[twin, 2],
                      front.rank[twin, 3]) - 1  # fmt: skip
        while front.sorted[k] != twin:
            k -= 1
    else:
        k = held
        if held == size:
            k = size - 1
            _forget(front, _find(front, front.hash[front.sorted[k]]))
            cell = _find(front, after_hash)
        else:
            held += 1
    new = front.sorted[k]
    at = _place_of(front, k, a0, a1, a2, a3)
    while k > at:
        front.sorted[k] = front.sorted[k - 1]
        k -= 1
    front.sorted[at] = new
    front.table[cell] = new
    front.node[new], front.op[new], front.hash[new] = node, op, after_hash
    front.rank[new, 0], front.rank[new, 1], front.rank[new, 2], front.rank[new, 3] = a0, a1, a2, a3
    return held


@kernel
def choose(front, held, width, tree, reach, wanted):  # type: ignore[no-untyped-def]
    """Move the `width` best candidates related to the very best to the front; return their number.

    `wanted` counts the chosen ones that start at each node.
    """
    best = front.node[front.sorted[0]]
    kept = 0
    for k in range(held):
        c = front.sorted[k]
        if kept < width and related(tree, front.node[c], best, reach):
            front.sorted[k] = front.sorted[kept]
            front.sorted[kept] = c
            wanted[front.node[c]] += 1
            kept += 1
    return kept


@kernel
def slot_for(nodes, used, front, k, wanted):  # type: ignore[no-untyped-def]
    """An unused slot for the candidate at place `k`: one at its node, else one nobody starts from.

    Parameters
    ----------
    nodes : int64[width], node of each slot.
    used : bool[width], slots taken in this round.
    wanted : int32[nodes of the tree], how many chosen candidates from place `k` on start at each node.
    """
    node = front.node[front.sorted[k]]
    choice, spare = -1, -1
    for s in range(len(used)):
        if used[s]:
            continue
        if nodes[s] == node:
            return s
        if spare < 0 and wanted[nodes[s]] == 0:
            spare = s
        choice = s
    return spare if spare >= 0 else choice
