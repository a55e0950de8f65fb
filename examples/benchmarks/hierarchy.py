"""What the hierarchy costs and what it gains: small graphs against proved optima, large ones against `cut`.

    python examples/benchmarks/hierarchy.py --part optimum
    python examples/benchmarks/hierarchy.py --part depth
    python examples/benchmarks/hierarchy.py --part phaseless --graphs DATA/rl100.json.gz,layered:200:1
    python examples/benchmarks/hierarchy.py --part parallel
    python examples/benchmarks/hierarchy.py --part scale --graphs rnn:100000 --budgets 30% --time-limit 600
    python examples/benchmarks/hierarchy.py --part against --time-limit 150

`optimum`: overhead of two levels before polish, above the optimum that `exact` proves, on small graphs.
`depth`: overhead of three levels against two on the same graphs. `phaseless`: hierarchical against flat
heuristics at equal time limits on graphs without phases. `parallel`: seconds in which the options of a graph
without equal blocks are found, by one worker and by several. `scale`: hierarchical against other methods at
equal time limits on generated graphs. `against`: the hierarchy alone and with all its means against `cut`
followed by annealing, each with the same limit; CPU seconds in brackets. Overheads in percent; Markdown
tables.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import hremate as hr
from hremate.ilp.leaves import LeafTask
from hremate.ilp.nest import Solver, make_nest
from hremate.ilp.options import FrontierParams
from hremate.partition.registry import find_partitioner
from hremate.solvers.base import Run

SMALL = [
    "mlp-8", "chain:50", "chain:62", "chain:70:1", "unet:40", "unet:40:1", "unet:60:0:levels=1", "resnet:40",
    "resnet:40:1", "resnet:60", "transformer:60", "transformer:60:1", "rnn:60:1", "ssm:60:0:layers=1",
    "ssm:60:1:layers=1",
]  # fmt: skip
MEDIUM = [
    "chain:600", "transformer:600", "unet:600", "ssm:600", "rnn:600", "unet", "mlp-mixer-8", "resnet50",
    "gpt2-5", "encdec-transformer-4",
]  # fmt: skip
PHASELESS = [
    "layered:100", "layered:200:1", "layered:400:2", "series-parallel:200", "inference:unet:100",
    "inference:unet:300", "inference:encdec:300", "inference:resnet:300", "inference:transformer:300",
]  # fmt: skip
VARIED = ["varied:transformer:1200"]
LARGE = ["transformer:100000", "unet:100000", "rnn:100000", "ssm:100000", "chain:100000"]
#: Graphs and budgets of each part.
PARTS = {
    "optimum": (SMALL, "75%,55%"),
    "depth": (MEDIUM, "50%,40%"),
    "phaseless": (PHASELESS, "90%,80%,70%"),
    "parallel": (VARIED, ""),
    "scale": (LARGE, "70%,50%"),
    "against": (LARGE[1:], "50%,30%"),
}
#: The captured graphs.
GRAPHS = Path(__file__).resolve().parent.parent / "graphs"
FLAT = ("anneal", "beam", "greedy", "cut", "twremat")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, required=True)
    parser.add_argument(
        "--graphs",
        help="separated by commas (default: by part): files, names of captured graphs, or "
        "[inference:|varied:]KIND:OPS[:SEED[:KEY=VALUE]]; inference: the forward part alone, varied: all "
        "times different",
    )
    parser.add_argument("--budgets", help="separated by commas, or `file` (default: by part)")
    parser.add_argument("--methods", default="hierarchical,cut", help="of the part scale (%(default)s)")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="S", help="each (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="(%(default)s; 2 for the part parallel)")
    parser.add_argument("--blocks", type=int, default=12, help="of the part parallel (%(default)s)")
    parser.add_argument("--memory-model", choices=["coexist", "reuse"], help="of graphs read from files")
    args = parser.parse_args()
    graphs, budgets = PARTS[args.part]
    chosen = [graph_of(spec, args.memory_model) for spec in (args.graphs or ",".join(graphs)).split(",")]
    run = {
        "optimum": optimum, "depth": depth, "phaseless": phaseless, "parallel": parallel, "scale": scale,
        "against": against,
    }  # fmt: skip
    run[args.part](chosen, (args.budgets or budgets).split(","), args)


def graph_of(spec: str, memory_model: str | None) -> hr.Graph:
    """The graph of one entry of `--graphs`."""
    kind, *rest = spec.split(":")
    if kind == "inference":
        return forward_part(graph_of(":".join(rest), None))
    if kind == "varied":
        return varied(graph_of(":".join(rest), None))
    if not rest:
        return hr.read_graph(spec if "." in spec else GRAPHS / f"{spec}.json.gz", memory_model=memory_model)
    sizes = dict(option.split("=") for option in rest[2:])
    seed = int(rest[1]) if len(rest) > 1 else 0
    return hr.generate(kind, int(rest[0]), seed, **{key: int(value) for key, value in sizes.items()})


def forward_part(graph: hr.Graph) -> hr.Graph:
    """The ops that lead to the loss, without phases: what inference runs."""
    ops = [replace(op, phase=None) for op in map(graph.op, range(graph.n_ops)) if op.phase != "backward"]
    names = {name for op in ops for name, _ in op.outputs}
    outputs = [name for name in (graph.tensor_names[x] for x in graph.outputs) if name in names]
    last = [name for name, _ in ops[-1].outputs]
    name = f"inference-{graph.name}"
    return hr.Graph.from_ops(ops, outputs or last, name=name, memory_model=graph.memory_model).prune()


def varied(graph: hr.Graph) -> hr.Graph:
    """The graph with all times changed by up to a tenth, so that no two blocks are equal."""
    factors = np.random.default_rng(0).uniform(0.9, 1.1, graph.n_ops)
    return replace(graph, name=f"varied-{graph.name}", time=graph.time * factors)


def optimum(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Two levels against the proved optimum."""
    print("| graph (ops) | budget | optimum | two levels | points |\n|---|---|---|---|---|")
    losses = []
    for graph in graphs:
        for budget in budgets:
            exact = hr.solve(graph, budget, method="exact", time_limit=args.time_limit)
            if exact.status is not hr.Status.OPTIMAL:
                print(f"{graph.name} {budget}: {exact.status}, left out", file=sys.stderr)
                continue
            if exact.time == graph.total_time:
                print(f"{graph.name} {budget}: nothing to run again, left out", file=sys.stderr)
                continue
            two = hierarchy(graph, budget, args, depth=2)
            if "h-ilp" not in two.stats.stage_time:
                print(f"| {graph.name} ({graph.n_ops}) | {budget} | {percent(exact)} | none from blocks | |")
                continue
            losses.append(100 * (two.overhead - exact.overhead))
            print(
                f"| {graph.name} ({graph.n_ops}) | {budget} | {percent(exact)} | {percent(two)} | "
                f"{losses[-1]:.3f} |",
                flush=True,
            )
    tell_mean(losses)


def depth(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Three levels against two."""
    print("| graph (ops) | budget | two levels | three levels | points |\n|---|---|---|---|---|")
    losses = []
    for graph in graphs:
        for budget in budgets:
            if hr.parse_budget(budget, hr.base_peak(graph)) < hr.memory_lower_bound(graph).bytes:
                print(f"{graph.name} {budget}: infeasible, left out", file=sys.stderr)
                continue
            two, three = (hierarchy(graph, budget, args, blocks=6, depth=levels) for levels in (2, 3))
            points = ""
            if all("h-ilp" in result.stats.stage_time for result in (two, three)):
                losses.append(100 * (three.overhead - two.overhead))
                points = f"{losses[-1]:+.3f}"
            print(
                f"| {graph.name} ({graph.n_ops}) | {budget} | {percent(two)} | {percent(three)} | {points} |",
                flush=True,
            )
    tell_mean(losses)


def tell_mean(losses: list[float]) -> None:
    if losses:
        print(f"\nmean of {len(losses)}: {sum(losses) / len(losses):.3f} points, at most {max(losses):.3f}")


def phaseless(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """The whole method against flat heuristics at equal time limits."""
    methods = ("hierarchical", *FLAT)
    print(f"| graph (ops) | budget | {' | '.join(methods)} |\n|---|---|" + "---|" * len(methods))
    worse = 0
    for graph in graphs:
        for budget in budgets:
            limit = None if budget == "file" else budget
            if limit and hr.parse_budget(limit, hr.base_peak(graph)) < hr.memory_lower_bound(graph).bytes:
                print(f"{graph.name} {budget}: infeasible, left out", file=sys.stderr)
                continue
            ours, *others = (hr.solve(graph, limit, m, time_limit=args.time_limit) for m in methods)
            flat = min((r.time for r in others if r.solved), default=float("inf"))
            worse += flat < (ours.time if ours.solved else float("inf"))
            cells = " | ".join(percent(r) for r in (ours, *others))
            print(f"| {graph.name} ({graph.n_ops}) | {budget} | {cells} |", flush=True)
    print(f"\nhierarchical is worse than some other method in {worse} rows")


def parallel(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Seconds in which the options of all blocks are found, by one worker and by several.

    The last column is the speed-up in CPU seconds: leaves with one worker over leaves with several, shared
    evenly, and what the calling process does itself. It depends less on what else the machine does.
    """
    workers = args.jobs if args.jobs > 1 else 2
    task = LeafTask(FrontierParams(), low_peak_width=1)
    # Compiles the kernels and starts the workers.
    options_of(varied(hr.generate("chain", 500)), 6, task, workers)
    print("| graph (ops) | classes | 1 worker | workers | seconds | CPU seconds | speed-up | in CPU time |")
    print("|---|---|---|---|---|---|---|---|")
    for graph in graphs:
        one = options_of(graph, args.blocks, task, 1)
        many = options_of(graph, args.blocks, task, workers)
        if one.keys != many.keys:
            raise SystemExit(f"{graph.name}: {workers} workers give other options than one")
        shared = many.own + many.leaves / workers
        print(
            f"| {graph.name} ({graph.n_ops}) | {len(one.keys)} | {one.wall:.1f} s | {workers} | "
            f"{many.wall:.1f} s | {many.leaves:.1f} + {many.own:.1f} | {one.wall / many.wall:.2f} | "
            f"{one.own / shared:.2f} |",
            flush=True,
        )


@dataclass(frozen=True)
class Found:
    """The options of a row of blocks, and what it took to find them."""

    #: Wall seconds; CPU seconds of this process; CPU seconds of the leaves, wherever they were solved.
    wall: float
    own: float
    leaves: float
    #: What tells the options of each block.
    keys: list[list[tuple[bytes, bytes]]]


def options_of(graph: hr.Graph, blocks: int, task: LeafTask, workers: int) -> Found:
    """Find the options of each block of `graph`."""
    tree = find_partitioner("best").load()(graph, blocks)
    nests = [make_nest(graph, block, graph.size == 0, str(j)) for j, block in enumerate(tree.blocks)]
    run = Run(n_jobs=workers)
    wall, own = time.monotonic(), time.process_time()
    options = Solver(run, None).options_of(nests, task, float("inf"))
    wall, own = time.monotonic() - wall, time.process_time() - own
    return Found(wall, own, run.stats.seconds["leaves"], [[o.key for o in known] for known in options])


def scale(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """Methods at equal time limits, with the lower bound for any order."""
    methods = args.methods.split(",")
    print(f"| graph (ops) | budget | {' | '.join(methods)} | bound | peak memory so far |")
    print("|---|---|" + "---|" * (len(methods) + 2))
    for graph in graphs:
        for budget in budgets:
            results = [
                hr.solve(graph, budget, method=m, time_limit=args.time_limit, n_jobs=args.jobs)
                for m in methods
            ]
            bound = max(r.lower_bound or 0.0 for r in results) / graph.total_time - 1
            cells = " | ".join(f"{percent(r)} ({r.wall_time:.0f} s)" for r in results)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            name = f"{graph.name} ({graph.n_ops:,})"
            print(f"| {name} | {budget} | {cells} | {100 * bound:.3f} | {memory:.1f} GiB |", flush=True)


def against(graphs: list[hr.Graph], budgets: list[str], args: argparse.Namespace) -> None:
    """The hierarchy against `cut` and annealing at equal time limits; run it with one job."""
    columns = "blocks alone | hierarchical | cut, then anneal"
    print(f"| graph (ops) | budget | {columns} | bound | peak memory so far |\n|---|---|---|---|---|---|---|")
    for graph in graphs:
        for budget in budgets:
            cells, bound = [], 0.0
            for solver in (hierarchy, with_everything, cut_and_anneal):
                start = time.process_time()
                result = solver(graph, budget, args)
                cells.append(f"{percent(result)} ({time.process_time() - start:.0f} s)")
                bound = max(bound, result.lower_bound or 0.0)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(
                f"| {graph.name} ({graph.n_ops:,}) | {budget} | {' | '.join(cells)} | "
                f"{100 * (bound / graph.total_time - 1):.3f} | {memory:.1f} GiB |",
                flush=True,
            )


def with_everything(graph: hr.Graph, budget: str, args: argparse.Namespace) -> hr.Result:
    """The method as it comes: flat schedules and polish included."""
    return hr.solve(graph, budget, time_limit=args.time_limit, n_jobs=args.jobs)


def cut_and_anneal(graph: hr.Graph, budget: str, args: argparse.Namespace) -> hr.Result:
    """The method `cut`, then annealing from its schedule, a third and two thirds of the time."""
    cut = hr.solve(graph, budget, method="cut", time_limit=args.time_limit / 3)
    return hr.solve(
        graph, budget, method="anneal", time_limit=2 * args.time_limit / 3,
        warm_start=cut.schedule, lower_bound=cut.lower_bound,
    )  # fmt: skip


def hierarchy(graph: hr.Graph, budget: str, args: argparse.Namespace, **options: int) -> hr.Result:
    """The hierarchy alone: no flat schedules, no polish."""
    options.setdefault("n_jobs", args.jobs)
    return hr.solve(graph, budget, time_limit=args.time_limit, polish=0, flat_start=False, **options)


def percent(result: hr.Result) -> str:
    """The overhead, or why there is no schedule."""
    return f"{100 * result.overhead:.3f}" if result.solved else str(result.status).replace("_", " ")


if __name__ == "__main__":
    main()
