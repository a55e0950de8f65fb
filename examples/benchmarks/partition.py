"""What the partitioners make of graphs, and how long they take, as Markdown tables.

    python examples/benchmarks/partition.py examples/graphs/*.json.gz --blocks 8
    python examples/benchmarks/partition.py --generate transformer,unet --ops 100000,250000

Of a graph from a file: number of blocks, classes of equal blocks, bytes that the blocks share with each
other, and the score of `evaluate` (share of the bytes that no option of a block decides about; small is
good). Of a generated graph: CPU seconds to cut it into blocks, and to split it down to the leaves.
"""

from __future__ import annotations

import argparse
import time

import hremate as hr
from hremate.partition.evaluate import evaluate
from hremate.partition.nested import Limits, nested
from hremate.partition.registry import PARTITIONERS
from hremate.partition.tree import check_tree


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("graphs", nargs="*", metavar="GRAPH")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of a level (%(default)s)")
    parser.add_argument("--leaf-ops", type=int, default=100, help="ops of a leaf (%(default)s)")
    parser.add_argument("--generate", default="", metavar="KINDS", help="kinds of graph, separated by commas")
    parser.add_argument("--ops", default="3000,100000", help="separated by commas (%(default)s)")
    args = parser.parse_args()

    limits = Limits(blocks=args.blocks, leaf_ops=args.leaf_ops)
    for name in PARTITIONERS:  # compiles the kernels
        nested(hr.generate("chain", 300), Limits(blocks=3, leaf_ops=30), name)
    if args.graphs:
        print("| graph (ops) | partitioner | blocks | classes | shared | score | ms |")
        print("|---|---|---|---|---|---|---|")
    for path in args.graphs:
        graph = hr.read_graph(path)
        for name in PARTITIONERS:
            print(shape(graph, name, args.blocks), flush=True)
    kinds = [kind for kind in args.generate.split(",") if kind]
    if kinds:
        print("| graph | partitioner | one level, s | all levels, s | levels | leaves |")
        print("|---|---|---|---|---|---|")
    for kind in kinds:
        for ops in args.ops.split(","):
            graph = hr.generate(kind, int(ops))
            for name in PARTITIONERS:
                print(times(graph, name, limits), flush=True)


def shape(graph: hr.Graph, name: str, blocks: int) -> str:
    """A row about the blocks of one level."""
    start = time.process_time()
    tree = PARTITIONERS[name].load()(graph, blocks)
    seconds = time.process_time() - start
    check_tree(graph, tree)
    seen = evaluate(graph, tree)
    return (
        f"| {graph.name} ({graph.n_ops:,}) | {name} | {seen.n_blocks} | {seen.classes} "
        f"| {hr.format_bytes(seen.interface_bytes)} | {seen.score:.3f} | {1000 * seconds:.1f} |"
    )


def times(graph: hr.Graph, name: str, limits: Limits) -> str:
    """A row about the seconds that cutting takes."""
    start = time.process_time()
    PARTITIONERS[name].load()(graph, limits.blocks)
    one = time.process_time() - start
    start = time.process_time()
    tree = nested(graph, limits, name)
    all_levels = time.process_time() - start
    check_tree(graph, tree)
    leaves = sum(1 for _ in tree.leaves())
    return f"| {graph.name} | {name} | {one:.2f} | {all_levels:.2f} | {tree.depth} | {leaves:,} |"


if __name__ == "__main__":
    main()
