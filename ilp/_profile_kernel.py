"""The kernel that measures one run of a part of a block."""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel


@kernel
def run_profile(  # type: ignore[no-untyped-def]
    sequence, in_ptr, in_idx, out_ptr, size, workspace, parent, home, survives, carried, reuse
):
    """Internal bytes of running `sequence`, sub-step by sub-step, and what it reads and makes.

    Copies as in `hremate.simulate`. Under `coexist` a step is one sub-step; under `reuse` it is two:
    before its outputs exist, and after the inputs that die there have gone.

    Parameters
    ----------
    sequence : int64[L], local ops; in_ptr, in_idx : CSR op -> local tensors it reads.
    out_ptr : int64[n + 1], op i makes the local tensors out_ptr[i]:out_ptr[i+1].
    size : int64[m]; workspace : int64[n].
    parent : bool[m], tensors whose copies from before the run the parent accounts for.
    home : bool[m], tensors made here whose last copy the parent accounts for from its birth on.
    survives : bool[m], other tensors made here that must live to the end of the run.
    carried : bool[m], tensors in memory from before the run that are accounted for elsewhere throughout.
    reuse : bool, the memory model.

    Returns
    -------
    internal : int64[S], bytes that the run itself accounts for at each sub-step.
    last : int64[m], last sub-step that reads a copy from before the run, -1 when none does.
    birth : int64[m], sub-step from which the last copy of a home tensor exists, -1 when not made.
    hold : int64[m], last sub-step at which the run itself needs that copy.
    """
    steps = len(sequence)
    m = len(size)
    per_step = 2 if reuse else 1
    sub_steps = steps * per_step
    change = np.zeros(sub_steps + 1, np.int64)
    extra = np.zeros(sub_steps, np.int64)
    last = np.full(m, -1, np.int64)
    birth = np.full(m, -1, np.int64)
    hold = np.full(m, -1, np.int64)
    end = np.full(m, -1, np.int64)  # last step that needs the copy being traced
    for x in range(m):
        if survives[x]:
            end[x] = steps
    for p in range(steps - 1, -1, -1):
        i = sequence[p]
        extra[p * per_step] = workspace[i]
        first = p * per_step + per_step - 1
        for x in range(out_ptr[i], out_ptr[i + 1]):
            # A read at step e needs the copy in the first sub-step of e; a copy nobody reads dies at p.
            final = first if end[x] < 0 else min(end[x] * per_step, sub_steps - 1)
            if home[x] and birth[x] < 0:
                birth[x] = first
                hold[x] = final
            else:
                change[first] += size[x]
                change[final + 1] -= size[x]
            end[x] = -1
        for a in range(in_ptr[i], in_ptr[i + 1]):
            x = in_idx[a]
            if end[x] < 0:
                end[x] = p
    for x in range(m):
        if end[x] >= 0 and not (survives[x] and end[x] == steps):
            last[x] = end[x] * per_step
            if not parent[x] and not carried[x]:
                change[0] += size[x]
                change[last[x] + 1] -= size[x]
    internal = np.cumsum(change)[:-1] + extra
    return internal, last, birth, hold


@kernel
def covered_substeps(internal, states, held):  # type: ignore[no-untyped-def]
    """Whether another sub-step of a run asks for no less memory, whatever the parent keeps.

    It does when its internal bytes are no fewer and each tensor is in the same state or held there. Among
    equals the first stays.

    Parameters
    ----------
    internal : int64[c]; states : int8[c, k], state of each tensor at each sub-step; held : int8, that state.

    Returns
    -------
    bool[c]
    """
    count, width = states.shape
    covered = np.zeros(count, np.bool_)
    for s in range(count):
        for other in range(count):
            if other == s or covered[other] or internal[other] < internal[s]:
                continue
            wins = True
            for x in range(width):
                if states[other, x] != states[s, x] and states[other, x] != held:
                    wins = False
                    break
            if wins:
                covered[s] = True
                break
    return covered


@kernel
def run_just_in_time(rerun, n_forward, in_ptr, in_idx, out_ptr, producer):  # type: ignore[no-untyped-def]
    """The backward ops in order, each after the ops of `rerun` that it needs and that have not run again yet.

    Parameters
    ----------
    rerun : bool[n_forward]; n_forward : int.
    in_ptr, in_idx : CSR op -> local tensors it reads; producer : int64[m], -1 for external tensors.
    out_ptr : int64[n + 1], op i makes the local tensors out_ptr[i]:out_ptr[i+1].

    Returns
    -------
    int64[L], local ops.
    """
    n = len(out_ptr) - 1
    done = np.ones(n, np.bool_)
    done[:n_forward] = ~rerun
    done[n_forward:] = False
    sequence = np.empty(n, np.int64)
    stack = np.empty(n + 1, np.int64)
    length = 0
    for op in range(n_forward, n):
        stack[0] = op
        depth = 1
        while depth:
            i = stack[depth - 1]
            missing = -1
            for a in range(in_ptr[i], in_ptr[i + 1]):
                p = producer[in_idx[a]]
                if p >= 0 and not done[p]:
                    missing = p
                    break
            if missing >= 0:
                stack[depth] = missing
                depth += 1
                continue
            depth -= 1
            done[i] = True
            sequence[length] = i
            length += 1
    return sequence[:length].copy()
