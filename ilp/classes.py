"""Isomorphism classes of blocks: equal up to names and order, solved once, their options translated.

Two blocks are equal when some renaming of ops and tensors carries one into the other: times, workspaces,
`once`, sizes, edges, which part an op belongs to, interface and pinned tensors, the memory model, and (for
blocks of blocks) which ops share a child. A block is brought into a *canonical form*: ops are coloured by
what lies around them (colour refinement, Weisfeiler and Leman), ops that remain alike are told apart one by
one (McKay and Piperno, 2014, without their search tree), and all are numbered in a topological order that
prefers small colours. The digest is taken over all arrays in that order, so equal digests are equal blocks;
alike ops that no symmetry exchanges may give equal blocks different digests: they are then solved apart,
which costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hremate.graph import IntArray
from hremate.ilp._classes_kernel import refine_colours
from hremate.ilp.leaf import Leaf, Option, make_option

#: Passes of colour refinement; each reaches through the whole block.
ROUNDS = 3
#: Ops that are told apart one by one, at most.
MOST_ALIKE = 100

_Colours = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Form:
    """The canonical form of a block."""

    #: Equal exactly for blocks whose canonical forms are equal.
    digest: str
    #: Local op at each canonical place, int64[n].
    ops: IntArray


def canonical_form(leaf: Leaf, labels: IntArray | None = None) -> Form:
    """Number the ops of a block independently of their names and their order.

    Parameters
    ----------
    labels : int64[n], optional
        Groups of ops that a renaming must carry into groups, numbered in any way.
    """
    colour, tensor_colour = _colours(leaf)
    ops, externals = _numbered(leaf, colour, tensor_colour)
    counts = np.diff(leaf.out_ptr)[ops]
    made = [np.arange(leaf.out_ptr[i], leaf.out_ptr[i + 1]) for i in ops]
    tensors = np.concatenate([externals, *made]).astype(np.int64)
    number = np.empty(len(tensors), np.int64)
    number[tensors] = np.arange(len(tensors))
    reads = [np.sort(number[leaf.in_idx[leaf.in_ptr[i] : leaf.in_ptr[i + 1]]]) for i in ops]
    groups = np.empty(0, np.int64) if labels is None else _renumbered(labels[ops])
    digest = hashlib.sha256()
    for value in (
        np.array([leaf.n_forward, leaf.n_external, leaf.reuse]), leaf.time[ops], leaf.workspace[ops],
        leaf.once[ops], counts, np.array([len(r) for r in reads]), np.concatenate([*reads, groups]),
        leaf.size[tensors], leaf.interface[tensors], leaf.pinned[tensors],
        _renumbered(leaf.bundle[tensors]),
    ):  # fmt: skip
        digest.update(np.int64(len(value)).tobytes())
        digest.update(np.ascontiguousarray(value).tobytes())
    return Form(digest.hexdigest(), ops)


def _renumbered(labels: IntArray) -> IntArray:
    """`labels` numbered by first occurrence."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    result: IntArray = np.argsort(np.argsort(first))[inverse]
    return result


def _colours(leaf: Leaf) -> tuple[_Colours, _Colours]:
    """Colours of ops and tensors, equal where no surrounding tells them apart."""
    part = np.arange(leaf.n_ops) >= leaf.n_forward
    colour = _hashed(leaf.time + 0.0, leaf.workspace, leaf.once, part)
    external = leaf.producer < 0
    tensor_colour = _hashed(leaf.size, leaf.interface, leaf.pinned, external)
    refine_colours(colour, tensor_colour, leaf.in_ptr, leaf.in_idx, leaf.out_ptr, ROUNDS)
    for mark in range(1, MOST_ALIKE + 1):
        values, first, count = np.unique(colour, return_index=True, return_counts=True)
        if len(values) == leaf.n_ops:
            break
        colour[first[np.argmax(count > 1)]] ^= np.uint64(mark)
        refine_colours(colour, tensor_colour, leaf.in_ptr, leaf.in_idx, leaf.out_ptr, 1)
    return colour, tensor_colour


def _hashed(*columns: npt.NDArray[np.generic]) -> _Colours:
    """One number per row of `columns`, equal for equal rows, the same in every process."""
    result: _Colours = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        wide = column if column.dtype == np.float64 else column.astype(np.int64)
        bits = np.ascontiguousarray(wide).view(np.uint64)
        result = (result ^ bits) * np.uint64(0x9E3779B97F4A7C15)
        result ^= result >> np.uint64(29)
    return result


def _numbered(leaf: Leaf, colour: _Colours, tensor_colour: _Colours) -> tuple[IntArray, IntArray]:
    """Ops in canonical order, and external tensors in the order in which these read them first."""
    readers: list[list[int]] = [[] for _ in leaf.size]
    waiting = np.zeros(leaf.n_ops, np.int64)
    for i in range(leaf.n_ops):
        for x in leaf.inputs_of(i):
            if leaf.producer[x] >= 0:
                readers[x].append(i)
                waiting[i] += 1
    op_colour, external_colour = colour.tolist(), tensor_colour[: leaf.n_external].tolist()

    def key(i: int) -> tuple[bool, int, int]:
        return i >= leaf.n_forward, op_colour[i], i

    heap = [key(i) for i in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(heap)
    order: list[int] = []
    externals: dict[int, None] = {}
    while heap:
        i = heapq.heappop(heap)[-1]
        order.append(i)
        new = [x for x in leaf.inputs_of(i) if x < leaf.n_external]
        externals.update(dict.fromkeys(sorted(new, key=lambda x: (external_colour[x], x))))
        for x in range(int(leaf.out_ptr[i]), int(leaf.out_ptr[i + 1])):
            for reader in readers[x]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(heap, key(reader))
    return np.array(order, np.int64), np.array(list(externals), np.int64)


@dataclass(frozen=True, eq=False)
class Grouping:
    """Blocks grouped into classes."""

    #: Canonical form of each block.
    forms: tuple[Form, ...]
    #: For each block, the first block of its class.
    first: tuple[int, ...]

    @property
    def representatives(self) -> list[int]:
        """The first block of each class, ascending."""
        return sorted(set(self.first))


def group(leaves: Sequence[Leaf], labels: Sequence[IntArray] | None = None) -> Grouping:
    """Group blocks that are equal up to renaming.

    Parameters
    ----------
    labels : for each block int64[n], optional
        See `canonical_form`.
    """
    by_signature: dict[str, Form] = {}
    forms = []
    for k, leaf in enumerate(leaves):
        key = leaf.signature
        if labels is not None:
            key += hashlib.sha256(labels[k].tobytes()).hexdigest()
        if key not in by_signature:
            by_signature[key] = canonical_form(leaf, None if labels is None else labels[k])
        forms.append(by_signature[key])
    first: dict[str, int] = {}
    for k, form in enumerate(forms):
        first.setdefault(form.digest, k)
    return Grouping(tuple(forms), tuple(first[form.digest] for form in forms))


def translate(
    options: Sequence[Option], source: Leaf, source_form: Form, target: Leaf, target_form: Form
) -> list[Option]:
    """Options of one block as options of an equal one."""
    if source.signature == target.signature:
        return list(options)
    carried = np.empty(source.n_ops, np.int64)
    carried[source_form.ops] = target_form.ops
    return [
        make_option(target, carried[option.forward.sequence], carried[option.backward.sequence])
        for option in options
    ]
