"""The greedy baseline: valid everywhere, never better than the optimum."""

from __future__ import annotations

import random

from oracle import breakpoints, min_peak, optimal_time, random_graph

from hremate import Graph, Op, Status
from hremate.solvers import greedy
from hremate.solvers.base import Deadline, Run


def test_it_is_valid_at_every_breakpoint_and_never_beats_the_optimum() -> None:
    rng = random.Random(11)
    for _ in range(60):
        graph = random_graph(rng, max_ops=6)
        for budget in breakpoints(graph):
            result = greedy.solve(graph, budget, Run(), greedy.Params())
            if result.solved:
                best = optimal_time(graph, budget)
                assert best is not None and result.time >= best
            else:
                assert result.status == Status.NO_SOLUTION
                assert result.peak >= min_peak(graph)


def test_a_result_that_does_not_fit_is_dropped_and_made_again() -> None:
    ops = [
        Op("a", 1.0, (), (("ta", 4),)),
        Op("b", 1.0, ("ta",), (("tb", 1),)),
        Op("big", 1.0, ("tb",), (("tc", 1),), workspace=8),
        Op("end", 1.0, ("ta", "tc"), (("td", 1),)),
    ]
    graph = Graph.from_ops(ops, ["td"])
    result = greedy.solve(graph, 10, Run(), greedy.Params())
    assert list(result.schedule) == [0, 1, 2, 0, 3]


def test_sources_run_late() -> None:
    ops = [
        Op("a", 1.0, (), (("ta", 5),)),
        Op("b", 1.0, (), (("tb", 5),)),
        Op("c", 1.0, ("ta",), (("tc", 1),)),
        Op("d", 1.0, ("tb", "tc"), (("td", 1),)),
    ]
    result = greedy.solve(Graph.from_ops(ops, ["td"]), 7, Run(), greedy.Params())
    assert list(result.schedule) == [0, 2, 1, 3]


def test_an_input_that_an_eviction_makes_needed_again_does_not_count_as_dying() -> None:
    # `reuse`: evicting t1 while c runs means b must run again, so t0 stays needed after c.
    ops = [
        Op("a", 1.0, (), (("t0", 3),), workspace=2),
        Op("b", 1.0, ("t0",), (("t1", 2),), workspace=2),
        Op("c", 5.0, ("t0", "t1"), (("t2", 2), ("unread", 4))),
        Op("d", 1.0, ("t1", "t2"), (("t3", 2),)),
    ]
    graph = Graph.from_ops(ops, ["t3"], memory_model="reuse")
    for budget in range(5, 12):
        result = greedy.solve(graph, budget, Run(), greedy.Params())
        assert result.solved == (result.peak <= budget)


def test_a_spent_deadline_gives_the_given_order() -> None:
    graph = Graph.from_ops([Op("a", 1.0, (), (("ta", 5),))], ["ta"])
    run = Run(deadline=Deadline(0.0))
    assert list(greedy.solve(graph, 1, run, greedy.Params()).schedule) == [0]
    assert run.stats.timed_out
