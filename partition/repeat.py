"""The `repeat` partitioner: blocks of whole repetitions of a window of op types, so that blocks repeat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hremate.graph import FloatArray, Graph, IntArray
from hremate.partition.cuts import crossing_bytes, cut_sequence, homes
from hremate.partition.evaluate import evaluate, type_codes
from hremate.partition.intervals import intervals
from hremate.partition.pairing import paired
from hremate.partition.phases import split_position
from hremate.partition.tree import BlockTree

#: Length of the windows whose repetition suggests a period.
WINDOW = 4
#: Periods that are tried, those suggested most first.
PERIODS = 24
#: A stretch counts when it is at least this share of an average block.
SHORTEST = 0.5
#: First repetitions at which blocks are tried to begin.
OFFSETS = 3


@dataclass(frozen=True)
class Stretch:
    """Ops start .. start + length - 1, of which each has the type and size of the one `period` before."""

    start: int
    length: int
    period: int


def repeat(graph: Graph, n_blocks: int, *, split: int | None = None) -> BlockTree:
    """Cut the given order into about `n_blocks` blocks that repeat where the graph does.

    Stretches of the forward part in which a window of ops (type, bytes of outputs, number of inputs)
    repeats are cut only between whole repetitions, always at the same place of the window and at the same
    number of repetitions. Outside, and where nothing repeats, cuts may be anywhere.

    Parameters
    ----------
    split : int, optional
        Where the backward part begins (default: `split_position`); `n_ops` for blocks without one.

    Returns
    -------
    BlockTree
        Items F_1 .. F_J, then B_J .. B_1 (empty backward parts left out).

    Raises
    ------
    MethodError
        `n_blocks` is below 1.
    """
    split = split_position(graph) if split is None else split
    order = np.arange(split)
    anywhere = intervals(graph, n_blocks, split=split)
    average = split / n_blocks
    found = stretches(windows(graph, split), int(SHORTEST * average))
    cross = crossing_bytes(graph, order)
    best, best_key = anywhere, (np.inf, np.inf)
    for more in (0, 1):
        for offset in range(OFFSETS):
            allowed = np.ones(split, np.bool_)
            allowed[0] = False
            for stretch in found:
                repetitions = max(1, int(average / stretch.period) + more)
                first = stretch.start + _phase(stretch, cross) + stretch.period * (offset % repetitions)
                allowed[stretch.start : stretch.start + stretch.length] = False
                allowed[first : stretch.start + stretch.length : repetitions * stretch.period] = True
            cuts = cut_sequence(graph, order, n_blocks, np.flatnonzero(allowed))
            if cuts is None or not found:
                continue
            tree = paired(graph, homes(order, cuts))
            seen = evaluate(graph, tree)
            key = (float(seen.classes), float(seen.foreign_bytes + seen.interface_bytes))
            if key < best_key:
                best, best_key = tree, key
    return best


def windows(graph: Graph, split: int) -> IntArray:
    """A number for each forward op, int64[split]: equal for equal type, output bytes and input count."""
    features = np.stack(
        [type_codes(graph)[:split], graph.out_bytes[:split], np.diff(graph.in_ptr)[:split]], axis=1
    )
    result: IntArray = np.unique(features, axis=0, return_inverse=True)[1].reshape(-1)
    return result


def stretches(token: IntArray, shortest: int) -> list[Stretch]:
    """Disjoint stretches of `token` that repeat with some period, longest repetition first.

    Parameters
    ----------
    token : int64[n]
    shortest : int
        Least length of a stretch.
    """
    free = np.ones(len(token), np.bool_)
    periods = _periods(token)
    found: list[Stretch] = []
    while True:
        best = Stretch(0, 0, 1)
        for period in periods:
            equal = (token[period:] == token[:-period]) & free[period:] & free[:-period]
            edges = np.flatnonzero(np.diff(np.concatenate([[0], equal.astype(np.int8), [0]])))
            if not len(edges):
                continue
            starts, lengths = edges[::2], edges[1::2] - edges[::2]
            k = int(np.argmax(lengths))
            repeated = int(lengths[k])
            if repeated >= period and repeated > best.length - best.period:
                best = Stretch(int(starts[k]), repeated + period, period)
        if best.length < max(shortest, 2):
            return found
        free[best.start : best.start + best.length] = False
        found.append(best)


def _periods(token: IntArray) -> list[int]:
    """Distances between successive equal windows, those that cover most ops first."""
    if len(token) <= WINDOW:
        return []
    rows = np.stack([token[k : len(token) - WINDOW + 1 + k] for k in range(WINDOW)], axis=1)
    code = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    by_code = np.argsort(code, kind="stable")
    gap = np.diff(by_code)[np.diff(code[by_code]) == 0]
    period, count = np.unique(gap, return_counts=True)
    weight = period * count
    result: list[int] = period[np.lexsort((period, -weight))][:PERIODS].tolist()
    return result


def _phase(stretch: Stretch, cross: FloatArray) -> int:
    """The place of the window, 0 .. period - 1, at which least crosses over all repetitions."""
    repetitions = stretch.length // stretch.period
    inside = cross[stretch.start : stretch.start + repetitions * stretch.period]
    return int(np.argmin(inside.reshape(repetitions, stretch.period).sum(axis=0)))
