"""A set of ops as a graph of its own."""

from __future__ import annotations

import numpy as np

from hremate.graph import Graph, IntArray


def ranges(ptr: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Where the CSR rows `rows` lie: (ptr of the rows alone, indices of their entries)."""
    counts = ptr[rows + 1] - ptr[rows]
    own = np.concatenate([[0], np.cumsum(counts)])
    entries: IntArray = np.arange(own[-1]) + np.repeat(ptr[rows] - own[:-1], counts)
    return own, entries


def subgraph(graph: Graph, ops: IntArray) -> Graph:
    """The graph of `ops` alone, op k of it being `ops[k]`.

    Tensors made by other ops are resident there, and left out; its outputs are the tensors that other
    ops read, and the outputs of `graph`.

    Parameters
    ----------
    ops : int64[k]
        Distinct ops in a topological order.
    """
    out_ptr, tensors = ranges(graph.out_ptr, ops)
    local = np.full(graph.n_tensors, -1, np.int64)
    local[tensors] = np.arange(len(tensors))
    arc_ptr, arcs = ranges(graph.in_ptr, ops)
    reader = np.repeat(np.arange(len(ops)), np.diff(arc_ptr))
    read = local[graph.in_idx[arcs]]
    inside = read >= 0
    reader, read = reader[inside], read[inside]
    by_reader = np.lexsort((read, reader))
    by_tensor = np.lexsort((reader, read))
    readers_here = np.bincount(read, minlength=len(tensors))
    readers = graph.use_ptr[tensors + 1] - graph.use_ptr[tensors]
    op_ids, tensor_ids = ops.tolist(), tensors.tolist()
    return Graph(
        name=graph.name,
        op_names=tuple([graph.op_names[i] for i in op_ids]),
        time=_frozen(graph.time[ops]),
        workspace=_frozen(graph.workspace[ops]),
        phase=_frozen(graph.phase[ops]),
        once=_frozen(graph.once[ops]),
        tensor_names=tuple([graph.tensor_names[x] for x in tensor_ids]),
        size=_frozen(graph.size[tensors]),
        producer=_frozen(np.repeat(np.arange(len(ops)), np.diff(out_ptr))),
        out_ptr=_frozen(out_ptr),
        in_ptr=_frozen(np.concatenate([[0], np.cumsum(np.bincount(reader, minlength=len(ops)))])),
        in_idx=_frozen(read[by_reader]),
        use_ptr=_frozen(np.concatenate([[0], np.cumsum(readers_here)])),
        use_idx=_frozen(reader[by_tensor]),
        outputs=_frozen(np.flatnonzero((readers > readers_here) | graph.is_output[tensors])),
        memory_model=graph.memory_model,
        op_types=tuple([graph.op_types[i] for i in op_ids]),
        op_scopes=tuple([graph.op_scopes[i] for i in op_ids]),
        resident_inputs=((),) * len(ops),
        units=graph.units,
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
