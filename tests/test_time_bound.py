"""Claims about the bound on time: never above the optimum over all orders, tight where it can be."""

from __future__ import annotations

import subprocess
import sys

import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.bounds import time_lower_bound


def check(graph: hr.Graph) -> tuple[int, int]:
    """Hold the bound against the optimum at every budget; (cases, tight ones)."""
    cases = tight = 0
    for budget in oracle.breakpoints(graph):
        best = oracle.optimal_time(graph, budget)
        if best is None:
            continue
        bound = time_lower_bound(graph, budget).time
        assert graph.total_time - 1e-9 <= bound <= best + 1e-9
        cases += 1
        tight += bound >= best - 1e-6
    return cases, tight


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**7))
def test_never_above_the_optimum_of_any_order(seed: int) -> None:
    check(oracle.random_graph(seed))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_never_above_the_optimum_on_thousands_of_graphs(part: int) -> None:
    for seed in range(10**8 + part * 250, 10**8 + (part + 1) * 250):
        check(oracle.random_graph(seed))


def test_mostly_tight_on_tiny_graphs() -> None:
    found = [check(oracle.random_graph(seed)) for seed in range(100)]
    assert sum(tight for _, tight in found) >= 0.6 * sum(cases for cases, _ in found)


def test_its_kernels_are_compiled_before_its_seconds_begin() -> None:
    """Else the first solve on a machine loses the proof, and its answer is not that of the second."""
    script = (
        "import gc, hremate as hr\n"
        "from hremate._jit import _Kernel\n"
        "from hremate.solvers.time_bound import compile_kernels\n"
        "compile_kernels()\n"
        "kernels = [k for k in gc.get_objects() if type(k) is _Kernel]\n"
        "known = [len(k.overloads) for k in kernels]\n"
        "assert sum(known) > 5\n"
        "for kind in 'transformer', 'unet', 'layered':\n"
        "    graph = hr.generate(kind, 80)\n"
        "    hr.time_lower_bound(graph, hr.base_peak(graph) * 7 // 10)\n"
        "late = [k for k, n in zip(kernels, known) if len(k.overloads) > n]\n"
        "assert not late, late\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_rounds_up_to_the_quantum_of_the_times() -> None:
    graph = hr.generate("chain", 60, 1)
    cents = hr.Graph.from_ops(
        [
            hr.Op(o.name, round(o.time, 1), o.inputs, o.outputs, o.workspace)
            for o in map(graph.op, range(graph.n_ops))
        ],
        [graph.tensor_names[x] for x in graph.outputs],
    )
    bound = time_lower_bound(cents, hr.base_peak(cents) * 7 // 10).time
    assert bound > cents.total_time
    assert round(bound, 1) == pytest.approx(bound, abs=1e-9)


def test_result_carries_bound_and_gap() -> None:
    result = hr.solve(hr.generate("chain", 60, 1), "80%", method="beam")
    assert result.base_time < result.lower_bound <= result.time
    assert 0 <= result.gap < 0.2
