"""The exact method proves what the brute-force oracle finds, and never claims more."""

from __future__ import annotations

import random

import numpy as np
import pytest
from oracle import breakpoints, min_peak, optimal_order, optimal_staged, optimal_time, random_graph

from hremate import Graph, MethodError, Op, Schedule, Status, simulate, validate
from hremate.simulate import base_peak
from hremate.solvers import exact
from hremate.solvers.base import Deadline, Run
from hremate.solvers.exact import Params, solve, solve_staged, solve_sweep
from hremate.solvers.found import Found
from hremate.solvers.scip import MilpStatus
from hremate.solvers.segments import build_staged_model
from hremate.solvers.staged import threshold_orders


def training_chain(layers: int, memory_model: str = "coexist") -> Graph:
    """Forward layers, a loss, and backward layers that read what the forward ones made."""
    ops = [
        Op(f"f{k}", 2.0, (f"x{k - 1}",) if k else (), ((f"x{k}", 4 + k % 3),), workspace=k % 2)
        for k in range(layers)
    ]
    ops.append(Op("loss", 1.0, (f"x{layers - 1}",), ((f"g{layers}", 3),)))
    for k in range(layers - 1, -1, -1):
        reads = (f"g{k + 1}", f"x{k}") + ((f"x{k - 1}",) if k else ())
        ops.append(Op(f"b{k}", 3.0, reads, ((f"g{k}", 3), (f"w{k}", 1)), workspace=2))
    return Graph.from_ops(ops, [f"w{k}" for k in range(layers)], memory_model=memory_model)


def larger(seed: int, n: int) -> Graph:
    return random_graph(seed, min_ops=n, max_ops=n, max_tensors=2 * n)


@pytest.mark.parametrize("first", range(0, 400, 20))
def test_optimum_and_infeasibility_equal_the_oracle_at_every_breakpoint(first: int) -> None:
    for seed in range(first, first + 20):
        graph = random_graph(seed)
        for budget in breakpoints(graph, staged=True):
            best = optimal_staged(graph, budget)
            answer = solve_staged(graph, budget)
            if best is None:
                assert answer.status is MilpStatus.INFEASIBLE and answer.order is None
                assert answer.bound == np.inf
            else:
                assert answer.status is MilpStatus.OPTIMAL and answer.bound == best
                assert answer.order is not None and validate(graph, answer.order, budget).time == best


def test_every_staged_schedule_is_a_solution_of_the_model_and_comes_back() -> None:
    for seed in range(150):
        graph = random_graph(seed)
        for budget in breakpoints(graph, staged=True)[1:]:
            model = build_staged_model(graph, budget)
            order = optimal_order(graph, budget, staged=True)
            assert order is not None
            solution = model.solution_of(order)
            assert solution is not None and model.milp.satisfied_by(solution)
            back = model.order_of(solution)
            assert validate(graph, back, budget).time <= validate(graph, order).time


def test_schedules_that_are_not_staged_have_no_solution() -> None:
    ops = [Op("a", 1.0, (), (("x", 2),), once=True), Op("b", 1.0, (), (("y", 2),))]
    graph = Graph.from_ops(ops, ["x", "y"])
    model = build_staged_model(graph, 3)
    assert model.solution_of([1, 0]) is None
    assert model.solution_of([0, 1, 0]) is None
    assert model.solution_of([0]) is None
    assert model.solution_of([0, 1]) is not None


def test_a_useless_run_is_dropped_from_a_start() -> None:
    graph = training_chain(3)
    model = build_staged_model(graph, base_peak(graph))
    solution = model.solution_of([0, 1, 2, 3, 4, 3, 5, 6])  # nobody reads what op 3 makes after op 4
    assert solution is not None and model.order_of(solution).tolist() == list(range(7))


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
@pytest.mark.parametrize("share", [0.85, 0.7])
def test_training_chain_of_25_ops_is_proved(memory_model: str, share: float) -> None:
    graph = training_chain(12, memory_model)
    budget = int(share * base_peak(graph))
    answer = solve_staged(graph, budget, deadline=Deadline(60.0))
    assert answer.status is MilpStatus.OPTIMAL and answer.order is not None
    time = validate(graph, answer.order, budget).time
    assert answer.bound == time > graph.total_time
    assert all(
        simulate(graph, order).time >= time
        for order in threshold_orders(graph)
        if simulate(graph, order).peak <= budget
    )


@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_of_24_ops_are_proved_and_time_falls_with_the_budget(seed: int) -> None:
    graph = larger(seed, 24)
    times = []
    for share in (0.7, 0.8, 0.9):
        budget = int(share * base_peak(graph))
        answer = solve_staged(graph, budget, deadline=Deadline(60.0))
        assert answer.status in (MilpStatus.OPTIMAL, MilpStatus.INFEASIBLE)
        times.append(answer.bound)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("seed", range(40))
def test_byte_sizes_beyond_the_tolerance_of_scip_never_break_the_budget_or_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    tiny = random_graph(seed, max_ops=6)
    ops = [
        Op(
            op.name, op.time, op.inputs,
            tuple((x, size * 10**11 + rng.randint(0, 9)) for x, size in op.outputs),
            op.workspace * 10**11 + rng.randint(0, 9), once=op.once,
        )
        for op in map(tiny.op, range(tiny.n_ops))
    ]  # fmt: skip
    outputs = [tiny.tensor_names[x] for x in tiny.outputs]
    graph = Graph.from_ops(ops, outputs, memory_model=tiny.memory_model)
    for budget in breakpoints(graph, staged=True):
        best = optimal_staged(graph, budget)
        answer = solve_staged(graph, budget)
        if answer.order is not None:
            assert best is not None and validate(graph, answer.order, budget).time >= best
        if best is None:
            assert answer.status in (MilpStatus.INFEASIBLE, MilpStatus.NO_SOLUTION)
        else:
            assert answer.status is not MilpStatus.INFEASIBLE and answer.bound <= best
            if answer.status is MilpStatus.OPTIMAL:
                assert answer.bound == best


@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
def test_threshold_orders_are_valid_and_reach_below_the_base_peak(memory_model: str) -> None:
    graph = training_chain(10, memory_model)
    peaks = [validate(graph, order).peak for order in threshold_orders(graph)]
    assert peaks[0] == base_peak(graph) and min(peaks) < 0.7 * base_peak(graph)
    for seed in range(60):
        tiny = random_graph(seed)
        for order in threshold_orders(tiny):
            validate(tiny, order)


def test_method_reports_a_staged_proof_with_its_bound() -> None:
    graph = training_chain(5)
    budget = int(0.8 * base_peak(graph))
    seen: list[float] = []
    run = Run(callback=lambda schedule, peak, time: seen.append(time))
    result = solve(graph, budget, run, Params())
    assert result.status is Status.OPTIMAL and result.proof == "staged"
    assert result.order_lower_bound == result.time == seen[-1] == optimal_staged(graph, budget)
    assert seen == sorted(seen, reverse=True)
    assert result.lower_bound == graph.total_time


def test_without_recomputation_the_proof_holds_for_any_order() -> None:
    graph = training_chain(4)
    result = solve(graph, base_peak(graph), Run(), Params())
    assert (result.status, result.proof, result.recomputes) == (Status.OPTIMAL, "any-order", 0)


def test_no_staged_schedule_is_no_proof_that_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "beam_search", lambda graph, budget, **_: Found(graph, budget, smallest=FIRST))
    monkeypatch.setattr(exact, "_other_orders", lambda graph, best: [])
    graph = late_reader()
    result = solve(graph, min_peak(graph), Run(), Params())
    assert result.status is Status.NO_SOLUTION and "staged" in result.reason
    assert result.schedule is not None and result.peak is not None and result.peak > result.budget


#: The given order of `late_reader`.
FIRST = np.arange(4)


def late_reader() -> Graph:
    """Two large results; the given order makes both before it reads one of them."""
    ops = [
        Op("a", 1.0, (), (("x", 8),), once=True),
        Op("b", 1.0, (), (("y", 8),), once=True),
        Op("c", 1.0, ("x",), (("u", 1),)),
        Op("d", 1.0, ("y",), (("v", 1),)),
    ]
    return Graph.from_ops(ops, ["u", "v"])


def test_other_orders_are_searched_where_the_given_one_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "beam_search", lambda graph, budget, **_: Found(graph, budget, smallest=FIRST))
    graph = late_reader()
    result = solve(graph, min_peak(graph), Run(), Params())
    assert (result.status, result.proof, result.time) == (Status.OPTIMAL, "any-order", graph.total_time)


def test_a_schedule_that_beats_the_given_order_is_not_called_proved() -> None:
    seeds = [s for s in range(150) if beaten(random_graph(s)) is not None]
    assert seeds
    for seed in seeds:
        graph = random_graph(seed)
        budget = beaten(graph)
        assert budget is not None
        best = optimal_order(graph, budget)
        assert best is not None
        run = Run(warm_start=Schedule(best))
        result = solve(graph, budget, run, Params())
        staged = optimal_staged(graph, budget)
        assert (result.status, result.proof) == (Status.FEASIBLE, None)
        assert result.time == simulate(graph, best).time and result.order_lower_bound == staged


def beaten(graph: Graph) -> int | None:
    """A budget at which an any-order schedule with recomputation beats all staged ones."""
    for budget in breakpoints(graph):
        best, staged = optimal_time(graph, budget), optimal_staged(graph, budget)
        if best is not None and staged is not None and graph.total_time < best < staged:
            return budget
    return None


def test_a_known_bound_that_is_met_ends_the_search_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(8)
    budget = int(0.7 * base_peak(graph))
    best = solve_staged(graph, budget)
    assert best.order is not None
    monkeypatch.setattr(exact, "build_staged_model", None)
    run = Run(warm_start=Schedule(best.order), lower_bound=best.bound)
    result = solve(graph, budget, run, Params())
    assert (result.status, result.proof, result.time) == (Status.OPTIMAL, "any-order", best.bound)


def test_the_program_is_not_built_when_the_time_is_too_short_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(8)
    budget = int(0.8 * base_peak(graph))
    monkeypatch.setattr(exact, "build_staged_model", None)
    monkeypatch.setattr(exact, "_BUILD_SECONDS", 1.0)
    run = Run(deadline=Deadline(30.0))
    result = solve(graph, budget, run, Params())
    assert result.status is Status.FEASIBLE and run.stats.timed_out and not run.deadline.expired


def test_a_bound_that_is_met_ends_the_solve_of_the_program() -> None:
    graph = training_chain(8)
    budget = int(0.7 * base_peak(graph))
    best = solve_staged(graph, budget)
    answer = solve_staged(graph, budget, lower_bound=best.bound)
    assert (answer.status, answer.bound) == (MilpStatus.OPTIMAL, best.bound)


def test_a_cutoff_hides_schedules_that_take_as_long() -> None:
    graph = training_chain(8)
    budget = int(0.7 * base_peak(graph))
    best = solve_staged(graph, budget)
    above = solve_staged(graph, budget, cutoff=best.bound + 1.0)
    assert (above.status, above.bound) == (MilpStatus.OPTIMAL, best.bound)
    below = solve_staged(graph, budget, cutoff=best.bound - 1.0)
    assert below.status is not MilpStatus.OPTIMAL and below.bound <= best.bound


def test_a_sweep_equals_single_solves_and_reuses_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = training_chain(6)
    budgets = [base_peak(graph) * percent // 100 for percent in (50, 90, 60, 99, 80, 70, 95, 90)]
    solved: list[int] = []
    single = exact.solve_staged

    def counted(graph: Graph, budget: int, **options: object) -> exact.StagedAnswer:
        solved.append(budget)
        return single(graph, budget, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(exact, "solve_staged", counted)
    answers = solve_sweep(graph, budgets)
    for budget, answer in zip(budgets, answers, strict=True):
        assert answer.bound == single(graph, budget).bound
    assert solved == sorted(solved, reverse=True) and len(solved) < len(set(budgets))


def test_graphs_too_large_for_the_program_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "MAX_OPS", 8)
    with pytest.raises(MethodError, match="at most 8 ops"):
        solve(training_chain(4), 10, Run(), Params())


def test_a_warm_start_is_never_lost() -> None:
    graph = training_chain(8)
    budget = int(0.7 * base_peak(graph))
    best = solve_staged(graph, budget).order
    assert best is not None
    run = Run(deadline=Deadline(0.0), warm_start=Schedule(best))
    result = solve(graph, budget, run, Params())
    assert result.status is Status.FEASIBLE and run.stats.timed_out
    assert result.time == simulate(graph, best).time


def test_equal_seeds_and_node_limits_give_equal_schedules() -> None:
    graph = training_chain(9)
    budget = int(0.6 * base_peak(graph))
    first, second = (solve_staged(graph, budget, seed=5, node_limit=3).order for _ in range(2))
    assert first is not None and second is not None and np.array_equal(first, second)


def test_parameters_are_checked() -> None:
    with pytest.raises(MethodError, match="expected >= 1"):
        Params(node_limit=0)
    with pytest.raises(MethodError, match="expected >= 1"):
        Params(width=0)
