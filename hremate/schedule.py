"""A schedule: the order in which ops run, and nothing else.

An op that appears more than once is recomputed. When tensors are freed follows from the order (a copy
lives from its step to its last read before the next copy is made), so it is never stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hremate.errors import ScheduleError
from hremate.graph import IntArray


@dataclass(frozen=True, eq=False)
class Schedule:
    """A sequence of op indices, as a read-only int64 array `order`.

    Whether it is valid for a graph is for `hremate.validate` to say.
    """

    order: IntArray

    def __init__(self, order: Iterable[int] | IntArray) -> None:
        try:
            values = np.asarray(list(order) if not isinstance(order, np.ndarray) else order)
        except (TypeError, ValueError) as error:  # not iterable, or nested lists of different lengths
            raise ScheduleError(f"a schedule is a flat sequence of op indices (integers): {error}") from None
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
            raise ScheduleError("a schedule is a flat sequence of op indices (integers)")
        if values.size and (values.max() >= 2**31 or values.min() < -(2**31)):
            raise ScheduleError(f"a schedule holds op indices, not {int(values[np.abs(values).argmax()])}")
        array = values.astype(np.int64)
        array.setflags(write=False)
        object.__setattr__(self, "order", array)

    def __len__(self) -> int:
        return len(self.order)

    def __iter__(self) -> Iterator[int]:
        return iter(self.order.tolist())

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Schedule) and np.array_equal(self.order, other.order)

    def __hash__(self) -> int:
        return hash(self.order.tobytes())

    def __repr__(self) -> str:
        head = ", ".join(str(i) for i in self.order[:8])
        return f"<Schedule of {len(self)} steps: {head}{', ...' if len(self) > 8 else ''}>"
