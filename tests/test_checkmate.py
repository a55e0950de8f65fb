"""The Checkmate program: staged optima where it counts exactly, never too little memory, sound roundings."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import breakpoints, optimal_staged, random_graph

from hremate import Graph, Op, Status, simulate, validate
from hremate.errors import MethodError
from hremate.result import Result
from hremate.simulate import base_peak
from hremate.solvers import checkmate, checkmate_lp, checkmate_model
from hremate.solvers.base import Deadline, Run
from hremate.solvers.checkmate_lp import least_runs
from hremate.solvers.checkmate_model import build_checkmate_model, counts_exactly, least_kept
from hremate.solvers.scip import solve_milp


def single_output(graph: Graph) -> Graph:
    """The graph under `coexist` with the outputs of each op as one tensor that all their users read."""
    joined = {x: f"all of {graph.op_names[graph.producer[k]]}" for k, x in enumerate(graph.tensor_names)}
    ops = []
    for i in range(graph.n_ops):
        op = graph.op(i)
        made = tuple({joined[x]: sum(size for _, size in op.outputs) for x, _ in op.outputs}.items())
        reads = tuple(dict.fromkeys(joined.get(x, x) for x in op.inputs))
        ops.append(Op(op.name, op.time, reads, made, op.workspace, once=op.once))
    return Graph.from_ops(ops, dict.fromkeys(joined[graph.tensor_names[x]] for x in graph.outputs))


def solve(graph: Graph, budget: int, run: Run | None = None, **options: bool) -> Result:
    return checkmate.solve(graph, budget, run or Run(), checkmate.Params(**options))


def chain_with_skip() -> Graph:
    """a -> b -> c -> d, where d also reads a: at 8 bytes a runs twice."""
    ops = [
        Op("a", 1.0, (), (("x", 4),)),
        Op("b", 1.0, ("x",), (("y", 1),)),
        Op("c", 1.0, ("y",), (("z", 1),), workspace=6),
        Op("d", 1.0, ("x", "z"), (("w", 1),)),
    ]
    return Graph.from_ops(ops, ["w"])


@pytest.mark.parametrize("tight", [False, True])
def test_known_optimum_of_a_chain_with_a_skip(tight: bool) -> None:
    result = solve(chain_with_skip(), 8, tight=tight)
    assert result.schedule is not None and list(result.schedule) == [0, 1, 2, 0, 3]
    assert (result.status, result.proof, result.order_lower_bound) == (Status.OPTIMAL, "staged", 5.0)


@pytest.mark.parametrize("tight", [False, True])
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_equals_the_staged_optimum_where_memory_is_counted_exactly(first: int, tight: bool) -> None:
    for seed in range(first, first + 10):
        graph = single_output(random_graph(seed, max_ops=6))
        assert counts_exactly(graph)
        for budget in breakpoints(graph, staged=True):
            best = optimal_staged(graph, budget)
            result = solve(graph, budget, tight=tight)
            if best is None:
                assert result.status is Status.NO_SOLUTION
                assert "none staged along the given order fits" in result.reason
            else:
                assert result.status is Status.OPTIMAL and result.time == best
                assert result.proof == ("any-order" if best == graph.total_time else "staged")


@pytest.mark.parametrize("seed", range(20))
def test_claims_no_staged_proof_where_it_counts_too_much(seed: int) -> None:
    graph = random_graph(seed, max_ops=5, memory_model="reuse")
    for budget in breakpoints(graph, staged=True):
        best = optimal_staged(graph, budget)
        result = solve(graph, budget)
        assert not result.solved or (best is not None and result.time is not None and result.time >= best)
        assert result.proof in (None, "any-order") and result.order_lower_bound is None
        assert result.status is not Status.INFEASIBLE


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_the_memory_counted_is_never_below_the_simulated_peak(rng: object, tight: bool) -> None:
    graph = random_graph(rng, max_ops=6)  # type: ignore[arg-type]
    ample = build_checkmate_model(graph, 10 * base_peak(graph) + 10, tight=tight, integer=True)
    given_order = ample.solution_of(range(graph.n_ops))
    assert given_order is not None
    counted = round(ample.counted_peak(given_order))
    model = build_checkmate_model(graph, max(0, counted - 1), tight=tight, integer=True)
    result = solve_milp(model.milp)
    if result.x is None:
        return
    order = np.nonzero(model.runs_of(result.x))[1]
    assert model.counted_peak(result.x) >= simulate(graph, order).peak - 1e-6


@settings(max_examples=100, deadline=None)
@given(st.randoms(use_true_random=False), st.booleans())
def test_the_solution_of_a_schedule_is_one_and_counts_its_peak(rng: object, tight: bool) -> None:
    graph = random_graph(rng, max_ops=6)  # type: ignore[arg-type]
    order = random_staged(graph, rng)
    peak = simulate(graph, order).peak
    model = build_checkmate_model(graph, 10 * base_peak(graph) + 10, tight=tight, integer=True)
    x = model.solution_of(order)
    assert x is not None and model.milp.satisfied_by(x)
    assert np.array_equal(np.nonzero(model.runs_of(x))[1], order)
    if counts_exactly(graph) and not has_useless_run(graph, order):
        assert model.counted_peak(x) == pytest.approx(peak)
    else:
        assert model.counted_peak(x) >= peak - 1e-6


def random_staged(graph: Graph, rng: object) -> list[int]:
    """A staged schedule with needless runs."""
    order: list[int] = []
    for t in range(graph.n_ops):
        order += [i for i in range(t) if not graph.once[i] and rng.random() < 0.3]  # type: ignore[attr-defined]
        order.append(t)
    return order


def has_useless_run(graph: Graph, order: list[int]) -> bool:
    """Whether a copy made by a re-run is neither read nor there at the end."""
    for step, i in enumerate(order):
        later = order[step + 1 :]
        until = later.index(i) if i in later else len(later)
        read = any(graph.producer[x] == i for j in later[:until] for x in graph.inputs_of(j))
        at_end = i not in later and graph.is_output[list(graph.outputs_of(i))].any()
        if i in order[:step] and not read and not at_end:
            return True
    return False


def test_schedules_that_are_not_staged_have_no_solution() -> None:
    model = build_checkmate_model(chain_with_skip(), 100, tight=False, integer=True)
    for order in ([0, 1, 2, 3, 0], [0, 1, 2], [1, 0, 2, 3]):
        assert model.solution_of(order) is None


def test_bytes_beyond_the_units_of_the_program_are_checked_exactly() -> None:
    # 2^40 bytes and single bytes have no common unit that SCIP can tell apart.
    ops = [
        Op("a", 1.0, (), (("x", 2**40 + 1),)),
        Op("b", 1.0, ("x",), (("y", 2**38 + 1),)),
        Op("c", 1.0, ("y",), (("z", 3),), workspace=2**40),
        Op("d", 1.0, ("x", "z"), (("w", 1),)),
    ]
    graph = Graph.from_ops(ops, ["w"])
    for budget in (2**40 + 2**38 + 4, 2**40 + 2**38 + 3, 2**40 + 2**38 + 2):
        result = solve(graph, budget)
        assert result.solved == (budget >= 2**40 + 2**38 + 4)


def test_an_unsolved_relaxation_is_not_called_a_rounding_that_fails() -> None:
    run = Run(deadline=Deadline(0.0))
    result = checkmate_lp.solve(chain_with_skip(), 8, run, checkmate_lp.Params())
    assert result.status is Status.NO_SOLUTION and run.stats.timed_out
    assert result.reason == "no relaxation was solved in the time given"


def test_a_passed_deadline_hands_in_the_warm_start() -> None:
    graph = chain_with_skip()
    start = solve(graph, 8).schedule
    result = solve(graph, 8, Run(deadline=Deadline(0.0), warm_start=start))
    assert result.schedule == start and result.status is Status.FEASIBLE and result.stats.timed_out


def test_refuses_programs_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkmate_model, "MAX_VARIABLES", 20)
    for module in (checkmate, checkmate_lp):
        with pytest.raises(MethodError, match="at most 20 are taken"):
            module.solve(chain_with_skip(), 8, Run(), module.Params())


def test_the_variables_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = chain_with_skip()
    n_vars = build_checkmate_model(graph, 8, tight=False, integer=True).milp.n_vars
    monkeypatch.setattr(checkmate_model, "MAX_VARIABLES", n_vars - 1)
    with pytest.raises(MethodError, match=f"has {n_vars} variables"):
        build_checkmate_model(graph, 8, tight=False, integer=True)


@pytest.mark.parametrize("options", [{"node_limit": 0}])
def test_refuses_parameters_out_of_range(options: dict[str, int]) -> None:
    with pytest.raises(MethodError, match="Expected node_limit >= 1"):
        checkmate.Params(**options)  # type: ignore[arg-type]
    for bad in ({"deflations": (1.0,)}, {"deflations": ()}, {"thresholds": (1.5,)}, {"thresholds": ()}):
        with pytest.raises(MethodError, match="Expected numbers"):
            checkmate_lp.Params(**bad)


@pytest.mark.parametrize("first", range(0, 30, 10))
def test_roundings_never_beat_the_staged_optimum_and_the_bound_stays_below_it(first: int) -> None:
    for seed in range(first, first + 10):
        graph = random_graph(seed, max_ops=6)
        for budget in breakpoints(graph, staged=True):
            best = optimal_staged(graph, budget)
            result = checkmate_lp.solve(graph, budget, Run(), checkmate_lp.Params())
            assert result.schedule is None or validate(graph, result.schedule).time == result.time
            if best is None:
                assert result.status is Status.NO_SOLUTION
                continue
            assert result.order_lower_bound is None or result.order_lower_bound <= best
            assert not result.solved or (result.time is not None and result.time >= best)
            assert result.status is not Status.OPTIMAL or result.time == best


def test_rounding_finds_the_optimum_of_a_chain_with_a_skip() -> None:
    result = checkmate_lp.solve(chain_with_skip(), 8, Run(), checkmate_lp.Params())
    assert result.time == 5.0 and result.peak is not None and result.peak <= 8


@pytest.mark.parametrize("seed", range(20))
def test_least_runs_are_the_fewest_that_a_rounded_s_allows(seed: int) -> None:
    graph = random_graph(seed, max_ops=4)
    n = graph.n_ops
    rng = np.random.default_rng(seed)
    keep = np.tril(rng.random((n, n)) < 0.5, -1)
    runs = least_runs(graph, keep)
    kept = np.vstack([keep, np.zeros(n, bool)])
    kept[n, graph.producer[graph.outputs]] = True
    kept |= graph.once & (np.arange(n + 1)[:, None] > np.arange(n))
    free = [(t, i) for t in range(n) for i in range(t)]
    fewest = n + len(free)
    for chosen in itertools.product((False, True), repeat=len(free)):
        other = np.eye(n, dtype=bool)
        for at, flag in zip(free, chosen, strict=True):
            other[at] = flag
        if supplied(graph, other, kept):
            fewest = min(fewest, int(other.sum()))
    assert supplied(graph, runs, kept) and runs.sum() == fewest


def supplied(graph: Graph, runs: np.ndarray, kept: np.ndarray) -> bool:
    """Whether each run finds what it reads and each kept result was there the stage before."""
    n = graph.n_ops
    for t in range(n):
        for j in np.flatnonzero(runs[t]).tolist():
            if any(not runs[t, p] and not kept[t, p] for p in graph.producer[graph.inputs_of(j)]):
                return False
        if (kept[t + 1] & ~runs[t] & ~kept[t]).any():
            return False
    return True


@pytest.mark.parametrize("seed", range(20))
def test_least_kept_supplies_every_run(seed: int) -> None:
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    runs = np.tril(rng.random((graph.n_ops, graph.n_ops)) < 0.3) | np.eye(graph.n_ops, dtype=bool)
    kept = least_kept(graph, runs)
    assert supplied(graph, runs, kept)
    for t, i in np.argwhere(kept[: graph.n_ops]).tolist():
        fewer = kept.copy()
        fewer[t, i] = False
        assert not supplied(graph, runs, fewer)
