"""From blocks with menus of options to the program of the H-ILP: which actions each slot may run."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hremate.graph import BoolArray, Graph, IntArray
from hremate.ilp.leaf import Leaf, Option, Part, measure
from hremate.ilp.model import Action, Choice, Program, Slot
from hremate.ilp.options import fast_forward
from hremate.partition.tree import BlockTree


class Reruns(enum.Enum):
    """Which re-runs a program offers, beside the first runs."""

    #: In the stages of backward parts, what the stage can use, directly or through other re-runs.
    BACKWARD = "backward"
    #: The same in all stages.
    WANTED = "wanted"
    #: Every forward part in every later stage, for all its interface tensors: small trees only.
    ALL = "all"


@dataclass(frozen=True, eq=False)
class Level:
    """Blocks, their menus, and the program that chooses among them."""

    tree: BlockTree
    leaves: tuple[Leaf, ...]
    #: Options of each block.
    menus: tuple[tuple[Option, ...], ...]
    program: Program
    #: Phantom of each option of each block, -1 when it saves nothing.
    phantoms: tuple[tuple[int, ...], ...]


def build_level(
    graph: Graph,
    tree: BlockTree,
    leaves: Sequence[Leaf],
    menus: Sequence[Sequence[Option]],
    budget: int,
    *,
    reruns: Reruns,
) -> Level:
    """The program of one level.

    First runs: a forward part with each distinct set of saved tensors, a backward part with each option.
    Re-runs, where `reruns` says: fast-forwards that make interface tensors, from scratch or from a phantom
    that is still there.

    Parameters
    ----------
    budget : int
        Bytes, pinned tensors subtracted.
    """
    phantom_bytes: list[int] = []
    phantoms: list[tuple[int, ...]] = []
    saving: list[dict[tuple[int, ...], int]] = []
    for leaf, menu in zip(leaves, menus, strict=True):
        known: dict[tuple[int, ...], int] = {}
        for option in menu:
            if option.saved and option.saved not in known:
                known[option.saved] = len(phantom_bytes)
                phantom_bytes.append(int(leaf.size[list(option.saved)].sum()))
        saving.append(known)
        phantoms.append(tuple(known.get(option.saved, -1) for option in menu))

    has_backward = any(item.backward for item in tree.items)
    actions: dict[Slot, list[Action]] = {}
    place = {item: k for k, item in enumerate(tree.items)}
    backward_place = {item.block: k for item, k in place.items() if item.backward}
    for t, item in enumerate(tree.items):
        leaf, menu = leaves[item.block], menus[item.block]
        first: list[Action] = []
        if item.backward:
            for option, q in zip(menu, phantoms[item.block], strict=True):
                first.append(_action(leaf, option.backward, uses=q))
        else:
            seen: set[tuple[bytes, tuple[int, ...]]] = set()
            for option, q in zip(menu, phantoms[item.block], strict=True):
                key = (option.forward.sequence.tobytes(), option.saved)
                if key not in seen:
                    seen.add(key)
                    first.append(_action(leaf, option.forward, saves=q))
        actions[t, t] = first
        if has_backward and not item.backward and reruns is Reruns.BACKWARD:
            continue
        direct = {x for action in first for x in action.reads}
        wanted = set(range(graph.n_tensors)) if reruns is Reruns.ALL else set(direct)
        for k in range(t - 1, -1, -1):
            source = tree.items[k]
            if source.backward:
                continue
            leaf = leaves[source.block]
            shown = np.flatnonzero(leaf.forward_made & leaf.shared).tolist()
            made = [x for x in shown if int(leaf.tensors[x]) in wanted]
            usable = saving[source.block] if backward_place.get(source.block, -1) >= t else {}
            again = list(_fast_forwards(leaf, made, direct, usable))
            if again:
                actions[t, k] = again
                # Only what re-runs from scratch read is followed further back.
                wanted |= set(again[0].reads)
    size = graph.size.copy()
    for leaf in leaves:
        size[leaf.tensors[leaf.shared]] = leaf.bundle_bytes[leaf.shared]
    return Level(
        tree=tree,
        leaves=tuple(leaves),
        menus=tuple(tuple(menu) for menu in menus),
        program=Program(
            n_items=len(tree.items),
            actions=actions,
            size=size,
            is_output=graph.is_output,
            phantom_bytes=np.array(phantom_bytes, np.int64),
            budget=budget,
            time_unit=graph.total_time / 100 if graph.total_time > 0 else 1.0,
        ),
        phantoms=tuple(phantoms),
    )


def _fast_forwards(
    leaf: Leaf, made: Sequence[int], direct: set[int], usable: dict[tuple[int, ...], int]
) -> Iterator[Action]:
    """Fast-forwards of a block for the bundles `made`, the one from scratch for all of them first.

    `direct` : bundles that the stage's own item reads; only for these do phantoms help.
    """
    if not made:
        return
    scratch = fast_forward(leaf, made)
    if scratch is None:
        return
    yield _rerun(leaf, scratch)
    read_here = [x for x in made if int(leaf.tensors[x]) in direct]
    targets = {tuple(made), tuple(read_here), *((x,) for x in read_here)}
    seen = {scratch.tobytes()}
    for target in sorted(targets - {()}):
        for saved, q in ((), -1), *usable.items():
            sequence = fast_forward(leaf, target, saved)
            if sequence is None or sequence.tobytes() in seen:
                continue
            if saved:
                alone = fast_forward(leaf, target)
                if alone is not None and len(alone) == len(sequence):
                    continue
                carried = np.zeros(len(leaf.size), np.bool_)
                carried[list(saved)] = True
                yield _rerun(leaf, sequence, carried, q)
            else:
                seen.add(sequence.tobytes())
                yield _rerun(leaf, sequence)


def _rerun(leaf: Leaf, sequence: IntArray, carried: BoolArray | None = None, phantom: int = -1) -> Action:
    nothing = np.zeros(len(leaf.size), np.bool_)
    part = measure(leaf, sequence, backward=False, survives=nothing, carried=carried)
    return _action(leaf, part, uses=phantom, carries=phantom >= 0)


def _action(leaf: Leaf, part: Part, *, saves: int = -1, uses: int = -1, carries: bool = False) -> Action:
    tensors = leaf.tensors
    return Action(
        ops=leaf.ops[part.sequence],
        time=part.time,
        reads=tuple(int(tensors[x]) for x in part.reads),
        makes=tuple(int(tensors[x]) for x in part.makes),
        internal=part.internal,
        states=part.states,
        saves=saves,
        uses=uses,
        carries=carries,
    )


def diagonal_choice(level: Level, picks: Sequence[int]) -> Choice:
    """The choice without re-runs in which block j uses its option picks[j]."""
    choice: Choice = {}
    for t, item in enumerate(level.tree.items):
        pick = picks[item.block]
        if item.backward:
            choice[t, t] = pick
            continue
        option, q = level.menus[item.block][pick], level.phantoms[item.block][pick]
        ops = level.leaves[item.block].ops[option.forward.sequence]
        choice[t, t] = next(
            k
            for k, action in enumerate(level.program.actions[t, t])
            if action.saves == q and np.array_equal(action.ops, ops)
        )
    return choice


def picks_of(level: Level, choice: Choice) -> list[int]:
    """The option each block uses in a choice (the first that fits, for blocks without backward part)."""
    picks = [0] * len(level.tree.blocks)
    for t, item in enumerate(level.tree.items):
        if item.backward:
            picks[item.block] = choice[t, t]
        elif not len(level.tree.blocks[item.block].backward):
            ops = level.program.actions[t, t][choice[t, t]].ops
            leaf = level.leaves[item.block]
            picks[item.block] = next(
                k
                for k, option in enumerate(level.menus[item.block])
                if np.array_equal(leaf.ops[option.forward.sequence], ops)
            )
    return picks


def translate_choice(old: Level, new: Level, choice: Choice) -> Choice | None:
    """A choice of `old` in the actions of `new`; None when one of them is no longer there."""
    result: Choice = {}
    for slot, k in choice.items():
        action = old.program.actions[slot][k]
        key = _key(old, action)
        match = next(
            (i for i, other in enumerate(new.program.actions.get(slot, ())) if _key(new, other) == key), None
        )
        if match is None:
            return None
        result[slot] = match
    return result


def _key(level: Level, action: Action) -> tuple[bytes, int, int, bool, int, int]:
    """Equal for the same action in two levels of one tree; phantoms are told apart by their bytes."""
    saved = int(level.program.phantom_bytes[action.saves]) if action.saves >= 0 else -1
    used = int(level.program.phantom_bytes[action.uses]) if action.uses >= 0 else -1
    return action.ops.tobytes(), saved, used, action.carries, len(action.internal), int(action.internal.sum())


