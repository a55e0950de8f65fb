"""A training graph as a chain of blocks with options, the ground of `rotor`, `rockmate` and `hierarchical`.

Blocks are intervals of the forward part (`hremate.solvers.chain_cuts`). Between two of them lies a *state*:
the tensors made before and read by forward ops behind. On a chain in the narrow sense states are single
tensors; recurrent networks have small ones, and every graph has some. The backward part of a block reads its
own tensors, those of the states around it, and gradients only; backward ops are assigned accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hremate.graph import BoolArray, Graph, IntArray
from hremate.simulate import memory_kernel


@dataclass(frozen=True, eq=False)
class ChainBlock:
    """One block of a chain; ops ascend."""

    forward: IntArray
    backward: IntArray


@dataclass(frozen=True, eq=False)
class ChainOption:
    """One way to run a block: what its forward part saves, and its backward part with re-runs."""

    #: Forward ops, enough for what is saved and for the output, int64[].
    forward: IntArray
    #: Backward ops and the forward ops run again among them, int64[].
    backward: IntArray
    #: Bytes kept between the parts, what the block hands on included.
    saved_bytes: int
    #: Peaks in bytes: forward without the state before the block; backward with the gradients that enter.
    forward_peak: int
    backward_peak: int
    #: Time of both parts.
    time: float
    #: The same three for a run after which no later block reads what this one makes.
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
    #: The last state that holds each forward tensor is the one before this block, int64[m]; the home of its
    #: producer when none does.
    until: IntArray
    #: Forward tensors that stay once made, bool[m]: those that run beside the chain, graph outputs, and
    #: what is made by ops that may run only once.
    stays: BoolArray

    @property
    def staying_bytes(self) -> int:
        return int(self.graph.size[self.stays].sum())

    @cached_property
    def state_bytes(self) -> IntArray:
        """Bytes of what the blocks a .. j - 1 make in the state before block j, int64[L + 1, L + 1]."""
        n = len(self.blocks)
        made = self.home[self.graph.producer]
        carried = np.flatnonzero((self.graph.producer < self.split) & ~self.stays & (self.until > made))
        # Bytes by maker (row) that enter and leave the states (column), summed along the states ...
        change = np.zeros((n + 1, n + 2), np.int64)
        np.add.at(change, (made[carried], made[carried] + 1), self.graph.size[carried])
        np.add.at(change, (made[carried], self.until[carried] + 1), -self.graph.size[carried])
        held = np.cumsum(change, axis=1)[:, : n + 1]
        # ... and over the makers from a on.
        total: IntArray = np.cumsum(held[::-1], axis=0)[::-1]
        return total

    @cached_property
    def _lowest_reader(self) -> IntArray:
        """The lowest block that reads each tensor, the number of blocks where none does, int64[m]."""
        lowest = np.full(self.graph.n_tensors, len(self.blocks), np.int64)
        tensor = np.repeat(np.arange(self.graph.n_tensors), np.diff(self.graph.use_ptr))
        np.minimum.at(lowest, tensor, self.home[self.graph.use_idx])
        return lowest

    @cached_property
    def _left(self) -> list[tuple[IntArray, int]]:
        graph = self.graph
        behind = np.arange(graph.out_ptr[self.split], graph.n_tensors)
        made, out = self.home[graph.producer[behind]], graph.is_output[behind]
        result = []
        for block in range(len(self.blocks) + 1):
            gradients = behind[(made >= block) & ~out & (self._lowest_reader[behind] < block)]
            result.append((gradients, int(graph.size[behind[(made >= block) & out]].sum())))
        return result

    def leaves(self, block: int) -> tuple[IntArray, int]:
        """What the backward parts of `block` and all later ones leave.

        Returns
        -------
        gradients : int64[], tensors that earlier blocks read.
        outputs : int, bytes of graph outputs.
        """
        return self._left[block]

    def bytes(self, tensors: Iterable[int]) -> int:
        return int(self.graph.size[np.fromiter(tensors, np.int64)].sum())

    def handed_on(self, block: int) -> list[int]:
        """What a block makes of the state behind it, ascending."""
        graph, ops = self.graph, self.blocks[block].forward
        made = np.arange(graph.out_ptr[ops[0]], graph.out_ptr[ops[-1] + 1])
        result: list[int] = made[(self.until[made] > block) & ~self.stays[made]].tolist()
        return result

    def fast_forward(self, block: int) -> tuple[IntArray, int, float]:
        """The ops that make what a block hands on, the peak of its forward part in bytes, and their time."""
        kept = self.handed_on(block)
        ops = self.closure(block, kept)
        memory = self._memory(self.blocks[block].forward, self._own(block), kept)
        return ops, int(memory.max()), float(self.graph.time[ops].sum())

    def closure(self, block: int, targets: Iterable[int]) -> IntArray:
        """Forward ops of a block that make `targets` from the state before it and what stays, ascending."""
        graph = self.graph
        stack = [int(graph.producer[x]) for x in targets]
        found = set(stack)
        while stack:
            for x in graph.inputs_of(stack.pop()).tolist():
                p = int(graph.producer[x])
                if self.home[p] == block and not self.stays[x] and p not in found:
                    found.add(p)
                    stack.append(p)
        return np.array(sorted(found), np.int64)

    def option(self, block: int, saved: Iterable[int]) -> ChainOption:
        """The option that saves the tensors `saved` of a block and makes others again just in time."""
        graph, this = self.graph, self.blocks[block]
        have = self.stays.copy()
        have[: graph.out_ptr[this.forward[0]]] = True  # of what came before only the state is read
        have[self.handed_on(block)] = True
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
        kept = sorted({*needs, *self.handed_on(block)})
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
