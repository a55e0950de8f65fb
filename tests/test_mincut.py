"""Claims about mincut: what the cut saves on hand-made joint graphs, and the knapsack."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from chains import answers_or_refuses, random_training_graph, run_method, uniform_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from hremate import Graph, MethodError, Op
from hremate.solvers import mincut


def joint_graph(*, wide: int, narrow: int, time: float = 1.0) -> Graph:
    """in -> narrow -> wide -> loss, whose backward part reads the wide tensor."""
    return Graph.from_ops(
        [
            Op("embed", 5.0, (), (("narrow", narrow),), phase="forward"),
            Op("expand", time, ("narrow",), (("wide", wide),), phase="forward"),
            Op("loss", 1.0, ("wide",), (("loss", 1),), phase="loss"),
            Op("grad", 1.0, ("loss", "wide"), (("g", 1),), phase="backward"),
        ],
        ["g"],
    )


def saved_names(graph: Graph, ratio: float) -> list[str]:
    kept = mincut.Partition(graph, 3, 1000).saved(ratio)
    return [graph.tensor_names[x] for x in np.flatnonzero(kept)]


def test_at_ratio_one_what_the_backward_part_reads_is_saved() -> None:
    assert saved_names(joint_graph(wide=9, narrow=4), 1.0) == ["wide", "loss"]


def test_a_view_is_never_saved_in_place_of_what_it_views() -> None:
    assert saved_names(joint_graph(wide=9, narrow=4, time=0.0), 1.0) == ["narrow", "loss"]


def test_at_ratio_zero_nothing_that_can_run_again_is_saved() -> None:
    assert saved_names(joint_graph(wide=9, narrow=4), 0.0) == []


def test_the_cut_saves_the_narrow_tensor_when_its_maker_may_not_run_again() -> None:
    graph = joint_graph(wide=9, narrow=4)
    ops = [graph.op(i) for i in range(4)]
    ops[0] = Op("embed", 5.0, (), (("narrow", 4),), phase="forward", once=True)
    assert saved_names(Graph.from_ops(ops, ["g"]), 0.0) == ["narrow"]


def test_the_true_peak_counts() -> None:
    graph = uniform_chain(12)
    result = run_method(mincut, graph, 9)
    # Saving late values and making early ones again halves what is held at the end of the forward part.
    assert result.solved and result.peak <= 9


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_knapsack_is_optimal_at_every_capacity(rng) -> None:  # type: ignore[no-untyped-def]
    n = rng.randint(1, 7)
    weight = np.array([rng.randint(0, 6) for _ in range(n)])
    value = np.array([float(rng.randint(0, 9)) for _ in range(n)])
    table = mincut.knapsack(weight, value, 20)
    for capacity in range(21):
        items = mincut.chosen(table, weight, capacity)
        assert weight[items].sum() <= capacity
        best = max(
            value[list(choice)].sum()
            for flags in product([False, True], repeat=n)
            if weight[(choice := [i for i in range(n) if flags[i]])].sum() <= capacity
        )
        assert value[items].sum() == best


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.3, 1.0))
def test_schedules_of_random_graphs_are_valid(rng, share) -> None:  # type: ignore[no-untyped-def]
    assert answers_or_refuses(mincut, random_training_graph(rng), share) is not None


def test_a_graph_without_a_backward_part_is_refused() -> None:
    graph = Graph.from_ops([Op("a", 1, (), (("x", 1),)), Op("b", 1, ("x",), (("y", 1),))], ["y"])
    with pytest.raises(MethodError, match="mincut needs a training graph"):
        run_method(mincut, graph)


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(MethodError, match="Expected 0 <= ratio <= 1"):
        mincut.Params(ratio=1.5)
    with pytest.raises(MethodError, match="Expected units >= 1"):
        mincut.Params(units=0)
