"""A block as a problem of its own: local arrays, isomorphism classes, sequences and what they cost.

Locally, ops are numbered forward part first, each part in the given order; tensors are numbered external
ones first (by first reader), then those made inside (by producer). An *interface* tensor is made outside,
or made inside and needed outside; the parent accounts for its bytes, unless it is *pinned*: so small that it
is always kept. All other tensors are internal. The parent may tie interface tensors into *bundles*
(`hremate.ilp.bundles`), which it keeps or drops together and which are named by one of their tensors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from hremate.graph import BoolArray, FloatArray, Graph, IntArray
from hremate.ilp._profile_kernel import covered_substeps, run_just_in_time, run_profile
from hremate.partition.subgraph import ranges
from hremate.partition.tree import Block
from hremate.solvers.cut_model import CutProblem

#: States of a bundle of interface tensors during a run, as the memory rows of the parent see it.
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
    #: For interface tensors that are not pinned, the tensor that names their bundle; -1 for others, int64[m].
    bundle: IntArray
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
            self.size, self.in_ptr, self.in_idx, self.out_ptr, self.interface, self.pinned, self.bundle,
        ):  # fmt: skip
            digest.update(np.int64(len(value)).tobytes())
            digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()

    @cached_property
    def shared(self) -> BoolArray:
        """Tensors that name a bundle, bool[m]."""
        return self.bundle == np.arange(len(self.bundle))

    @cached_property
    def bundle_bytes(self) -> IntArray:
        """Bytes of the bundle that each tensor names, int64[m]."""
        total = np.zeros(len(self.size), np.int64)
        members = self.bundle >= 0
        np.add.at(total, self.bundle[members], self.size[members])
        return total

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


def make_leaf(graph: Graph, block: Block, pinned: BoolArray, bundles: IntArray | None = None) -> Leaf:
    """Cut `block` out of `graph`.

    Parameters
    ----------
    pinned : bool[tensors of the graph]
        See `Leaf.pinned`.
    bundles : int64[tensors of the graph], optional
        The tensor that names the bundle of each one (default: itself); a block that makes or reads some
        tensor of a bundle reads or makes all of it.
    """
    ops = block.ops
    local_op = np.full(graph.n_ops, -1, np.int64)
    local_op[ops] = np.arange(len(ops))
    in_ptr, arcs = ranges(graph.in_ptr, ops)
    flat = graph.in_idx[arcs]
    outside = flat[local_op[graph.producer[flat]] < 0]
    external = outside[np.sort(np.unique(outside, return_index=True)[1])]
    made_ptr, made = ranges(graph.out_ptr, ops)
    tensors = np.concatenate([external, made])
    local = np.full(graph.n_tensors, -1, np.int64)
    local[tensors] = np.arange(len(tensors))
    use_ptr, uses = ranges(graph.use_ptr, made)
    leaving = np.concatenate([[0], np.cumsum(local_op[graph.use_idx[uses]] < 0)])
    interface = np.ones(len(tensors), np.bool_)
    interface[len(external) :] = graph.is_output[made] | (leaving[use_ptr[1:]] > leaving[use_ptr[:-1]])
    always = interface & pinned[tensors]
    names = tensors if bundles is None else bundles[tensors]
    return Leaf(
        n_forward=len(block.forward),
        n_external=len(external),
        time=graph.time[ops],
        workspace=graph.workspace[ops],
        once=graph.once[ops],
        size=graph.size[tensors],
        in_ptr=in_ptr,
        in_idx=local[flat],
        out_ptr=len(external) + made_ptr,
        producer=local_op[graph.producer[tensors]],
        interface=interface,
        pinned=always,
        bundle=np.where(interface & ~always, local[names], -1),
        reuse=graph.memory_model == "reuse",
        ops=ops,
        tensors=tensors,
    )


@dataclass(frozen=True, eq=False)
class Part:
    """One way to run a part of a block: a sequence of local ops and its memory as the parent sees it."""

    sequence: IntArray
    time: float
    #: Bundles it needs from the parent, ascending.
    reads: tuple[int, ...]
    #: Bundles it makes for the parent, all tensors of each, ascending.
    makes: tuple[int, ...]
    #: Internal tensors that must be in memory when it starts, ascending.
    needs: tuple[int, ...]
    #: Bytes that it accounts for itself, for each undominated sub-step, int64[c].
    internal: IntArray
    #: State of each bundle of `reads + makes` at those sub-steps, int8[c, k]: HELD while the run needs
    #: some of it, else BEFORE (not made yet: in memory if it was before) or AFTER (in memory if it is after).
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
    m = len(leaf.size)
    none = np.zeros(m, np.bool_)
    members = np.flatnonzero(leaf.bundle >= 0)
    names = leaf.bundle[members]
    runs = np.zeros(leaf.n_ops + 1, np.bool_)
    runs[sequence] = True
    made = runs[leaf.producer]
    # A bundle of which only a part is made is none of the parent's business.
    partly = none.copy()
    partly[names[~made[members]]] = True
    home = leaf.interface & made_here & (leaf.pinned | ~partly[leaf.bundle])
    internal, last, birth, hold = run_profile(
        sequence, leaf.in_ptr, leaf.in_idx, leaf.out_ptr, leaf.size, leaf.workspace,
        leaf.interface, home, survives, none if carried is None else carried, leaf.reuse,
    )  # fmt: skip
    last_read, first_made, last_held = np.full(m, -1), np.full(m, len(internal)), np.full(m, -1)
    np.maximum.at(last_read, names, last[members])
    born = birth[members] >= 0
    np.minimum.at(first_made, names[born], birth[members][born])
    np.maximum.at(last_held, names[born], np.maximum(hold, birth)[members][born])
    reads = np.flatnonzero(last_read >= 0)
    makes = np.flatnonzero(last_held >= 0)
    step = np.arange(len(internal))[:, None]
    read_state = np.where(step <= last_read[reads], HELD, AFTER)
    made_state = np.where(step < first_made[makes], BEFORE, np.where(step <= last_held[makes], HELD, AFTER))
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
    """Sub-steps whose bytes no other one covers: the largest of each state, less those others cover."""
    best: dict[bytes, int] = {}
    for s in range(len(internal)):
        key = states[s].tobytes()
        if key not in best or internal[s] > internal[best[key]]:
            best[key] = s
    kept = np.array(sorted(best.values()), np.int64)
    result: IntArray = kept[~covered_substeps(internal[kept], states[kept], np.int8(HELD))]
    return result


@dataclass(frozen=True, eq=False)
class Option:
    """One way to run a whole block: forward part, what is saved in between, backward part."""

    forward: Part
    backward: Part
    #: Internal tensors saved between the parts (the phantom), ascending local ids.
    saved: tuple[int, ...]
    saved_bytes: int
    #: Bytes of the bundles that the backward part reads, but for those of backward parts.
    read_bytes: int

    @property
    def time(self) -> float:
        """Time of both parts."""
        return self.forward.time + self.backward.time

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
        read_bytes=int(leaf.bundle_bytes[forward_reads].sum()),
    )


def just_in_time(leaf: Leaf, rerun: BoolArray) -> IntArray:
    """The backward ops in the given order, each op of `rerun` (bool[n_forward]) run again when first needed.

    Ops of `rerun` that nothing needs are left out.
    """
    sequence: IntArray = run_just_in_time(
        rerun, leaf.n_forward, leaf.in_ptr, leaf.in_idx, leaf.out_ptr, leaf.producer
    )
    return sequence


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
