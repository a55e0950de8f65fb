"""A leaf as an ordinary graph, so that every flat solver can be asked for options.

The forward ops, then a pseudo-op *gap*, then the backward ops. The gap takes no time, runs once, reads a
0-byte token of every forward op, and every backward op reads its 0-byte token. Its workspace is the peak
budget minus the save budget: what lives across the gap then fits the save budget. Interface tensors count
0 bytes inside; the parent accounts for them.
"""

from __future__ import annotations

import numpy as np

from hremate.errors import SolverError
from hremate.graph import Graph, IntArray, Op
from hremate.ilp.leaf import Leaf, Option, make_option
from hremate.ilp.options import pareto
from hremate.solvers.base import Deadline
from hremate.solvers.beam import beam_search
from hremate.solvers.exact import solve_staged

#: Leaves up to this many ops are also given to the segment-alive MILP, for so many seconds a budget.
EXACT_OPS = 30
EXACT_SECONDS = 3.0


def leaf_graph(leaf: Leaf, peak: int, save: int) -> Graph:
    """The graph of `leaf` under budgets of `peak` bytes for every step and `save` bytes over the gap.

    Op i is local op i for forward ops; the gap follows (if there is a backward part), then the backward
    ops.
    """
    has_backward = leaf.n_forward < leaf.n_ops
    ops: list[Op] = []
    for i in range(leaf.n_ops):
        if i == leaf.n_forward:
            ops.append(
                Op(
                    "gap", 0.0, tuple(f"token{k}" for k in range(leaf.n_forward)), (("token", 0),),
                    workspace=max(0, peak - save), once=True,
                )
            )  # fmt: skip
        backward = i >= leaf.n_forward
        outputs = [
            (f"t{x}", 0 if leaf.interface[x] else int(leaf.size[x]))
            for x in range(int(leaf.out_ptr[i]), int(leaf.out_ptr[i + 1]))
        ]
        if has_backward and not backward:
            outputs.append((f"token{i}", 0))
        ops.append(
            Op(
                name=str(i),
                time=float(leaf.time[i]),
                inputs=tuple(f"t{x}" for x in leaf.inputs_of(i)) + (("token",) if backward else ()),
                outputs=tuple(outputs),
                workspace=int(leaf.workspace[i]),
                once=bool(leaf.once[i]),
            )
        )
    made = np.flatnonzero(leaf.interface & (leaf.producer >= 0))
    return Graph.from_ops(
        ops,
        [f"t{x}" for x in made],
        name="leaf",
        memory_model="reuse" if leaf.reuse else "coexist",
    )


def split_at_gap(leaf: Leaf, order: IntArray) -> tuple[IntArray, IntArray]:
    """A schedule of the leaf graph as local sequences before and after the gap."""
    if leaf.n_forward == leaf.n_ops:
        return order, np.empty(0, np.int64)
    gap = int(np.argmax(order == leaf.n_forward))
    after = order[gap + 1 :]
    return order[:gap], np.where(after > leaf.n_forward, after - 1, after)


def low_peak_options(
    leaf: Leaf,
    known: list[Option],
    *,
    width: int,
    node_limit: int,
    seed: int,
    deadline: Deadline,
    degraded: list[str],
) -> list[Option]:
    """`known` and options of lower peaks, from beam search and, on small leaves, the segment-alive MILP.

    Save budgets are those of the fastest, the leanest and some of the known options in between; peak
    budgets descend from the lowest known peak towards what a single op needs. A failure of the MILP is
    told in `degraded`; the beam's answer then stands.
    """
    floor = largest_need(leaf)
    peaks = [max(o.forward.peak, o.backward.peak) for o in known]
    saves = sorted({o.saved_bytes for o in known})
    found = list(known)
    for save in (saves[k] for k in sorted({0, len(saves) // 4, len(saves) // 2})):
        top = min(p for p, o in zip(peaks, known, strict=True) if o.saved_bytes <= save)
        for share in (0.7, 0.4, 0.1):
            if deadline.expired:
                return pareto(found)
            peak = int(floor + share * max(0, top - floor))
            graph = leaf_graph(leaf, peak, min(save, peak))
            beam = beam_search(graph, peak, width=width, seed=seed, deadline=deadline)
            if beam.interrupted:
                raise KeyboardInterrupt
            order = beam.order
            if graph.n_ops <= EXACT_OPS:
                try:
                    exact = solve_staged(
                        graph, peak, deadline=deadline.within(EXACT_SECONDS), seed=seed,
                        node_limit=node_limit, start=order,
                    )  # fmt: skip
                    if exact.interrupted:
                        raise KeyboardInterrupt
                    order = order if exact.order is None else exact.order
                except SolverError as error:
                    event = f"leaf of {leaf.n_ops} ops: {error}"
                    if event not in degraded:
                        degraded.append(event)
            if order is None:
                # Nothing fits: the smallest peak reached is the last option for this save budget.
                if len(beam.smallest):
                    found.append(make_option(leaf, *split_at_gap(leaf, beam.smallest)))
                break
            found.append(make_option(leaf, *split_at_gap(leaf, order)))
    return pareto(found)


def largest_need(leaf: Leaf) -> int:
    """Bytes that some op needs by itself, interface tensors not counted."""
    inside = np.where(leaf.interface, 0, leaf.size)
    read = np.concatenate([[0], np.cumsum(inside[leaf.in_idx])])
    made = np.concatenate([[0], np.cumsum(inside)])
    reads = read[leaf.in_ptr[1:]] - read[leaf.in_ptr[:-1]]
    makes = made[leaf.out_ptr[1:]] - made[leaf.out_ptr[:-1]]
    if leaf.reuse:
        return int(np.maximum(reads + leaf.workspace, makes).max(initial=0))
    return int((reads + makes + leaf.workspace).max(initial=0))
