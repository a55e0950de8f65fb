"""Claims about the hierarchical method: always valid, never below the optimum, sensible when cornered."""

from __future__ import annotations

import numpy as np
import oracle
import pytest

import hremate as hr
from hremate.ilp import flat, hierarchical, leaves, level
from hremate.ilp.hierarchical import Params
from hremate.solvers.base import Deadline, Run

QUICK = {"grid": 6, "refinements": 1, "node_limit": 20, "menu": 5}
ALONE = {**QUICK, "polish": 0}


@pytest.mark.parametrize("seed", range(25))
def test_never_below_the_optimum_of_a_tiny_graph(seed: int) -> None:
    graph = oracle.random_graph(seed)
    for budget in oracle.breakpoints(graph):
        best = oracle.optimal_time(graph, budget)
        result = hr.solve(graph, budget, blocks=3, **ALONE)
        assert result.solved or result.status in (hr.Status.INFEASIBLE, hr.Status.NO_SOLUTION)
        if result.solved:
            assert best is not None
            assert result.time >= best - 1e-9
            hr.validate(graph, result.schedule, budget=budget)
        if result.status is hr.Status.INFEASIBLE:
            assert best is None


@pytest.mark.parametrize(
    "kind", ["chain", "transformer", "encdec", "unet", "resnet", "rnn", "ssm", "layered", "series-parallel"]
)
@pytest.mark.parametrize("memory_model", ["coexist", "reuse"])
def test_every_kind_of_graph_gets_a_schedule_within_two_thirds(kind: str, memory_model: str) -> None:
    graph = hr.generate(kind, 70, 1).with_memory_model(memory_model)
    budget = max(hr.base_peak(graph) * 2 // 3, hr.memory_lower_bound(graph).bytes * 5 // 4)
    result = hr.solve(graph, budget, blocks=3, **ALONE)
    assert result.solved
    assert result.peak <= budget


def test_graph_without_phases_is_solved_like_the_labelled_one() -> None:
    graph = hr.generate("transformer", 150, 1)
    bare = hr.Graph.from_ops(
        [hr.Op(o.name, o.time, o.inputs, o.outputs, o.workspace) for o in map(graph.op, range(graph.n_ops))],
        [graph.tensor_names[x] for x in graph.outputs],
    )
    labelled = hr.solve(graph, "60%", blocks=3, **ALONE)
    unlabelled = hr.solve(bare, "60%", blocks=3, **ALONE)
    assert unlabelled.overhead <= labelled.overhead + 0.02


def test_equal_runs_give_equal_schedules_and_workers_do_not_matter() -> None:
    graph = hr.generate("encdec", 150, 1)
    one = hr.solve(graph, "60%", blocks=3, **ALONE)
    two = hr.solve(graph, "60%", blocks=3, **ALONE)
    assert one.schedule == two.schedule


@pytest.mark.slow
def test_two_workers_give_the_answer_of_one() -> None:
    graph = hr.generate("unet", 600, 1)
    one = hr.solve(graph, "60%", blocks=6, **ALONE)
    two = hr.solve(graph, "60%", blocks=6, n_jobs=2, **ALONE)
    assert one.schedule == two.schedule


def test_a_broken_pool_is_survived_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def __init__(self, **_: object) -> None: ...

        def __call__(self, tasks: object) -> object:
            raise RuntimeError("a worker was killed")

    monkeypatch.setattr(leaves.joblib, "Parallel", Broken)
    monkeypatch.setattr(leaves, "PARALLEL_OPS", 0)
    graph = hr.generate("transformer", 150, 1)
    result = hr.solve(graph, "60%", blocks=4, n_jobs=2, flat_start=False, **ALONE)
    assert result.solved
    assert any("pool broke" in event for event in result.stats.degraded)


def test_failing_solver_falls_back_to_flat_methods_and_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise hr.SolverError("no licence")

    monkeypatch.setattr(level, "MilpSolver", refuse)
    result = hr.solve(hr.generate("chain", 100, 1), "60%", blocks=4, flat_start=False, **ALONE)
    assert result.solved
    assert any("no licence" in event for event in result.stats.degraded)
    assert any("flat method" in event for event in result.stats.degraded)


def test_a_flat_schedule_that_is_proved_optimal_ends_the_search() -> None:
    graph = hr.generate("transformer", 150, 1)
    result = hr.solve(graph, "60%")
    assert result.status is hr.Status.OPTIMAL and result.proof == "any-order"
    assert set(result.stats.stage_time) == {"bound"} and result.stats.degraded == []
    assert "flat cut" not in result.stats.seconds
    result = hr.solve(graph, "60%", lower_bound=result.lower_bound)  # now no schedule comes with the bound
    assert result.status is hr.Status.OPTIMAL and result.proof == "any-order"
    assert set(result.stats.stage_time) == {"passes", "flat cut"} and result.stats.degraded == []
    assert "partition" not in result.stats.seconds
    alone = hr.solve(graph, "60%", blocks=4, **ALONE)
    assert "h-ilp" in alone.stats.stage_time and alone.time >= result.time


def test_a_flat_start_a_rounding_above_the_bound_is_the_answer() -> None:
    """The bound and the time are sums in different orders; the H-ILP is not to look for the difference."""
    graph = hr.generate("transformer", 120, 1)
    flat = hr.solve(graph, "60%", "cut")
    assert flat.status is hr.Status.OPTIMAL
    result = hr.solve(graph, "60%", lower_bound=flat.time * (1 - 1e-14), **ALONE)
    assert "h-ilp" not in result.stats.seconds and result.time == flat.time


def test_small_graphs_without_phases_are_annealed_as_well() -> None:
    """The best along their given order, which a leaf is solved for, is far from that over all orders."""
    graph = hr.generate("layered", 40, 3)
    result = hr.solve(graph, "70%", milp_seconds=1.0, node_limit=20, polish=0)
    assert result.solved and {"exact", "anneal"} <= result.stats.seconds.keys()
    assert result.time <= result.stats.stage_time["beam"]


def test_a_start_that_lies_in_a_pit_does_not_spoil_annealing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here annealing does better from no start than from that of beam search, which it hardly leaves."""
    monkeypatch.setattr(flat, "PROPOSALS_PER_OP", 2000)
    graph = hr.generate("layered", 40, 5)
    alone = hr.solve(graph, "70%", "anneal", seed=1, proposals=2000 * graph.n_ops)
    result = hr.solve(graph, "70%", seed=1, milp_seconds=0.5, node_limit=2, width=1, polish=0)
    assert alone.solved and result.solved and result.time <= alone.time
    assert result.stats.counts["proposals"] == 2 * alone.stats.counts["proposals"]


def test_no_time_at_all_still_gives_the_smallest_peak_known() -> None:
    graph = hr.generate("transformer", 200, 1)
    result = hr.solve(graph, "50%", time_limit=0)
    assert result.schedule is not None
    assert result.stats.timed_out
    assert result.status in (hr.Status.NO_SOLUTION, hr.Status.FEASIBLE)


def test_interrupt_hands_in_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    real = level.shift_and_repair
    calls = []

    def interrupt(*args: object) -> np.ndarray:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(level, "shift_and_repair", interrupt)
    graph = hr.generate("transformer", 300, 1)
    result = hr.solve(graph, "60%", blocks=4, grid=6, node_limit=50, polish=0, flat_start=False)
    assert result.solved
    assert result.stats.interrupted


def test_a_graph_of_leaf_size_is_solved_to_proof() -> None:
    graph = hr.generate("chain", 40, 1)
    result = hr.solve(graph, "60%")
    assert result.status is hr.Status.OPTIMAL
    assert result.proof in ("staged", "any-order")
    assert result.time == pytest.approx(hr.solve(graph, "60%", method="exact").time)


def test_a_schedule_that_beats_the_staged_bound_is_not_called_staged() -> None:
    graph = hr.generate("layered", 30)
    result = hr.solve(graph, "70%", seed=0)
    assert result.proof != "staged" or result.time >= result.order_lower_bound - 1e-6


def test_too_many_shared_tensors_skip_the_hilp_and_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hierarchical, "MOST_INTERFACE", 1)
    result = hr.solve(hr.generate("transformer", 150, 1), "60%", blocks=3, flat_start=False, **ALONE)
    assert result.solved
    assert any("too many for the H-ILP" in event for event in result.stats.degraded)


def test_large_graphs_have_passes_but_no_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hr.generate("ssm", 300)
    budget = hr.base_peak(graph) * 3 // 10
    for limit, stages in ((1000, {"flat cut", "passes", "beam"}), (100, {"flat cut", "passes"})):
        monkeypatch.setattr(hierarchical, "LARGE_GRAPH", limit)
        search = hierarchical._Search(graph, budget, Run(), Params())
        search.cut = flat.price_memory(graph, budget, 1)
        search.reserve_cut()
        search.reserve_passes()
        assert search.reserves.keys() == stages == search.run.stats.seconds.keys()
        assert search.fits(search.reserves["passes"])


def test_an_interrupt_before_the_first_cut_leaves_the_schedule_of_a_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hierarchical, "price_memory", interrupt)
    result = hr.solve(hr.generate("ssm", 300), "30%", time_limit=60)
    assert result.stats.interrupted
    assert result.solved
    assert result.stats.stage_time.keys() == {"passes", "repair"}


def test_on_huge_graphs_blocks_end_where_a_flat_schedule_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hr.generate("chain", 30)
    given = np.arange(graph.n_ops)
    search = hierarchical._Search(graph, hr.base_peak(graph), Run(), Params())
    search.reserves["passes"] = given
    assert not search.behind_reserves
    monkeypatch.setattr(hierarchical, "HUGE_GRAPH", 10)
    assert not search.behind_reserves
    again = hierarchical.Answer(np.insert(given, 1, 0), 0, graph.total_time + float(graph.time[0]))
    search.best = again
    assert search.behind_reserves
    search.params = Params(flat_start=False)
    assert not search.behind_reserves
    search.params, search.budget = Params(), 0
    assert not search.behind_reserves


def test_without_phases_annealing_improves_on_beam_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "PROPOSALS_PER_OP", 500)
    graph = hr.generate("layered", 100, 0)
    beam = hr.solve(graph, "65%", "beam", width=8)
    result = hr.solve(graph, "65%", polish=0, grid=6, node_limit=20)
    assert "anneal" in result.stats.seconds
    assert result.time <= beam.time
    again = hr.solve(graph, "65%", polish=0, grid=6, node_limit=20)
    assert again.schedule == result.schedule


def test_without_phases_blocks_alone_can_be_had() -> None:
    graph = hr.generate("series-parallel", 100, 1)
    result = hr.solve(graph, "80%", flat_start=False, **ALONE)
    assert "anneal" not in result.stats.seconds


def test_ctrl_c_while_annealing_hands_in_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(flat.anneal, "anneal", interrupt)
    graph = hr.generate("layered", 100, 0)
    result = hr.solve(graph, "60%", **ALONE)
    assert result.schedule is not None
    assert result.stats.interrupted


def test_graph_without_time_is_solved_without_warning() -> None:
    timed = hr.generate("transformer", 100, 1)
    ops = [hr.Op(o.name, 0.0, o.inputs, o.outputs) for o in map(timed.op, range(timed.n_ops))]
    graph = hr.Graph.from_ops(ops, [timed.tensor_names[x] for x in timed.outputs])
    assert hr.solve(graph, "70%", blocks=3, **ALONE).solved


def test_warm_start_is_a_floor() -> None:
    graph = hr.generate("chain", 100, 1)
    good = hr.solve(graph, "60%", blocks=4, grid=6, node_limit=50, polish=0)
    again = hr.solve(graph, "60%", blocks=2, warm_start=good.schedule, **ALONE)
    assert again.time <= good.time


def test_callback_sees_only_schedules_within_the_budget_getting_better() -> None:
    graph = hr.generate("transformer", 150, 1)
    budget = hr.base_peak(graph) * 6 // 10
    seen: list[tuple[int, float]] = []
    run = Run(deadline=Deadline(), callback=lambda _, peak, time: seen.append((peak, time)))
    result = hierarchical.solve(graph, budget, run, Params(blocks=3, **QUICK))
    assert seen
    assert all(peak <= budget for peak, _ in seen)
    times = [time for _, time in seen]
    assert times == sorted(times, reverse=True)
    assert times[-1] == result.time


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"blocks": -1}, "blocks >= 0"),
        ({"menu": 0}, "menu >= 1"),
        ({"milp_seconds": 0.0}, "milp_seconds > 0"),
    ],
)
def test_parameters_out_of_range_are_refused(option: dict[str, float], message: str) -> None:
    with pytest.raises(hr.MethodError, match=message):
        hr.solve(hr.generate("chain", 60, 1), "60%", **option)


def test_schedules_are_of_the_given_graph_whatever_order_the_hierarchy_works_on() -> None:
    graph = hr.generate("ssm", 300, 1)
    order = hierarchical._freeing_order(graph, Params())
    assert (np.diff(order) < 0).any()
    start = hr.solve(graph, "60%", method="cut", moments=False, lower_bound=graph.total_time)
    seen: list[tuple[hr.Schedule, int, float]] = []
    result = hr.solve(
        graph, "60%", warm_start=start.schedule, callback=lambda *found: seen.append(found), polish=0,
        lower_bound=graph.total_time, time_limit=20,
    )  # fmt: skip
    assert result.time <= start.time
    for schedule, peak, time in seen:
        check = hr.validate(graph, schedule)
        assert (check.peak, check.time) == (peak, pytest.approx(time))
