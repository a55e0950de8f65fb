"""Figures of the beam search as Markdown: peaks without recomputation, scale, and graphs with known answers.

    python examples/benchmarks/beam.py [--part peaks|optimum|scale|files] [--data FOLDER]

`--data` is a folder with the public graphs (rl100.json.gz, huawei-example1.txt, ...); without it the last
part is left out.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from hremate import Graph, base_peak, generate, read_graph, simulate
from hremate.solvers.base import Deadline
from hremate.solvers.beam import beam_search
from hremate.solvers.orders import NO_LIMIT, smallest_peak_order
from hremate.solvers.searcher import Searcher, make_policy

#: Twenty parameterised kinds; ten seeds each, sizes spread over 50..2,000 ops.
KINDS: list[tuple[str, dict[str, int]]] = [
    ("chain", {}),
    ("chain", {"width": 256}),
    ("transformer", {}),
    ("transformer", {"batch": 1}),
    ("transformer", {"heads": 2}),
    ("encdec", {}),
    ("encdec", {"batch": 1}),
    ("unet", {"levels": 3}),
    ("unet", {"levels": 4}),
    ("unet", {"levels": 2}),
    ("resnet", {}),
    ("resnet", {"stages": 2}),
    ("resnet", {"stages": 3}),
    ("rnn", {"layers": 1}),
    ("rnn", {"layers": 2}),
    ("rnn", {"layers": 4}),
    ("ssm", {}),
    ("ssm", {"layers": 2}),
    ("layered", {}),
    ("series-parallel", {}),
]
SEEDS = 10
OPS = (50, 2000)


def greedy_order(graph: Graph) -> np.ndarray:
    """The order of a beam of width 1 without seeds and without a budget."""
    searcher = Searcher(graph, 1, 0, Deadline())
    order = searcher.beam(NO_LIMIT, make_policy(graph, np.arange(graph.n_ops)))
    assert order is not None  # nothing stands in the way
    return order


def optimal_peak(graph: Graph) -> int:
    """Least peak over all orders without recomputation: dynamic programming over sets of ops that ran."""
    reads = [sum(1 << int(p) for p in {*graph.producer[graph.inputs_of(i)].tolist()})
             for i in range(graph.n_ops)]  # fmt: skip
    users = [
        sum(1 << int(j) for j in graph.use_idx[graph.use_ptr[x] : graph.use_ptr[x + 1]])
        for x in range(graph.n_tensors)
    ]
    end = 1 << graph.n_ops  # reads the outputs
    for x in graph.outputs:
        users[int(x)] |= end
    made = graph.out_bytes.tolist()
    peaks: dict[int, int] = {0: 0}
    live: dict[int, int] = {0: 0}
    for _ in range(graph.n_ops):
        following: dict[int, int] = {}
        after: dict[int, int] = {}
        for ran, peak in peaks.items():
            for i in range(graph.n_ops):
                if ran >> i & 1 or reads[i] & ~ran:
                    continue
                now = ran | 1 << i
                dying = sum(
                    int(graph.size[x]) for x in graph.inputs_of(i) if not users[int(x)] & ~now
                )
                held, workspace = live[ran], int(graph.workspace[i])
                if graph.memory_model == "reuse":
                    here = max(held + workspace, held - dying + made[i])
                else:
                    here = held + made[i] + workspace
                unread = sum(int(graph.size[x]) for x in graph.outputs_of(i) if not users[x])
                after[now] = held - dying + made[i] - unread
                following[now] = min(following.get(now, NO_LIMIT), max(peak, here))
        peaks, live = following, after
    return next(iter(peaks.values()))


def peaks() -> None:
    """Peaks without recomputation on generated graphs, width 8 against greedy and the given order."""
    print("| kind | ops | greedy / given | beam / given | beam / greedy |")
    print("|---|---|---|---|---|")
    ratios = []
    for kind, options in KINDS:
        rows = []
        for seed in range(SEEDS):
            ops = round(OPS[0] * (OPS[1] / OPS[0]) ** (seed / (SEEDS - 1)))
            graph = generate(kind, ops, seed=seed, **options)
            given = base_peak(graph)
            greedy = simulate(graph, greedy_order(graph)).peak
            beam = simulate(graph, smallest_peak_order(graph, 8)).peak
            rows.append((greedy / given, beam / given, beam / greedy))
        ratios += rows
        means = " | ".join(f"{x:.3f}" for x in np.mean(rows, axis=0))
        label = kind + "".join(f" {key}={value}" for key, value in options.items())
        print(f"| {label} | {OPS[0]}-{OPS[1]} | {means} |", flush=True)
    table = np.array(ratios)
    print(f"| all {len(table)} | | " + " | ".join(f"{x:.3f}" for x in table.mean(axis=0)) + " |")
    for name, column in (("greedy", table[:, 2]), ("the given order", table[:, 1])):
        quantiles = ", ".join(f"{q} %: {np.percentile(column, q):.3f}" for q in (0, 10, 25, 50, 75, 90, 100))
        better = column[column < 1]
        print(f"\nbeam against {name}: {quantiles}; mean where better ({len(better)} graphs): "
              f"{better.mean() if len(better) else 1:.3f}")  # fmt: skip


def optimum() -> None:
    """Beam of width 8 against the proven smallest peak of 50 graphs of 16 to 20 ops."""
    gaps = []
    for seed in range(25):
        for kind in ("layered", "series-parallel"):
            graph = generate(kind, 16 + seed % 5, seed=seed)
            beam = simulate(graph, smallest_peak_order(graph, 8)).peak
            gaps.append(beam / optimal_peak(graph) - 1)
    gaps_array = np.array(gaps)
    print(f"\nagainst the smallest peak of {len(gaps)} graphs: optimal on {(gaps_array == 0).sum()}, "
          f"mean {100 * gaps_array.mean():.2f} % above, at most {100 * gaps_array.max():.2f} %")  # fmt: skip


def scale() -> None:
    """Time of beam at width 8 on large graphs, compiled beforehand."""
    small = generate("layered", 50)
    for percent in (100, 60):
        beam_search(small, base_peak(small) * percent // 100, width=2)
    print("\n| graph | budget | overhead % | smallest peak / budget | s | GB in all |")
    print("|---|---|---|---|---|---|")
    for kind, ops in (("transformer", 10_000), ("layered", 10_000), ("transformer", 238_000)):
        graph = generate(kind, ops, seed=1)
        for percent in (100, 60):
            budget = base_peak(graph) * percent // 100
            begin = time.perf_counter()
            found = beam_search(graph, budget, width=8)
            seconds = time.perf_counter() - begin
            overhead = "-" if found.order is None else f"{100 * (found.time / graph.total_time - 1):.3f}"
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(f"| {kind} {ops} | {percent} % | {overhead} | {found.smallest_peak / budget:.3f} | "
                  f"{seconds:.2f} | {memory:.2f} |", flush=True)  # fmt: skip


def files(folder: Path) -> None:
    """Public graphs at their own limits, and the random layered ones at 80 %."""
    print("\n| graph | memory | time | overhead % | s |")
    print("|---|---|---|---|---|")
    cases = [(f"huawei-example{k}.txt", "coexist", False) for k in (1, 2, 3, 4)]
    cases += [("huawei-example1.txt", "reuse", False), ("huawei-example5-first66k.txt.gz", "reuse", True)]
    cases += [("rl100.json.gz", "coexist", False), ("rl250.json.gz", "coexist", False)]
    for name, model, keep_all in cases:
        text = ".txt" in name
        graph = read_graph(folder / name, memory_model=model, keep_all=keep_all) if text else read_graph(
            folder / name)  # fmt: skip
        budget = int(graph.metadata["budget"]) if text else base_peak(graph) * 80 // 100
        begin = time.perf_counter()
        found = beam_search(graph, budget, width=8)
        seconds = time.perf_counter() - begin
        overhead = 100 * (found.time / graph.total_time - 1)
        print(f"| {name} | {model} | {found.time:.10g} | {overhead:.4f} | {seconds:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", choices=["peaks", "optimum", "scale", "files"])
    parser.add_argument("--data", type=Path)
    arguments = parser.parse_args()
    for part in (peaks, optimum, scale):
        if arguments.part in (None, part.__name__):
            part()
    if arguments.data is not None and arguments.part in (None, "files"):
        files(arguments.data)


if __name__ == "__main__":
    main()
