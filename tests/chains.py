"""Small training graphs for the tests of methods that need one."""

from __future__ import annotations

import random
from types import ModuleType

from hremate import Graph, MethodError, Op
from hremate.result import Result
from hremate.simulate import base_peak
from hremate.solvers.base import Run


def uniform_chain(n: int, *, reads_output: bool = True, tape: bool = False, size: int = 1) -> Graph:
    """Forward ops 0..n-1 of time 1, each reading the one before; then their backward ops in reverse.

    The backward op of step i reads the gradient, the input of the step and, if `reads_output`, its output.
    With a `tape` each step makes one more tensor that its backward op alone reads.
    """
    ops = []
    for i in range(n):
        made = [(f"x{i}", size), (f"y{i}", size)] if tape else [(f"x{i}", size)]
        ops.append(Op(f"f{i}", 1.0, (f"x{i - 1}",) if i else (), tuple(made), phase="forward"))
    for i in range(n - 1, -1, -1):
        reads = [f"g{i + 1}"] if i < n - 1 else []
        reads += [f"x{i - 1}"] if i else []
        reads += [f"x{i}"] if reads_output else []
        reads += [f"y{i}"] if tape else []
        ops.append(Op(f"b{i}", 1.0, tuple(reads), ((f"g{i}", size),), phase="backward"))
    return Graph.from_ops(ops, ["g0"], name=f"chain-{n}")


def random_training_graph(rng: random.Random, max_steps: int = 8) -> Graph:
    """A forward part with skips, and a backward part that mirrors it, with weight gradients as outputs."""
    n = rng.randint(3, max_steps)
    skips = rng.random() < 0.5
    ops, reads = [], []
    for i in range(n):
        before = [f"x{i - 1}"] if i else []
        if skips and i > 1 and rng.random() < 0.4:
            before.append(f"x{rng.randrange(i - 1)}")
        reads.append(before)
        made = [(f"x{i}", rng.randint(0, 9))] + ([(f"s{i}", 2)] if rng.random() < 0.2 else [])
        ops.append(
            Op(
                f"f{i}",
                float(rng.randint(0, 5)),
                tuple(before),
                tuple(made),
                workspace=rng.choice([0, 0, 3]),
                phase="forward",
                once=rng.random() < 0.15,
            )
        )
    outputs = ["g0"]
    for i in range(n - 1, -1, -1):
        gradient = [f"g{i + 1}"] if i < n - 1 else []
        saved = [x for x in [*reads[i], f"x{i}"] if rng.random() < 0.8]
        ops.append(
            Op(f"b{i}", float(rng.randint(0, 5)), (*gradient, *saved), ((f"g{i}", 3),), phase="backward")
        )
        if rng.random() < 0.5:
            ops.append(Op(f"w{i}", 1.0, (f"g{i}", *saved), ((f"dw{i}", 1),), phase="backward"))
            outputs.append(f"dw{i}")
    if rng.random() < 0.2:
        outputs.append(f"x{rng.randrange(n)}")
    return Graph.from_ops(
        ops, outputs, name="tiny-training", memory_model=rng.choice(["coexist", "reuse"])
    )


def run_method(module: ModuleType, graph: Graph, budget: int | None = None, **options: object) -> Result:
    """The result of a method; without a budget, of one at which everything fits."""
    budget = base_peak(graph) if budget is None else budget
    result: Result = module.solve(graph, budget, Run(), module.Params(**options))
    return result


def answers_or_refuses(module: ModuleType, graph: Graph, share: float) -> Result | None:
    """The result at a share of the base peak (validated by the method), None when the graph is refused."""
    try:
        return run_method(module, graph, int(share * base_peak(graph)))
    except MethodError as error:
        assert str(error).startswith(module.__name__.rpartition(".")[2].replace("_", "-"))
        return None


def forward_runs(graph: Graph, order: list[int]) -> int:
    """How many steps of a schedule are forward ops."""
    return sum(int(graph.phase[i]) == 0 for i in order)
