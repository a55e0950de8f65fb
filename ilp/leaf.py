"""A block as a problem of its own: local arrays, isomorphism classes, sequences and what they cost.

Locally, ops are numbered forward part first, each part in the given order; tensors are numbered external
ones first (by first reader), then those made inside (by producer). An *interface* tensor is made outside,
or made inside and needed outside; the parent accounts for its bytes. All other tensors are internal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.ilp._profile_kernel import run_profile
from hremate.partition.tree import Block
from hremate.solvers.cut_model import CutProblem

#: States of an interface tensor during a run, as the memory rows of the parent see it.
ABSENT, HELD, BEFORE, AFTER = range(4)


@dataclass(frozen=True, eq=False)
class Leaf:
    """A block in local arrays; `n` ops, `m` tensors."""

    #: Number of forward ops.
    n_forward: int
    #: Number of tensors made outside; they come first.
    n_external: int
    time: FloatArray
    workspace: IntArray
    once: BoolArray
    size: IntArray
    in_ptr: IntArray
    in_idx: IntArray
    #: Op i makes the tensors out_ptr[i]:out_ptr[i+1] (all external tensors come before).
    out_ptr: IntArray
    #: Op that makes each tensor, -1 for external ones.
    producer: IntArray
    #: Interface tensors, bool[m].
    interface: BoolArray
    #: Interface tensors so small that the parent keeps them always, bool[m].
    pinned: BoolArray
    reuse: bool
    #: Graph ids of local ops and tensors.
    ops: IntArray = field(repr=False)
    tensors: IntArray = field(repr=False)

    @property
    def n_ops(self) -> int:
        return len(self.time)

    @cached_property
    def signature(self) -> str:
        """Equal for blocks that are equal up to the names of ops and tensors, in their given orders."""
        digest = hashlib.sha256()
        for value in (
            np.array([self.n_forward, self.n_external, self.reuse]), self.time, self.workspace, self.once,
            self.size, self.in_ptr, self.in_idx, self.out_ptr, self.interface, self.pinned,
        ):  # fmt: skip
            digest.update(np.int64(len(value)).tobytes())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    def inputs_of(self, op: int) -> list[int]:
        result: list[int] = self.in_idx[self.in_ptr[op] : self.in_ptr[op + 1]].tolist()
        return result

    @cached_property
    def forward_made(self) -> BoolArray:
        """Tensors made by forward ops, bool[m]."""
        return (self.producer >= 0) & (self.producer < self.n_forward)

    @cached_property
    def read_backward(self) -> BoolArray:
        """Tensors read by backward ops, bool[m]."""
        flags = np.zeros(len(self.size), np.bool_)
        flags[self.in_idx[self.in_ptr[self.n_forward] :]] = True
        return flags


def make_leaf(graph: Graph, block: Block, pinned: BoolArray) -> Leaf:
    """Cut `block` out of `graph`. `pinned` : bool[tensors of the graph], see `Leaf.pinned`."""
    ops = np.concatenate([block.forward, block.backward])
    local_op = np.full(graph.n_ops, -1, np.int64)
    local_op[ops] = np.arange(len(ops))
    reads = [graph.inputs_of(i) for i in ops]
    flat = np.concatenate([*reads, np.empty(0, np.int64)]).astype(np.int64)
    outside = flat[local_op[graph.producer[flat]] < 0]
    external = outside[np.sort(np.unique(outside, return_index=True)[1])]
    made = np.concatenate([np.arange(graph.out_ptr[i], graph.out_ptr[i + 1]) for i in ops]).astype(np.int64)
    tensors = np.concatenate([external, made])
    local = np.full(graph.n_tensors, -1, np.int64)
    local[tensors] = np.arange(len(tensors))
    counts = graph.out_ptr[ops + 1] - graph.out_ptr[ops]
    uses = np.repeat(np.arange(graph.n_tensors), np.diff(graph.use_ptr))
    interface_global = graph.is_output.copy()
    interface_global[uses[local_op[graph.use_idx] < 0]] = True
    interface = interface_global[tensors]
    interface[: len(external)] = True
    return Leaf(
        n_forward=len(block.forward),
        n_external=len(external),
        time=graph.time[ops],
        workspace=graph.workspace[ops],
        once=graph.once[ops],
        size=graph.size[tensors],
        in_ptr=np.concatenate([[0], np.cumsum([len(r) for r in reads])]),
        in_idx=local[flat],
        out_ptr=len(external) + np.concatenate([[0], np.cumsum(counts)]),
        producer=local_op[graph.producer[tensors]],
        interface=interface,
        pinned=interface & pinned[tensors],
        reuse=graph.memory_model == "reuse",
        ops=ops,
        tensors=tensors,
    )


@dataclass(frozen=True, eq=False)
class Part:
    """One way to run a part of a block: a sequence of local ops and its memory as the parent sees it."""

    sequence: IntArray
    time: float
    #: Interface tensors it needs from the parent (pinned ones left out), ascending.
    reads: tuple[int, ...]
    #: Interface tensors it makes for the parent (pinned ones left out), ascending.
    makes: tuple[int, ...]
    #: Internal tensors that must be in memory when it starts, ascending.
    needs: tuple[int, ...]
    #: Bytes that it accounts for itself, for each undominated sub-step, int64[c].
    internal: IntArray
    #: State of each tensor of `reads + makes` at those sub-steps, int8[c, k]: HELD while the run needs
    #: it, else BEFORE (not made yet: in memory if it was before) or AFTER (in memory if it is after).
    states: npt.NDArray[np.int8]

    @property
    def peak(self) -> int:
        """Largest internal bytes."""
        return int(self.internal.max(initial=0))


def measure(
    leaf: Leaf, sequence: IntArray, *, backward: bool, survives: BoolArray, carried: BoolArray | None = None
) -> Part:
    """Measure running `sequence` (local ops).

    Parameters
    ----------
    backward : bool
        Whether it runs as the backward part; interface tensors made by the other part count inside.
    survives : bool[m]
        Internal tensors that must live to the end.
    carried : bool[m], optional
        Internal tensors that are in memory throughout and accounted for elsewhere.
    """
    made_here = leaf.producer >= leaf.n_forward if backward else leaf.forward_made
    home = leaf.interface & made_here
    none = np.zeros(len(leaf.size), np.bool_)
    internal, last, birth, hold = run_profile(
        sequence, leaf.in_ptr, leaf.in_idx, leaf.out_ptr, leaf.size, leaf.workspace,
        leaf.interface, home, survives, none if carried is None else carried, leaf.reuse,
    )  # fmt: skip
    shown = leaf.interface & ~leaf.pinned
    reads = np.flatnonzero((last >= 0) & shown)
    makes = np.flatnonzero((birth >= 0) & shown)
    step = np.arange(len(internal))[:, None]
    read_state = np.where(step <= last[reads], HELD, AFTER)
    made_state = np.where(step < birth[makes], BEFORE, np.where(step <= hold[makes], HELD, AFTER))
    states = np.concatenate([read_state, made_state], axis=1).astype(np.int8)
    keep = _undominated(internal, states)
    return Part(
        sequence=sequence,
        time=float(leaf.time[sequence].sum()),
        reads=tuple(reads.tolist()),
        makes=tuple(makes.tolist()),
        needs=tuple(np.flatnonzero((last >= 0) & ~leaf.interface).tolist()),
        internal=internal[keep],
        states=states[keep],
    )


def _undominated(internal: IntArray, states: npt.NDArray[np.int8]) -> IntArray:
    """Sub-steps whose bytes no other one covers: one per state, dropped when another needs all of it."""
    best: dict[bytes, int] = {}
    for s in range(len(internal)):
        key = states[s].tobytes()
        if key not in best or internal[s] > internal[best[key]]:
            best[key] = s
    kept = list(best.values())
    result = []
    for s in kept:
        covered = any(
            other != s
            and internal[other] >= internal[s]
            and bool(((states[other] == states[s]) | (states[other] == HELD)).all())
            for other in kept
        )
        if not covered:
            result.append(s)
    return np.array(sorted(result), np.int64)


@dataclass(frozen=True, eq=False)
class Option:
    """One way to run a whole block: forward part, what is saved in between, backward part."""

    forward: Part
    backward: Part
    #: Internal tensors saved between the parts (the phantom), ascending local ids.
    saved: tuple[int, ...]
    saved_bytes: int
    #: Bytes of the forward interface tensors that the backward part reads.
    read_bytes: int

    @property
    def time(self) -> float:
        """Time of the backward part, the only one that differs between options."""
        return self.backward.time

    @cached_property
    def key(self) -> tuple[bytes, bytes]:
        """Equal for equal options of one leaf."""
        return self.forward.sequence.tobytes(), self.backward.sequence.tobytes()


def make_option(leaf: Leaf, forward: IntArray, backward: IntArray) -> Option:
    """The option that runs the local ops `forward`, later `backward` (with the recomputed forward ops)."""
    nothing = np.zeros(len(leaf.size), np.bool_)
    back = measure(leaf, backward, backward=True, survives=nothing)
    saved = nothing.copy()
    saved[list(back.needs)] = True
    fore = measure(leaf, forward, backward=False, survives=saved)
    forward_reads = [x for x in back.reads if leaf.producer[x] < leaf.n_forward]
    return Option(
        forward=fore,
        backward=back,
        saved=back.needs,
        saved_bytes=int(leaf.size[saved].sum()),
        read_bytes=int(leaf.size[forward_reads].sum()),
    )


def just_in_time(leaf: Leaf, rerun: BoolArray) -> IntArray:
    """The backward ops in the given order, each op of `rerun` (bool[n_forward]) run again when first needed.

    Ops of `rerun` that nothing needs are left out.
    """
    have = np.ones(len(leaf.size), np.bool_)
    again = np.concatenate([rerun, np.zeros(leaf.n_ops - leaf.n_forward, np.bool_)])
    made = np.flatnonzero(leaf.producer >= 0)
    have[made] = ~again[leaf.producer[made]]
    sequence: list[int] = []
    for op in range(leaf.n_forward, leaf.n_ops):
        stack = [op]
        while stack:
            i = stack[-1]
            missing = [int(leaf.producer[x]) for x in leaf.inputs_of(i) if not have[x]]
            if missing:
                stack.append(missing[0])
                continue
            stack.pop()
            if i >= leaf.n_forward or not have[leaf.out_ptr[i] : leaf.out_ptr[i + 1]].all():
                sequence.append(i)
                have[leaf.out_ptr[i] : leaf.out_ptr[i + 1]] = True
    return np.array(sequence, np.int64)


#: What the price of keeping counts, see `cut_problem`.
OUTPUTS_FREE, OUTPUTS_CHARGED, ALL_CHARGED = range(3)


def cut_problem(leaf: Leaf, mode: int) -> CutProblem:
    """The cut problem of a leaf over its gap: which forward ops the backward part runs again.

    Interface tensors are always to be had from the parent. `mode` says which of them the price of keeping
    counts: none, those the block makes itself, or also the external ones that re-runs read and the
    backward ops do not.
    """
    takes_part = leaf.forward_made & ~leaf.pinned
    if mode == OUTPUTS_FREE:
        takes_part &= ~leaf.interface
    if mode == ALL_CHARGED:
        forward_reads = np.zeros(len(leaf.size), np.bool_)
        forward_reads[leaf.in_idx[: leaf.in_ptr[leaf.n_forward]]] = True
        takes_part |= (leaf.producer < 0) & forward_reads & ~leaf.read_backward & ~leaf.pinned
    tensors = np.flatnonzero(takes_part)
    local = np.full(len(leaf.size), -1, np.int64)
    local[tensors] = np.arange(len(tensors))
    n = leaf.n_forward
    idx = local[leaf.in_idx[: leaf.in_ptr[n]]]
    owner = np.repeat(np.arange(n), np.diff(leaf.in_ptr[: n + 1]))[idx >= 0]
    producer = leaf.producer[tensors].copy()
    producer[(producer >= 0) & leaf.once[producer]] = -1
    return CutProblem(
        time=leaf.time[:n].copy(),
        size=leaf.size[tensors],
        producer=producer,
        crossing=leaf.read_backward[tensors],
        in_ptr=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=n))]),
        in_idx=idx[idx >= 0],
    )
