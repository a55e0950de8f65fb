"""The computation graph: frozen, arrays inside, names at the border.

An op runs for `time`, needs `workspace` bytes while it runs, reads input tensors and makes output
tensors. A tensor has one producer; a tensor nobody produces is *resident* (a weight, a model input):
always there, costs nothing in a schedule. Ops are numbered by the *given order*, which is topological;
tensors are numbered by producer, so the outputs of op `i` are the half-open range
`out_ptr[i]:out_ptr[i + 1]`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hremate._gc import paused_collection
from hremate.errors import (
    CycleError,
    DuplicateNameError,
    EmptyGraphError,
    GraphError,
    InvalidValueError,
    OrderError,
    UnknownTensorError,
)

if TYPE_CHECKING:
    import networkx as nx

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: The phases an op may carry, by code; an op without a phase has code -1.
PHASES = ("forward", "loss", "backward")
FORWARD, LOSS, BACKWARD = range(3)
#: The two rules for the memory of a step, see `hremate.simulate`.
MEMORY_MODELS = ("coexist", "reuse")
#: Sizes are summed in int64; a graph whose bytes could overflow that sum is refused.
MAX_TOTAL_BYTES = 2**62
#: Times are summed over recomputations and multiplied by bytes in float64; the limit keeps both finite.
MAX_TOTAL_TIME = 1e150
#: Times are divided by as well, also by those of parts of a graph: an op takes no time or at least so much.
MIN_TIME = 1e-150


@dataclass(frozen=True)
class Op:
    """One operator, as graphs are built from it and shown at the border."""

    name: str
    #: Run time, finite and >= 0, in the unit of the graph.
    time: float
    #: Names of the tensors it reads; repeats count once.
    inputs: tuple[str, ...] = ()
    #: (name, bytes) of the tensors it makes, maybe none.
    outputs: tuple[tuple[str, int], ...] = ()
    #: Bytes needed only while it runs.
    workspace: int = 0
    #: "forward", "loss", "backward" or None.
    phase: str | None = None
    #: Operator type, e.g. "aten.addmm.default".
    type: str = ""
    #: Module path, e.g. "h.0.attn".
    scope: str = ""
    #: May run only once (dropout whose mask cannot be reproduced, a collective).
    once: bool = False


@dataclass(frozen=True, eq=False)
class Graph:
    """A DAG of operators with times and tensor sizes. Build one with `Graph.from_ops` or a reader.

    All arrays are read-only. `n` is the number of ops, `m` of tensors made by ops.
    """

    name: str
    op_names: tuple[str, ...]
    #: Run time of each op, float64[n], >= 0.
    time: FloatArray
    #: Bytes each op needs only while it runs, int64[n].
    workspace: IntArray
    #: Phase code of each op (an index into `PHASES`, -1 for none), int8[n].
    phase: npt.NDArray[np.int8]
    #: Ops that may run only once, bool[n].
    once: BoolArray
    tensor_names: tuple[str, ...]
    #: Bytes of each tensor, int64[m].
    size: IntArray
    #: Op that makes each tensor, int64[m], ascending.
    producer: IntArray
    #: Outputs of op i are the tensors out_ptr[i]:out_ptr[i+1], int64[n+1].
    out_ptr: IntArray
    #: Inputs of op i (resident tensors left out, distinct, ascending): in_idx[in_ptr[i]:in_ptr[i+1]].
    in_ptr: IntArray
    in_idx: IntArray
    #: Ops that read tensor x, ascending: use_idx[use_ptr[x]:use_ptr[x+1]].
    use_ptr: IntArray
    use_idx: IntArray
    #: Tensors that must be alive at the end, ascending.
    outputs: IntArray
    #: "coexist" or "reuse".
    memory_model: str = "coexist"
    #: Bytes of the resident tensors, reported beside the peak and never inside it.
    resident: int = 0
    op_types: tuple[str, ...] = ()
    op_scopes: tuple[str, ...] = ()
    #: Names of the resident tensors that each op reads.
    resident_inputs: tuple[tuple[str, ...], ...] = ()
    #: Graph outputs that are resident.
    resident_outputs: tuple[str, ...] = ()
    #: Units of time and memory, e.g. ("us", "bytes").
    units: tuple[str, str] = ("us", "bytes")
    #: Fields of the file that hremate does not interpret; kept through a round trip.
    metadata: Mapping[str, Any] = field(default_factory=dict)

    # -- construction ---------------------------------------------------------------------------

    @classmethod
    def from_ops(
        cls,
        ops: Sequence[Op],
        outputs: Iterable[str] = (),
        *,
        name: str = "graph",
        memory_model: str = "coexist",
        resident: int = 0,
        units: tuple[str, str] = ("us", "bytes"),
        metadata: Mapping[str, Any] | None = None,
    ) -> Graph:
        """Build a graph from `ops` listed in a topological order, and check it.

        Parameters
        ----------
        ops : sequence of Op
            In the given order. An input that no op makes is a resident tensor.
        outputs : iterable of str
            Tensors that must be alive at the end.

        Raises
        ------
        EmptyGraphError, DuplicateNameError, UnknownTensorError, CycleError, OrderError, InvalidValueError
            Each names the op or tensor at fault.

        Examples
        --------
        >>> g = Graph.from_ops([Op("a", 1.0, (), (("x", 8),)), Op("b", 2.0, ("x",), (("y", 4),))], ["y"])
        >>> g.n_ops, g.n_tensors
        (2, 2)
        """
        if memory_model not in MEMORY_MODELS:
            raise InvalidValueError(f"memory_model is {memory_model!r}; expected 'coexist' or 'reuse'")
        if not ops:
            raise EmptyGraphError(f"graph {name!r} has no ops")
        resident = _bytes(resident, "resident", f"graph {name!r}")
        op_id: dict[str, int] = {}
        tensor_id: dict[str, int] = {}
        size: list[int] = []
        out_ptr = [0]
        for i, op in enumerate(ops):
            if not isinstance(op.name, str) or not op.name:
                raise InvalidValueError(f"op {i} has no name")
            if op.name in op_id:
                raise DuplicateNameError(f"two ops are named {op.name!r} (ops {op_id[op.name]} and {i})")
            op_id[op.name] = i
            for tensor, nbytes in op.outputs:
                if tensor in tensor_id:
                    first = ops[int(np.searchsorted(out_ptr, tensor_id[tensor], side="right")) - 1]
                    first_name = first.name if tensor_id[tensor] < out_ptr[-1] else op.name
                    raise DuplicateNameError(
                        f"tensor {tensor!r} is made twice, by op {first_name!r} and by op {op.name!r}"
                    )
                tensor_id[tensor] = len(size)
                if type(nbytes) is not int or not 0 <= nbytes < 2**63:
                    nbytes = _bytes(nbytes, f"size of tensor {tensor!r}", f"op {op.name!r}")
                size.append(nbytes)
            out_ptr.append(len(size))
        producer = np.repeat(np.arange(len(ops), dtype=np.int64), np.diff(out_ptr))

        times: list[float] = []
        workspace: list[int] = []
        phase: list[int] = []
        once: list[bool] = []
        in_ptr = [0]
        in_idx: list[int] = []
        resident_inputs: list[tuple[str, ...]] = []
        unordered: tuple[int, str] | None = None
        for i, op in enumerate(ops):
            if type(op.time) is not float or not (MIN_TIME <= op.time < math.inf or op.time == 0):
                times.append(_time(op.time, op.name))
            else:
                times.append(op.time)
            if type(op.workspace) is not int or not 0 <= op.workspace < 2**63:
                workspace.append(_bytes(op.workspace, "workspace", f"op {op.name!r}"))
            else:
                workspace.append(op.workspace)
            if op.phase is None:
                phase.append(-1)
            elif op.phase in PHASES:
                phase.append(PHASES.index(op.phase))
            else:
                raise InvalidValueError(
                    f"op {op.name!r}: phase is {_shown(op.phase)}; expected one of {', '.join(PHASES)}"
                )
            if not isinstance(op.once, (bool, np.bool_)):
                raise InvalidValueError(f"op {op.name!r}: once is {op.once!r}; expected true or false")
            once.append(bool(op.once))
            made = [tensor_id[x] for x in op.inputs if x in tensor_id]
            if len(made) == len(op.inputs):
                resident_inputs.append(())
            else:
                resident_inputs.append(tuple(dict.fromkeys(x for x in op.inputs if x not in tensor_id)))
            if len(made) > 1:
                made = sorted(set(made))
            if made and made[-1] >= out_ptr[i] and unordered is None:
                unordered = (i, next(x for x in op.inputs if tensor_id.get(x, -1) >= out_ptr[i]))
            in_idx.extend(made)
            in_ptr.append(len(in_idx))
        in_ptr_array, in_idx_array = _frozen(in_ptr), _frozen(in_idx)
        if unordered is not None:
            _raise_disorder(ops, producer, in_ptr_array, in_idx_array, *unordered)

        read = {x for names in resident_inputs for x in names}
        made_outputs: set[int] = set()
        resident_outputs: dict[str, None] = {}
        for x in outputs:
            if x in tensor_id:
                made_outputs.add(tensor_id[x])
            elif x in read:
                resident_outputs[x] = None
            else:
                raise UnknownTensorError(f"graph output {x!r} is made by no op and read by no op")
        total = sum(size) + sum(workspace) + resident
        if total >= MAX_TOTAL_BYTES:
            raise InvalidValueError(f"the sizes of graph {name!r} add up to {total} bytes; the limit is 2^62")
        try:
            total_time = math.fsum(times)
        except OverflowError:
            total_time = math.inf
        if total_time >= MAX_TOTAL_TIME:
            shown = "infinity" if math.isinf(total_time) else f"{total_time:.3g}"
            raise InvalidValueError(
                f"the times of graph {name!r} add up to {shown}; the limit is {MAX_TOTAL_TIME:g}"
            )
        use_ptr, use_idx = _transpose(in_ptr_array, in_idx_array, len(size))
        return cls(
            name=name,
            op_names=tuple(op.name for op in ops),
            time=_frozen(times, np.float64),
            workspace=_frozen(workspace),
            phase=_frozen(phase, np.int8),
            once=_frozen(once, np.bool_),
            tensor_names=tuple(tensor_id),
            size=_frozen(size),
            producer=_frozen(producer),
            out_ptr=_frozen(out_ptr),
            in_ptr=in_ptr_array,
            in_idx=in_idx_array,
            use_ptr=use_ptr,
            use_idx=use_idx,
            outputs=_frozen(sorted(made_outputs)),
            memory_model=memory_model,
            resident=resident,
            op_types=tuple(op.type for op in ops),
            op_scopes=tuple(op.scope for op in ops),
            resident_inputs=tuple(resident_inputs),
            resident_outputs=tuple(resident_outputs),
            units=units,
            metadata=dict(metadata or {}),
        )

    @classmethod
    def from_networkx(
        cls, graph: nx.DiGraph, outputs: Iterable[Any] | None = None, *, name: str | None = None
    ) -> Graph:
        """Build a graph from a networkx DiGraph: one op and one output tensor for each node.

        Node attributes: `time`, `memory` (bytes of the node's output), optional `workspace`, `phase`,
        `once`, `type`, `scope`. Edges say who reads whom. The given order is the topological order that
        follows the order of insertion wherever the edges leave a choice. The tensor of a node has the
        node's name. `outputs` are nodes (default: the graph attribute `outputs`, else none); graph
        attributes `memory_model` and `resident` are honoured.

        Raises
        ------
        CycleError, InvalidValueError, EmptyGraphError, UnknownTensorError
        """
        import networkx as nx

        if not graph.is_directed() or graph.is_multigraph():
            raise GraphError("expected a networkx.DiGraph (directed, without parallel edges)")
        position = {node: i for i, node in enumerate(graph)}
        try:
            order = list(nx.lexicographical_topological_sort(graph, key=position.__getitem__))
        except nx.NetworkXUnfeasible:
            cycle = [str(edge[0]) for edge in nx.find_cycle(graph)]
            raise CycleError("the ops form a cycle: " + " -> ".join([*cycle, cycle[0]])) from None
        ops = []
        for node in order:
            data = graph.nodes[node]
            for key in ("time", "memory"):
                if key not in data:
                    raise InvalidValueError(f"node {node!r} has no attribute {key!r}")
            ops.append(
                Op(
                    name=str(node),
                    time=data["time"],
                    inputs=tuple(str(p) for p in graph.predecessors(node)),
                    outputs=((str(node), data["memory"]),),
                    workspace=data.get("workspace", 0),
                    phase=data.get("phase"),
                    type=str(data.get("type", "")),
                    scope=str(data.get("scope", "")),
                    once=data.get("once", False),
                )
            )
        if outputs is None:
            outputs = graph.graph.get("outputs", ())
        return cls.from_ops(
            ops,
            [str(x) for x in outputs],
            name=name or str(graph.graph.get("name") or "graph"),
            memory_model=graph.graph.get("memory_model", "coexist"),
            resident=graph.graph.get("resident", 0),
        )

    def to_networkx(self) -> nx.DiGraph:
        """A DiGraph with one node per op, in the given order.

        Node attributes: `time`, `memory` (bytes of all outputs), `workspace`, `phase`, `once`, `type`,
        `scope`; an edge carries `tensors`, the names read along it. An op with several outputs becomes
        one node whose memory is their sum, so a round trip through networkx is exact only for graphs
        whose ops have one output each.
        """
        import networkx as nx

        result = nx.DiGraph(name=self.name, memory_model=self.memory_model, resident=self.resident)
        for i, op in enumerate(self.op_names):
            attributes: dict[str, Any] = {
                "time": float(self.time[i]),
                "memory": int(self.size[self.out_ptr[i] : self.out_ptr[i + 1]].sum()),
                "workspace": int(self.workspace[i]),
                "once": bool(self.once[i]),
                "type": self.op_types[i],
                "scope": self.op_scopes[i],
            }
            if self.phase[i] >= 0:
                attributes["phase"] = PHASES[self.phase[i]]
            result.add_node(op, **attributes)
            for x in self.inputs_of(i):
                producer = self.op_names[self.producer[x]]
                if not result.has_edge(producer, op):
                    result.add_edge(producer, op, tensors=[])
                result.edges[producer, op]["tensors"].append(self.tensor_names[x])
        result.graph["outputs"] = list(
            dict.fromkeys(self.op_names[self.producer[x]] for x in self.outputs)
        )
        return result

    # -- reading --------------------------------------------------------------------------------

    @property
    def n_ops(self) -> int:
        return len(self.op_names)

    @property
    def n_tensors(self) -> int:
        return len(self.tensor_names)

    def inputs_of(self, op: int) -> IntArray:
        """Tensors that op `op` reads (resident ones left out), ascending."""
        return self.in_idx[self.in_ptr[op] : self.in_ptr[op + 1]]

    def outputs_of(self, op: int) -> range:
        """Tensors that op `op` makes."""
        return range(int(self.out_ptr[op]), int(self.out_ptr[op + 1]))

    def users_of(self, tensor: int) -> IntArray:
        """Ops that read `tensor`, ascending."""
        return self.use_idx[self.use_ptr[tensor] : self.use_ptr[tensor + 1]]

    def op(self, index: int) -> Op:
        """Op `index` with names, as `from_ops` takes it."""
        return Op(
            name=self.op_names[index],
            time=float(self.time[index]),
            inputs=tuple(self.tensor_names[x] for x in self.inputs_of(index)) + self.resident_inputs[index],
            outputs=tuple((self.tensor_names[x], int(self.size[x])) for x in self.outputs_of(index)),
            workspace=int(self.workspace[index]),
            phase=PHASES[self.phase[index]] if self.phase[index] >= 0 else None,
            type=self.op_types[index],
            scope=self.op_scopes[index],
            once=bool(self.once[index]),
        )

    @cached_property
    def total_time(self) -> float:
        """Sum of all op times: the time of a schedule without recomputation."""
        return math.fsum(self.time.tolist())

    @cached_property
    def out_bytes(self) -> IntArray:
        """Bytes of all outputs of each op, int64[n]."""
        cumulative = np.concatenate([[0], np.cumsum(self.size)])
        return _frozen(cumulative[self.out_ptr[1:]] - cumulative[self.out_ptr[:-1]])

    @cached_property
    def is_output(self) -> BoolArray:
        """Whether each tensor is a graph output, bool[m]."""
        flags = np.zeros(self.n_tensors, np.bool_)
        flags[self.outputs] = True
        return _frozen(flags, np.bool_)

    @cached_property
    def predecessors(self) -> tuple[IntArray, IntArray]:
        """CSR (ptr, idx) of the distinct ops whose outputs each op reads, ascending."""
        # Tensors are numbered by producer, so equal producers are neighbours in each sorted input list.
        owner = np.repeat(np.arange(self.n_ops), np.diff(self.in_ptr))
        source = self.producer[self.in_idx] if len(self.in_idx) else np.empty(0, np.int64)
        keep = np.ones(len(source), np.bool_)
        keep[1:] = (source[1:] != source[:-1]) | (owner[1:] != owner[:-1])
        counts = np.bincount(owner[keep], minlength=self.n_ops)
        return _frozen(np.concatenate([[0], np.cumsum(counts)])), _frozen(source[keep])

    @cached_property
    def successors(self) -> tuple[IntArray, IntArray]:
        """CSR (ptr, idx) of the distinct ops that read some output of each op, ascending."""
        ptr, idx = self.predecessors
        return _transpose(ptr, idx, self.n_ops)

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical JSON of the graph (sorted keys, no spaces)."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The graph as the JSON object of format `hremate-graph/1`."""
        with paused_collection():
            ops = self._op_entries()
        return {
            **self.metadata,
            "format": "hremate-graph/1",
            "name": self.name,
            "units": {"time": self.units[0], "memory": self.units[1]},
            "resident": self.resident,
            "memory_model": self.memory_model,
            "ops": ops,
            "outputs": [self.tensor_names[x] for x in self.outputs] + list(self.resident_outputs),
        }

    def _op_entries(self) -> list[dict[str, Any]]:
        """The `ops` of `to_dict`."""
        # One conversion per array: reading single elements of arrays costs ten times as much.
        size, in_idx = self.size.tolist(), self.in_idx.tolist()
        in_ptr, out_ptr = self.in_ptr.tolist(), self.out_ptr.tolist()
        columns = zip(
            self.time.tolist(), self.workspace.tolist(), self.once.tolist(), self.phase.tolist(), strict=True
        )
        ops = []
        for i, (time, workspace, once, phase) in enumerate(columns):
            entry: dict[str, Any] = {
                "name": self.op_names[i],
                "type": self.op_types[i],
                "scope": self.op_scopes[i],
                "time": time,
                "workspace": workspace,
                "once": once,
                "inputs": [
                    *[self.tensor_names[x] for x in in_idx[in_ptr[i] : in_ptr[i + 1]]],
                    *self.resident_inputs[i],
                ],
                "outputs": [
                    {"name": self.tensor_names[x], "size": size[x]} for x in range(out_ptr[i], out_ptr[i + 1])
                ],
            }
            if phase >= 0:
                entry["phase"] = PHASES[phase]
            ops.append(entry)
        return ops

    def __repr__(self) -> str:
        return f"<Graph {self.name!r}: {self.n_ops} ops, {self.n_tensors} tensors, {self.memory_model}>"

    # -- new graphs from old --------------------------------------------------------------------

    def with_memory_model(self, memory_model: str) -> Graph:
        """The same graph under another memory model."""
        if memory_model not in MEMORY_MODELS:
            raise InvalidValueError(f"memory_model is {memory_model!r}; expected 'coexist' or 'reuse'")
        return replace(self, memory_model=memory_model)

    def prune(self) -> Graph:
        """Drop the ops that lead to no graph output. Without graph outputs nothing is dropped."""
        if not len(self.outputs):
            return self
        needed = np.zeros(self.n_ops, np.bool_)
        needed[self.producer[self.outputs]] = True
        ptr, idx = self.predecessors
        for i in range(self.n_ops - 1, -1, -1):
            if needed[i]:
                needed[idx[ptr[i] : ptr[i + 1]]] = True
        if needed.all():
            return self
        return self._take(np.flatnonzero(needed), self.is_output)

    def subgraph(self, ops: Iterable[int], *, name: str | None = None) -> Graph:
        """The graph of `ops` (any order, distinct) alone, in the given order.

        Tensors made outside become resident inputs, at no cost; tensors read outside, and graph outputs,
        become the outputs. Op `k` of the result is the k-th smallest of `ops`.

        Raises
        ------
        InvalidValueError
            An index is out of range or occurs twice.
        EmptyGraphError
            `ops` is empty.
        """
        chosen = np.sort(np.asarray(list(ops), np.int64))
        if not len(chosen):
            raise EmptyGraphError(f"a subgraph of {self.name!r} without ops")
        if chosen[0] < 0 or chosen[-1] >= self.n_ops or (np.diff(chosen) == 0).any():
            raise InvalidValueError("subgraph: op indices must be distinct and within the graph")
        inside = np.zeros(self.n_ops, np.bool_)
        inside[chosen] = True
        reader = self.use_idx
        read_outside = np.zeros(self.n_tensors, np.bool_)
        tensor_of_use = np.repeat(np.arange(self.n_tensors), np.diff(self.use_ptr))
        read_outside[tensor_of_use[~inside[reader]]] = True
        return self._take(chosen, self.is_output | read_outside, name=name)

    def _take(self, ops: IntArray, is_output: BoolArray, *, name: str | None = None) -> Graph:
        """The graph of the ascending `ops`, with the tensors flagged in `is_output` as outputs."""
        chosen = [self.op(int(i)) for i in ops]
        made = np.zeros(self.n_tensors, np.bool_)
        for i in ops:
            made[self.out_ptr[i] : self.out_ptr[i + 1]] = True
        outputs = [self.tensor_names[x] for x in np.flatnonzero(made & is_output)]
        read = {x for op in chosen for x in op.inputs}
        return Graph.from_ops(
            chosen,
            outputs + [x for x in self.resident_outputs if x in read],
            name=name or self.name,
            memory_model=self.memory_model,
            resident=self.resident,
            units=self.units,
            metadata=self.metadata,
        )


def _frozen(values: Any, dtype: Any = np.int64) -> Any:
    array = np.array(values, dtype=dtype)
    array.setflags(write=False)
    return array


def _transpose(ptr: IntArray, idx: IntArray, n_columns: int) -> tuple[IntArray, IntArray]:
    """Transpose a CSR incidence; rows come out ascending."""
    rows = np.repeat(np.arange(len(ptr) - 1, dtype=np.int64), np.diff(ptr))
    counts = np.bincount(idx, minlength=n_columns) if len(idx) else np.zeros(n_columns, np.int64)
    order = np.argsort(idx, kind="stable")
    return _frozen(np.concatenate([[0], np.cumsum(counts)])), _frozen(rows[order])


def _bytes(value: Any, what: str, where: str) -> int:
    """Check a size in bytes: an integer (or an integral float) in 0 .. 2^63 - 1."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidValueError(f"{where}: {what} is {_shown(value)}; expected an integer number of bytes")
    if isinstance(value, (float, np.floating)) and not float(value).is_integer():
        raise InvalidValueError(f"{where}: {what} is {_shown(value)}; expected an integer number of bytes")
    value = int(value)
    if value < 0:
        raise InvalidValueError(f"{where}: {what} is {_shown(value)}; it must not be negative")
    if value >= 2**63:
        raise InvalidValueError(f"{where}: {what} is {_shown(value)}; it must be below 2^63")
    return value


def _time(value: Any, op: str) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidValueError(f"op {op!r}: time is {_shown(value)}; expected a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise InvalidValueError(f"op {op!r}: time is {_shown(value)}; it must be finite")
    if result < 0:
        raise InvalidValueError(f"op {op!r}: time is {_shown(value)}; it must not be negative")
    if 0 < result < MIN_TIME:
        raise InvalidValueError(
            f"op {op!r}: time is {_shown(value)}; expected 0 or at least {MIN_TIME:g}: take a smaller unit"
        )
    return result


def _shown(value: Any) -> str:
    """`value` in an error message, cut short: an integer may have thousands of digits."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _raise_disorder(
    ops: Sequence[Op], producer: IntArray, in_ptr: IntArray, in_idx: IntArray, op: int, tensor: str
) -> None:
    """Raise CycleError when the ops form a cycle, OrderError when they are only listed out of order."""
    n = len(ops)
    pred = [sorted({int(p) for p in producer[in_idx[in_ptr[i] : in_ptr[i + 1]]]}) for i in range(n)]
    state = [0] * n  # 0 new, 1 on the path, 2 done
    for root in range(n):
        if state[root]:
            continue
        path = [root]
        todo = [iter(pred[root])]
        state[root] = 1
        while path:
            nxt = next(todo[-1], None)
            if nxt is None:
                state[path.pop()] = 2
                todo.pop()
            elif state[nxt] == 1:
                cycle = path[path.index(nxt) :][::-1]
                names = [ops[i].name for i in [cycle[-1], *cycle]]
                if len(cycle) == 1:
                    raise CycleError(f"op {names[0]!r} reads its own output")
                raise CycleError("the ops form a cycle: " + " -> ".join(names[:12]))
            elif state[nxt] == 0:
                state[nxt] = 1
                path.append(nxt)
                todo.append(iter(pred[nxt]))
    raise OrderError(
        f"op {ops[op].name!r} reads tensor {tensor!r}, which a later op makes; "
        "list the ops in a topological order"
    )
