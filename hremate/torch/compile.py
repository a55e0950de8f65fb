"""`torch.compile` with the choice of a hremate solver about what to save and what to recompute.

The partitioner of `torch.compile` splits the joint graph in two: a forward part that saves values and a
backward part that recomputes what was not saved, each value once. So it can use the set of values that a
schedule keeps, but not its order, and not a value that is recomputed twice or dropped within the forward
part; peaks are up to the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomKnapsackSolver

from hremate._devices import Device, get_device
from hremate.graph import Graph, Op
from hremate.simulate import base_peak
from hremate.solve import solve
from hremate.torch._program import Program, build
from hremate.torch.costs import Roofline

#: Halvings of the interval of peak budgets in which the one is sought that saves as much as is allowed.
_STEPS = 7


class KnapsackSolver(CustomKnapsackSolver):
    """Decides which values the partitioner of `torch.compile` saves.

    PyTorch asks it, in the place of its own knapsack, when
    `torch._functorch.config.activation_memory_budget` lies between 0 and 1. The values that it marks as
    saved are those that a schedule of the joint graph has in memory when its backward part begins, for the
    largest peak budget at which they fit the memory that PyTorch allows.

    Parameters
    ----------
    method : str
        Of `hremate.solve`.
    device : str or Device
        Whose roofline the times follow.
    **options
        Of `hremate.solve`.
    """

    def __init__(self, method: str = "cut", device: str | Device = "a100", **options: Any) -> None:
        self._method, self._device, self._options = method, get_device(device), options

    def __call__(
        self,
        memory: list[float],
        joint_graph: torch.fx.Graph,
        max_memory: float,
        node_info: Any,
        all_recomputable_banned_nodes: list[torch.fx.Node],
    ) -> tuple[list[int], list[int]]:
        """Indices of the candidates to save and to recompute; sizes are shares of what can be saved."""
        candidates = all_recomputable_banned_nodes
        program, graph = _joint(joint_graph, self._device)
        best: list[int] = []
        low, high = 0, base_peak(graph)
        for _ in range(_STEPS):
            middle = (low + high + 1) // 2
            result = solve(graph, middle, self._method, **self._options)
            if not result.solved or result.schedule is None:
                low = middle
                continue
            kept = _kept(program, graph, list(result.schedule), candidates)
            if sum(memory[k] for k in kept) <= max_memory:
                low, best = middle, kept
            else:
                high = middle
        saved = _filled_up(best, memory, max_memory)
        return saved, [k for k in range(len(candidates)) if k not in set(saved)]

    def uuid(self) -> Any:
        """A key for the caches of the compiler."""
        return ("hremate", self._method, repr(self._device), repr(sorted(self._options.items())))


@contextmanager
def memory_budget(budget: float, method: str = "cut", **options: Any) -> Iterator[None]:
    """Let `torch.compile` save at most `budget` (0 .. 1) of what it would save by itself, chosen by hremate.

    Compilation happens at the first call of a compiled module, which must lie inside the block.

    Examples
    --------
    >>> model = torch.compile(torch.nn.Linear(4, 4), backend="aot_eager")
    >>> with memory_budget(0.5):
    ...     loss = model(torch.ones(2, 4)).sum()
    """
    import torch._functorch.config as config

    with config.patch(
        activation_memory_budget=float(budget),
        activation_memory_budget_solver=KnapsackSolver(method, **options),
    ):
        yield


def _joint(joint_graph: torch.fx.Graph, device: Device) -> tuple[Program, Graph]:
    """The joint graph of the partitioner as a graph; random ops run once."""
    program = build(joint_graph, joint_graph.owning_module)
    cost = Roofline(device)
    tangents = {n for n in joint_graph.nodes if n.op == "placeholder" and "tangents" in n.name}
    behind = set(tangents)
    for node in joint_graph.nodes:
        if any(a in behind for a in node.all_input_nodes):
            behind.add(node)
    names = [f"t{x}" for x in range(len(program.tensors))]
    ops = []
    for i, op in enumerate(program.ops):
        backward = op.node in behind
        ops.append(
            Op(
                name=f"{op.node.name}.{i}",
                time=cost(op.node),
                inputs=tuple(names[x - program.n_leaves] for x in op.reads),
                outputs=tuple(
                    (names[x - program.n_leaves], program.sizes[x - program.n_leaves]) for _, x in op.made
                ),
                phase="backward" if backward else "forward",
                once=op.once or op.random,
            )
        )
    outputs = [names[x - program.n_leaves] for r in program.results if r is not None for x in r.reads]
    return program, Graph.from_ops(ops, list(dict.fromkeys(outputs)), name="joint")


def _kept(
    program: Program, graph: Graph, order: list[int], candidates: list[torch.fx.Node]
) -> list[int]:
    """Candidates whose first copy is read in the backward part before it is made again."""
    first_backward = next((p for p, i in enumerate(order) if graph.phase[i] == 2), len(order))
    made_again: set[int] = set()
    crossing: set[int] = set()
    for i in order[first_backward:]:
        crossing.update(x for x in graph.inputs_of(i).tolist() if x not in made_again)
        made_again.update(range(int(graph.out_ptr[i]), int(graph.out_ptr[i + 1])))
    tensors = {x + program.n_leaves for x in crossing}
    return [k for k, node in enumerate(candidates) if tensors & program.lies_in.get(node, frozenset())]


def _filled_up(chosen: list[int], memory: list[float], limit: float) -> list[int]:
    """`chosen` with more candidates, largest first, while they fit: PyTorch recomputes what is not saved."""
    saved, used = list(chosen), sum(memory[k] for k in chosen)
    for k, size in enumerate(memory):
        if k not in chosen and used + size <= limit:
            saved.append(k)
            used += size
    return sorted(saved)
