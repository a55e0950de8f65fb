"""A training graph as a chain of blocks with options, the ground of `rotor` and `rockmate`.

Blocks are cut at articulation tensors of the forward part. The backward part of a block reads its own
tensors, its input, its output and gradients only; backward ops are assigned accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hremate.errors import MethodError
from hremate.graph import BoolArray, Graph, IntArray
from hremate.simulate import memory_kernel
from hremate.solvers.chain import (
    articulation_positions,
    crossing,
    last_forward_read,
    side_tensors,
    training_split,
)


@dataclass(frozen=True, eq=False)
class ChainBlock:
    """One block of a chain; ops ascend."""

    forward: IntArray
    backward: IntArray
    #: Tensors that the block before hands over, and that the block hands on; -1 at the ends.
    entry: int
    exit: int


@dataclass(frozen=True, eq=False)
class ChainOption:
    """One way to run a block: what its forward part saves, and its backward part with re-runs."""

    #: Forward ops, enough for what is saved and for the output, int64[].
    forward: IntArray
    #: Backward ops and the forward ops run again among them, int64[].
    backward: IntArray
    #: Bytes kept between the parts, the output of the block included.
    saved_bytes: int
    #: Peaks in bytes: forward without the input of the block; backward with the gradients that enter.
    forward_peak: int
    backward_peak: int
    #: Time of both parts.
    time: float
    #: The same three for a run after which no later block reads the output of this one.
    tail: IntArray
    tail_peak: int
    tail_time: float


@dataclass(frozen=True, eq=False)
class Chain:
    """The blocks of a graph in forward order, and what the memory of a segment depends on."""

    graph: Graph
    split: int
    blocks: tuple[ChainBlock, ...]
    #: Block of each op, int64[n].
    home: IntArray
    #: Forward tensors that stay once made, bool[m]: those that run beside the chain, graph outputs, and
    #: what is made by ops that may run only once.
    stays: BoolArray

    def bytes(self, tensors: Iterable[int]) -> int:
        return int(self.graph.size[np.fromiter(tensors, np.int64)].sum())

    @property
    def staying_bytes(self) -> int:
        return int(self.graph.size[self.stays].sum())

    def leaves(self, block: int) -> tuple[IntArray, int]:
        """What the backward parts of `block` and all later ones leave.

        Returns
        -------
        gradients : int64[], tensors that earlier blocks read.
        outputs : int, bytes of graph outputs.
        """
        graph = self.graph
        made = np.flatnonzero((graph.producer >= self.split) & (self.home[graph.producer] >= block))
        out = graph.is_output[made]
        gradients = [x for x in made[~out].tolist() if (self.home[graph.users_of(x)] < block).any()]
        return np.array(gradients, np.int64), int(graph.size[made[out]].sum())

    def fast_forward(self, block: int) -> tuple[IntArray, int, float]:
        """The ops that make a block's output from its input, their peak in bytes, and their time."""
        this = self.blocks[block]
        ops = self.closure(block, [this.exit] if this.exit >= 0 else [])
        memory = self._memory(this.forward, self._own(block), [this.exit] if this.exit >= 0 else [])
        return ops, int(memory.max()), float(self.graph.time[ops].sum())

    def closure(self, block: int, targets: Iterable[int]) -> IntArray:
        """Forward ops of a block that make `targets` from its input and what stays, ascending."""
        graph, entry = self.graph, self.blocks[block].entry
        stack = [int(graph.producer[x]) for x in targets]
        found = set(stack)
        while stack:
            for x in graph.inputs_of(stack.pop()).tolist():
                p = int(graph.producer[x])
                if x != entry and not self.stays[x] and p not in found:
                    found.add(p)
                    stack.append(p)
        return np.array(sorted(found), np.int64)

    def option(self, block: int, saved: Iterable[int]) -> ChainOption:
        """The option that saves the tensors `saved` of a block and makes others again just in time."""
        graph, this = self.graph, self.blocks[block]
        have = self.stays.copy()
        have[[x for x in (this.entry, this.exit) if x >= 0]] = True
        have[list(saved)] = True
        have[graph.out_ptr[self.split] :] = True  # gradients run once, in their order
        sequence: list[int] = []
        for op in this.backward.tolist():
            stack = [op]
            while stack:
                missing = [int(graph.producer[x]) for x in graph.inputs_of(stack[-1]) if not have[x]]
                if missing:
                    stack.append(missing[0])
                    continue
                i = stack.pop()
                sequence.append(i)
                have[graph.out_ptr[i] : graph.out_ptr[i + 1]] = True
        return self.measure(block, np.array(sequence, np.int64))

    def measure(self, block: int, backward: IntArray) -> ChainOption:
        """The option with the given sequence as backward part; what it needs is saved."""
        graph, this = self.graph, self.blocks[block]
        own = self._own(block)
        made = np.zeros(graph.n_tensors, np.bool_)
        needs: list[int] = []
        for i in backward.tolist():
            needs += [x for x in graph.inputs_of(i).tolist() if own[x] and not made[x]]
            made[graph.out_ptr[i] : graph.out_ptr[i + 1]] = True
        saved = sorted(set(needs) - {this.exit})
        kept = [*saved, this.exit] if this.exit >= 0 else saved
        forward = self.closure(block, kept)
        forward_memory = self._memory(this.forward, own, kept)
        tail_kept = sorted(set(needs))
        tail = self.closure(block, tail_kept)
        tail_memory = self._memory(tail, own, tail_kept)
        entering, _ = self.leaves(block + 1)
        leaving, _ = self.leaves(block)
        counted = own.copy()
        counted[entering] = True
        for i in this.backward.tolist():
            counted[graph.out_ptr[i] : graph.out_ptr[i + 1]] = True
        before = np.concatenate([this.forward, np.unique(graph.producer[entering])])
        survivors = counted & graph.is_output
        survivors[leaving] = counted[leaving]
        memory = self._memory(np.concatenate([before, backward]), counted, np.flatnonzero(survivors))
        return ChainOption(
            forward=forward,
            backward=backward,
            saved_bytes=self.bytes(kept),
            forward_peak=int(forward_memory.max()),
            backward_peak=int(memory[len(before) :].max(initial=0)),
            time=float(graph.time[forward].sum() + graph.time[backward].sum()),
            tail=tail,
            tail_peak=int(tail_memory.max(initial=0)),
            tail_time=float(graph.time[tail].sum() + graph.time[backward].sum()),
        )

    def _own(self, block: int) -> BoolArray:
        """Forward tensors that a block accounts for, bool[m]."""
        graph, own = self.graph, np.zeros(self.graph.n_tensors, np.bool_)
        for i in self.blocks[block].forward.tolist():
            own[graph.out_ptr[i] : graph.out_ptr[i + 1]] = True
        return own & ~self.stays

    def _memory(self, order: IntArray, counted: BoolArray, survivors: Sequence[int] | IntArray) -> IntArray:
        """Bytes of the `counted` tensors and the workspaces at each step of `order`."""
        graph = self.graph
        memory = np.empty(len(order), np.int64)
        memory_kernel(
            order,
            graph.in_ptr,
            graph.in_idx,
            graph.out_ptr,
            np.where(counted, graph.size, 0),
            graph.workspace,
            np.asarray(survivors, np.int64),
            graph.memory_model == "reuse",
            memory,
        )
        return memory


def build_chain(graph: Graph, method: str, *, most: int, grow: bool, fine: bool = False) -> Chain:
    """Cut a training graph into a chain of blocks.

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
    forward = graph.producer < split
    stays: BoolArray = forward & (side_tensors(graph, split) | graph.once[graph.producer] | graph.is_output)
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
    while cuts:
        home, conflict = _assign(graph, split, cuts, stays)
        if conflict is None:
            bounds = [0, *(p for p, _ in cuts), split]
            tensors = [-1, *(x for _, x in cuts), -1]
            blocks = tuple(
                ChainBlock(
                    np.arange(start, end),
                    np.flatnonzero(home[split:] == i) + split,
                    tensors[i],
                    tensors[i + 1],
                )
                for i, (start, end) in enumerate(pairwise(bounds))
            )
            return Chain(graph, split, blocks, home, stays)
        tensor, op, low, high = conflict
        if not grow:
            raise MethodError(
                f"{method} needs a chain of blocks; tensor {graph.tensor_names[tensor]!r} of block {high} "
                f"skips one: op {graph.op_names[op]!r}, which reads it, belongs to block {low}"
            )
        # Cut c lies between the blocks c and c + 1.
        del cuts[low:high]
    position = split // 2
    wide = [x for x in crossing(graph, last, position).tolist() if not stays[x]]
    names = f"tensor {graph.tensor_names[wide[0]]!r} skips" if wide else "tensors skip"
    raise MethodError(
        f"{method} needs a chain of blocks with one tensor between neighbours; {graph.name!r} has no such "
        f"cut: {names} op {graph.op_names[position]!r} in the middle of the forward part"
    )


def _assign(
    graph: Graph, split: int, cuts: Sequence[tuple[int, int]], stays: BoolArray
) -> tuple[IntArray, tuple[int, int, int, int] | None]:
    """The block of each op, and what prevents a chain: (tensor, op that reads it, lower, higher block).

    A backward op goes to the latest block in which all it reads is at hand.
    """
    home = np.full(graph.n_ops, len(cuts), np.int64)
    home[:split] = np.searchsorted(np.array([p for p, _ in cuts]), np.arange(split), side="right")
    handed = {x: k + 1 for k, (_, x) in enumerate(cuts)}
    for op in range(split, graph.n_ops):
        lowest, highest, reason = 0, len(cuts), -1
        for x in graph.inputs_of(op).tolist():
            maker = int(graph.producer[x])
            if maker >= split:
                highest = min(highest, int(home[maker]))
            elif not stays[x]:
                block = handed.get(x, int(home[maker]))
                highest = min(highest, block)
                least = block - 1 if x in handed else block
                if least > lowest:
                    lowest, reason = least, x
        if highest < lowest:
            return home, (reason, op, highest, lowest)
        home[op] = highest
    # What reads nothing that the chain accounts for waits for its first reader.
    for op in range(graph.n_ops - 1, split - 1, -1):
        reads = graph.inputs_of(op)
        if (stays[reads] & (graph.producer[reads] < split)).all():
            readers = [int(home[j]) for x in graph.outputs_of(op) for j in graph.users_of(x)]
            if readers:
                home[op] = max(readers)
    return home, None
