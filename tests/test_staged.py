"""What the programs over staged schedules share."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import breakpoints, optimal_order, random_graph

from hremate import Graph, Op, simulate, validate
from hremate.solvers.staged import depth_first_order, first_runs, reordered, stage_runs, tensor_groups


@pytest.mark.parametrize("seed", range(20))
def test_no_run_beyond_the_last_useful_stage_can_be_needed(seed: int) -> None:
    graph = random_graph(seed)
    _, last = tensor_groups(graph)
    for i in range(graph.n_ops):
        made = [x for x in graph.outputs_of(i) if graph.size[x]]
        users = {int(j) for x in made for j in graph.users_of(x)}
        if graph.once[i]:
            assert last[i] == i
        elif graph.is_output[made].any():
            assert last[i] == graph.n_ops - 1
        else:
            assert last[i] == max([i, *(last[j] for j in users)])


def test_tensors_of_an_op_with_the_same_users_are_one_and_empty_ones_are_none() -> None:
    ops = [
        Op("a", 1.0, (), (("x", 2), ("y", 3), ("z", 4), ("token", 0))),
        Op("b", 1.0, ("x", "y", "token"), (("w", 1),)),
    ]
    groups, _ = tensor_groups(Graph.from_ops(ops, ["w"]))
    assert sorted((g.producer, g.size, g.users, g.is_output) for g in groups) == [
        (0, 4, (), False), (0, 5, (1,), False), (1, 1, (), True),
    ]  # fmt: skip


def test_the_stages_of_a_schedule() -> None:
    runs = stage_runs([0, 1, 0, 2], 3)
    assert runs is not None and np.argwhere(runs).tolist() == [[0, 0], [1, 1], [2, 0], [2, 2]]
    for order in ([1, 0, 2], [0, 1], [0, 1, 2, 0]):
        assert stage_runs(order, 3) is None


@pytest.mark.parametrize("seed", range(30))
def test_a_depth_first_order_is_topological_and_has_each_op_once(seed: int) -> None:
    graph = random_graph(seed)
    order = depth_first_order(graph)
    assert sorted(order.tolist()) == list(range(graph.n_ops))
    validate(graph, order)


def test_depth_first_makes_a_result_just_before_it_is_read() -> None:
    ops = [Op(f"a{k}", 1.0, (), ((f"x{k}", 8),)) for k in range(3)]
    ops += [Op(f"b{k}", 1.0, (f"x{k}",), ((f"y{k}", 1),)) for k in range(3)]
    graph = Graph.from_ops(ops, ["y0", "y1", "y2"])
    assert depth_first_order(graph).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("seed", range(30))
def test_schedules_of_a_reordered_graph_cost_the_same_in_the_graph_itself(seed: int) -> None:
    graph = random_graph(seed)
    best = optimal_order(graph, breakpoints(graph)[-1])
    assert best is not None
    order = first_runs(np.array(best))
    other = reordered(graph, order)
    moved = np.argsort(order)[best]
    assert stage_runs(moved.tolist(), graph.n_ops) is not None
    here, there = simulate(graph, best), simulate(other, moved)
    assert (here.peak, here.time) == (there.peak, there.time)
