"""Kernels of the any-order bound: the cut problem at the first run of an op, and a scan over all ops."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel
from hremate.solvers._cut_kernel import build_network, closure, weigh


@kernel
def mark_relatives(v, in_ptr, in_idx, use_ptr, use_idx, out_ptr, producer, before, after):  # type: ignore[no-untyped-def]
    """Flag the ancestors of op v in `before` and its descendants in `after` (bool[n], overwritten)."""
    before[:] = False
    after[:] = False
    before[v] = True
    for i in range(v, -1, -1):
        if before[i]:
            for a in range(in_ptr[i], in_ptr[i + 1]):
                before[producer[in_idx[a]]] = True
    before[v] = False
    after[v] = True
    for i in range(v, len(after)):
        if after[i]:
            for x in range(out_ptr[i], out_ptr[i + 1]):
                for a in range(use_ptr[x], use_ptr[x + 1]):
                    after[use_idx[a]] = True
    after[v] = False


@kernel
def moment_arrays(  # type: ignore[no-untyped-def]
    v, time, size, once, is_output, in_ptr, in_idx, use_ptr, use_idx, out_ptr, producer, free_inputs,
    before, after,
):  # fmt: skip
    """The cut problem at the first run of op v, valid for any order.

    All ancestors of v have run, no descendant has. Any other op may run for the first time afterwards: it
    takes part with time 0.

    Parameters
    ----------
    time .. producer : the graph; free_inputs : bool, leave the inputs of v out (they are in memory).
    before, after : bool[n], scratch.

    Returns
    -------
    ops : int64[k], graph op of each local op.
    time, size, producer, crossing, in_ptr, in_idx : the problem, see `hremate.solvers._cut_kernel`.
    """
    mark_relatives(v, in_ptr, in_idx, use_ptr, use_idx, out_ptr, producer, before, after)
    n = len(time)
    local_op = np.full(n, -1, np.int64)
    count = 0
    arcs = 0
    tensors = 0
    for i in range(n):
        if not after[i] and i != v:
            local_op[i] = count
            count += 1
            arcs += in_ptr[i + 1] - in_ptr[i]
            tensors += out_ptr[i + 1] - out_ptr[i]
    local_tensor = np.full(len(size), -1, np.int64)
    ops = np.empty(count, np.int64)
    new_time = np.zeros(count)
    new_size = np.empty(tensors, np.int64)
    new_producer = np.empty(tensors, np.int64)
    crossing = np.zeros(tensors, np.bool_)
    is_input = np.zeros(len(size), np.bool_)
    if free_inputs:
        for a in range(in_ptr[v], in_ptr[v + 1]):
            is_input[in_idx[a]] = True
    t = 0
    for i in range(n):
        r = local_op[i]
        if r < 0:
            continue
        ops[r] = i
        if before[i]:
            new_time[r] = time[i]
        for x in range(out_ptr[i], out_ptr[i + 1]):
            if is_input[x]:
                continue
            local_tensor[x] = t
            new_size[t] = size[x]
            new_producer[t] = -1 if before[i] and once[i] else r
            crossing[t] = is_output[x]
            for a in range(use_ptr[x], use_ptr[x + 1]):
                if after[use_idx[a]]:
                    crossing[t] = True
            t += 1
    new_ptr = np.zeros(count + 1, np.int64)
    new_idx = np.empty(arcs, np.int64)
    e = 0
    for r in range(count):
        i = ops[r]
        for a in range(in_ptr[i], in_ptr[i + 1]):
            x = local_tensor[in_idx[a]]
            if x >= 0:
                new_idx[e] = x
                e += 1
        new_ptr[r + 1] = e
    return ops, new_time, new_size[:t], new_producer[:t], crossing[:t], new_ptr, new_idx[:e]


@kernel
def scan_moments(  # type: ignore[no-untyped-def]
    moments, capacity, price, time, size, once, is_output, in_ptr, in_idx, use_ptr, use_idx, out_ptr,
    producer, free_inputs, values,
):  # fmt: skip
    """The Lagrangian bound of each of `moments` at one price: `values[k]` for moments[k].

    Parameters
    ----------
    moments : int64[K], ops; capacity : int64[K], bytes that may be kept at each; price : float.
    values : float64[K], filled: a lower bound on the time to run again, 0 where everything fits, and inf
        where not even the least fits.
    """
    n = len(time)
    before = np.empty(n, np.bool_)
    after = np.empty(n, np.bool_)
    for k in range(len(moments)):
        _, t, s, p, c, ptr, idx = moment_arrays(
            moments[k], time, size, once, is_output, in_ptr, in_idx, use_ptr, use_idx, out_ptr, producer,
            free_inputs, before, after,
        )  # fmt: skip
        kept, _ = weigh(t, s, p, c, ptr, idx, np.zeros(len(t), np.bool_))
        if kept <= capacity[k]:
            values[k] = 0.0
        elif capacity[k] < 0:
            values[k] = np.inf
        else:
            network = build_network(s, p, c, ptr, idx)
            _, value = closure(t, s, network, np.zeros(len(t), np.int8), price, False)
            values[k] = max(0.0, value - price * capacity[k])
