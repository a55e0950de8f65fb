"""Kernel of the dynamic program over chains of blocks with options (see `hremate.solvers.rotor`)."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def chain_program(  # type: ignore[no-untyped-def]
    capacity,
    state,
    skip_peak,
    skip_time,
    gradients,
    option_ptr,
    saved,
    forward_peak,
    backward_peak,
    time,
    tail_peak,
    tail_time,
):
    """Least time to run every segment of a chain forward and backward, for every memory.

    Memory is counted in slots. A segment a..b starts with the state before block a and the gradients that
    enter block b in memory; the state does not count, the gradients do.

    Parameters
    ----------
    capacity : int, largest memory in slots.
    state : int64[L + 1, L + 1], entry (a, j): slots that the state before block j holds of what the blocks
        a .. j - 1 make; 0 for a >= j.
    skip_peak : int64[L], peak of a fast-forward of each block, what it hands on
        included, the state before it not.
    skip_time : float64[L], time of a fast-forward.
    gradients : int64[L], slots of all that the backward parts behind block b leave, entry b.
    option_ptr : int64[L + 1], options of block i are option_ptr[i]:option_ptr[i + 1].
    saved : int64[options], slots kept between the parts of the block, what it hands on included.
    forward_peak : int64[options], as `skip_peak`, with what is saved.
    backward_peak : int64[options], peak of the backward part, incoming gradients included.
    time : float64[options], time of both parts.
    tail_peak, tail_time : as `forward_peak` and `time` where the block ends a segment, so that nobody but
        its own backward part reads its output.

    Returns
    -------
    cost : float64[L, L, capacity + 1]
        Entry (a, b, m): the least time for blocks a..b in m slots, inf when they do not fit.
    """
    n = len(skip_peak)
    cost = np.full((n, n, capacity + 1), np.inf)
    for length in range(n):
        for a in range(n - length):
            b = a + length
            row = cost[a, b]
            for k in range(option_ptr[a], option_ptr[a + 1]):
                if length == 0:
                    need = max(tail_peak[k] + gradients[b], backward_peak[k])
                    for m in range(need, capacity + 1):
                        row[m] = min(row[m], tail_time[k])
                else:
                    need = max(forward_peak[k] + gradients[b], backward_peak[k])
                    rest = cost[a + 1, b]
                    for m in range(max(need, saved[k]), capacity + 1):
                        row[m] = min(row[m], time[k] + rest[m - saved[k]])
            run_time = 0.0
            need = 0
            for j in range(a + 1, b + 1):
                # Fast-forward a..j-1, keep the state before j, come back to a afterwards.
                need = max(need, state[a, j - 1] + skip_peak[j - 1] + gradients[b])
                run_time += skip_time[j - 1]
                right = cost[j, b]
                left = cost[a, j - 1]
                for m in range(max(need, state[a, j]), capacity + 1):
                    row[m] = min(row[m], run_time + right[m - state[a, j]] + left[m])
    return cost
