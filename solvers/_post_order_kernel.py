"""Kernel of the depth-first post-order."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def post_order(producer, out_ptr, in_ptr, in_idx, out_bytes, roots):  # type: ignore[no-untyped-def]
    """Depth-first post-order of all ops, int64[n]: what leads to the first of `roots`, it, and so on.

    The inputs of an op come largest first, so that small results are held while large ones are made.
    Every op must lead to one of `roots`, int64[k]; all other arrays as in `Graph`.
    """
    n = len(out_bytes)
    order = np.empty(n, np.int64)
    placed = np.zeros(n, np.bool_)
    stack = np.empty(n + 1, np.int64)
    length = 0
    for root in roots:
        if placed[root]:
            continue
        stack[0] = root
        top = 1
        while top:
            r = stack[top - 1]
            child, heaviest = -1, -1
            for a in range(in_ptr[r], in_ptr[r + 1]):
                p = producer[in_idx[a]]
                if not placed[p] and out_bytes[p] > heaviest:
                    child, heaviest = p, out_bytes[p]
            if child >= 0:
                stack[top] = child
                top += 1
            else:
                order[length] = r
                length += 1
                placed[r] = True
                top -= 1
    return order
