"""The `intervals` partitioner: forward parts are intervals of the given order, cut where little crosses."""

from __future__ import annotations

import numpy as np

from hremate.graph import Graph
from hremate.partition.cuts import cut_sequence, homes
from hremate.partition.pairing import paired
from hremate.partition.phases import split_position
from hremate.partition.tree import BlockTree


def intervals(graph: Graph, n_blocks: int, *, split: int | None = None) -> BlockTree:
    """Cut the given order into `n_blocks` blocks (fewer when the graph is too small).

    Forward cuts by a dynamic program over cut positions that weighs the bytes crossing a cut against even
    sizes (`cut_sequence`); the backward part is paired by what it reads (`paired`).

    Parameters
    ----------
    split : int, optional
        Where the backward part begins (default: `split_position`); `n_ops` for blocks without one.

    Returns
    -------
    BlockTree
        Items F_1 .. F_J, then B_J .. B_1 (empty backward parts left out).

    Raises
    ------
    MethodError
        `n_blocks` is below 1.
    """
    split = split_position(graph) if split is None else split
    order = np.arange(split)
    cuts = cut_sequence(graph, order, n_blocks)
    assert cuts is not None, "cuts anywhere and of any size always leave a choice"
    return paired(graph, homes(order, cuts))
