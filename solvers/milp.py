"""A mixed-integer linear program as flat arrays: built row by row, shipped between processes, checked here.

Nothing in this module knows the solver; `hremate.solvers.scip` solves what is built here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hremate.errors import SolverError
from hremate.graph import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Milp:
    """min cost x  subject to  row_lower <= A x <= row_upper, lower <= x <= upper, some x integer.

    `v` is the number of variables, `r` of rows, `z` of coefficients. Infinite bounds are +-inf.
    """

    #: float64[v].
    cost: FloatArray
    #: float64[v].
    lower: FloatArray
    #: float64[v].
    upper: FloatArray
    #: bool[v].
    integer: BoolArray
    #: Row q of A has the coefficients row_val[k] at the variables row_idx[k], k in row_ptr[q]:row_ptr[q+1];
    #: a variable that occurs twice counts with the sum. int64[r+1], int64[z], float64[z].
    row_ptr: IntArray
    row_idx: IntArray
    row_val: FloatArray
    #: float64[r].
    row_lower: FloatArray
    #: float64[r].
    row_upper: FloatArray

    @property
    def n_vars(self) -> int:
        return len(self.cost)

    @property
    def n_rows(self) -> int:
        return len(self.row_lower)

    def objective(self, x: FloatArray) -> float:
        """cost x."""
        return float(self.cost @ x)

    def satisfied_by(self, x: FloatArray, tolerance: float = 1e-9) -> bool:
        """Whether x (float64[v]) meets all bounds, rows and integrality.

        A row may be missed by `tolerance` times the larger of 1 and the sum of its |coefficient * x|.
        """
        if x.shape != self.cost.shape or not np.isfinite(x).all():
            return False
        margin = tolerance * np.maximum(1.0, np.abs(x))
        if (x < self.lower - margin).any() or (x > self.upper + margin).any():
            return False
        if (np.abs(x - np.rint(x))[self.integer] > tolerance).any():
            return False
        if not self.n_rows:
            return True
        row_of = np.repeat(np.arange(self.n_rows), np.diff(self.row_ptr))
        terms = self.row_val * x[self.row_idx]
        activity = np.bincount(row_of, terms, self.n_rows)
        slack = tolerance * np.maximum(1.0, np.bincount(row_of, np.abs(terms), self.n_rows))
        return bool((activity >= self.row_lower - slack).all() and (activity <= self.row_upper + slack).all())


class MilpBuilder:
    """Collects variables and rows one at a time, or in bulk, and makes a `Milp`."""

    def __init__(self) -> None:
        self._cost: list[float] = []
        self._lower: list[float] = []
        self._upper: list[float] = []
        self._integer: list[bool] = []
        self._row_ptr: list[int] = [0]
        self._row_idx: list[int] = []
        self._row_val: list[float] = []
        self._row_lower: list[float] = []
        self._row_upper: list[float] = []

    @property
    def n_vars(self) -> int:
        return len(self._cost)

    @property
    def n_rows(self) -> int:
        return len(self._row_lower)

    def add_var(
        self, cost: float = 0.0, lower: float = 0.0, upper: float = 1.0, integer: bool = False
    ) -> int:
        """Add a variable; return its index."""
        self._cost.append(cost)
        self._lower.append(lower)
        self._upper.append(upper)
        self._integer.append(integer)
        return len(self._cost) - 1

    def add_row(
        self,
        indices: Sequence[int],
        values: Sequence[float],
        lower: float = -np.inf,
        upper: float = np.inf,
    ) -> int:
        """Add lower <= sum of values[k] * x[indices[k]] <= upper; return the index of the row."""
        if len(indices) != len(values):
            raise SolverError(f"a row has {len(indices)} variables and {len(values)} coefficients")
        self._row_idx.extend(indices)
        self._row_val.extend(values)
        self._row_ptr.append(len(self._row_idx))
        self._row_lower.append(lower)
        self._row_upper.append(upper)
        return len(self._row_lower) - 1

    def build(self) -> Milp:
        """The finished program.

        Raises
        ------
        SolverError
            A row names a variable that does not exist, or a number is NaN or an infinite coefficient.
        """
        milp = Milp(
            cost=np.array(self._cost, np.float64),
            lower=np.array(self._lower, np.float64),
            upper=np.array(self._upper, np.float64),
            integer=np.array(self._integer, np.bool_),
            row_ptr=np.array(self._row_ptr, np.int64),
            row_idx=np.array(self._row_idx, np.int64),
            row_val=np.array(self._row_val, np.float64),
            row_lower=np.array(self._row_lower, np.float64),
            row_upper=np.array(self._row_upper, np.float64),
        )
        if len(milp.row_idx) and not 0 <= milp.row_idx.min() <= milp.row_idx.max() < milp.n_vars:
            raise SolverError("a row names a variable that does not exist")
        if not (np.isfinite(milp.cost).all() and np.isfinite(milp.row_val).all()):
            raise SolverError("a cost or coefficient of the MILP is not finite")
        if any(np.isnan(a).any() for a in (milp.lower, milp.upper, milp.row_lower, milp.row_upper)):
            raise SolverError("a bound of the MILP is NaN")
        return milp
