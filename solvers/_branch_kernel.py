"""Kernels of `branch-and-bound`: best-first search over (kept tensors, ops that have run).

Sets of ops and of tensors are bit masks in int64, bit i for op or tensor i. A tensor stays kept until a
step needs its bytes or nothing can read it any more, so a state has one successor per op and per smallest
set of tensors to drop for it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hremate._jit import kernel
from hremate.graph import BoolArray, FloatArray, IntArray

#: How `search` ended. Without a better schedule left; one found, where the first was asked for; the work
#: allowed is done; the arrays are full.
EXHAUSTED, FOUND, PAUSED, FULL = range(4)
#: Columns of `Store.counts`: states stored, entries of the heap, state of the best schedule or -1, work left.
STATES, WAITING, BEST, WORK = range(4)

_NO_WAY = np.inf
_MIX = np.int64(-7046029254386353131)  # odd, golden ratio times 2^64: spreads masks over the table


class Net(NamedTuple):
    """The graph as masks; n ops, m tensors, both at most 62."""

    #: Time of each op, float64[n].
    time: FloatArray
    #: Bytes each op needs only while it runs, int64[n].
    workspace: IntArray
    #: Whether each op may run only once, bool[n].
    once: BoolArray
    #: Tensors each op reads, and makes, int64[n] of masks.
    reads: IntArray
    makes: IntArray
    #: Bytes of each tensor, int64[m].
    size: IntArray
    #: Tensors of more than 0 bytes by falling size, int64[k].
    by_size: IntArray
    #: Mask of the graph outputs.
    outputs: int
    #: The memory model.
    reuse: bool


class Store(NamedTuple):
    """The states found so far: `capacity` rows, and a table of 2^b heads of lists, 2^b >= 2 * capacity."""

    #: Tensors kept and ops that have run, int64[capacity] of masks.
    live: IntArray
    ran: IntArray
    #: Time so far; time so far and at least to come, weighted, float64[capacity].
    cost: FloatArray
    key: FloatArray
    #: Ops that must still run at least, which breaks ties of `key`, int64[capacity].
    left: IntArray
    #: State and op it came from, -1 at the root, int64[capacity].
    parent: IntArray
    op: IntArray
    #: Next state with the same ops run, -1 at the end, int64[capacity].
    link: IntArray
    #: States that another one dominates, bool[capacity].
    dominated: BoolArray
    #: Binary heap of states by (key, left, number), int64[capacity].
    heap: IntArray
    #: First state of each list, -1 where there is none; open addressing by `ran`, int64[2^b].
    head: IntArray
    #: See STATES and the others, int64[4].
    counts: IntArray
    #: Time that a schedule must beat, float64[1].
    upper: FloatArray
    #: Where an expansion was left: state or -1, op, number of candidates taken, which; int64[m + 4].
    left_at: IntArray


@kernel
def search(g, s, budget, weight, first, work):  # type: ignore[no-untyped-def]
    """Go on with the search; return EXHAUSTED, FOUND, PAUSED or FULL.

    A* with duplicate elimination (Hart, Nilsson & Raphael 1968). The time to come is at least that of the
    ops that have not run, of the producers of what they lack, and so on: a consistent estimate, so with
    weight 1 the smallest key in the heap bounds what is left from below. Of two states with the same ops
    run, the one that keeps no less and took no longer dominates.

    Parameters
    ----------
    g : Net
    s : Store, changed.
    budget : int, bytes.
    weight : float, >= 1, of the time to come in `key`; above 1 schedules are found sooner.
    first : bool, whether to end at the first schedule.
    work : int, states and sets to look at before PAUSED, give or take one list of states.
    """
    n, k = len(g.time), len(g.by_size)
    candidate = np.empty(k, np.int64)
    only_after = np.empty(k, np.bool_)
    # Bytes that the candidates from q on can free before and after the outputs are made.
    rest_before = np.zeros(k + 1, np.int64)
    rest_after = np.zeros(k + 1, np.int64)
    stack = s.left_at[3:]  # candidates taken
    s.counts[WORK] = work
    while s.counts[WAITING] > 0:
        if s.counts[WORK] <= 0:
            return PAUSED
        node = s.heap[0]
        if not first and s.key[node] >= s.upper[0]:
            return EXHAUSTED
        _pop(s)
        if s.dominated[node]:
            continue
        live, ran = s.live[node], s.ran[node]
        useful_now = useful(g, ran)
        forced = _free_op(g, live, ran, budget)
        resumed = s.left_at[0] == node
        s.left_at[0] = -1
        first_op = s.left_at[1] if resumed else max(forced, 0)
        for i in range(first_op, n if forced < 0 else forced + 1):
            s.counts[WORK] -= 1
            fresh = not ran >> i & 1
            if g.reads[i] & ~live or (not fresh and (g.once[i] or not g.makes[i] & useful_now & ~live)):
                continue
            # What nothing can read after this step dies before it, or at it where the step reads it.
            useful_then = useful(g, ran | 1 << i) if fresh else useful_now
            held = live & ~g.makes[i] & (useful_then | g.reads[i])
            kept = held & useful_then
            made = total(g, g.makes[i])
            if g.reuse:
                before = total(g, held) + g.workspace[i] - budget
                after = total(g, kept) + made - budget
                droppable = kept
            else:
                before = total(g, held) + made + g.workspace[i] - budget
                after = 0
                droppable = kept & ~g.reads[i]
            count = 0
            for x in g.by_size:
                if droppable >> x & 1:
                    candidate[count] = x
                    only_after[count] = g.reads[i] >> x & 1
                    count += 1
            rest_before[count] = rest_after[count] = 0
            for q in range(count - 1, -1, -1):
                nbytes = g.size[candidate[q]]
                rest_after[q] = rest_after[q + 1] + nbytes
                rest_before[q] = rest_before[q + 1] + (0 if only_after[q] else nbytes)
            # Every smallest set that frees enough, larger tensors first: the last one taken is the
            # smallest, so a set that is enough only with it is enough only with all.
            depth = q = 0
            while resumed and depth < s.left_at[2]:
                x = candidate[stack[depth]]
                kept &= ~(1 << x)
                after -= g.size[x]
                before -= 0 if only_after[stack[depth]] else g.size[x]
                depth += 1
            while True:
                s.counts[WORK] -= 1
                if resumed:
                    resumed = False  # the set at hand has been added
                elif before <= 0 and after <= 0:
                    if not _add(g, s, node, i, kept | (g.makes[i] & useful_then), ran | 1 << i, weight):
                        _push(s, node)
                        return FULL
                    if first and s.counts[BEST] >= 0:
                        return FOUND
                    if s.counts[WORK] <= 0:
                        s.left_at[0], s.left_at[1], s.left_at[2] = node, i, depth
                        _push(s, node)
                        return PAUSED
                else:
                    while q < count and only_after[q] and after <= 0:
                        q += 1
                    if q < count and rest_before[q] >= before and rest_after[q] >= after:
                        x = candidate[q]
                        kept &= ~(1 << x)
                        after -= g.size[x]
                        before -= 0 if only_after[q] else g.size[x]
                        stack[depth] = q
                        depth += 1
                        q += 1
                        continue
                if depth == 0:
                    break
                depth -= 1
                q = stack[depth]
                x = candidate[q]
                kept |= 1 << x
                after += g.size[x]
                before += 0 if only_after[q] else g.size[x]
                q += 1
    return EXHAUSTED


@kernel
def start(g, s, weight):  # type: ignore[no-untyped-def]
    """Empty the store and put in the root, nothing run and nothing kept, whatever its key."""
    s.counts[:] = 0
    s.counts[BEST] = s.left_at[0] = -1
    s.head[:] = -1
    estimate, left = to_come(g, 0, 0)
    s.live[0] = s.ran[0] = 0
    s.cost[0], s.key[0], s.left[0] = 0.0, weight * estimate, left
    s.parent[0] = s.op[0] = s.link[0] = -1
    s.dominated[0] = False
    s.head[_slot(s, 0)] = 0
    s.counts[STATES] = 1
    _push(s, 0)


@kernel
def rebuild(s):  # type: ignore[no-untyped-def]
    """Fill an empty table `s.head` with the lists of states that are linked already.

    A state stands at the head of its list when no other one links to it; dominated states are in no list.
    """
    linked = np.zeros(s.counts[STATES], np.bool_)
    for node in range(s.counts[STATES]):
        if not s.dominated[node] and s.link[node] >= 0:
            linked[s.link[node]] = True
    for node in range(s.counts[STATES]):
        if not s.dominated[node] and not linked[node]:
            s.head[_slot(s, s.ran[node])] = node


@kernel
def total(g, tensors):  # type: ignore[no-untyped-def]
    """Bytes of a set of tensors."""
    nbytes = 0
    x = 0
    while tensors:
        if tensors & 1:
            nbytes += g.size[x]
        tensors >>= 1
        x += 1
    return nbytes


@kernel
def useful(g, ran):  # type: ignore[no-untyped-def]
    """The tensors that some later step or the end can read, once the ops `ran` have run."""
    tensors = g.outputs
    for i in range(len(g.time) - 1, -1, -1):
        if not ran >> i & 1 or (not g.once[i] and g.makes[i] & tensors):
            tensors |= g.reads[i]
    return tensors


@kernel
def to_come(g, live, ran):  # type: ignore[no-untyped-def]
    """(time, number) of the ops that must still run at least; infinite time when a once op is among them."""
    time = 0.0
    count = 0
    missing = g.outputs & ~live
    for i in range(len(g.time) - 1, -1, -1):
        again = ran >> i & 1
        if not again or g.makes[i] & missing:
            if again and g.once[i]:
                return _NO_WAY, 0
            time += g.time[i]
            count += 1
            missing |= g.reads[i] & ~live
    return time, count


@kernel
def _free_op(g, live, ran, budget):  # type: ignore[no-untyped-def]
    """An op that some best schedule runs now, -1 when there is none to be seen.

    It has not run, fits with all that is kept, and leaves nothing behind that takes room.
    """
    for i in range(len(g.time)):
        if ran >> i & 1 or g.reads[i] & ~live:
            continue
        if total(g, g.makes[i] & useful(g, ran | 1 << i)):
            continue
        if total(g, live) + total(g, g.makes[i]) + g.workspace[i] <= budget:
            return i
    return -1


@kernel
def _add(g, s, parent, op, live, ran, weight):  # type: ignore[no-untyped-def]
    """Store the state after `op` unless it is of no use; return False when there is no room."""
    cost = s.cost[parent] + g.time[op]
    estimate, left = to_come(g, live, ran)
    if cost + estimate >= s.upper[0]:
        return True
    node = s.counts[STATES]
    if node == len(s.live):
        return False
    slot = _slot(s, ran)
    other, last = s.head[slot], -1
    while other >= 0:
        s.counts[WORK] -= 1
        if not live & ~s.live[other] and s.cost[other] <= cost:
            return True
        following = s.link[other]
        if not s.live[other] & ~live and cost <= s.cost[other]:
            s.dominated[other] = True
            if last >= 0:
                s.link[last] = following
            else:
                s.head[slot] = following
        else:
            last = other
        other = following
    s.counts[STATES] += 1
    s.live[node], s.ran[node], s.cost[node] = live, ran, cost
    s.key[node], s.left[node] = cost + weight * estimate, left
    s.parent[node], s.op[node] = parent, op
    s.dominated[node] = False
    s.link[node] = s.head[slot]
    s.head[slot] = node
    if left == 0:
        s.upper[0] = cost
        s.counts[BEST] = node
    else:
        _push(s, node)
    return True


@kernel
def _slot(s, ran):  # type: ignore[no-untyped-def]
    """Place in the table of the list for `ran`."""
    last = len(s.head) - 1
    mixed = ran * _MIX
    slot = (mixed ^ mixed >> 29) & last
    while s.head[slot] >= 0 and s.ran[s.head[slot]] != ran:
        slot = (slot + 1) & last
    return slot


@kernel
def _before(s, a, b):  # type: ignore[no-untyped-def]
    """Whether state a is to be expanded before state b."""
    if s.key[a] != s.key[b]:
        return s.key[a] < s.key[b]
    if s.left[a] != s.left[b]:
        return s.left[a] < s.left[b]
    return a > b


@kernel
def _push(s, node):  # type: ignore[no-untyped-def]
    """Put a state on the heap."""
    at = s.counts[WAITING]
    s.counts[WAITING] += 1
    while at > 0 and _before(s, node, s.heap[(at - 1) // 2]):
        s.heap[at] = s.heap[(at - 1) // 2]
        at = (at - 1) // 2
    s.heap[at] = node


@kernel
def _pop(s):  # type: ignore[no-untyped-def]
    """Take the first state off the heap."""
    s.counts[WAITING] -= 1
    size = s.counts[WAITING]
    node = s.heap[size]
    at = 0
    while 2 * at + 1 < size:
        child = 2 * at + 1
        if child + 1 < size and _before(s, s.heap[child + 1], s.heap[child]):
            child += 1
        if not _before(s, s.heap[child], node):
            break
        s.heap[at] = s.heap[child]
        at = child
    s.heap[at] = node
