"""Claims about griewank: the binomial counts of revolve, and valid schedules of any training graph."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from chains import answers_or_refuses, forward_runs, random_training_graph, run_method, uniform_chain
from hypothesis import given, settings
from hypothesis import strategies as st

from hremate import MethodError, validate
from hremate.solvers import griewank
from hremate.solvers.expand import Expansion


@cache
def fewest_steps(steps: int, slots: int) -> int:
    """Forward steps to reverse a chain with `slots` beside the input, by trying every checkpoint."""
    if steps == 1:
        return 1
    if slots == 0:
        return steps * (steps + 1) // 2
    return min(
        m + fewest_steps(steps - m, slots - 1) + fewest_steps(m, slots) for m in range(1, steps)
    )


def test_the_binomial_formula_counts_the_fewest_forward_steps() -> None:
    for steps in range(1, 31):
        for slots in range(7):
            assert griewank.forward_steps(steps, slots) == fewest_steps(steps, slots), (steps, slots)


@pytest.mark.parametrize("n", [1, 2, 5, 10, 21, 34])
@pytest.mark.parametrize("slots", [1, 2, 3, 5])
def test_a_schedule_of_a_uniform_chain_runs_the_binomial_number_of_forward_ops(n: int, slots: int) -> None:
    graph = uniform_chain(n, tape=True)
    reversal = griewank.Reversal(Expansion(graph), n, np.arange(1, n))
    order = reversal.schedule(slots)
    validate(graph, order)
    assert forward_runs(graph, order.tolist()) == griewank.forward_steps(n, slots)


@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_the_peak_is_the_slots_and_a_constant(slots: int) -> None:
    result = run_method(griewank, uniform_chain(60), 0, slots=slots)
    assert result.peak is not None and result.peak <= slots + 4


def test_fewer_bytes_than_one_more_forward_pass_leaves_are_reached() -> None:
    result = run_method(griewank, uniform_chain(64), 8)
    assert result.solved and result.peak <= 8


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.floats(0.3, 1.0))
def test_schedules_of_random_graphs_are_valid(rng, share) -> None:  # type: ignore[no-untyped-def]
    assert answers_or_refuses(griewank, random_training_graph(rng), share) is not None


def test_parameters_out_of_range_are_refused() -> None:
    with pytest.raises(MethodError, match="Expected slots >= 0"):
        griewank.Params(slots=-1)
