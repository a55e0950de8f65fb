"""Random DAGs of `hremate.generate`: layered ones and series-parallel ones.

Each op makes one tensor. Arrays are filled in bulk: a layered graph of 250,000 ops has 20 million arcs.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

from hremate.graph import Graph, IntArray

Rng = np.random.Generator

#: Sizes are 10 + 8190 Beta(a, b): right-skewed, mean about 2,000, between 10 and 8,200.
SIZE_BETA = (0.95, 2.95)
NODES_PER_LAYER_VARIATION = 0.75
EDGE_DENSITY = 0.2
SKIP_DENSITY = 0.14
#: How far a skip edge may drift from its relative position.
SKIP_DRIFT = 0.2


def layered(ops: int, rng: Rng, name: str, metadata: dict[str, Any]) -> Graph:
    """A random layered DAG with one source and one sink, which is the graph output.

    The generator of Gagrani et al., "Neural Topological Ordering for Computation Graphs", NeurIPS 2022,
    appendix, partly reconstructed: layers of varying width, a band of edges between neighbours, a few
    skip edges. Times are U{1..999}, sizes right-skewed multiples of 10.
    """
    sizes = _layer_sizes(ops, rng)
    start = np.concatenate([[0], np.cumsum(sizes)])
    band_edges = sum(_band_edges(a, b) for a, b in pairwise(sizes.tolist()))
    skip_source, skip_target = _skips(band_edges, sizes, start, rng)
    cut = np.searchsorted(skip_target, start)
    in_idx = np.empty(band_edges + len(skip_source), np.int64)
    degree = np.zeros(ops, np.int64)
    filled = 0
    for layer in range(1, len(sizes)):
        source, target = _band(int(sizes[layer - 1]), int(sizes[layer]))
        # Skip edges start in earlier layers than the band does: put first, sources come out ascending.
        skips = slice(cut[layer], cut[layer + 1])
        source = np.concatenate([skip_source[skips], source + start[layer - 1]])
        target = np.concatenate([skip_target[skips] - start[layer], target])
        degree[start[layer] : start[layer + 1]] = np.bincount(target, minlength=int(sizes[layer]))
        # numpy sorts small integers stably by radix, in linear time.
        narrow = target.astype(np.min_scalar_type(int(sizes[layer])))
        in_idx[filled : filled + len(source)] = source[np.argsort(narrow, kind="stable")]
        filled += len(source)
    in_ptr = np.concatenate([[0], np.cumsum(degree)])
    return _assemble(in_ptr, in_idx, rng, name, metadata)


def _layer_sizes(ops: int, rng: Rng) -> IntArray:
    """Sizes of the layers: 1, then uniform around the mean until `ops` are spent, then 1."""
    if ops == 1:
        return np.ones(1, np.int64)
    width = rng.uniform(0.25, 0.5)
    mean = ops / math.ceil(math.sqrt(ops * (1 / width - 1)))
    low = max(1, math.ceil(mean * (1 - NODES_PER_LAYER_VARIATION)))
    high = max(low, math.floor(mean * (1 + NODES_PER_LAYER_VARIATION)))
    sizes = [1]
    left = ops - 2
    while left:
        sizes.append(min(left, int(rng.integers(low, high + 1))))
        left -= sizes[-1]
    return np.array([*sizes, 1], np.int64)


def _band_edges(above: int, below: int) -> int:
    many, few = max(above, below), min(above, below)
    return round(EDGE_DENSITY * many * few + (1 - EDGE_DENSITY) * many)


def _band(above: int, below: int) -> tuple[IntArray, IntArray]:
    """Edges between neighbouring layers as (op in the upper, op in the lower), positions in the layer.

    Each op of the larger layer is joined to a contiguous window of the smaller one.
    """
    many, few = max(above, below), min(above, below)
    edges = _band_edges(above, below)
    k = np.arange(many, dtype=np.int64)
    share = edges * (k + 1) // many - edges * k // many
    centre = -(-k * (few - 1) // max(many - 1, 1))
    first = np.clip(centre - share // 2, 0, few - share)
    large = np.repeat(k, share)
    offset = np.arange(len(large)) - np.repeat(np.cumsum(share) - share, share)
    small = np.repeat(first, share) + offset
    return (large, small) if above >= below else (small, large)


def _skips(edges: int, sizes: IntArray, start: IntArray, rng: Rng) -> tuple[IntArray, IntArray]:
    """Distinct skip edges (source op, target op) sorted by target layer, then by source."""
    layers = len(sizes)
    if layers < 3:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    count = round(SKIP_DENSITY / (1 - SKIP_DENSITY) * edges)
    above = rng.integers(0, layers - 2, size=count)
    below = rng.integers(above + 2, layers)
    place = rng.random(count)
    source = start[above] + np.minimum((place * sizes[above]).astype(np.int64), sizes[above] - 1)
    place = np.minimum(place + rng.uniform(0, SKIP_DRIFT, size=count), 1.0)
    target = start[below] + np.minimum((place * sizes[below]).astype(np.int64), sizes[below] - 1)
    pairs = np.sort(target * start[-1] + source)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]
    return pairs % start[-1], pairs // start[-1]


def series_parallel(ops: int, rng: Rng, name: str, metadata: dict[str, Any]) -> Graph:
    """A random two-terminal series-parallel DAG; its sink is the graph output.

    A part is an op, parts in series, or parts in parallel between a fork and a join, each split at
    random into two to four. Times and sizes as in `layered`.
    """
    inputs: list[list[int]] = []

    def op(reads: list[int]) -> int:
        inputs.append(reads)
        return len(inputs) - 1

    def build(count: int, entry: list[int]) -> int:
        """Add a part of `count` ops that reads `entry`; return its sink."""
        parallel = count >= 4 and bool(rng.integers(0, 2))
        inner = count - 2 if parallel else count
        parts = min(inner, int(rng.integers(2, 5)))
        if parts < 2:
            return op(entry)
        cuts = np.sort(rng.choice(inner - 1, size=parts - 1, replace=False)) + 1
        lengths = np.diff([0, *cuts, inner]).tolist()
        if parallel:
            fork = op(entry)
            return op([build(length, [fork]) for length in lengths])
        for length in lengths:
            entry = [build(length, entry)]
        return entry[0]

    build(ops, [])
    in_ptr = np.concatenate([[0], np.cumsum([len(reads) for reads in inputs])])
    in_idx = np.array([x for reads in inputs for x in reads], np.int64)
    return _assemble(in_ptr, in_idx, rng, name, metadata)


def _assemble(in_ptr: IntArray, in_idx: IntArray, rng: Rng, name: str, metadata: dict[str, Any]) -> Graph:
    """The graph in which op i makes tensor i, with random times and sizes; the last op is the output."""
    n = len(in_ptr) - 1
    time = rng.integers(1, 1000, size=n).astype(np.float64)
    size = 10 + 10 * np.rint(819 * rng.beta(*SIZE_BETA, size=n)).astype(np.int64)
    use_ptr = np.concatenate([[0], np.cumsum(np.bincount(in_idx, minlength=n))])
    readers = np.repeat(np.arange(n, dtype=np.int32), np.diff(in_ptr))
    every = np.arange(n, dtype=np.int64)
    return Graph(
        name=name,
        op_names=tuple([f"n{i}" for i in range(n)]),
        time=_frozen(time),
        workspace=_frozen(np.zeros(n, np.int64)),
        phase=_frozen(np.full(n, -1, np.int8)),
        once=_frozen(np.zeros(n, np.bool_)),
        tensor_names=tuple([f"t{i}" for i in range(n)]),
        size=_frozen(size),
        producer=_frozen(every),
        out_ptr=_frozen(np.arange(n + 1, dtype=np.int64)),
        in_ptr=_frozen(in_ptr),
        in_idx=_frozen(in_idx),
        use_ptr=_frozen(use_ptr),
        use_idx=_frozen(readers[np.argsort(in_idx, kind="stable")].astype(np.int64)),
        outputs=_frozen(every[-1:].copy()),
        op_types=("",) * n,
        op_scopes=("",) * n,
        resident_inputs=((),) * n,
        units=("us", "bytes"),
        metadata=metadata,
    )


def _frozen(array: Any) -> Any:
    array.setflags(write=False)
    return array
