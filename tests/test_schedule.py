"""Claims about schedules."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hremate import Schedule, ScheduleError

indices = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20)


@given(indices)
def test_a_schedule_is_its_sequence_whatever_it_came_in(order: list[int]) -> None:
    forms = (order, tuple(order), iter(order), np.array(order, int))
    schedules = [Schedule(form) for form in forms]
    for schedule in schedules:
        assert list(schedule) == order and len(schedule) == len(order)
        assert schedule.order.dtype == np.int64
        assert schedule == schedules[0] and hash(schedule) == hash(schedules[0])


@given(indices, indices)
def test_equal_means_the_same_sequence(a: list[int], b: list[int]) -> None:
    assert (Schedule(a) == Schedule(b)) == (a == b)
    assert (Schedule(a) != Schedule(b)) == (a != b)


def test_a_schedule_equals_only_schedules() -> None:
    assert Schedule([0, 1]) != [0, 1]


def test_the_order_is_read_only_and_a_copy() -> None:
    given_order = np.array([0, 1, 2])
    schedule = Schedule(given_order)
    given_order[0] = 9
    assert list(schedule) == [0, 1, 2]
    with pytest.raises(ValueError, match="read-only"):
        schedule.order[0] = 5
    with pytest.raises(AttributeError):
        schedule.order = given_order  # type: ignore[misc]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.uint64])
def test_any_integer_array_will_do(dtype: Any) -> None:
    assert Schedule(np.array([3, 1, 2], dtype)) == Schedule([3, 1, 2])


@pytest.mark.parametrize(
    "bad",
    [
        [0.0, 1.0],
        np.array([0.5]),
        [True, False],
        "01",
        ["a"],
        [[0], [1]],
        [[0], [1, 2]],
        np.array(3),
        3,
        [2**31],
        [-(2**31) - 1],
        [2**63],
        [2**64],
        [None],
    ],
    ids=repr,
)
def test_what_is_no_flat_sequence_of_indices_is_refused(bad: Any) -> None:
    with pytest.raises(ScheduleError):
        Schedule(bad)


def test_the_empty_schedule_is_allowed_and_has_integers() -> None:
    assert len(Schedule([])) == 0 and Schedule([]).order.dtype == np.int64


def test_schedules_survive_pickling_and_print_their_head() -> None:
    schedule = Schedule(range(20))
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert repr(schedule) == "<Schedule of 20 steps: 0, 1, 2, 3, 4, 5, 6, 7, ...>"
    assert repr(Schedule([4])) == "<Schedule of 1 steps: 4>"
