"""A block tree as a drawing: DOT text always, SVG where graphviz is installed."""

from __future__ import annotations

import math
import subprocess

from hremate._files import Source, write_text
from hremate.errors import HremateError, MissingExtraError
from hremate.graph import Graph
from hremate.partition.tree import BlockTree


def block_tree_dot(graph: Graph, tree: BlockTree) -> str:
    """The blocks of `tree` as a graph in the DOT language.

    A node for each block with its ops (forward + backward), its share of the base time and the scope that
    all its forward ops have in common; blocks without children are drawn darker.
    """
    lines = [
        "digraph blocks {",
        '  graph [rankdir=LR, ranksep=0.6, nodesep=0.12, bgcolor="transparent"];',
        '  node [shape=box, style="filled,rounded", fontname="Helvetica", fontsize=10, '
        'color="#5B7083", fillcolor="#EAF2F8", margin="0.12,0.06"];',
        '  edge [arrowhead=none, color="#8FA1B0"];',
        f"  root [label={_quoted(f'{graph.name}{chr(10)}{graph.n_ops} ops')}];",
    ]
    _add_blocks(graph, tree, "", "root", lines)
    return "\n".join([*lines, "}"]) + "\n"


def write_block_tree(graph: Graph, tree: BlockTree, path: Source) -> None:
    """Write the drawing of `tree`: SVG where the name ends in `.svg`, else DOT; whole or not at all.

    Raises
    ------
    MissingExtraError
        SVG is asked for and the program `dot` of graphviz is not installed.
    OSError
        The file cannot be written.
    """
    text = block_tree_dot(graph, tree)
    write_text(path, _svg(text) if str(path).endswith((".svg", ".svg.gz")) else text)


def _add_blocks(graph: Graph, tree: BlockTree, prefix: str, parent: str, lines: list[str]) -> None:
    for k, block in enumerate(tree.blocks):
        name = f"{prefix}{k}"
        spent = math.fsum(graph.time[block.ops].tolist())
        share = spent / graph.total_time if graph.total_time > 0 else 0.0
        scope = _common_scope([graph.op_scopes[op] for op in block.forward.tolist()])
        label = f"block {name}\n{len(block.forward)} + {len(block.backward)} ops, {share:.1%} of time"
        fill = "#CFE3F1" if block.children is None else "#EAF2F8"
        lines.append(
            f'  b{name.replace(".", "_")} [label={_quoted(label + (chr(10) + scope if scope else ""))}, '
            f'fillcolor="{fill}"];'
        )
        lines.append(f"  {parent} -> b{name.replace('.', '_')};")
        if block.children is not None:
            _add_blocks(graph, block.children, f"{name}.", f"b{name.replace('.', '_')}", lines)


def _common_scope(scopes: list[str]) -> str:
    """The longest module path that all of them begin with."""
    parts = [scope.split(".") for scope in scopes]
    common = []
    for step in zip(*parts, strict=False):
        if len(set(step)) > 1:
            break
        common.append(step[0])
    return ".".join(common)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", "\\n")
    return f'"{escaped}"'


def _svg(dot: str) -> str:
    try:
        done = subprocess.run(["dot", "-Tsvg"], input=dot, capture_output=True, encoding="utf-8", check=False)
    except FileNotFoundError:
        raise MissingExtraError("SVG of a block tree needs the program dot: install graphviz") from None
    if done.returncode != 0:
        raise HremateError(f"dot failed: {done.stderr.strip()[:200]}")
    return done.stdout
