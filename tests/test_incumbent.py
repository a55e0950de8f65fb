"""The best schedule so far: within the budget first, then time; the smallest peak besides."""

from __future__ import annotations

import numpy as np

from hremate import Graph, Op, Schedule
from hremate.solvers.base import Run
from hremate.solvers.incumbent import Incumbent, announcer, meets


def skip() -> Graph:
    """Base peak 11; dropping x and running a again reaches 8."""
    ops = [
        Op("a", 1.0, (), (("x", 4),)),
        Op("b", 1.0, ("x",), (("y", 1),)),
        Op("c", 1.0, ("y",), (("z", 1),), workspace=6),
        Op("d", 1.0, ("x", "z"), (("w", 1),)),
    ]
    return Graph.from_ops(ops, ["w"])


GIVEN, AGAIN = np.array([0, 1, 2, 3]), np.array([0, 1, 2, 0, 3])


def test_a_time_summed_in_another_order_still_meets_the_bound() -> None:
    assert meets(skip(), np.nextafter(5.0, 6.0), 5.0) and not meets(skip(), 5.001, 5.0)


def test_only_what_fits_and_is_quicker_counts() -> None:
    best = Incumbent(skip(), 8)
    assert best.offer(GIVEN) > 0 and best.order is None and best.smallest is GIVEN
    assert best.offer(AGAIN) <= 0 and best.order is AGAIN and best.smallest is AGAIN
    assert best.time == 5.0 and not best.meets_bound
    roomy = Incumbent(skip(), 100)
    roomy.offer(AGAIN)
    roomy.offer(GIVEN)
    assert roomy.order is GIVEN and roomy.smallest is AGAIN and roomy.meets_bound


def test_a_bound_beyond_the_sum_of_times_is_met() -> None:
    best = Incumbent(skip(), 8, lower_bound=5.0)
    best.offer(AGAIN)
    assert best.meets_bound


def test_improvements_are_announced_once() -> None:
    lines: list[str] = []
    seen: list[tuple[Schedule, int, float]] = []
    run = Run(progress=lines.append, callback=lambda *found: seen.append(found))
    best = Incumbent(skip(), 8, announcer(run, "some"))
    for order in (GIVEN, AGAIN, AGAIN):
        best.offer(order)
    assert lines == ["some: time 5"] and seen == [(Schedule(AGAIN), 8, 5.0)]
