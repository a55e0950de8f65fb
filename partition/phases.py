"""Where the forward part of a training graph ends."""

from __future__ import annotations

import numpy as np

from hremate.graph import BACKWARD, FORWARD, LOSS, Graph
from hremate.simulate import step_memory

#: Least share of the bytes made before the peak step, and read at all, that are read again after it in a
#: training graph.
KEPT = 0.2
#: Least share of pairs of such tensors, weighted by bytes, that are read in reverse of their making.
MIRRORED = 0.8
#: So many of the largest of these tensors are looked at.
PAIRED = 200
#: A loss is a graph output of at most this many bytes ...
SCALAR_BYTES = 16
#: ... at most this share of the ops before the peak step.
NEAR_PEAK = 0.1


def split_position(graph: Graph) -> int:
    """Position in the given order at which the backward part begins; `n_ops` when there is none.

    With phases in the file it follows the last loss op, else the last forward op. Without phases it
    follows the single op whose type names a loss. Else the peak step splits the order when the graph
    looks like a training graph: much of what is made before the peak is read again after it, mostly in
    the reverse of the order it was made in; if a scalar graph output is made shortly before the peak,
    that is the loss, and the split follows it.
    """
    for code in (LOSS, FORWARD):
        marked = np.flatnonzero(graph.phase == code)
        if len(marked) and (graph.phase == BACKWARD).any():
            return int(marked[-1]) + 1
    named = [i for i, kind in enumerate(graph.op_types) if "loss" in kind and "backward" not in kind]
    if len(named) == 1 and named[0] < graph.n_ops - 1:
        return named[0] + 1
    peak_step = int(np.argmax(step_memory(graph, np.arange(graph.n_ops))))
    if not 0 < peak_step < graph.n_ops - 1 or not _looks_like_training(graph, peak_step):
        return graph.n_ops
    scalars = graph.outputs[(graph.size[graph.outputs] > 0) & (graph.size[graph.outputs] <= SCALAR_BYTES)]
    makers = graph.producer[scalars]
    near = makers[(makers <= peak_step) & (makers >= peak_step - NEAR_PEAK * graph.n_ops)]
    return int(near.max()) + 1 if len(near) else peak_step + 1


def _looks_like_training(graph: Graph, peak_step: int) -> bool:
    """Whether much is kept over the peak step and read again last made, first read."""
    used = np.diff(graph.use_ptr) > 0
    last_use = np.full(graph.n_tensors, -1, np.int64)
    last_use[used] = graph.use_idx[graph.use_ptr[1:][used] - 1]
    made = (graph.producer < peak_step) & used
    crossing = np.flatnonzero(made & (last_use > peak_step))
    if len(crossing) < 3 or graph.size[crossing].sum() < KEPT * graph.size[made].sum():
        return False
    heavy = crossing[np.argsort(-graph.size[crossing], kind="stable")[:PAIRED]]
    heavy = np.sort(heavy)
    weight = np.minimum.outer(graph.size[heavy], graph.size[heavy]).astype(np.float64)
    earlier = np.triu(np.ones_like(weight), 1) * weight
    mirrored = last_use[heavy][:, None] >= last_use[heavy][None, :]
    return float((earlier * mirrored).sum()) > MIRRORED * float(earlier.sum())
