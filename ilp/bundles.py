"""What the H-ILP does not decide tensor by tensor, so that its size stays bounded: pins and bundles.

Pinned interface tensors are always kept. Bundles of interface tensors are kept or dropped together: only
tensors that the same part makes and the same parts read are tied, in the order of the graph, up to a
number of bytes that is small beside the budget. On graphs of few interface tensors every bundle is one
tensor.
"""

from __future__ import annotations

import numpy as np

from hremate.graph import BoolArray, Graph, IntArray
from hremate.partition.tree import BlockTree

#: Tensors below this share of the base peak may be pinned, up to this share of the budget in all.
PINNED_SHARE, PINNED_TOTAL = 1e-4, 0.01
#: Partitions with more interface tensors than this have them tied.
MOST_TENSORS = 200
#: A bundle holds at least this share of the budget (tensors permitting); doubled until there are few enough.
SMALLEST_SHARE = 1 / 512


def pinned_tensors(graph: Graph, tree: BlockTree, budget: int, base_peak: int) -> BoolArray:
    """Interface tensors so small that they are always kept, bool[tensors of the graph].

    Tensors below `PINNED_SHARE` of the base peak, smallest first, up to `PINNED_TOTAL` of the budget in all.
    """
    crossing = np.unique(_readings(graph, tree)[0])
    small = crossing[graph.size[crossing] < PINNED_SHARE * base_peak]
    small = small[np.argsort(graph.size[small], kind="stable")]
    pinned = graph.size == 0
    pinned[small[np.cumsum(graph.size[small]) <= PINNED_TOTAL * budget]] = True
    return pinned


def _readings(graph: Graph, tree: BlockTree) -> tuple[IntArray, IntArray, IntArray]:
    """Each tensor and part (as a place in `tree.items`) that reads it from another part; the part of each op.

    Graph outputs are read by a part beyond the last one.
    """
    part = np.empty(graph.n_ops, np.int64)
    for k, item in enumerate(tree.items):
        part[tree.part(item)] = k
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    reader = part[graph.use_idx]
    away = reader != part[graph.producer[tensor]]
    beyond = len(tree.items)
    tensor = np.concatenate([tensor[away], graph.outputs])
    reader = np.concatenate([reader[away], np.full(len(graph.outputs), beyond)])
    pairs = np.unique(tensor * (beyond + 1) + reader)
    return pairs // (beyond + 1), pairs % (beyond + 1), part


def bundles(graph: Graph, tree: BlockTree, pinned: BoolArray, budget: int) -> IntArray:
    """The tensor that names the bundle of each tensor, int64[tensors of the graph]."""
    names = np.arange(graph.n_tensors)
    tensor, reader, part = _readings(graph, tree)
    readers: dict[int, list[int]] = {}
    for x, k in zip(tensor.tolist(), reader.tolist(), strict=True):
        if not pinned[x]:
            readers.setdefault(x, []).append(k)
    if len(readers) <= MOST_TENSORS:
        return names
    alike: dict[tuple[int, ...], list[int]] = {}
    for x in sorted(readers):
        alike.setdefault((int(part[graph.producer[x]]), *readers[x]), []).append(x)
    least = SMALLEST_SHARE * max(1, budget)
    while True:
        tied = [_filled(group, graph.size[group].tolist(), least) for group in alike.values()]
        count = sum(map(len, tied))
        if count <= MOST_TENSORS or count == len(alike):
            break
        least *= 2
    for group in tied:
        for members in group:
            names[members] = members[0]
    return names


def _filled(tensors: list[int], nbytes: list[int], least: float) -> list[list[int]]:
    """Consecutive tensors in groups of at least `least` bytes but for the last."""
    result: list[list[int]] = []
    filled = least
    for x, b in zip(tensors, nbytes, strict=True):
        if filled >= least:
            result.append([])
            filled = 0
        result[-1].append(x)
        filled += b
    return result
