"""A traced fx graph as a list of ops that can be run one by one, in any order that a schedule asks for.

A *tensor* is an output of an op with a storage of its own; it is what a schedule keeps or drops. Views,
and the items of an op with several outputs, belong to the op that reads them: they are made again from
their base whenever they are needed and cost nothing.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils._pytree import tree_leaves

from hremate.torch._instruction import Instruction, Slot

#: Batch norms; arguments 3 and 4 are the running statistics, 5 is the flag `training`.
_BATCH_NORMS = {"aten._native_batch_norm_legit_functional.default"}
#: The same, with running statistics that are written behind the back of their schemas.
_WRITING_BATCH_NORMS = {"aten.cudnn_batch_norm.default", "aten.miopen_batch_norm.default"}
#: Op libraries whose ops talk to other processes: never run twice.
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional")


@dataclass
class TracedOp:
    """One op: how to run it, and what it reads and makes."""

    node: Node
    #: The views that it reads, then the op.
    instructions: list[Instruction] = field(default_factory=list)
    #: (index into the op's value or None for the value itself, slot) of each tensor it makes.
    made: list[tuple[int | None, int]] = field(default_factory=list)
    #: Slots of the tensors that it reads, ascending.
    reads: list[int] = field(default_factory=list)
    #: Slots of the leaves (weights, inputs, constants) that it reads, ascending.
    leaves: list[int] = field(default_factory=list)
    #: Those among them whose values make no difference when the op runs again.
    ignored: frozenset[int] = frozenset()
    #: Leaves that the op writes to when it runs, which must happen once.
    written: frozenset[int] = frozenset()
    random: bool = False
    once: bool = False
    #: Whether eager mode runs it with gradients enabled: some kernels return more then.
    gradients: bool = False


@dataclass
class Program:
    """The ops of a trace in its order. Slots 0 .. n_leaves - 1 of an environment hold the placeholders and
    the constants, the slots after them the tensors that ops make, the last ones views."""

    ops: list[TracedOp]
    n_placeholders: int
    #: Values of the leaves after the placeholders.
    constants: list[torch.Tensor]
    n_slots: int
    #: Slot -> (op, output) of each tensor that ops make, in the order of the graph's tensors.
    tensors: list[tuple[int, int]]
    #: Bytes of each tensor.
    sizes: list[int]
    #: For each node of the output of the trace: how to get its value, None where there is none.
    results: list[Result | None]
    #: Slots of the tensors and leaves that the value of a node lies in.
    lies_in: dict[Node, frozenset[int]]

    @property
    def n_leaves(self) -> int:
        return self.n_placeholders + len(self.constants)


@dataclass(frozen=True)
class Result:
    """A value that the trace returns: views to make, and where it is then."""

    node: Node
    instructions: tuple[Instruction, ...]
    slot: int
    #: Tensors and leaves that it lies in.
    reads: tuple[int, ...]
    leaves: tuple[int, ...]


def build(graph: torch.fx.Graph, root: Any) -> Program:
    """The program of a functional fx graph whose nodes carry fake values in `meta["val"]`.

    `root` has the constants of the graph as attributes.

    Raises
    ------
    NotImplementedError
        An op modifies one of its inputs, or makes nested lists of tensors.
    """
    return _Builder(graph, root).program()


class _Builder:
    def __init__(self, graph: torch.fx.Graph, root: Any) -> None:
        self._root = root
        self._nodes = list(graph.nodes)
        self._live = _live_nodes(self._nodes)
        #: Where the value of a node is: a leaf, a tensor or a view; ops with several outputs have none.
        self._slot: dict[Node, int] = {}
        #: Slots of tensors and leaves that the value of a node lies in.
        self._deps: dict[Node, frozenset[int]] = {}
        #: How to make a view.
        self._view: dict[Node, Instruction] = {}
        self._items: dict[Node, dict[int, int]] = {}
        self._owners: dict[int, frozenset[int]] = {}
        self._tensors: list[tuple[int, int]] = []
        self._sizes: list[int] = []
        self._ops: list[TracedOp] = []

    def program(self) -> Program:
        placeholders = [n for n in self._nodes if n.op == "placeholder"]
        constants = [n for n in self._nodes if n.op == "get_attr"]
        for slot, node in enumerate(placeholders + constants):
            self._slot[node] = slot
            self._deps[node] = frozenset((slot,))
            for tensor in _tensors(node.meta.get("val")):
                self._owners.setdefault(_storage(tensor), self._deps[node])
        self._n_leaves = len(self._slot)
        calls = [n for n in self._nodes if n.op == "call_function" and n in self._live]
        #: Views come after all tensors, whose number is not known before the last op is seen.
        self._n_slots = self._n_leaves + sum(len(_tensors(n.meta.get("val"))) for n in calls)
        for node in calls:
            self._add(node)
        (output,) = (n for n in self._nodes if n.op == "output")
        results = [self._result(value) for value in output.args[0]]
        return Program(
            ops=self._ops,
            n_placeholders=len(placeholders),
            constants=[_attribute(self._root, str(n.target)) for n in constants],
            n_slots=self._n_slots,
            tensors=self._tensors,
            sizes=self._sizes,
            results=results,
            lies_in=self._deps,
        )

    def _add(self, node: Node) -> None:
        if node.target is operator.getitem:
            self._add_item(node)
            return
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            raise NotImplementedError(f"{node.name} ({node.target}) modifies its input")
        outputs = _tensors(node.meta.get("val"))
        random = is_random(node)
        if outputs and not random and all(_storage(t) in self._owners for t in outputs):
            self._add_view(node)
        else:
            self._add_op(node, random)

    def _add_item(self, node: Node) -> None:
        source: Any = node.args[0]
        index: Any = node.args[1]
        if source in self._items and index in self._items[source]:
            slot = self._items[source][index]
            self._slot[node] = slot
            alias = self._owners[_storage(node.meta["val"])]
            self._deps[node] = frozenset((slot,)) | alias
        elif source in self._view:
            self._add_view(node)
        # else the op made None at this place, and nobody reads it

    def _add_view(self, node: Node) -> None:
        slot = self._n_slots
        self._n_slots += 1
        self._slot[node] = slot
        self._deps[node] = self._all_deps(node)
        self._view[node] = self._instruction(node, slot)

    def _add_op(self, node: Node, random: bool) -> None:
        i = len(self._ops)
        deps = self._all_deps(node)
        op = TracedOp(
            node,
            self._views_of(node),
            reads=sorted(x for x in deps if x >= self._n_leaves),
            leaves=sorted(x for x in deps if x < self._n_leaves),
            ignored=self._running_statistics(node, _BATCH_NORMS | _WRITING_BATCH_NORMS),
            written=self._running_statistics(node, _WRITING_BATCH_NORMS),
            random=random,
            once=str(getattr(node.target, "namespace", "")) in _COLLECTIVES,
        )
        op.instructions.append(self._instruction(node, None))
        value = node.meta.get("val")
        parts = list(enumerate(value)) if isinstance(value, (tuple, list)) else [(None, value)]
        for index, part in parts:
            if not isinstance(part, torch.Tensor):
                if _tensors(part):
                    raise NotImplementedError(f"{node.name} ({node.target}) makes nested lists of tensors")
                continue
            slot = self._n_leaves + len(self._tensors)
            storage = _storage(part)
            # An output that lies in an input, or in an output before it, has no bytes of its own.
            fresh = storage not in self._owners
            self._tensors.append((i, len(op.made)))
            self._sizes.append(part.untyped_storage().nbytes() if fresh else 0)
            self._owners.setdefault(storage, frozenset((slot,)))
            op.made.append((index, slot))
            if index is None:
                self._slot[node] = slot
                self._deps[node] = frozenset((slot,)) | self._owners[storage]
            else:
                self._items.setdefault(node, {})[index] = slot
        self._ops.append(op)

    def _instruction(self, node: Node, slot: int | None) -> Instruction:
        function: Any = node.target
        return Instruction.of(function, self._fill(node.args), self._fill(node.kwargs), slot)

    def _running_statistics(self, node: Node, kinds: set[str]) -> frozenset[int]:
        """Leaves that are the running statistics of a batch norm in training mode of one of `kinds`.

        They only determine the new statistics, which the first run gives; a later run makes its other
        outputs from the batch alone.
        """
        if str(node.target) not in kinds or node.args[5] is not True:
            return frozenset()
        statistics = [a for a in node.args[3:5] if isinstance(a, Node)]
        return frozenset(self._slot[a] for a in statistics if self._slot[a] < self._n_leaves)

    def _all_deps(self, node: Node) -> frozenset[int]:
        return frozenset().union(*(self._deps[a] for a in node.all_input_nodes if a in self._deps))

    def _views_of(self, node: Node) -> list[Instruction]:
        """The views that the arguments of `node` are, bases first, each once."""
        seen: set[Node] = set()
        found: list[Instruction] = []

        def visit(node: Node) -> None:
            if node in self._view and node not in seen:
                seen.add(node)
                for base in node.all_input_nodes:
                    visit(base)
                found.append(self._view[node])

        for argument in node.all_input_nodes:
            visit(argument)
        return found

    def _result(self, value: Any) -> Result | None:
        if not isinstance(value, Node):
            return None
        views = [*self._views_of(value), self._view[value]] if value in self._view else []
        deps = self._deps[value]
        return Result(
            value,
            tuple(views),
            self._slot[value],
            tuple(sorted(x for x in deps if x >= self._n_leaves)),
            tuple(sorted(x for x in deps if x < self._n_leaves)),
        )

    def _fill(self, args: Any) -> Any:
        """`args` with slots in the places of nodes, in plain lists, tuples and dicts."""
        if isinstance(args, Node):
            return Slot(self._slot[args])
        if isinstance(args, dict):
            return {key: self._fill(value) for key, value in args.items()}
        if isinstance(args, (list, tuple)):
            filled = [self._fill(a) for a in args]
            return tuple(filled) if isinstance(args, tuple) else filled
        return args


def is_random(node: Node) -> bool:
    """Whether a node draws from a generator."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _live_nodes(nodes: list[Node]) -> set[Node]:
    """The nodes that something depends on: results, random draws and ops without outputs."""
    live: set[Node] = set()
    for node in reversed(nodes):
        if node.op == "output" or node in live or _has_effect(node):
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _has_effect(node: Node) -> bool:
    if node.op != "call_function":
        return False
    schema = getattr(node.target, "_schema", None)
    collective = getattr(node.target, "namespace", "") in _COLLECTIVES
    return is_random(node) or collective or (schema is not None and not schema.returns)


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module
