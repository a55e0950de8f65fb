"""Lists of the groups that `bottom-up` merges, and what is read from them.

Each group has a list of the groups it has arcs to, of those it has arcs from, and of the tensors it
touches. They are linked lists in flat arrays, so that merging joins them in constant time; repeats and
arcs that a merge made internal are dropped when a list is next read.

    lists : int32[n, 3], HEAD and TAIL cell of each list (-1 when empty), LENGTH with repeats.
    cells : int32[c, 2], VALUE of each cell and the cell to FOLLOW (-1 at the end).
    groups : int64[n, 3], PARENT (the group it was merged into, or itself), OPS in it, SEEN at which clock.
    tensors : int64[m, 4], SIZE, TOUCHING groups (one more if something outside needs it), SEEN, TIMES.
    clock : int64[1], counts the readings.

A group is named by its earliest op.
"""

from __future__ import annotations

import numpy as np

from hremate._jit import kernel

HEAD, TAIL, LENGTH = range(3)
VALUE, FOLLOW = range(2)
PARENT, OPS, SEEN = range(3)
SIZE, TOUCHING, TENSOR_SEEN, TIMES = range(4)


@kernel
def fill_lists(ptr, idx, lists, cells):  # type: ignore[no-untyped-def]
    """Write the rows of a CSR matrix into `lists`, int32[n, 3], and `cells`, int32[len(idx), 2]."""
    for g in range(len(ptr) - 1):
        lists[g, HEAD] = -1
        lists[g, TAIL] = -1
        lists[g, LENGTH] = ptr[g + 1] - ptr[g]
        for cell in range(ptr[g], ptr[g + 1]):
            cells[cell, VALUE] = idx[cell]
            cells[cell, FOLLOW] = cell + 1 if cell + 1 < ptr[g + 1] else -1
        if ptr[g + 1] > ptr[g]:
            lists[g, HEAD] = ptr[g]
            lists[g, TAIL] = ptr[g + 1] - 1
    return lists, cells


@kernel
def join(g, other, lists, cells):  # type: ignore[no-untyped-def]
    """Append the list of group `other` to that of group `g`."""
    if lists[other, HEAD] < 0:
        return
    if lists[g, HEAD] < 0:
        lists[g, HEAD] = lists[other, HEAD]
    else:
        cells[lists[g, TAIL], FOLLOW] = lists[other, HEAD]
    lists[g, TAIL] = lists[other, TAIL]
    lists[g, LENGTH] += lists[other, LENGTH]


@kernel
def unlink(g, before, cell, lists, cells):  # type: ignore[no-untyped-def]
    """Take `cell` out of the list of group `g`; `before` is the cell before it, -1 for none."""
    if before < 0:
        lists[g, HEAD] = cells[cell, FOLLOW]
    else:
        cells[before, FOLLOW] = cells[cell, FOLLOW]


@kernel
def find(g, groups):  # type: ignore[no-untyped-def]
    """The group that `g` has become part of; halves the paths to it."""
    while groups[g, PARENT] != g:
        groups[g, PARENT] = groups[groups[g, PARENT], PARENT]
        g = groups[g, PARENT]
    return g


@kernel
def neighbours(g, lists, cells, groups, clock, out):  # type: ignore[no-untyped-def]
    """Read the arcs of group `g` in one direction and drop those that are repeated or internal.

    `out` : int64[], receives the distinct neighbours as far as they fit.

    Returns
    -------
    int, number of distinct neighbours.
    """
    clock[0] += 1
    groups[g, SEEN] = clock[0]
    count = 0
    before = -1
    cell = lists[g, HEAD]
    while cell >= 0:
        other = find(cells[cell, VALUE], groups)
        if groups[other, SEEN] == clock[0]:
            unlink(g, before, cell, lists, cells)
        else:
            groups[other, SEEN] = clock[0]
            cells[cell, VALUE] = other
            if count < len(out):
                out[count] = other
            count += 1
            before = cell
        cell = cells[cell, FOLLOW]
    lists[g, TAIL] = before
    lists[g, LENGTH] = count
    return count


@kernel
def settle_tensors(g, touch, touch_cells, tensors, clock):  # type: ignore[no-untyped-def]
    """After a merge, drop the tensors that group `g` lists again, and those that it alone touches.

    `touch`, `touch_cells` : lists of touched tensors.
    """
    clock[0] += 1
    before = -1
    cell = touch[g, HEAD]
    while cell >= 0:
        x = touch_cells[cell, VALUE]
        if tensors[x, TENSOR_SEEN] == clock[0]:
            tensors[x, TOUCHING] -= 1
            unlink(g, before, cell, touch, touch_cells)
        else:
            tensors[x, TENSOR_SEEN] = clock[0]
            before = cell
        cell = touch_cells[cell, FOLLOW]
    count = 0
    before = -1
    cell = touch[g, HEAD]
    while cell >= 0:
        if tensors[touch_cells[cell, VALUE], TOUCHING] == 1:
            unlink(g, before, cell, touch, touch_cells)
        else:
            count += 1
            before = cell
        cell = touch_cells[cell, FOLLOW]
    touch[g, TAIL] = before
    touch[g, LENGTH] = count


@kernel
def interface_bytes(members, touch, touch_cells, tensors, clock, most):  # type: ignore[no-untyped-def]
    """Bytes of the tensors that the union of groups shares with what is outside.

    Parameters
    ----------
    members : int64[], the groups.
    touch, touch_cells : lists of touched tensors.
    most : int, tensors that the members may touch in all, counted for each member.

    Returns
    -------
    float, infinite when they touch more than `most`.
    """
    touches = 0
    for g in members:
        touches += touch[g, LENGTH]
    if touches > most:
        return np.inf
    touched = np.empty(touches, np.int64)
    clock[0] += 1
    count = 0
    for g in members:
        cell = touch[g, HEAD]
        while cell >= 0:
            x = touch_cells[cell, VALUE]
            if tensors[x, TENSOR_SEEN] != clock[0]:
                tensors[x, TENSOR_SEEN] = clock[0]
                tensors[x, TIMES] = 0
                touched[count] = x
                count += 1
            tensors[x, TIMES] += 1
            cell = touch_cells[cell, FOLLOW]
    nbytes = 0.0
    for x in touched[:count]:
        if tensors[x, TIMES] < tensors[x, TOUCHING]:
            nbytes += tensors[x, SIZE]
    return nbytes
