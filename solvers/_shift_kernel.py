"""Kernels that shift the steps of a schedule: sooner where that frees memory, later where it takes some."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def unroll(sequence, size, is_output, in_ptr, in_idx, out_ptr):  # type: ignore[no-untyped-def]
    """A schedule as a graph in which each run is an op of its own that makes tensors of its own.

    Parameters
    ----------
    sequence : int64[L], a valid schedule; the rest as in `Graph`.

    Returns
    -------
    size, is_output, out_ptr, in_ptr, in_idx, use_ptr, use_idx : as in `Graph`, for L ops.
    """
    steps = len(sequence)
    new_out = np.zeros(steps + 1, np.int64)
    new_in = np.zeros(steps + 1, np.int64)
    for p in range(steps):
        i = sequence[p]
        new_out[p + 1] = new_out[p] + out_ptr[i + 1] - out_ptr[i]
        new_in[p + 1] = new_in[p] + in_ptr[i + 1] - in_ptr[i]
    count = new_out[steps]
    new_size = np.empty(count, np.int64)
    new_idx = np.empty(new_in[steps], np.int64)
    use_ptr = np.zeros(count + 1, np.int64)
    latest = np.full(len(size), -1, np.int64)
    for p in range(steps):
        i = sequence[p]
        for k in range(in_ptr[i + 1] - in_ptr[i]):
            x = latest[in_idx[in_ptr[i] + k]]
            new_idx[new_in[p] + k] = x
            use_ptr[x + 1] += 1
        for k in range(out_ptr[i + 1] - out_ptr[i]):
            x = out_ptr[i] + k
            latest[x] = new_out[p] + k
            new_size[new_out[p] + k] = size[x]
    new_output = np.zeros(count, np.bool_)
    for x in np.flatnonzero(is_output):
        new_output[latest[x]] = True
    use_ptr = np.cumsum(use_ptr)
    place = use_ptr[:-1].copy()
    use_idx = np.empty(use_ptr[count], np.int64)
    for p in range(steps):
        for a in range(new_in[p], new_in[p + 1]):
            x = new_idx[a]
            use_idx[place[x]] = p
            place[x] += 1
    return new_size, new_output, new_out, new_in, new_idx, use_ptr, use_idx


@kernel
def _kept(i, size, is_output, out_ptr, use_ptr):  # type: ignore[no-untyped-def]
    """Bytes that op i makes and that stay after it."""
    kept = 0
    for x in range(out_ptr[i], out_ptr[i + 1]):
        if is_output[x] or use_ptr[x + 1] > use_ptr[x]:
            kept += size[x]
    return kept


@kernel
def _growth(i, size, is_output, out_ptr, in_ptr, in_idx, use_ptr, unread):  # type: ignore[no-untyped-def]
    """Bytes by which memory grows as op i runs; `unread` (int64[m]) counts readers yet to run."""
    grown = _kept(i, size, is_output, out_ptr, use_ptr)
    for a in range(in_ptr[i], in_ptr[i + 1]):
        x = in_idx[a]
        if unread[x] == 1 and not is_output[x]:
            grown -= size[x]
    return grown


@kernel
def sooner(first, size, is_output, out_ptr, in_ptr, in_idx, use_ptr, use_idx):  # type: ignore[no-untyped-def]
    """The order in which ops run as soon as they can if memory does not grow by them, int64[n].

    Ops before `first`, and the others, keep their order. Arrays as in `Graph`.
    """
    n = len(in_ptr) - 1
    unread = np.diff(use_ptr)
    missing = np.diff(in_ptr)
    done = np.zeros(n, np.bool_)
    order = np.empty(n, np.int64)
    length = 0
    stack = np.empty(n + len(in_idx) + len(use_idx), np.int64)
    for start in range(n):
        if done[start]:
            continue
        stack[0] = start
        top = 1
        while top:
            top -= 1
            i = stack[top]
            if done[i]:
                continue
            if i != start and _growth(i, size, is_output, out_ptr, in_ptr, in_idx, use_ptr, unread) > 0:
                continue
            done[i] = True
            order[length] = i
            length += 1
            base = top
            for a in range(in_ptr[i], in_ptr[i + 1]):
                x = in_idx[a]
                unread[x] -= 1
                if unread[x] == 1:
                    for b in range(use_ptr[x], use_ptr[x + 1]):
                        if not done[use_idx[b]] and missing[use_idx[b]] == 0:
                            stack[top] = use_idx[b]
                            top += 1
            for x in range(out_ptr[i], out_ptr[i + 1]):
                for b in range(use_ptr[x], use_ptr[x + 1]):
                    j = use_idx[b]
                    missing[j] -= 1
                    if missing[j] == 0:
                        stack[top] = j
                        top += 1
            kept = base
            if i >= first - 1:
                for k in range(base, top):
                    if stack[k] >= first:
                        stack[kept] = stack[k]
                        kept += 1
            top = kept
            stack[base:top] = -np.sort(-stack[base:top])  # the lowest one goes next
    return order


@kernel
def later(first, size, is_output, out_ptr, in_ptr, in_idx, use_ptr, use_idx):  # type: ignore[no-untyped-def]
    """The order in which ops run right before their first reader if memory grows by them, int64[n].

    Ops before `first`, and the others, keep their order. Arrays as in `Graph`.
    """
    n = len(in_ptr) - 1
    # Op i runs right before op anchor[i], those of the same anchor in ascending order and before it.
    anchor = np.arange(n)
    for i in range(n - 1, first - 1, -1):
        reader = -1
        wanted = False
        for x in range(out_ptr[i], out_ptr[i + 1]):
            wanted |= is_output[x]
            for b in range(use_ptr[x], use_ptr[x + 1]):
                j = use_idx[b]
                if reader < 0 or anchor[j] < anchor[reader]:
                    reader = j
        if reader < 0 or wanted:
            continue
        grown = _kept(i, size, is_output, out_ptr, use_ptr)
        for a in range(in_ptr[i], in_ptr[i + 1]):
            x = in_idx[a]
            if not is_output[x] and use_idx[use_ptr[x + 1] - 1] == i:
                grown -= size[x]
        if grown > 0:
            anchor[i] = anchor[reader]
    return np.argsort(anchor, kind="mergesort")
