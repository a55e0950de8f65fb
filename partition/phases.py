"""Where the forward part of a training graph ends."""

from __future__ import annotations

import numpy as np

from hremate.graph import BACKWARD, FORWARD, LOSS, Graph
from hremate.simulate import step_memory


def split_position(graph: Graph) -> int:
    """Position in the given order at which the backward part begins; `n_ops` when there is none.

    With phases in the file it follows the last loss op, else the last forward op. Without phases the
    order is split after its peak step when the graph looks like a training graph: memory grows towards
    the peak and most bytes alive there are read again in the reverse of the order they were made in.
    """
    for code in (LOSS, FORWARD):
        marked = np.flatnonzero(graph.phase == code)
        if len(marked) and (graph.phase == BACKWARD).any():
            return int(marked[-1]) + 1
    memory = step_memory(graph, np.arange(graph.n_ops))
    peak_step = int(np.argmax(memory))
    used = np.diff(graph.use_ptr) > 0
    last_use = np.full(graph.n_tensors, -1, np.int64)
    last_use[used] = graph.use_idx[graph.use_ptr[1:][used] - 1]
    crossing = np.flatnonzero((graph.producer < peak_step) & (last_use > peak_step))
    if len(crossing) < 3 or not 0 < peak_step < graph.n_ops - 1:
        return graph.n_ops
    # Share of byte-weighted pairs of crossing tensors that are needed again last made, first needed.
    heavy = crossing[np.argsort(-graph.size[crossing], kind="stable")[:200]]
    heavy = np.sort(heavy)
    weight = np.minimum.outer(graph.size[heavy], graph.size[heavy]).astype(np.float64)
    earlier = np.triu(np.ones_like(weight), 1) * weight
    mirrored = last_use[heavy][:, None] >= last_use[heavy][None, :]
    share = float((earlier * mirrored).sum() / max(1.0, earlier.sum()))
    return peak_step + 1 if share > 0.8 else graph.n_ops
