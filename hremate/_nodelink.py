"""The node-link JSON of the Moccasin and Checkmate data sets.

networkx writes it: `nodes` with an `id`, `links` (or `edges`) with `source` and `target`. Two variants
were published: nodes with `cost_cpu`, `cost_ram` and `backward`, and nodes with `duration` and
`out_cost` whose given order is `graph.order`. Each node is one op with one output; there are no graph
outputs.
"""

from __future__ import annotations

from typing import Any

from hremate._order import stable_order
from hremate.errors import DuplicateNameError, FormatError, InvalidValueError, UnknownTensorError
from hremate.graph import Graph, Op

#: The attributes of time and output bytes in each variant.
_VARIANTS = (("cost_cpu", "cost_ram"), ("duration", "out_cost"))


def looks_like_node_link(document: dict[str, Any]) -> bool:
    return "nodes" in document and ("links" in document or "edges" in document)


def parse_node_link(document: dict[str, Any], name: str) -> Graph:
    """Build the graph of a node-link document.

    Ops are named by node id, integers as `n7` with the tensor `t7`. The given order is `graph.order`
    where the file has one, else the listing, sorted topologically with the earliest listed first.

    Raises
    ------
    FormatError, DuplicateNameError, UnknownTensorError, InvalidValueError, CycleError, OrderError
        Each names the node or the edge.
    """
    nodes = _list(document, "nodes")
    links = _list(document, "links" if "links" in document else "edges")
    if document.get("directed", True) is not True:
        raise FormatError("'directed' is not true; expected a directed graph")
    index_of: dict[int | str, int] = {}
    for i, node in enumerate(nodes):
        if not isinstance(node, dict) or "id" not in node:
            raise FormatError(f"node {i} of 'nodes' is no object with an 'id'")
        node_id = _id(node["id"], f"node {i} of 'nodes'")
        if node_id in index_of:
            raise DuplicateNameError(f"two nodes have the id {node_id!r} ({index_of[node_id]} and {i})")
        index_of[node_id] = i
    ids = list(index_of)

    reads: list[dict[int, None]] = [{} for _ in nodes]
    for k, link in enumerate(links):
        if not isinstance(link, dict) or "source" not in link or "target" not in link:
            raise FormatError(f"edge {k} is no object with 'source' and 'target'")
        ends = []
        for side in ("source", "target"):
            end = _id(link[side], f"'{side}' of edge {k}")
            if end not in index_of:
                raise UnknownTensorError(f"edge {k}: its {side} {end!r} is no node")
            ends.append(index_of[end])
        reads[ends[1]][ends[0]] = None

    ops = [_op(ids[i], nodes[i], [ids[p] for p in reads[i]]) for i in _given_order(document, index_of, reads)]
    return Graph.from_ops(ops, name=name, units=("abstract", "bytes"))


def _given_order(
    document: dict[str, Any], index_of: dict[int | str, int], reads: list[dict[int, None]]
) -> list[int]:
    attributes = document.get("graph", {})
    if not isinstance(attributes, dict) or "order" not in attributes:
        return stable_order([list(r) for r in reads])
    order: list[int] = []
    seen = [False] * len(index_of)
    for k, value in enumerate(_list(attributes, "order", "graph.order")):
        node_id = _id(value, f"entry {k} of graph.order")
        if node_id not in index_of:
            raise UnknownTensorError(f"graph.order: {node_id!r} is no node")
        if seen[index_of[node_id]]:
            raise DuplicateNameError(f"graph.order lists node {node_id!r} twice")
        seen[index_of[node_id]] = True
        order.append(index_of[node_id])
    if len(order) != len(index_of):
        missing = next(node_id for node_id, i in index_of.items() if not seen[i])
        raise FormatError(f"graph.order does not list node {missing!r}")
    return order


def _op(node_id: int | str, node: dict[str, Any], reads: list[int | str]) -> Op:
    for time_key, bytes_key in _VARIANTS:
        if time_key in node and bytes_key in node:
            break
    else:
        raise FormatError(f"node {node_id!r} has neither cost_cpu and cost_ram nor duration and out_cost")
    backward = node.get("backward")
    if backward is not None and not (isinstance(backward, (bool, int)) and backward in (0, 1)):
        raise InvalidValueError(f"node {node_id!r}: backward is {backward!r}; expected true or false")
    label = node.get("name", "")
    return Op(
        name=_name(node_id, "n"),
        time=node[time_key],
        inputs=tuple(_name(p, "t") for p in reads),
        outputs=((_name(node_id, "t"), node[bytes_key]),),
        phase=None if backward is None else "backward" if backward else "forward",
        scope=label if isinstance(label, str) else "",
    )


def _name(node_id: int | str, letter: str) -> str:
    return node_id if isinstance(node_id, str) else f"{letter}{node_id}"


def _id(value: Any, where: str) -> int | str:
    if isinstance(value, bool) or not isinstance(value, (int, str)) or value == "":
        raise InvalidValueError(f"{where} is {str(value)[:40]!r}; expected an integer or a name")
    return value


def _list(holder: dict[str, Any], key: str, label: str | None = None) -> list[Any]:
    value = holder[key]
    if not isinstance(value, list):
        raise FormatError(f"'{label or key}' is no list")
    return value
