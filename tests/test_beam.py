"""Beam search with recomputation: valid, repeatable, and near the optimum of tiny graphs."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import breakpoints, min_peak, optimal_time, random_graph

from hremate import Graph, MethodError, Op, Result, Status, base_peak, generate, simulate, validate
from hremate.solvers import _beam_state_kernel as kernels
from hremate.solvers import beam
from hremate.solvers.base import Deadline, Run
from hremate.solvers.searcher import Searcher, make_policy

CAPTURED = Path(__file__).resolve().parents[2] / "shared" / "data" / "captured"


def _training_chain(depth: int, size: int = 10) -> Graph:
    """A chain of `depth` ops and its backward pass, which reads every activation once."""
    ops = [Op("f0", 1.0, (), (("a0", size),))]
    ops += [Op(f"f{i}", 1.0, (f"a{i - 1}",), ((f"a{i}", size),)) for i in range(1, depth)]
    ops.append(Op("loss", 1.0, (f"a{depth - 1}",), ((f"g{depth}", size),)))
    ops += [
        Op(f"b{i}", 1.0, (f"g{i + 1}", f"a{i}"), ((f"g{i}", size),)) for i in range(depth - 1, -1, -1)
    ]
    return Graph.from_ops(ops, ["g0"], name="chain")


def _solve(graph: Graph, budget: int, width: int = 4, seed: int = 0) -> Result:
    return beam.solve(graph, budget, Run(seed=seed), beam.Params(width))


@settings(max_examples=60, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_at_every_breakpoint_it_is_valid_and_never_beats_the_optimum(rng: random.Random) -> None:
    graph = random_graph(rng, max_ops=6)
    for budget in breakpoints(graph):
        result = _solve(graph, budget)
        best = optimal_time(graph, budget)
        assert result.schedule is not None and result.peak is not None
        if result.status == Status.FEASIBLE:
            assert best is not None and result.time >= best
            validate(graph, result.schedule, budget)
        else:
            assert result.status == Status.NO_SOLUTION
            assert result.peak >= min_peak(graph)


def test_every_pass_keeps_to_its_budget() -> None:
    rng = random.Random(2)
    for _ in range(40):
        graph = random_graph(rng, max_ops=6, min_ops=3)
        given_order = np.arange(graph.n_ops)
        searcher = Searcher(graph, 2, 0, Deadline())
        for budget in range(simulate(graph, given_order).peak + 1):
            for prices in beam._PRICES[::5]:
                policy = make_policy(graph, given_order, prices)
                passed = searcher.follow(given_order, budget, policy)
                searched = searcher.beam(budget, policy, budget)
                for order in (passed, searched):
                    assert order is None or validate(graph, order, budget)


def test_most_tiny_graphs_are_solved_to_the_optimum() -> None:
    rng = random.Random(1)
    cells = met = optimal = 0
    for _ in range(60):
        graph = random_graph(rng, max_ops=6, min_ops=3)
        for budget in breakpoints(graph):
            best = optimal_time(graph, budget)
            if best is not None:
                result = _solve(graph, budget)
                cells += 1
                met += result.solved
                optimal += result.solved and result.time == best
    assert met >= 0.98 * cells
    assert optimal >= 0.9 * cells


@pytest.mark.parametrize("depth", [8, 30])
def test_a_training_chain_is_recomputed_in_a_third_of_its_memory(depth: int) -> None:
    graph = _training_chain(depth)
    budget = simulate(graph, range(graph.n_ops)).peak * (60 if depth == 8 else 34) // 100
    result = _solve(graph, budget)
    assert result.status == Status.FEASIBLE
    assert result.overhead is not None and result.overhead < 0.6


def test_without_pressure_the_given_order_comes_back() -> None:
    graph = _training_chain(6)
    result = _solve(graph, 10**9)
    assert list(result.schedule) == list(range(graph.n_ops))


def test_once_ops_run_once_under_any_pressure() -> None:
    rng = random.Random(7)
    seen = 0
    while seen < 20:
        graph = random_graph(rng, max_ops=7, min_ops=4)
        if not graph.once.any():
            continue
        seen += 1
        for budget in breakpoints(graph):
            runs = np.bincount(_solve(graph, budget).schedule.order, minlength=graph.n_ops)
            assert (runs[graph.once] == 1).all()


def test_graph_outputs_that_were_evicted_are_made_again_at_the_end() -> None:
    ops = [
        Op("a", 1.0, (), (("ta", 3),)),
        Op("b", 1.0, ("ta",), (("tb", 1),), workspace=1),
        Op("c", 1.0, ("tb",), (("tc", 1),), workspace=4),
    ]
    result = _solve(Graph.from_ops(ops, ["ta", "tc"]), 6)
    assert list(result.schedule) == [0, 1, 2, 0]


def test_an_op_with_two_outputs_is_run_again_for_one_of_them() -> None:
    ops = [
        Op("split", 1.0, (), (("x", 4), ("y", 4))),
        Op("use", 1.0, ("x",), (("u", 1),)),
        Op("big", 1.0, ("u",), (("v", 1),), workspace=9),
        Op("end", 1.0, ("v", "y"), (("w", 1),)),
    ]
    result = _solve(Graph.from_ops(ops, ["w"]), 11)
    assert result.solved
    assert list(result.schedule).count(0) == 2


def test_the_smallest_peak_is_given_when_the_budget_cannot_be_met() -> None:
    graph = _training_chain(4)
    result = _solve(graph, 5)
    assert result.status == Status.NO_SOLUTION
    assert result.peak == min_peak(graph)


def test_equal_seeds_give_equal_schedules() -> None:
    graph = _training_chain(12)
    budget = simulate(graph, range(graph.n_ops)).peak // 2
    assert _solve(graph, budget, seed=3).schedule == _solve(graph, budget, seed=3).schedule


def test_a_spent_deadline_still_gives_a_valid_schedule() -> None:
    graph = _training_chain(12)
    run = Run(deadline=Deadline(0.0))
    result = beam.solve(graph, simulate(graph, range(graph.n_ops)).peak // 2, run, beam.Params())
    assert run.stats.timed_out
    assert result.schedule is not None


def test_an_interrupt_keeps_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Searcher, *args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Searcher, "follow", interrupt)
    graph = _training_chain(12)
    run = Run()
    result = beam.solve(graph, simulate(graph, range(graph.n_ops)).peak // 2, run, beam.Params())
    assert run.stats.interrupted
    assert result.schedule is not None


def test_a_full_log_is_enlarged_without_changing_the_answer() -> None:
    graph = _training_chain(40)
    budget = simulate(graph, range(graph.n_ops)).peak // 3
    policy = make_policy(graph, np.arange(graph.n_ops))
    schedules = []
    for room in (1 << 16, 8 * graph.n_tensors):
        searcher = Searcher(graph, 2, 0, Deadline())
        searcher.scratch = searcher.scratch._replace(log=np.zeros(room, np.int32))
        passed = searcher.follow(np.arange(graph.n_ops), budget, policy)
        schedules.append((passed, searcher.beam(budget, policy)))
    for a, b in zip(*schedules, strict=True):
        assert np.array_equal(a, b)


def test_undo_takes_every_move_back() -> None:
    rng = random.Random(3)
    for _ in range(40):
        graph = random_graph(rng, max_ops=7, min_ops=4)
        searcher = Searcher(graph, 1, 0, Deadline())
        policy = make_policy(graph, np.arange(graph.n_ops))
        kernels.init_slot(searcher.net, searcher.state, 0)
        start = [np.copy(a) for a in (searcher.state.need, searcher.state.wait, searcher.state.tally[:, :6])]
        peak = simulate(graph, range(graph.n_ops)).peak
        if searcher.follow(np.arange(graph.n_ops), max(1, peak - 1), policy) is None:
            continue
        for entry in searcher.scratch.log[: searcher.scratch.cell[kernels.LOG_SIZE]][::-1]:
            kernels.undo(searcher.net, searcher.state, 0, entry, policy, searcher.scratch)
        searcher.state.tally[0, kernels.PEAK] = 0
        end = (searcher.state.need, searcher.state.wait, searcher.state.tally[:, :6])
        for a, b in zip(start, end, strict=True):
            assert np.array_equal(a, b)
        assert searcher.state.tally[0, kernels.EXTRA] == searcher.state.tally[0, kernels.DEBT] == 0


@pytest.mark.parametrize("kind, percent, overhead", [("transformer", 60, 0.06), ("unet", 70, 0.05)])
def test_thousands_of_live_tensors_are_kept_within_the_budget(
    kind: str, percent: int, overhead: float
) -> None:
    graph = generate(kind, 3000, seed=1)
    budget = base_peak(graph) * percent // 100
    result = _solve(graph, budget, width=1)
    assert result.solved and result.overhead is not None
    validate(graph, result.schedule, budget)
    assert result.overhead < overhead


def test_a_better_order_is_preferred_to_recomputation() -> None:
    graph = generate("layered", 100, seed=1)
    result = _solve(graph, base_peak(graph) * 97 // 100)
    assert result.solved and result.overhead == 0


def test_a_width_below_one_is_refused() -> None:
    with pytest.raises(MethodError, match="expected width >= 1"):
        beam.Params(width=0)


@pytest.mark.parametrize(
    "name, percent, overhead",
    [("mlp-8", 50, 0.30), ("unet", 50, 0.102), ("gpt2-5", 50, 0.208), ("mlp-mixer-8", 40, 0.146)],
)
def test_captured_graphs_come_close_to_the_best_known(name: str, percent: int, overhead: float) -> None:
    path = CAPTURED / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    from hremate import read_graph

    graph = read_graph(path)
    result = _solve(graph, base_peak(graph) * percent // 100, width=2)
    assert result.solved
    assert result.overhead <= overhead
