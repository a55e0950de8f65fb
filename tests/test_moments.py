"""Claims about the program of several moments: every schedule is a solution of it, and costs no less."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.graph import FloatArray, IntArray
from hremate.simulate import simulate, step_memory
from hremate.solvers.base import Deadline
from hremate.solvers.moment_search import search_moments
from hremate.solvers.moments import MomentsModel, build_moments, emit_moments, spans
from hremate.solvers.scip import MilpSolver, MilpStatus


def relatives(graph: hr.Graph) -> np.ndarray:
    """bool[n, n]: whether op j needs op i, directly or not."""
    needs = np.zeros((graph.n_ops, graph.n_ops), np.bool_)
    for j in range(graph.n_ops):
        for x in graph.inputs_of(j).tolist():
            i = int(graph.producer[x])
            needs[i, j] = True
            needs[:, j] |= needs[:, i]
    return needs


def random_chain(graph: hr.Graph, rng: random.Random) -> list[int]:
    """Ops, each a descendant of the one before."""
    needs = relatives(graph)
    chain = [rng.randrange(graph.n_ops)]
    while len(chain) < 4:
        later = np.flatnonzero(needs[chain[-1]]).tolist()
        if not later:
            break
        chain.append(rng.choice(later))
    return chain


def random_schedule(graph: hr.Graph, rng: random.Random) -> IntArray:
    """A valid schedule in a random order with random recomputation."""
    order: list[int] = []
    ran: set[int] = set()
    while len(ran) < graph.n_ops:
        ready = [
            i
            for i in range(graph.n_ops)
            if {int(graph.producer[x]) for x in graph.inputs_of(i).tolist()} <= ran
            and not (i in ran and (graph.once[i] or rng.random() < 0.8))
        ]
        if ready:
            order.append(rng.choice(ready))
            ran.add(order[-1])
    return np.array(order)


def solution_of(graph: hr.Graph, model: MomentsModel, order: Sequence[int]) -> FloatArray:
    """The solution that stands for a schedule."""
    count = len(model.moments)
    first = [list(order).index(v) for v in model.moments]
    edges = [-1, *first, len(order)]
    x = np.zeros(model.milp.n_vars)
    for j in range(count + 1):
        for step in range(edges[j] + 1, edges[j + 1]):
            if model.run[j, order[step]] >= 0:
                x[model.run[j, order[step]]] = 1.0
    for j, step in enumerate(first, start=1):
        for t in range(graph.n_tensors):
            maker = int(graph.producer[t])
            alive = maker in list(order[:step])
            for op in order[step + 1 :]:
                if t in graph.inputs_of(op).tolist():
                    break
                if op == maker:
                    alive = False
                    break
            else:
                alive = alive and bool(graph.is_output[t])
            for keep in (model.keep[j, t], model.beside[j, t]):
                if keep >= 0:
                    x[keep] = float(alive)
    return x


def check_schedule(graph: hr.Graph, chain: list[int], order: IntArray) -> None:
    cost = simulate(graph, order)
    model = build_moments(graph, cost.peak, chain, unit=1.0)
    assert model is not None
    x = solution_of(graph, model, order.tolist())
    assert model.milp.satisfied_by(x)
    assert model.milp.objective(x) - model.first_runs <= cost.time - graph.total_time + 1e-9


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**7))
def test_every_schedule_is_a_solution_and_costs_no_less(seed: int) -> None:
    rng = random.Random(seed)
    graph = oracle.random_graph(seed)
    for _ in range(3):
        check_schedule(graph, random_chain(graph, rng), random_schedule(graph, rng))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**7))
def test_never_above_the_optimum_of_any_order(seed: int) -> None:
    rng = random.Random(seed)
    graph = oracle.random_graph(seed)
    for budget in oracle.breakpoints(graph):
        best = oracle.optimal_time(graph, budget)
        model = build_moments(graph, budget, random_chain(graph, rng), unit=1.0)
        if best is None:
            continue
        assert model is not None
        result = MilpSolver(model.milp).solve()
        assert result.status is MilpStatus.OPTIMAL
        assert result.bound - model.first_runs <= best - graph.total_time + 1e-9
        # What a solution suggests runs everything, in an order that can be run.
        assert result.x is not None
        order = emit_moments(graph, model, result.x)
        assert set(order.tolist()) == set(range(graph.n_ops))
        assert len(step_memory(graph, order)) == len(order)


def test_spans_say_where_the_first_run_of_each_op_can_be() -> None:
    ops = [
        hr.Op("a", 1, (), (("ta", 1),)),
        hr.Op("b", 1, ("ta",), (("tb", 1),)),
        hr.Op("side", 1, ("ta",), (("ts", 1),)),
        hr.Op("c", 1, ("tb",), (("tc", 1),)),
        hr.Op("d", 1, ("tc", "ts"), (("td", 1),)),
    ]
    after, by = spans(hr.Graph.from_ops(ops), [1, 3])
    assert after.tolist() == [0, 1, 0, 2, 2]
    assert by.tolist() == [1, 1, 3, 2, 3]


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
def test_more_moments_find_what_one_overlooks(memory_model: str) -> None:
    # A chain that is read backward: at a tight budget each step back runs the start of it again.
    ops = [hr.Op("f0", 1, (), (("x0", 1),))]
    ops += [hr.Op(f"f{i}", 1, (f"x{i - 1}",), ((f"x{i}", 1),)) for i in range(1, 6)]
    ops += [hr.Op("b5", 1, ("x5",), (("g5", 1),))]
    ops += [hr.Op(f"b{i}", 1, (f"x{i}", f"g{i + 1}"), ((f"g{i}", 1),)) for i in range(4, -1, -1)]
    graph = hr.Graph.from_ops(ops, ["g0"], memory_model=memory_model)
    budget = oracle.min_peak(graph)
    found = search_moments(
        graph, budget, 6, deadline=Deadline(), rounds=8, round_work=10**6, proof_work=10**6
    )
    alone = search_moments(
        graph, budget, 6, deadline=Deadline(), rounds=1, round_work=10**6, proof_work=10**6
    )
    best = oracle.optimal_time(graph, budget)
    assert best is not None
    assert alone.extra < found.extra <= best - graph.total_time
    assert len(found.moments) > 1


def test_no_time_left_gives_no_bound() -> None:
    graph = hr.generate("chain", 40, 1)
    budget = hr.base_peak(graph) // 2
    found = search_moments(
        graph, budget, 20, deadline=Deadline(0), rounds=3, round_work=10**6, proof_work=10**6
    )
    assert (found.extra, found.order) == (0.0, None)
