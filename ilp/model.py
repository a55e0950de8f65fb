"""The hierarchical ILP: which option each block uses, what is kept between blocks, what runs again.

Items k = 0 .. T-1 are the parts of the blocks in an order in which they can run. Stage t first runs item
t; before it, items k < t may run again, by increasing k: the slots (t, k). A binary R[t,k,a] says that
action a of item k runs in slot (t, k). Interface tensors, and the phantoms (what an option saves between
the forward and the backward part of its block), live on *segments*: between two consecutive slots whose
actions can make or use them. With R fixed the least segments are 0/1, so only R is integer, and the memory
rows need no big-M. A block may be run again in any stage and keep its phantom for several later ones
(Gusak et al., ICML 2025, pin it to one).
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hremate.graph import BoolArray, FloatArray, IntArray
from hremate.ilp.leaf import AFTER, BEFORE, HELD
from hremate.solvers.milp import Milp, MilpBuilder

#: (stage, item).
Slot = tuple[int, int]
#: A budget beyond this many units is measured in coarser ones.
FINEST_UNITS = 10**5
COARSE_UNITS = 2**18
#: In place of a variable: never alive, always alive.
NEVER, ALWAYS = -1, -2


@dataclass(frozen=True, eq=False)
class Action:
    """One way to run an item in a slot, in the ids of the graph."""

    #: Ops in order.
    ops: IntArray
    time: float
    #: Interface tensors that it needs from before, and those that it makes.
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    #: Bytes it accounts for itself at each undominated sub-step, int64[c].
    internal: IntArray
    #: State of each of `reads + makes` at each sub-step, int8[c, k] (see `hremate.ilp.leaf.Part`).
    states: npt.NDArray[np.int8]
    #: Phantom that it leaves behind, -1 for none.
    saves: int = -1
    #: Phantom that it starts from, -1 for none.
    uses: int = -1
    #: Whether the phantom it starts from must stay (a fast-forward), not be used up (a backward part).
    carries: bool = False


@dataclass(frozen=True, eq=False)
class Program:
    """What the H-ILP is built from."""

    n_items: int
    #: Actions allowed in each slot (t, k), k <= t; every (t, t) has at least one.
    actions: Mapping[Slot, Sequence[Action]]
    #: Bytes of every tensor of the graph.
    size: IntArray
    #: Tensors that must be alive at the end, bool[tensors of the graph].
    is_output: BoolArray
    #: Bytes of each phantom.
    phantom_bytes: IntArray
    #: Bytes available (pinned tensors subtracted).
    budget: int
    #: Time units of one unit of the objective.
    time_unit: float


#: Which action runs in each slot that is used.
Choice = dict[Slot, int]


class Unsatisfiable(Exception):
    """No choice satisfies a program: some row has no variable and does not hold."""


class _Life:
    """Segments of one tensor or phantom: a variable between any two consecutive slots that touch it."""

    def __init__(self, slots: list[Slot], last: int) -> None:
        self.slots = slots
        #: variables[i] lies before slots[i]; the last one after all of them.
        self.variables = [NEVER] * len(slots) + [last]

    def before(self, slot: Slot) -> int:
        return self.variables[bisect.bisect_left(self.slots, slot)]

    def after(self, slot: Slot) -> int:
        return self.variables[bisect.bisect_right(self.slots, slot)]


class HierarchicalModel:
    """The H-ILP of a program as a MILP, with its starts and its answers translated.

    Raises
    ------
    Unsatisfiable
        What must always be in memory exceeds the budget.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.slots = sorted(program.actions)
        self.unit = _memory_unit(program)
        builder = MilpBuilder()
        self.run: dict[Slot, list[int]] = {}
        for slot in self.slots:
            actions = program.actions[slot]
            self.run[slot] = [builder.add_var(cost=a.time / program.time_unit, integer=True) for a in actions]
            first = slot[0] == slot[1]
            if first or len(actions) > 1:
                builder.add_row(self.run[slot], [1.0] * len(actions), 1.0 if first else -math.inf, 1.0)
        self.tensors: dict[int, _Life] = {}
        self.phantoms: dict[int, _Life] = {}
        self._add_lives(builder)
        #: Bytes alive after each slot, as a share of the budget.
        self.total: dict[Slot, int] = {}
        #: Whether an action holds a tensor that nobody needs later, by (slot, action, tensor).
        self.held: dict[tuple[Slot, int, int], int] = {}
        self._add_memory(builder)
        self.milp: Milp = builder.build()

    # -- building -------------------------------------------------------------------------------

    def _add_lives(self, builder: MilpBuilder) -> None:
        touching: tuple[dict[int, set[Slot]], dict[int, set[Slot]]] = ({}, {})
        for slot in self.slots:
            for action in self.program.actions[slot]:
                for x in (*action.reads, *action.makes):
                    touching[0].setdefault(x, set()).add(slot)
                for q in (action.saves, action.uses):
                    if q >= 0:
                        touching[1].setdefault(q, set()).add(slot)
        for lives, touched, phantom in (
            (self.tensors, touching[0], False),
            (self.phantoms, touching[1], True),
        ):
            for x in sorted(touched):
                final = not phantom and bool(self.program.is_output[x])
                life = _Life(sorted(touched[x]), ALWAYS if final else NEVER)
                lives[x] = life
                for i in range(1, len(life.slots)):
                    life.variables[i] = builder.add_var()
                for i, slot in enumerate(life.slots):
                    self._add_touch(builder, x, phantom, slot, life.variables[i], life.variables[i + 1])

    def _add_touch(
        self, builder: MilpBuilder, x: int, phantom: bool, slot: Slot, before: int, after: int
    ) -> None:
        """Rows of one tensor or phantom at a slot: what is used was there, what is there was made."""
        using: list[int] = []
        making: list[int] = []
        for action, run in zip(self.program.actions[slot], self.run[slot], strict=True):
            if action.uses == x if phantom else x in action.reads:
                using.append(run)
                if phantom and action.carries:
                    _add_sum(builder, [(run, 1.0), (after, -1.0)], 0.0)
            if action.saves == x if phantom else x in action.makes:
                making.append(run)
        if using:
            _add_sum(builder, [*((run, 1.0) for run in using), (before, -1.0)], 0.0)
        if after != NEVER:
            _add_sum(builder, [(after, 1.0), (before, -1.0), *((run, -1.0) for run in making)], 0.0)

    def _add_memory(self, builder: MilpBuilder) -> None:
        program = self.program
        size = -(-program.size // self.unit)
        phantom_bytes = -(-program.phantom_bytes // self.unit)
        budget = program.budget // self.unit
        self.scale = 1.0 / max(1, budget)
        self.limit = budget * self.scale
        for slot in self.slots:
            # Everything alive after the slot; each sub-step of an action differs from it in a few terms.
            total = builder.add_var(upper=math.inf)
            self.total[slot] = total
            alive = [(life.after(slot), float(size[x])) for x, life in self.tensors.items()]
            alive += [(life.after(slot), float(phantom_bytes[q])) for q, life in self.phantoms.items()]
            terms = [(v, s * self.scale) for v, s in alive]
            _add_sum(builder, [*terms, (total, -1.0)], 0.0)
            for k, (action, run) in enumerate(zip(program.actions[slot], self.run[slot], strict=True)):
                self._add_action(builder, slot, k, action, run, size, phantom_bytes)

    def _add_action(
        self, builder: MilpBuilder, slot: Slot, k: int, action: Action, run: int,
        size: IntArray, phantom_bytes: IntArray,
    ) -> None:  # fmt: skip
        touched = (*action.reads, *action.makes)
        for c in range(len(action.internal)):
            terms = [(self.total[slot], 1.0), (run, -(-int(action.internal[c]) // self.unit) * self.scale)]
            for x, state in zip(touched, action.states[c].tolist(), strict=True):
                life = self.tensors[x]
                before, after = life.before(slot), life.after(slot)
                if state == HELD and after != ALWAYS:
                    terms.append((self._held(builder, slot, k, x, run, after), size[x] * self.scale))
                elif state == BEFORE:
                    terms += [(before, size[x] * self.scale), (after, -size[x] * self.scale)]
                else:
                    assert state in (HELD, AFTER)
            if action.saves >= 0:
                # Counted inside as it is made; a copy carried from before counts throughout.
                life = self.phantoms[action.saves]
                nbytes = phantom_bytes[action.saves] * self.scale
                terms += [(life.before(slot), nbytes), (life.after(slot), -nbytes)]
            _add_sum(builder, terms, self.limit)

    def _held(self, builder: MilpBuilder, slot: Slot, k: int, x: int, run: int, after: int) -> int:
        """A variable >= R - after: 1 when the action holds tensor x that nobody needs later."""
        if after == NEVER:
            return run
        key = (slot, k, x)
        if key not in self.held:
            self.held[key] = builder.add_var()
            _add_sum(builder, [(run, 1.0), (after, -1.0), (self.held[key], -1.0)], 0.0)
        return self.held[key]

    # -- translating ----------------------------------------------------------------------------

    def start(self, choice: Choice) -> FloatArray | None:
        """The complete solution in which exactly the actions of `choice` run; None when reads are unmet."""
        x = np.zeros(self.milp.n_vars)
        for slot, k in choice.items():
            x[self.run[slot][k]] = 1.0
        for lives, phantom in ((self.tensors, False), (self.phantoms, True)):
            for tensor, life in lives.items():
                needed = not phantom and bool(self.program.is_output[tensor])
                for i in range(len(life.slots) - 1, -1, -1):
                    slot = life.slots[i]
                    if life.variables[i + 1] >= 0:
                        x[life.variables[i + 1]] = needed
                    elif needed and life.variables[i + 1] == NEVER:
                        return None
                    if slot not in choice:
                        continue
                    action = self.program.actions[slot][choice[slot]]
                    if action.saves == tensor if phantom else tensor in action.makes:
                        needed = False
                    if action.uses == tensor if phantom else tensor in action.reads:
                        if phantom and action.carries and not needed:
                            return None
                        needed = True
                if needed:
                    return None
        size = -(-self.program.size // self.unit)
        phantom_bytes = -(-self.program.phantom_bytes // self.unit)
        for slot in self.slots:
            total = 0.0
            for lives, nbytes in ((self.tensors, size), (self.phantoms, phantom_bytes)):
                for tensor, life in lives.items():
                    after = life.after(slot)
                    if after == ALWAYS or (after >= 0 and x[after]):
                        total += float(nbytes[tensor])
            x[self.total[slot]] = total * self.scale
        for (slot, k, tensor), variable in self.held.items():
            after = self.tensors[tensor].after(slot)
            x[variable] = max(0.0, x[self.run[slot][k]] - x[after])
        return x

    def choice(self, x: FloatArray) -> Choice:
        """The actions that run in a solution."""
        return {
            slot: int(np.argmax(x[self.run[slot]]))
            for slot in self.slots
            if x[self.run[slot]].max(initial=0.0) > 0.5
        }

    def order(self, choice: Choice) -> IntArray:
        """The ops of a choice, in the order of the slots."""
        parts = [self.program.actions[slot][k].ops for slot, k in sorted(choice.items())]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _add_sum(builder: MilpBuilder, terms: Sequence[tuple[int, float]], upper: float) -> None:
    """Add sum value * variable <= upper; NEVER counts as 0 and ALWAYS as 1, repeated variables add up."""
    merged: dict[int, float] = {}
    for variable, value in terms:
        if variable == ALWAYS:
            upper -= value
        elif variable != NEVER:
            merged[variable] = merged.get(variable, 0.0) + value
    merged = {v: c for v, c in merged.items() if c}
    if merged:
        builder.add_row(list(merged), list(merged.values()), -math.inf, upper)
    elif upper < 0:
        raise Unsatisfiable


def _memory_unit(program: Program) -> int:
    """Bytes of one memory unit: the common divisor of all sizes where the budget is few of them."""
    divisor = 0
    for actions in program.actions.values():
        for action in actions:
            for array in (action.internal, program.size[list((*action.reads, *action.makes))]):
                if len(array):
                    divisor = math.gcd(divisor, int(np.gcd.reduce(array)))
    for nbytes in program.phantom_bytes.tolist():
        divisor = math.gcd(divisor, nbytes)
    if divisor and program.budget // divisor <= FINEST_UNITS:
        return divisor
    return max(1, -(-program.budget // COARSE_UNITS))
