"""The kernel of structural pairing."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def backward_labels(in_ptr, in_idx, out_ptr, use_ptr, use_idx, producer, wish, split, n_blocks):  # type: ignore[no-untyped-def]
    """Give each backward op a block, never a later one than the backward ops it reads from have.

    Ops with a wish get it as far as that allows; ops without one run as late as their readers allow.

    Parameters
    ----------
    in_ptr, in_idx, out_ptr, use_ptr, use_idx, producer : as in Graph.
    wish : int64[n - split], block that suits each backward op, -1 for none.
    split : int, the backward ops are those from it on; n_blocks : int.

    Returns
    -------
    int64[n - split]
    """
    n = len(in_ptr) - 1
    label = np.empty(n - split, np.int64)
    for v in range(split, n):
        most = n_blocks - 1
        for x in in_idx[in_ptr[v] : in_ptr[v + 1]]:
            if producer[x] >= split:
                most = min(most, label[producer[x] - split])
        label[v - split] = most if wish[v - split] < 0 else min(most, wish[v - split])
    for v in range(n - 1, split - 1, -1):
        if wish[v - split] >= 0:
            continue
        least = -1
        for x in range(out_ptr[v], out_ptr[v + 1]):
            for r in use_idx[use_ptr[x] : use_ptr[x + 1]]:
                least = max(least, label[r - split])
        if least >= 0:
            label[v - split] = least
    return label
