"""Kernels of `hremate.solvers.windows`: what stays constant outside a window."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def held_bytes(  # type: ignore[no-untyped-def]
    order, in_ptr, in_idx, out_ptr, size, outputs, before, after
):
    """Bytes of the tensors that are held when each step starts and when it ends, by `hremate.simulate`.

    Parameters
    ----------
    order : int64[L], op at each step; in_ptr, in_idx, out_ptr, outputs : as in `Graph`.
    size : int64[m], bytes of each tensor, 0 for those that do not count.
    before : int64[L], filled: held as the step starts, without its outputs.
    after : int64[L], filled: held as the step ends, with all its outputs and without inputs that die.
    """
    steps = len(order)
    last_read = np.full(len(size), -1, np.int64)
    for x in outputs:
        last_read[x] = steps
    freed = np.zeros(steps + 1, np.int64)
    unread = np.zeros(steps, np.int64)
    for p in range(steps - 1, -1, -1):
        i = order[p]
        for x in range(out_ptr[i], out_ptr[i + 1]):
            if last_read[x] < 0:
                unread[p] += size[x]
            else:
                freed[last_read[x]] += size[x]
            last_read[x] = -1
        for a in range(in_ptr[i], in_ptr[i + 1]):
            if last_read[in_idx[a]] < 0:
                last_read[in_idx[a]] = p
    live = 0
    for p in range(steps):
        i = order[p]
        before[p] = live
        live -= freed[p]
        for x in range(out_ptr[i], out_ptr[i + 1]):
            live += size[x]
        after[p] = live
        live -= unread[p]
