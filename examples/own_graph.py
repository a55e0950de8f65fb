"""Build a graph by hand, solve it at every budget that makes a difference, and look at one schedule.

    python examples/own_graph.py
"""

from __future__ import annotations

import hremate as hr

LAYERS = 6


def main() -> None:
    graph = training_graph()
    least, base = hr.memory_lower_bound(graph).bytes, hr.base_peak(graph)
    print(f"{graph.n_ops} ops, base peak {base} bytes, no schedule below {least} bytes")
    for budget in range(least, base + 1):
        result = hr.solve(graph, budget, method="branch-and-bound")
        shown = f"overhead {result.overhead:6.1%}, {result.recomputes} recomputed" if result.solved else ""
        print(f"{budget:3} bytes: {result.status} {shown}")
    result = hr.solve(graph, (least + base) // 2, method="branch-and-bound")
    print(" ".join(graph.op_names[op] for op in result.schedule))
    print("memory", hr.simulate(graph, result.schedule).memory.tolist())
    print("checked:", hr.validate(graph, result.schedule, result.budget))


def training_graph() -> hr.Graph:
    """A chain of layers and its backward part, in which each layer reads what its forward op read."""
    forward = [
        hr.Op(f"f{k}", time=2.0, inputs=(f"x{k - 1}",), outputs=((f"x{k}", 4),), phase="forward")
        for k in range(1, LAYERS + 1)
    ]
    loss = hr.Op("loss", time=1.0, inputs=(f"x{LAYERS}",), outputs=((f"g{LAYERS}", 4),), phase="loss")
    backward = [
        hr.Op(f"b{k}", time=4.0, inputs=(f"x{k - 1}", f"g{k}"), outputs=((f"g{k - 1}", 4),), phase="backward")
        for k in range(LAYERS, 0, -1)
    ]
    # x0, the input of the model, is made by no op, so it is always in memory and costs nothing.
    return hr.Graph.from_ops([*forward, loss, *backward], ["g0"], name="chain")


if __name__ == "__main__":
    main()
