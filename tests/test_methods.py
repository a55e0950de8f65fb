"""Every method of the registry against the brute-force oracle, at every budget that matters."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import oracle
import pytest
from oracle import breakpoints, random_graph

import hremate as hr
from hremate.solvers.checkmate_model import counts_exactly
from hremate.solvers.registry import METHODS, get_method, make_params

#: Random graphs of the slow test, and in each of its cases.
SLOW_GRAPHS, AT_ONCE = 320, 20


class Optima:
    """The least times of a graph over one class of schedules, by budget."""

    def __init__(self, graph: hr.Graph, *, staged: bool) -> None:
        self._points = oracle.frontier(graph, staged=staged)
        self.min_peak = self._points[0][0]

    def at(self, budget: int) -> float:
        """The least time within `budget` bytes; infinite when nothing fits."""
        k = bisect_right(self._points, budget, key=lambda point: point[0])
        return self._points[k - 1][1] if k else math.inf


def check(graph: hr.Graph, budget: int, result: hr.Result, best: float, staged: float) -> None:
    """What holds for every method: it claims no more than is true."""
    if result.schedule is not None:
        simulation = hr.validate(graph, result.schedule)
        assert (simulation.peak, simulation.time) == (result.peak, result.time)
        assert result.solved == (simulation.peak <= budget)
    if result.solved:
        assert result.time is not None and result.time >= best
    if result.status is hr.Status.INFEASIBLE:
        assert best == math.inf and result.proof != "staged"
    elif result.status is hr.Status.OPTIMAL:
        assert result.time == {"any-order": best, "staged": staged}[result.proof or ""]
    else:
        assert result.proof is None
    assert result.lower_bound is None or result.lower_bound <= best
    assert result.order_lower_bound is None or result.order_lower_bound <= staged


def check_branch_and_bound(result: hr.Result, best: float, staged: float) -> None:
    """The optimum over all orders, or the proof that there is none."""
    if best == math.inf:
        assert result.status is hr.Status.INFEASIBLE
    else:
        assert (result.status, result.proof, result.time) == (hr.Status.OPTIMAL, "any-order", best)


def check_staged(result: hr.Result, best: float, staged: float) -> None:
    """The staged optimum, proved; or something better, with the staged optimum as its bound."""
    if staged == math.inf:
        assert result.status is not hr.Status.OPTIMAL or result.proof == "any-order"
        return
    assert result.time is not None and result.time <= staged
    if result.status is not hr.Status.OPTIMAL:
        assert result.solved and result.time < staged and result.order_lower_bound == staged


EXACT: dict[str, Callable[[hr.Result, float, float], None]] = {
    "branch-and-bound": check_branch_and_bound,
    "exact": check_staged,
    "checkmate": check_staged,
    "moccasin": check_staged,
}


@lru_cache(maxsize=2 * AT_ONCE)
def case(seed: int) -> tuple[hr.Graph, Optima, Optima, list[int]]:
    """A random graph of at most 7 ops, its optima over all orders and staged, and the budgets that matter."""
    graph = random_graph(seed)
    budgets = {*breakpoints(graph), *breakpoints(graph, staged=True)}
    return graph, Optima(graph, staged=False), Optima(graph, staged=True), sorted(budgets)


def agree(seed: int, method: str) -> None:
    """Solve a random graph at all breakpoints and compare with the oracle."""
    graph, any_order, staged, budgets = case(seed)
    options: dict[str, Any] = {"max_runs": graph.n_ops, "workers": 1} if method == "moccasin" else {}
    complete = EXACT.get(method)
    if method == "checkmate" and not counts_exactly(graph):
        complete = None  # it counts too much memory: a heuristic then
    for budget in budgets:
        try:
            result = hr.solve(graph, budget, method, seed=seed, **options)
        except hr.MethodError:
            assert not METHODS[method].exact
            return  # refused
        best, of_order = any_order.at(budget), staged.at(budget)
        check(graph, budget, result, best, of_order)
        assert result.memory_lower_bound is not None and result.memory_lower_bound <= any_order.min_peak
        if complete is not None:
            complete(result, best, of_order)


@pytest.mark.parametrize(("method", "options"), [("beam", {"width": "8"}), ("exact", {"node_limit": "x"})])
def test_options_of_the_wrong_type_are_refused(method: str, options: dict[str, Any]) -> None:
    with pytest.raises(hr.MethodError, match=method):
        make_params(get_method(method), options)


def test_every_exact_method_is_held_to_its_class() -> None:
    assert set(EXACT) == {name for name, method in METHODS.items() if method.exact}


def skip_without_ortools(method: str) -> None:
    if method == "moccasin":
        pytest.importorskip("ortools", reason="OR-tools is not installed: pip install 'hremate[moccasin]'")


@pytest.mark.parametrize("method", METHODS)
def test_agrees_with_the_oracle_on_a_sample(method: str) -> None:
    skip_without_ortools(method)
    for seed in range(1000, 1012):
        agree(seed, method)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("first", range(0, SLOW_GRAPHS, AT_ONCE))
def test_agrees_with_the_oracle_on_hundreds_of_graphs(method: str, first: int) -> None:
    skip_without_ortools(method)
    for seed in range(first, first + AT_ONCE):
        agree(seed, method)
