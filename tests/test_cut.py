"""Claims about the cut model and its method: exact against brute force, bounds below, hulls convex."""

from __future__ import annotations

import itertools

import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.simulate import simulate
from hremate.solvers import cut_model
from hremate.solvers._emit_kernel import emit
from hremate.solvers.base import Deadline
from hremate.solvers.cut_model import (
    Cut,
    CutProblem,
    hull,
    moment_problem,
    peak_problem,
    prove_cut,
    solve_cut,
)


def random_problem(seed: int) -> CutProblem:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    m = int(rng.integers(1, 8))
    # Tensor x is made by an op or can only be kept; an op reads tensors of earlier ops.
    producer = np.sort(rng.integers(-1, n, m))
    reads = [[x for x in range(m) if producer[x] < r and rng.random() < 0.5] for r in range(n)]
    return CutProblem(
        time=rng.integers(0, 9, n).astype(np.float64),
        size=rng.integers(0, 9, m),
        producer=producer,
        crossing=rng.random(m) < 0.6,
        in_ptr=np.concatenate([[0], np.cumsum([len(r) for r in reads])]),
        in_idx=np.array([x for r in reads for x in r], np.int64),
    )


def choices(problem: CutProblem) -> list[tuple[int, float]]:
    """(kept bytes, time) of every set of re-runs, by the definition."""
    n = len(problem.time)
    result = []
    for bits in itertools.product((False, True), repeat=n):
        kept = 0
        for x in range(len(problem.size)):
            readers = [r for r in range(n) if x in problem.in_idx[problem.in_ptr[r] : problem.in_ptr[r + 1]]]
            needed = problem.crossing[x] or any(bits[r] for r in readers)
            if needed and not (problem.producer[x] >= 0 and bits[problem.producer[x]]):
                kept += int(problem.size[x])
        result.append((kept, sum(t for t, again in zip(problem.time, bits, strict=True) if again)))
    return result


@pytest.mark.parametrize("seed", range(120))
def test_cut_is_exact_at_every_capacity(seed: int) -> None:
    problem = random_problem(seed)
    every = choices(problem)
    for capacity in sorted({kept for kept, _ in every} | {0}):
        fitting = [time for kept, time in every if kept <= capacity]
        cut = solve_cut(problem, capacity, node_limit=500)
        assert (cut is None) == (not fitting)
        if cut is not None:
            assert problem.kept_bytes(cut.rerun) <= capacity
            assert problem.rerun_time(cut.rerun) == pytest.approx(min(fitting))
            assert cut.bound == pytest.approx(min(fitting))


@pytest.mark.parametrize("seed", range(120))
def test_one_node_gives_a_bound_below_the_optimum(seed: int) -> None:
    problem = random_problem(seed)
    every = choices(problem)
    for capacity in sorted({kept for kept, _ in every}):
        cut = solve_cut(problem, capacity, node_limit=1)
        best = min(time for kept, time in every if kept <= capacity)
        assert cut is not None
        assert cut.bound <= best + 1e-9
        assert problem.rerun_time(cut.rerun) >= best - 1e-9


def test_a_search_in_pieces_finds_the_same_and_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, needed = peak_problem(hr.generate("ssm", 300))
    capacity = int(problem.size.sum()) // 3 - needed
    whole = solve_cut(problem, capacity, node_limit=20)
    root = solve_cut(problem, capacity, node_limit=1)
    monkeypatch.setattr(cut_model, "_WORK_PER_CALL", 1)
    pieces = solve_cut(problem, capacity, node_limit=20)
    late = solve_cut(problem, capacity, node_limit=20, deadline=Deadline(0.0))
    assert whole is not None and root is not None and pieces is not None and late is not None
    assert (pieces.bound, pieces.price) == (whole.bound, whole.price)
    assert np.array_equal(pieces.rerun, whole.rerun)
    assert whole.bound > root.bound  # more than the root was looked at
    assert (late.bound, late.rerun.tolist()) == (root.bound, root.rerun.tolist())


@pytest.mark.parametrize("seed", range(120))
def test_hull_holds_every_vertex_and_only_vertices(seed: int) -> None:
    problem = random_problem(seed)
    every = choices(problem)
    found = [(problem.kept_bytes(r), problem.rerun_time(r)) for r in hull(problem)]
    assert found[0] == (max(kept for kept, time in every if time == 0 and kept == found[0][0]), 0.0)
    assert found[-1][0] == min(kept for kept, _ in every)
    for price in (0.01, 0.1, 0.3, 0.7, 1.0, 1.9, 5.0, 50.0):
        best = min(time + price * kept for kept, time in every)
        assert min(time + price * kept for kept, time in found) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(60))
def test_moment_problem_bounds_every_staged_schedule(seed: int) -> None:
    graph = oracle.random_graph(seed)
    for budget in oracle.breakpoints(graph):
        best = oracle.optimal_staged(graph, budget)
        if best is None:
            continue
        for step in range(graph.n_ops):
            problem, needed = moment_problem(graph, step)
            cut = solve_cut(problem, budget - needed)
            assert cut is not None
            assert cut.bound <= best - graph.total_time + 1e-9


def test_once_ops_are_never_run_again() -> None:
    graph = hr.Graph.from_ops(
        [
            hr.Op("a", 1.0, (), (("x", 10),), once=True),
            hr.Op("b", 1.0, ("x",), (("y", 10),)),
            hr.Op("v", 1.0, (), (("z", 1),)),
            hr.Op("c", 1.0, ("x", "y", "z"), (("w", 1),)),
        ],
        ["w"],
    )
    problem, _ = moment_problem(graph, 2)
    assert solve_cut(problem, 9) is None
    cut = solve_cut(problem, 10)
    assert cut is not None
    assert cut.rerun.tolist() == [False, True]


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**6), step=st.integers(0, 6), bits=st.integers(0, 2**12))
def test_what_is_dropped_is_made_again_before_it_is_needed(seed: int, step: int, bits: int) -> None:
    graph = oracle.random_graph(seed)
    step = min(step, graph.n_ops - 1)
    dropped = np.array([bool(bits >> x & 1) for x in range(graph.n_tensors)], np.bool_)
    dropped &= (graph.producer < step) & ~graph.once[graph.producer]
    order = emit(
        np.arange(graph.n_ops), step, dropped, graph.is_output, graph.in_ptr, graph.in_idx, graph.out_ptr,
        graph.producer,
    )  # fmt: skip
    again = np.bincount(order, minlength=graph.n_ops) - 1
    if not (graph.once & (again > 0)).any():
        hr.validate(graph, order)
    made = {int(graph.producer[x]) for x in np.flatnonzero(dropped)}
    assert again.max() <= 1
    assert set(np.flatnonzero(again).tolist()) <= made
    assert order[: step + 1].tolist() == list(range(step + 1))


@pytest.mark.parametrize("seed", range(40))
def test_the_method_never_beats_the_optimum(seed: int) -> None:
    graph = oracle.random_graph(seed)
    for budget in oracle.breakpoints(graph):
        result = hr.solve(graph, budget, method="cut")
        best = oracle.optimal_time(graph, budget)
        if result.solved:
            assert best is not None
            assert result.time >= best - 1e-9
            assert result.lower_bound <= best + 1e-9


@pytest.mark.parametrize("kind", ["transformer", "encdec", "resnet", "unet"])
@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
def test_the_method_comes_close_to_its_bound(kind: str, memory_model: str) -> None:
    graph = hr.generate(kind, 300, 1).with_memory_model(memory_model)
    result = hr.solve(graph, "60%", method="cut")
    assert result.solved
    assert result.gap < 0.01


def test_once_ops_run_once_in_the_method() -> None:
    graph = hr.generate("transformer", 300, 1)
    ops = [graph.op(i) for i in range(graph.n_ops)]
    ops = [
        hr.Op(o.name, o.time, o.inputs, o.outputs, o.workspace, o.phase, once="dropout" in o.type)
        for o in ops
    ]
    marked = hr.Graph.from_ops(ops, [graph.tensor_names[x] for x in graph.outputs])
    result = hr.solve(marked, "70%", method="cut")
    assert result.solved
    assert simulate(marked, result.schedule).peak <= result.budget


def test_interrupt_inside_scip_is_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(p for p in map(random_problem, range(100)) if choices(p)[0][0] > 3)
    capacity = choices(problem)[0][0] - 1
    start = solve_cut(problem, capacity, node_limit=1)
    assert start is not None
    loose = Cut(start.bound - 1.0, start.price, start.rerun)

    class Interrupted:
        x, bound, interrupted = None, 0.0, True

    monkeypatch.setattr(cut_model.MilpSolver, "solve", lambda *_, **__: Interrupted())
    with pytest.raises(KeyboardInterrupt):
        prove_cut(problem, capacity, loose, unit=1.0)
