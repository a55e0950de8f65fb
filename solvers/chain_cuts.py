"""Where a training graph is cut into a chain of blocks, and which block each backward op goes to."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.partition.cuts import cut_sequence
from hremate.solvers.blocks import Chain, ChainBlock
from hremate.solvers.chain import (
    articulation_positions,
    crossing,
    last_forward_read,
    side_tensors,
    training_split,
)

#: Small tensors that a chain of states always keeps, as a share of the budget in all.
STAYING_SHARE = 0.01


def build_chain(graph: Graph, method: str, *, most: int, grow: bool, fine: bool = False) -> Chain:
    """Cut a training graph into a chain of blocks with one tensor between neighbours.

    Parameters
    ----------
    most : int
        Largest number of blocks; of more articulation tensors an even choice is taken.
    grow : bool
        Whether blocks that the backward part ties together are merged.
    fine : bool
        Whether to cut also at tensors that the backward part does not read: finer, but such a tensor is
        kept for its cut alone.

    Raises
    ------
    MethodError
        There is no backward part, or no chain: names the first tensor that skips a block.
    """
    split = training_split(graph, method)
    stays: BoolArray = (graph.producer < split) & (
        side_tensors(graph, split) | graph.once[graph.producer] | graph.is_output
    )
    last = last_forward_read(graph, split)
    cuts: list[tuple[int, int]] = []  # (position, tensor that crosses it)
    for position in articulation_positions(graph, split, stays).tolist():
        (tensor,) = (x for x in crossing(graph, last, position).tolist() if not stays[x])
        if not cuts or cuts[-1][1] != tensor:
            cuts.append((position, tensor))
    read_backward = np.zeros(graph.n_tensors, np.bool_)
    read_backward[graph.in_idx[graph.in_ptr[split] :]] = True
    for k in range(len(cuts) - 2, -1, -1):
        x, y = cuts[k][1], cuts[k + 1][1]
        # Cutting later costs no more bytes.
        if not fine and not read_backward[x] and graph.size[y] <= graph.size[x]:
            del cuts[k]
    if len(cuts) >= most:
        cuts = [cuts[len(cuts) * k // most] for k in range(1, most)]
    chain, conflict = _joined(graph, split, [p for p, _ in cuts], stays, grow)
    if conflict is not None:
        raise MethodError(
            f"{method} needs a chain of blocks; tensor {graph.tensor_names[conflict.tensor]!r} of block "
            f"{conflict.high} skips one: op {graph.op_names[conflict.op]!r}, which reads it, belongs to "
            f"block {conflict.low}"
        )
    if chain is not None:
        return chain
    position = split // 2
    wide = [x for x in crossing(graph, last, position).tolist() if not stays[x]]
    names = f"tensor {graph.tensor_names[wide[0]]!r} skips" if wide else "tensors skip"
    raise MethodError(
        f"{method} needs a chain of blocks with one tensor between neighbours; {graph.name!r} has no such "
        f"cut: {names} op {graph.op_names[position]!r} in the middle of the forward part"
    )


def build_states(graph: Graph, split: int, budget: int, *, most: int) -> Chain | None:
    """Cut a training graph into a chain of up to `most` blocks wherever little crosses.

    Blocks that the backward part ties together are merged; None when nothing is left of the chain.

    Parameters
    ----------
    split : int
        Where the backward part begins, 0 < split < n_ops.
    budget : int
        Bytes. The smallest forward tensors stay once made, up to `STAYING_SHARE` of it in all.
    """
    cuts = cut_sequence(graph, np.arange(split), most)
    if cuts is None or len(cuts) < 3:
        return None
    forward = graph.producer < split
    ascending = np.flatnonzero(forward)
    ascending = ascending[np.argsort(graph.size[ascending], kind="stable")]
    stays = forward & (graph.once[graph.producer] | graph.is_output)
    stays[ascending[np.cumsum(graph.size[ascending]) <= STAYING_SHARE * budget]] = True
    return _joined(graph, split, cuts[1:-1].tolist(), stays, grow=True, lean=True)[0]


@dataclass(frozen=True)
class _Conflict:
    """Why blocks are no chain: an op of the backward part reads far apart."""

    tensor: int
    op: int
    low: int
    high: int


def _joined(
    graph: Graph, split: int, positions: list[int], stays: BoolArray, grow: bool, lean: bool = False
) -> tuple[Chain | None, _Conflict | None]:
    """The chain cut at `positions`, merged where the backward part asks for it and `grow` allows.

    lean : whether backward ops that need more memory than they free wait for their first reader.
    """
    last = last_forward_read(graph, split)
    while positions:
        forward = np.searchsorted(np.array(positions), np.arange(split), side="right")
        made = forward[np.minimum(graph.producer, split - 1)]
        until = np.where(last >= 0, np.maximum(made, forward[np.maximum(last, 0)]), made)
        home, conflicts = _assign(graph, split, forward, until, stays)
        if lean:
            _delay(graph, split, home, stays)
        if not conflicts:
            bounds = [0, *positions, split]
            blocks = tuple(
                ChainBlock(np.arange(start, end), np.flatnonzero(home[split:] == i) + split)
                for i, (start, end) in enumerate(pairwise(bounds))
            )
            return Chain(graph, split, blocks, home, until, stays), None
        if not grow:
            return None, conflicts[0]
        # Cut c lies between the blocks c and c + 1.
        tied = np.zeros(len(positions), np.bool_)
        for conflict in conflicts:
            tied[conflict.low : conflict.high] = True
        positions = [p for p, gone in zip(positions, tied.tolist(), strict=True) if not gone]
    return None, None


def _assign(
    graph: Graph, split: int, forward: IntArray, until: IntArray, stays: BoolArray
) -> tuple[IntArray, list[_Conflict]]:
    """The block of each op, and what prevents a chain.

    A backward op goes to the latest block in which all it reads is at hand.

    Parameters
    ----------
    forward : int64[split]
        Block of each forward op.
    until : int64[m]
        See `Chain.until`.
    """
    top = int(forward[-1])
    home = [*forward.tolist(), *([top] * (graph.n_ops - split))]
    producer, ends, staying = graph.producer.tolist(), until.tolist(), stays.tolist()
    conflicts: list[_Conflict] = []
    for op in range(split, graph.n_ops):
        lowest, highest, reason = 0, top, -1
        for x in graph.inputs_of(op).tolist():
            maker = producer[x]
            if maker >= split:
                highest = min(highest, home[maker])
            elif not staying[x]:
                highest = min(highest, ends[x])
                if home[maker] > lowest:
                    lowest, reason = home[maker], x
        if highest < lowest:
            conflicts.append(_Conflict(reason, op, highest, lowest))
        home[op] = highest
    # What reads nothing that the chain accounts for waits for its first reader.
    for op in range(graph.n_ops - 1, split - 1, -1):
        reads = graph.inputs_of(op)
        if (stays[reads] & (graph.producer[reads] < split)).all():
            readers = [home[j] for x in graph.outputs_of(op) for j in graph.users_of(x)]
            if readers:
                home[op] = max(readers)
    return np.array(home, np.int64), conflicts


def _delay(graph: Graph, split: int, home: IntArray, stays: BoolArray) -> None:
    """Move backward ops that make more bytes than they alone read towards their readers, in `home`."""
    makers = graph.producer
    for op in range(graph.n_ops - 1, split - 1, -1):
        readers = [int(home[j]) for x in graph.outputs_of(op) for j in graph.users_of(x)]
        if not readers or graph.is_output[graph.out_ptr[op] : graph.out_ptr[op + 1]].any():
            continue
        reads = graph.inputs_of(op)
        lowest = max(readers)
        freed = 0
        for x in reads.tolist():
            if makers[x] < split:
                lowest = lowest if stays[x] else max(lowest, int(home[makers[x]]))
            elif (home[graph.users_of(x)] >= home[op]).all():
                freed += int(graph.size[x])
        if lowest < home[op] and graph.out_bytes[op] > freed:
            home[op] = lowest
