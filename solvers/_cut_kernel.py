"""Kernels of the cut model: maximum flow and the Lagrangian relaxation of one cut.

A *cut problem* says what to keep in memory over one moment and what to run again later: ops r with times
(y_r = 1: r runs again), tensors x with sizes (k_x = 1: x is kept), `minimise sum time y` such that every
crossing tensor is kept or made again, every tensor that a re-run op reads is kept or made again, and
sum size k <= capacity. With a multiplier on the capacity it is a minimum cut: source -> z_x (infinite) for
crossing x, z_x -> y_prod(x) with capacity multiplier * size(x), y_r -> sink with capacity time(r),
y_r -> z_x (infinite) for the inputs x of r; the source side is what is needed again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hremate._jit import kernel
from hremate.graph import BoolArray, FloatArray, IntArray

#: Capacity that no minimum cut uses; sums of real capacities stay far below.
INFINITE = 2**60
#: All finite capacities of a network are scaled to add up to at most this many flow units.
FLOW_UNITS = 2**50
#: What branching has decided about an op: nothing, run again, not run again.
FREE, RUN, KEEP = 0, 1, 2
#: Problems of more ops times arcs than this are filled up instead of thinned out.
THINNING_WORK = 10**8


@kernel
def max_flow(n_nodes, source, sink, ptr, to, rev, cap):  # type: ignore[no-untyped-def]
    """Dinic's algorithm; `cap` becomes the residual capacities, the flow value is returned.

    Parameters
    ----------
    ptr : int64[n_nodes + 1], arcs of node v are ptr[v]:ptr[v+1].
    to, rev : int64[arcs], head of each arc and index of its reverse arc.
    cap : int64[arcs], capacities, changed in place.
    """
    level = np.empty(n_nodes, np.int64)
    current = np.empty(n_nodes, np.int64)
    queue = np.empty(n_nodes, np.int64)
    path = np.empty(n_nodes, np.int64)
    total = 0
    while True:
        # Distances to the sink over residual arcs: dead ends are then never entered from the source.
        level[:] = -1
        level[sink] = 0
        queue[0] = sink
        tail = 1
        head = 0
        while head < tail and level[source] < 0:
            v = queue[head]
            head += 1
            for a in range(ptr[v], ptr[v + 1]):
                u = to[a]
                if level[u] < 0 and cap[rev[a]] > 0:
                    level[u] = level[v] + 1
                    queue[tail] = u
                    tail += 1
        if level[source] < 0:
            return total
        current[:] = ptr[:-1]
        depth = 0
        v = source
        while True:
            if v == sink:
                flow = INFINITE
                for d in range(depth):
                    flow = min(flow, cap[path[d]])
                back = depth
                for d in range(depth - 1, -1, -1):
                    a = path[d]
                    cap[a] -= flow
                    cap[rev[a]] += flow
                    if cap[a] == 0:
                        back = d
                total += flow
                depth = back
                v = to[rev[path[depth]]]
                continue
            found = False
            while current[v] < ptr[v + 1]:
                a = current[v]
                if cap[a] > 0 and level[to[a]] == level[v] - 1:
                    path[depth] = a
                    depth += 1
                    v = to[a]
                    found = True
                    break
                current[v] += 1
            if not found:
                if v == source:
                    break
                level[v] = -1
                depth -= 1
                v = to[rev[path[depth]]]
                current[v] += 1


@kernel
def build_network(size, producer, crossing, in_ptr, in_idx):  # type: ignore[no-untyped-def]
    """Arcs of the network of a cut problem, without the finite capacities.

    Nodes: op r is r, tensor x is n + x, source n + m, sink n + m + 1.

    Parameters
    ----------
    size : int64[m]; producer : int64[m], op index or -1 (the tensor can only be kept).
    crossing : bool[m]; in_ptr, in_idx : CSR op -> tensors it reads.

    Returns
    -------
    ptr, to, rev : as `max_flow` takes them.
    keep_arc : int64[m], the arc z_x -> y_prod(x); run_arc : int64[n], the arc y_r -> sink;
    force_arc : int64[n], the arc source -> y_r.
    infinite : bool[arcs], arcs of infinite capacity.
    """
    n = len(in_ptr) - 1
    m = len(size)
    source = n + m
    sink = source + 1
    degree = np.zeros(n + m + 3, np.int64)
    for r in range(n):
        degree[r + 1] += 2 + in_ptr[r + 1] - in_ptr[r]
        degree[source + 1] += 1
        degree[sink + 1] += 1
        for a in range(in_ptr[r], in_ptr[r + 1]):
            degree[n + in_idx[a] + 1] += 1
    for x in range(m):
        degree[n + x + 1] += 1
        degree[(producer[x] if producer[x] >= 0 else sink) + 1] += 1
        if crossing[x]:
            degree[source + 1] += 1
            degree[n + x + 1] += 1
    ptr = np.cumsum(degree)
    fill = ptr[:-1].copy()
    arcs = ptr[-1]
    to = np.empty(arcs, np.int64)
    rev = np.empty(arcs, np.int64)
    infinite = np.zeros(arcs, np.bool_)
    keep_arc = np.empty(m, np.int64)
    run_arc = np.empty(n, np.int64)
    force_arc = np.empty(n, np.int64)
    for r in range(n):
        a = fill[source]
        b = fill[r]
        to[a] = r
        to[b] = source
        rev[a] = b
        rev[b] = a
        fill[source] += 1
        fill[r] += 1
        force_arc[r] = a
        a = fill[r]
        b = fill[sink]
        to[a] = sink
        to[b] = r
        rev[a] = b
        rev[b] = a
        fill[r] += 1
        fill[sink] += 1
        run_arc[r] = a
        for e in range(in_ptr[r], in_ptr[r + 1]):
            z = n + in_idx[e]
            a = fill[r]
            b = fill[z]
            to[a] = z
            to[b] = r
            rev[a] = b
            rev[b] = a
            infinite[a] = True
            fill[r] += 1
            fill[z] += 1
    for x in range(m):
        z = n + x
        head = producer[x] if producer[x] >= 0 else sink
        a = fill[z]
        b = fill[head]
        to[a] = head
        to[b] = z
        rev[a] = b
        rev[b] = a
        keep_arc[x] = a
        fill[z] += 1
        fill[head] += 1
        if crossing[x]:
            a = fill[source]
            b = fill[z]
            to[a] = z
            to[b] = source
            rev[a] = b
            rev[b] = a
            infinite[a] = True
            fill[source] += 1
            fill[z] += 1
    return ptr, to, rev, keep_arc, run_arc, force_arc, infinite


@kernel
def closure(time, size, network, forced, price, largest):  # type: ignore[no-untyped-def]
    """Minimise sum time y + price * sum size k: which ops run again, and a lower bound of the minimum.

    Among the minimisers the one that re-runs fewest ops, or most if `largest`.

    Parameters
    ----------
    time : float64[n]; size : int64[m], the problem, see `build_network`.
    network : what `build_network` returned.
    forced : int8[n], FREE, RUN (y_r = 1) or KEEP (y_r = 0).
    price : float, time units per byte.

    Returns
    -------
    rerun : bool[n]; value : float, below the minimum by at most the rounding of capacities.
    """
    ptr, to, rev, keep_arc, run_arc, force_arc, infinite = network
    n = len(time)
    m = len(size)
    source = n + m
    sink = source + 1
    total = time.sum()
    for x in range(m):
        total += price * size[x]
    scale = FLOW_UNITS / total if total > 0 else 1.0
    cap = np.zeros(len(to), np.int64)
    for a in range(len(to)):
        if infinite[a]:
            cap[a] = INFINITE
    for r in range(n):
        cap[run_arc[r]] = INFINITE if forced[r] == KEEP else np.int64(time[r] * scale)
        if forced[r] == RUN:
            cap[force_arc[r]] = INFINITE
    for x in range(m):
        cap[keep_arc[x]] = np.int64(price * size[x] * scale)
    flow = max_flow(n + m + 2, source, sink, ptr, to, rev, cap)
    # Source side: smallest = reachable from the source; largest = cannot reach the sink.
    marked = np.zeros(n + m + 2, np.bool_)
    queue = np.empty(n + m + 2, np.int64)
    start = sink if largest else source
    marked[start] = True
    queue[0] = start
    head = 0
    tail = 1
    while head < tail:
        v = queue[head]
        head += 1
        for a in range(ptr[v], ptr[v + 1]):
            u = to[a]
            residual = cap[rev[a]] if largest else cap[a]
            if residual > 0 and not marked[u]:
                marked[u] = True
                queue[tail] = u
                tail += 1
    rerun = np.empty(n, np.bool_)
    for r in range(n):
        rerun[r] = marked[r] != largest
    return rerun, flow / scale


@kernel
def kept_tensors(producer, crossing, in_ptr, in_idx, rerun):  # type: ignore[no-untyped-def]
    """Tensors that must be kept when exactly the ops in `rerun` run again, bool[m].

    Those that cross or are read by a re-run op and are not made again.
    """
    keep = crossing.copy()
    for r in range(len(rerun)):
        if rerun[r]:
            for a in range(in_ptr[r], in_ptr[r + 1]):
                keep[in_idx[a]] = True
    for x in range(len(keep)):
        if producer[x] >= 0 and rerun[producer[x]]:
            keep[x] = False
    return keep


@kernel
def weigh(time, size, producer, crossing, in_ptr, in_idx, rerun):  # type: ignore[no-untyped-def]
    """(kept bytes, time to run again) of a choice of re-runs."""
    keep = kept_tensors(producer, crossing, in_ptr, in_idx, rerun)
    kept_bytes = 0.0
    for x in range(len(size)):
        if keep[x]:
            kept_bytes += size[x]
    rerun_time = 0.0
    for r in range(len(time)):
        if rerun[r]:
            rerun_time += time[r]
    return kept_bytes, rerun_time


@kernel
def lagrangian(time, size, producer, crossing, in_ptr, in_idx, network, forced, capacity):  # type: ignore[no-untyped-def]
    """The Lagrangian relaxation of a cut problem, by Newton steps on the multiplier.

    Parameters
    ----------
    time .. in_idx : the problem, see `build_network`; network, forced : see `closure`.
    capacity : float, bytes that may be kept.

    Returns
    -------
    bound : float, lower bound on the time to run again (inf when even keeping least does not fit).
    price : float, the multiplier, time units per byte; 0 when everything fits.
    fits : bool[n], ops that run again in the cheapest relaxed solution within the capacity.
    over : bool[n], the same for the neighbouring solution beyond the capacity.
    """
    over = forced == RUN
    over_bytes, over_time = weigh(time, size, producer, crossing, in_ptr, in_idx, over)
    if over_bytes <= capacity:
        return over_time, 0.0, over, over
    # Keep least: run everything again that can be; what no op makes, or makes only once, stays.
    steep = 4.0 * (time.sum() + 1.0)  # above any ratio of times to whole bytes
    fits, _ = closure(time, size, network, forced, steep, False)
    fits_bytes, fits_time = weigh(time, size, producer, crossing, in_ptr, in_idx, fits)
    if fits_bytes > capacity:
        return np.inf, np.inf, fits, over
    bound = over_time
    price = 0.0
    for _ in range(100):
        price = (fits_time - over_time) / (over_bytes - fits_bytes)
        if price <= 0.0:
            break
        rerun, value = closure(time, size, network, forced, price, False)
        bound = max(bound, value - price * capacity)
        new_bytes, new_time = weigh(time, size, producer, crossing, in_ptr, in_idx, rerun)
        if new_time + price * new_bytes >= (fits_time + price * fits_bytes) * (1.0 - 1e-9):
            break
        if new_bytes <= capacity:
            fits = rerun
            fits_time = new_time
            fits_bytes = new_bytes
        else:
            over = rerun
            over_time = new_time
            over_bytes = new_bytes
    return bound, price, fits, over


@kernel
def thin_out(time, size, producer, crossing, in_ptr, in_idx, by_time, rerun, capacity):  # type: ignore[no-untyped-def]
    """Drop re-runs from `rerun` in place, most time first, as long as the kept bytes fit `capacity`.

    by_time : int64[n], ops by descending time.
    """
    changed = True
    while changed:
        changed = False
        for r in by_time:
            if rerun[r]:
                rerun[r] = False
                kept_bytes, _ = weigh(time, size, producer, crossing, in_ptr, in_idx, rerun)
                if kept_bytes <= capacity:
                    changed = changed or time[r] > 0
                else:
                    rerun[r] = True


@kernel
def fill(time, size, producer, crossing, in_ptr, in_idx, fits, over, capacity):  # type: ignore[no-untyped-def]
    """`over` and as few of the other ops of `fits` as fit `capacity`, a prefix in one direction or the other.

    The quick way for large problems: O(log n) weighings where `thin_out` needs n.

    Returns
    -------
    bool[n] : the cheaper of the two prefixes; `fits` where neither is.
    """
    extra = np.flatnonzero(fits & ~over)
    best = fits
    _, best_time = weigh(time, size, producer, crossing, in_ptr, in_idx, fits)
    for direction in range(2):
        ops = extra if direction == 0 else extra[::-1]
        short = 0
        enough = len(ops)
        while enough - short > 1:
            middle = (short + enough) // 2
            rerun = over.copy()
            rerun[ops[:middle]] = True
            kept_bytes, _ = weigh(time, size, producer, crossing, in_ptr, in_idx, rerun)
            if kept_bytes <= capacity:
                enough = middle
            else:
                short = middle
        rerun = over.copy()
        rerun[ops[:enough]] = True
        kept_bytes, rerun_time = weigh(time, size, producer, crossing, in_ptr, in_idx, rerun)
        if kept_bytes <= capacity and rerun_time < best_time:
            best = rerun
            best_time = rerun_time
    return best


class Tree(NamedTuple):
    """A branch and bound over ops that must, or must not, run again; room for K nodes."""

    #: What each node forces each op to, int8[K, n].
    forced: NDArray[np.int8]
    #: Lower bound, float64[K]; op on which it is split, int64[K], -1 for none; whether it waits
    bound: FloatArray
    pivot: IntArray
    pending: BoolArray
    #: The best choice, bool[n], and its time, float64[1], inf before there is one.
    rerun: BoolArray
    best: FloatArray
    #: Multiplier at the root, float64[1], and number of nodes, int64[1].
    price: FloatArray
    used: IntArray


@kernel
def branch_and_bound(  # type: ignore[no-untyped-def]
    time, size, producer, crossing, in_ptr, in_idx, by_time, network, capacity, tolerance, tree, most
):
    """Split at most `most` nodes more, the root counted as one; return whether the search is over.

    Best-first branch and bound on the Lagrangian relaxation. Each node branches on the op that differs most
    in time between the two vertices that span the relaxation; its vertex within the capacity, thinned out or
    filled up, is a candidate.

    Parameters
    ----------
    time .. in_idx, by_time : the problem, see `lagrangian` and `thin_out`.
    capacity : float, bytes; tolerance : float, absolute gap at which to stop.
    tree : Tree, as the last call left it.
    """
    n = len(time)
    for _ in range(most):
        chosen = -1
        if tree.used[0] > 0:
            for node in range(tree.used[0]):
                if tree.pending[node] and (chosen < 0 or tree.bound[node] < tree.bound[chosen]):
                    chosen = node
            if chosen < 0:
                return True
            if tree.bound[chosen] >= tree.best[0] - tolerance or tree.used[0] + 2 > len(tree.pivot):
                return True
            tree.pending[chosen] = False
        # Evaluate the root, or the two children of the chosen node.
        for side in range(1 if chosen < 0 else 2):
            node = tree.used[0]
            tree.used[0] += 1
            if chosen >= 0:
                tree.forced[node] = tree.forced[chosen]
                tree.forced[node, tree.pivot[chosen]] = RUN if side == 0 else KEEP
            bound, price, fits, over = lagrangian(
                time, size, producer, crossing, in_ptr, in_idx, network, tree.forced[node], capacity
            )
            if chosen < 0:
                tree.price[0] = price
            else:
                bound = max(bound, tree.bound[chosen])
            if bound == np.inf:
                continue
            candidate = fill(time, size, producer, crossing, in_ptr, in_idx, fits, over, capacity)
            if n * (n + len(in_idx)) <= THINNING_WORK:
                thinned = fits.copy()
                thin_out(time, size, producer, crossing, in_ptr, in_idx, by_time, thinned, capacity)
                _, thinned_time = weigh(time, size, producer, crossing, in_ptr, in_idx, thinned)
                _, candidate_time = weigh(time, size, producer, crossing, in_ptr, in_idx, candidate)
                if thinned_time < candidate_time:
                    candidate = thinned
            _, candidate_time = weigh(time, size, producer, crossing, in_ptr, in_idx, candidate)
            if candidate_time < tree.best[0]:
                tree.best[0] = candidate_time
                tree.rerun[:] = candidate
            longest = -1.0
            for r in range(n):
                if fits[r] != over[r] and tree.forced[node, r] == FREE and time[r] > longest:
                    longest = time[r]
                    tree.pivot[node] = r
            tree.bound[node] = bound
            tree.pending[node] = tree.pivot[node] >= 0
    return False
