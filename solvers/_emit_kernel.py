"""Kernels of the method `cut`: the cut problem at a step of any sequence, and the sequence after a cut."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def sequence_moment(  # type: ignore[no-untyped-def]
    sequence, step, time, size, once, is_output, in_ptr, in_idx, out_ptr, producer
):
    """The cut problem of `sequence` at one step: what ran before it may run again after it.

    Parameters
    ----------
    sequence : int64[L]; step : int; the rest is the graph.

    Returns
    -------
    ops, tensors : int64, graph op and tensor of each local one.
    time, size, producer, crossing, in_ptr, in_idx : the problem, see `hremate.solvers._cut_kernel`; the
        inputs of the step's op take no part.
    """
    n = len(time)
    m = len(size)
    ran = np.zeros(n, np.bool_)
    for p in range(step):
        ran[sequence[p]] = True
    # What happens next to each tensor after the step: 1 it is read, 2 it is made again.
    following = np.zeros(m, np.int8)
    for p in range(len(sequence) - 1, step - 1, -1):
        i = sequence[p]
        for x in range(out_ptr[i], out_ptr[i + 1]):
            following[x] = 2
        if p > step:
            for a in range(in_ptr[i], in_ptr[i + 1]):
                following[in_idx[a]] = 1
    # 1: takes part, 2: an input of the step's op.
    part = np.zeros(m, np.int8)
    count = 0
    for i in range(n):
        if ran[i]:
            count += 1
            part[out_ptr[i] : out_ptr[i + 1]] = 1
    v = sequence[step]
    for a in range(in_ptr[v], in_ptr[v + 1]):
        part[in_idx[a]] = 2
    ops = np.flatnonzero(ran)
    tensors = np.flatnonzero(part == 1)
    local_op = np.full(n, -1, np.int64)
    local_op[ops] = np.arange(count)
    local_tensor = np.full(m, -1, np.int64)
    local_tensor[tensors] = np.arange(len(tensors))
    new_producer = np.empty(len(tensors), np.int64)
    crossing = np.zeros(len(tensors), np.bool_)
    for t in range(len(tensors)):
        x = tensors[t]
        i = producer[x]
        new_producer[t] = -1 if once[i] else local_op[i]
        crossing[t] = following[x] == 1 or (following[x] == 0 and is_output[x])
    new_ptr = np.zeros(count + 1, np.int64)
    arcs = 0
    for r in range(count):
        arcs += in_ptr[ops[r] + 1] - in_ptr[ops[r]]
    new_idx = np.empty(arcs, np.int64)
    e = 0
    for r in range(count):
        for a in range(in_ptr[ops[r]], in_ptr[ops[r] + 1]):
            x = local_tensor[in_idx[a]]
            if x >= 0:
                new_idx[e] = x
                e += 1
        new_ptr[r + 1] = e
    return ops, tensors, time[ops], size[tensors], new_producer, crossing, new_ptr, new_idx[:e]


@kernel
def append_run(  # type: ignore[no-untyped-def]
    op, have, in_ptr, in_idx, out_ptr, producer, stack, result, length, advanced
):
    """Append a run of `op` to `result`, before it, depth first, runs that make the inputs not at hand.

    Parameters
    ----------
    have : bool[m], tensors at hand, updated; stack : int64[n + 1], scratch.
    result : int64[], filled from `length` on; advanced : bool[n], set for the ops run before `op`.

    Returns
    -------
    int, the new length.
    """
    depth = 0
    stack[0] = op
    while depth >= 0:
        i = stack[depth]
        missing = -1
        for a in range(in_ptr[i], in_ptr[i + 1]):
            if not have[in_idx[a]]:
                missing = producer[in_idx[a]]
                break
        if missing >= 0:
            depth += 1
            stack[depth] = missing
            continue
        result[length] = i
        length += 1
        for x in range(out_ptr[i], out_ptr[i + 1]):
            have[x] = True
        if depth > 0:
            advanced[i] = True
        depth -= 1
    return length


@kernel
def emit(sequence, step, dropped, is_output, in_ptr, in_idx, out_ptr, producer):  # type: ignore[no-untyped-def]
    """`sequence` with some tensors dropped at one step, each made again just before it is next needed.

    Depth first, in time linear in the result. A later run of an op that this already ran again is left
    out.

    Parameters
    ----------
    dropped : bool[m], tensors that are gone once `step` has run.

    Returns
    -------
    int64[L'], a valid sequence.
    """
    n = len(out_ptr) - 1
    m = len(dropped)
    have = np.zeros(m, np.bool_)
    advanced = np.zeros(n, np.bool_)  # has run again since the step
    result = np.empty(len(sequence) + n, np.int64)
    length = 0
    stack = np.empty(n + 1, np.int64)
    for p in range(len(sequence) + 1):
        if p == step + 1:
            for x in range(m):
                if dropped[x]:
                    have[x] = False
        if p == len(sequence):
            break
        op = sequence[p]
        if p > step and advanced[op]:
            advanced[op] = False
            continue
        length = append_run(
            op, have, in_ptr, in_idx, out_ptr, producer, stack, result, length, advanced
        )  # fmt: skip
    # Dropped graph outputs that no later step made again.
    for x in range(m):
        if is_output[x] and not have[x]:
            length = append_run(
                producer[x], have, in_ptr, in_idx, out_ptr, producer, stack, result, length, advanced
            )  # fmt: skip
    return result[:length].copy()
