"""The dynamic program that cuts a sequence into blocks."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def forward_cuts(cross, weight, n_blocks, smallest, largest, average, size_weight):  # type: ignore[no-untyped-def]
    """Dynamic program C[j][e] = min_b C[j-1][b] + cross[e] + size_weight ((size - average) / average)^2.

    Parameters
    ----------
    cross : float64[P + 1], cost of a cut at each position; weight : float64[P + 1], cumulative size.
    n_blocks : int; smallest, largest, average : float, sizes of a block; size_weight : float.

    Returns
    -------
    int64[n_blocks + 1] positions from 0 to P, or empty when no cut satisfies the sizes.
    """
    positions = len(cross)
    best = np.full((n_blocks + 1, positions), np.inf)
    back = np.full((n_blocks + 1, positions), -1, np.int64)
    best[0, 0] = 0.0
    for j in range(1, n_blocks + 1):
        first = 0
        for e in range(j, positions):
            while first < e and weight[e] - weight[first] > largest:
                first += 1
            price = cross[e] if j < n_blocks else 0.0
            for b in range(first, e):
                size = weight[e] - weight[b]
                if size < smallest:
                    break
                if best[j - 1, b] == np.inf:
                    continue
                cost = best[j - 1, b] + price + size_weight * ((size - average) / average) ** 2
                if cost < best[j, e]:
                    best[j, e] = cost
                    back[j, e] = b
    if best[n_blocks, positions - 1] == np.inf:
        return np.empty(0, np.int64)
    cuts = np.empty(n_blocks + 1, np.int64)
    e = positions - 1
    for j in range(n_blocks, -1, -1):
        cuts[j] = e
        e = back[j, e]
    return cuts
