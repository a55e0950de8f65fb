"""Kernels of `repair`: executions are taken out of a sequence while its memory profile is kept up to date.

The steps of the sequence keep their numbers; a removed step stays behind as an empty one, whose live
bytes never exceed those of the next real step. The profile has one cell per step under `coexist` (a
copy made at b and last read at e fills b..e) and two under `reuse` (inputs end in the first half of a
step, outputs start in the second: cells 2b+1..2e, or 2b+1 alone when nobody reads the copy).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hremate._jit import kernel
from hremate.graph import BoolArray, FloatArray, IntArray

# Signs of taking a step out of the profile and of putting it back, and the empty stack. As numpy scalars
# numba does not compile kernels anew for each of them.
OUT, BACK, EMPTY = np.int64(1), np.int64(-1), np.int64(0)


class Net(NamedTuple):
    """The graph: arrays as in `hremate.graph.Graph`."""

    time: FloatArray
    workspace: IntArray
    size: IntArray
    producer: IntArray
    out_ptr: IntArray
    in_ptr: IntArray
    in_idx: IntArray
    is_output: BoolArray
    reuse: bool


class Runs(NamedTuple):
    """A sequence of L steps with R reads and C copies, as linked lists."""

    #: Op at each step, int64[L]; the step before and after it that runs the same op (-1: none).
    order: IntArray
    before: IntArray
    after: IntArray
    #: Step that took over the copies of a removed step (itself while it stands), int64[L].
    heir: IntArray
    #: Whether each step still stands, bool[L].
    stands: BoolArray
    #: Reads of step p are read_ptr[p]:read_ptr[p+1], one per input of its op, int64[L+1].
    read_ptr: IntArray
    #: Step of each read, and the read of the same tensor before and after it (-1: none), int64[R].
    read_step: IntArray
    read_before: IntArray
    read_after: IntArray
    #: Step that made the copy read, before heirs, int64[R].
    source: IntArray
    #: Copies made by step p are copy_ptr[p]:copy_ptr[p+1], one per output of its op, int64[L+1].
    copy_ptr: IntArray
    #: Last read of each copy, -1 for none, int64[C].
    last: IntArray
    #: Profile: bytes as maxima of subtrees and pending additions, int64[2 * leaves].
    top: IntArray
    pending: IntArray


@kernel
def build(g, order, n_reads, n_copies, leaves):  # type: ignore[no-untyped-def]
    """The `Runs` of `order`, a valid sequence; `leaves` is a power of two >= the cells of the profile."""
    steps, m = len(order), len(g.size)
    runs = Runs(
        order,
        np.full(steps, -1, np.int64),
        np.full(steps, -1, np.int64),
        np.arange(steps),
        np.ones(steps, np.bool_),
        np.zeros(steps + 1, np.int64),
        np.empty(n_reads, np.int64),
        np.full(n_reads, -1, np.int64),
        np.full(n_reads, -1, np.int64),
        np.empty(n_reads, np.int64),
        np.zeros(steps + 1, np.int64),
        np.full(n_copies, -1, np.int64),
        np.zeros(2 * leaves, np.int64),
        np.zeros(2 * leaves, np.int64),
    )
    latest_run = np.full(len(g.time), -1, np.int64)
    latest_read = np.full(m, -1, np.int64)
    reads = copies = 0
    for p in range(steps):
        i = order[p]
        for a in range(g.in_ptr[i], g.in_ptr[i + 1]):
            x = g.in_idx[a]
            made = latest_run[g.producer[x]]
            runs.read_step[reads] = p
            runs.source[reads] = made
            runs.read_before[reads] = latest_read[x]
            if latest_read[x] >= 0:
                runs.read_after[latest_read[x]] = reads
            latest_read[x] = reads
            runs.last[runs.copy_ptr[made] + x - g.out_ptr[g.producer[x]]] = reads
            reads += 1
        runs.read_ptr[p + 1] = reads
        copies += g.out_ptr[i + 1] - g.out_ptr[i]
        runs.copy_ptr[p + 1] = copies
        runs.before[p] = latest_run[i]
        if latest_run[i] >= 0:
            runs.after[latest_run[i]] = p
        latest_run[i] = p
    cells = np.zeros(leaves + 1, np.int64)
    for p in range(steps):
        i = order[p]
        cell = 2 * p if g.reuse else p
        cells[cell] += g.workspace[i]
        cells[cell + 1] -= g.workspace[i]
        for k in range(g.out_ptr[i + 1] - g.out_ptr[i]):
            x = g.out_ptr[i] + k
            cells[first_cell(g, p)] += g.size[x]
            cells[last_cell(g, p, end_of(g, runs, p, k)) + 1] -= g.size[x]
    level = 0
    for c in range(leaves):
        level += cells[c]
        runs.top[leaves + c] = level
    for node in range(leaves - 1, 0, -1):
        runs.top[node] = max(runs.top[2 * node], runs.top[2 * node + 1])
    return runs


@kernel
def first_cell(g, step):  # type: ignore[no-untyped-def]
    """First cell of a copy made at `step`."""
    return 2 * step + 1 if g.reuse else step


@kernel
def last_cell(g, step, end):  # type: ignore[no-untyped-def]
    """Last cell of a copy made at `step` and needed until step `end` (`step` itself: read by nobody)."""
    return max(2 * end, 2 * step + 1) if g.reuse else end


@kernel
def end_of(g, runs, step, k):  # type: ignore[no-untyped-def]
    """Step until which output `k` of `step` is needed; the last step of all for a final output."""
    i = runs.order[step]
    if g.is_output[g.out_ptr[i] + k] and runs.after[step] < 0:
        return len(runs.order)
    read = runs.last[runs.copy_ptr[step] + k]
    return step if read < 0 else runs.read_step[read]


@kernel
def _add(runs, first, last, amount):  # type: ignore[no-untyped-def]
    """Add `amount` to the profile cells first..last."""
    if first > last:
        return
    leaves = len(runs.top) // 2
    left, right = first + leaves, last + leaves + 1
    while left < right:
        if left & 1:
            runs.top[left] += amount
            runs.pending[left] += amount
            left += 1
        if right & 1:
            right -= 1
            runs.top[right] += amount
            runs.pending[right] += amount
        left >>= 1
        right >>= 1
    for edge in (first + leaves, last + leaves):
        node = edge >> 1
        while node:
            runs.top[node] = max(runs.top[2 * node], runs.top[2 * node + 1]) + runs.pending[node]
            node >>= 1


@kernel
def _standing(runs, step):  # type: ignore[no-untyped-def]
    """The step that holds the copies of `step` now (path halving)."""
    while runs.heir[step] != step:
        runs.heir[step] = runs.heir[runs.heir[step]]
        step = runs.heir[step]
    return step


@kernel
def _earlier_read(runs, read, step):  # type: ignore[no-untyped-def]
    """The read before `read` of the same copy, made at `step`; -1 for none."""
    other = runs.read_before[read]
    return other if other >= 0 and runs.read_step[other] > step else -1


@kernel
def _change(g, runs, p, sign):  # type: ignore[no-untyped-def]
    """Add to the profile `sign` times what removing step `p` changes; the lists stay as they are."""
    i = runs.order[p]
    q = runs.before[p]
    cell = 2 * p if g.reuse else p
    _add(runs, cell, cell, -sign * g.workspace[i])
    for k in range(g.out_ptr[i + 1] - g.out_ptr[i]):
        size = g.size[g.out_ptr[i] + k]
        end = end_of(g, runs, p, k)
        _add(runs, first_cell(g, p), last_cell(g, p, end), -sign * size)
        if q >= 0 and end > p:
            _add(runs, last_cell(g, q, end_of(g, runs, q, k)) + 1, last_cell(g, q, end), sign * size)
    for read in range(runs.read_ptr[p], runs.read_ptr[p + 1]):
        x = g.in_idx[g.in_ptr[i] + read - runs.read_ptr[p]]
        made = _standing(runs, runs.source[read])
        k = x - g.out_ptr[g.producer[x]]
        if end_of(g, runs, made, k) == p:
            other = _earlier_read(runs, read, made)
            end = made if other < 0 else runs.read_step[other]
            _add(runs, last_cell(g, made, end) + 1, last_cell(g, made, p), -sign * g.size[x])


@kernel
def _useless(g, runs, p):  # type: ignore[no-untyped-def]
    """Whether step `p` stands, its op runs elsewhere too, and nobody needs what `p` makes."""
    if not runs.stands[p] or (runs.before[p] < 0 and runs.after[p] < 0):
        return False
    i = runs.order[p]
    for k in range(g.out_ptr[i + 1] - g.out_ptr[i]):
        if end_of(g, runs, p, k) > p:
            return False
    return True


@kernel
def _unlink(g, runs, p, todo, top):  # type: ignore[no-untyped-def]
    """Take step `p` out of the lists; push the makers of its inputs on `todo`; return the new top."""
    i = runs.order[p]
    q, after = runs.before[p], runs.after[p]
    runs.stands[p] = False
    if q >= 0:
        runs.heir[p] = q
        for k in range(g.out_ptr[i + 1] - g.out_ptr[i]):
            read = runs.last[runs.copy_ptr[p] + k]
            if read >= 0:
                runs.last[runs.copy_ptr[q] + k] = read
        runs.after[q] = after
    if after >= 0:
        runs.before[after] = q
    for read in range(runs.read_ptr[p], runs.read_ptr[p + 1]):
        x = g.in_idx[g.in_ptr[i] + read - runs.read_ptr[p]]
        made = _standing(runs, runs.source[read])
        copy = runs.copy_ptr[made] + x - g.out_ptr[g.producer[x]]
        if runs.last[copy] == read:
            runs.last[copy] = _earlier_read(runs, read, made)
        earlier, later = runs.read_before[read], runs.read_after[read]
        if earlier >= 0:
            runs.read_after[earlier] = later
        if later >= 0:
            runs.read_before[later] = earlier
        todo[top] = made
        top += 1
    return top


@kernel
def _drop_useless(g, runs, todo, top):  # type: ignore[no-untyped-def]
    """Remove the useless ones of the steps todo[:top], and those that become useless by it."""
    while top:
        top -= 1
        p = todo[top]
        if _useless(g, runs, p):
            _change(g, runs, p, OUT)
            top = _unlink(g, runs, p, todo, top)


@kernel
def drop_useless(g, runs):  # type: ignore[no-untyped-def]
    """Remove every execution whose outputs nobody needs, transitively."""
    steps = len(runs.order)
    todo = np.empty(steps + len(runs.source), np.int64)
    for p in range(steps):
        todo[p] = p
    _drop_useless(g, runs, todo, steps)


@kernel
def savings(g, runs):  # type: ignore[no-untyped-def]
    """Time saved by removing each standing step, with the steps that only it reads, float64[L].

    Steps that run their op for the first time get -1: they must stay.
    """
    steps = len(runs.order)
    saved = np.full(steps, -1.0)
    readers = np.zeros(steps, np.int64)
    for p in range(steps):
        if runs.stands[p]:
            for read in range(runs.read_ptr[p], runs.read_ptr[p + 1]):
                readers[_standing(runs, runs.source[read])] += 1
    for p in range(steps):
        if not runs.stands[p] or runs.before[p] < 0:
            continue
        i = runs.order[p]
        saved[p] = g.time[i]
        reads, end = runs.read_ptr[p], runs.read_ptr[p + 1]
        while reads < end:
            made = _standing(runs, runs.source[reads])
            mine = 0  # inputs are numbered by producer, so reads of one step are neighbours
            while reads < end and _standing(runs, runs.source[reads]) == made:
                mine += 1
                reads += 1
            if saved[made] > 0 and readers[made] == mine:
                j = runs.order[made]
                final = False
                for k in range(g.out_ptr[j + 1] - g.out_ptr[j]):
                    final = final or end_of(g, runs, made, k) == steps
                if not final:
                    saved[p] += saved[made]
    return saved


@kernel
def keep(g, runs, candidates, limit):  # type: ignore[no-untyped-def]
    """Remove each step of `candidates` in turn where keeping the copy before it stays within `limit`.

    Returns the number of candidates removed; steps that become useless go with them.
    """
    todo = np.empty(len(runs.order) + len(runs.source), np.int64)
    removed = 0
    for p in candidates:
        if not runs.stands[p] or runs.before[p] < 0:
            continue
        _change(g, runs, p, OUT)
        if runs.top[1] > limit:
            _change(g, runs, p, BACK)
            continue
        _drop_useless(g, runs, todo, _unlink(g, runs, p, todo, EMPTY))
        removed += 1
    return removed


@kernel
def late_keys(g, runs, pure):  # type: ignore[no-untyped-def]
    """For each step the step before which it could run, int64[L]; sorting by it (stably) runs it late.

    A repeated execution moves to just before its first reader where what it makes outweighs the inputs
    that would be kept for it; with `pure`, only where no input would be.
    """
    steps = len(runs.order)
    key = np.arange(steps)
    soonest = np.full(steps, steps, np.int64)  # least key of the readers of each step
    for p in range(steps - 1, -1, -1):
        i = runs.order[p]
        if runs.before[p] >= 0 and soonest[p] < steps:
            made = 0
            for x in range(g.out_ptr[i], g.out_ptr[i + 1]):
                made += g.size[x]
            kept = 0
            for read in range(runs.read_ptr[p], runs.read_ptr[p + 1]):
                x = g.in_idx[g.in_ptr[i] + read - runs.read_ptr[p]]
                maker = runs.source[read]
                if end_of(g, runs, maker, x - g.out_ptr[g.producer[x]]) == p:
                    kept += g.size[x]
            if kept < made and (not pure or kept == 0):
                key[p] = soonest[p]
        for read in range(runs.read_ptr[p], runs.read_ptr[p + 1]):
            maker = runs.source[read]
            soonest[maker] = min(soonest[maker], key[p])
    return key
