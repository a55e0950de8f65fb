"""The `bottom-up` partitioner: H-Partition, which merges single ops into groups of narrow interface."""

from __future__ import annotations

import numpy as np

from hremate.errors import MethodError
from hremate.graph import Graph, IntArray
from hremate.partition._bottom_up_kernel import merge_groups, order_of_groups
from hremate.partition.cuts import cut_sequence, homes
from hremate.partition.pairing import paired
from hremate.partition.phases import split_position
from hremate.partition.tree import BlockTree

#: Merging ends at groups of this share of the average block, so that blocks of even size can be made of
#: them.
GROUP_SHARE = 0.5


def bottom_up(
    graph: Graph, n_blocks: int, *, split: int | None = None, group_share: float = GROUP_SHARE
) -> BlockTree:
    """Merge forward ops into `n_blocks` blocks (fewer when the graph is too small).

    Starting from single ops, the candidate group that minimises interface bytes x (number of ops)^0.5 is
    merged: two groups of which one is the only neighbour of the other in that direction (maximal chains
    arise so), and flow groups, everything between a group and the point where its flow reconverges, with
    and without the ends. Bytes count once for a tensor, however many merged ops make or read it. Groups
    are listed in a topological order, and neighbouring ones make up blocks (`cut_sequence`).

    Parameters
    ----------
    split : int, optional
        Where the backward part begins (default: `split_position`); `n_ops` for blocks without one.
    group_share : float
        Most ops of a group in units of the average block, > 0.

    Returns
    -------
    BlockTree
        Items F_1 .. F_J, then B_J .. B_1 (empty backward parts left out).

    Raises
    ------
    MethodError
        `n_blocks` is below 1, or `group_share` not above 0.

    References
    ----------
    Gusak et al., ICML 2025 (HiRemate), section "H-Partition"; there, a level is merged until it has at
    most so many groups, and merged producers count no bytes.
    """
    if not group_share > 0:
        raise MethodError("Expected group_share > 0.")
    if n_blocks < 1:
        raise MethodError("Expected n_blocks >= 1.")
    split = split_position(graph) if split is None else split
    rank = groups(graph, split, most_ops=max(2, int(group_share * split / n_blocks)), fewest=n_blocks)
    order = np.argsort(rank, kind="stable")
    ends = 1 + np.flatnonzero(np.diff(rank[order]))
    cuts = cut_sequence(graph, order, n_blocks, ends)
    if cuts is None:
        cuts = np.concatenate([[0], ends, [split]])
    return paired(graph, homes(order, cuts))


def groups(graph: Graph, split: int, *, most_ops: int, fewest: int = 1) -> IntArray:
    """Convex groups of the forward ops, by H-Partition.

    Parameters
    ----------
    split : int
        The forward ops are those below it.
    most_ops : int
        Ops of a group.
    fewest : int
        Number of groups at which merging ends.

    Returns
    -------
    int64[split]
        Number of the group of each op; numbers follow a topological order.
    """
    pred_ptr, pred_idx = graph.predecessors
    pred_ptr = pred_ptr[: split + 1]
    pred_idx = pred_idx[: pred_ptr[-1]]
    succ_ptr, succ_idx = transposed(pred_ptr, pred_idx, split)
    made = int(graph.out_ptr[split])
    reads = graph.in_ptr[: split + 1]
    # Each op touches the tensors it reads, then those it makes.
    touch_ptr = reads + graph.out_ptr[: split + 1]
    touch_idx = np.empty(touch_ptr[-1], np.int64)
    owner = np.repeat(np.arange(split), np.diff(reads))
    touch_idx[np.arange(reads[-1]) + graph.out_ptr[owner]] = graph.in_idx[: reads[-1]]
    touch_idx[np.arange(made) + reads[graph.producer[:made] + 1]] = np.arange(made)
    group = merge_groups(
        succ_ptr, succ_idx, pred_ptr, pred_idx, touch_ptr, touch_idx,
        graph.size[:made], graph.is_output[:made], most_ops, fewest,
    )  # fmt: skip
    rank: IntArray = order_of_groups(succ_ptr, succ_idx, group)
    assert rank.min(initial=0) >= 0, "convex groups that are merged one at a time form no cycle"
    return rank


def transposed(ptr: IntArray, idx: IntArray, n: int) -> tuple[IntArray, IntArray]:
    """The CSR matrix of `n` columns with rows and columns swapped."""
    rows = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    counts = np.bincount(idx, minlength=n)
    return np.concatenate([[0], np.cumsum(counts)]), rows[np.argsort(idx, kind="stable")]
