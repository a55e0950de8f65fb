"""The one seam to SCIP: nothing else in hremate imports pyscipopt.

SCIP's own `optimize` holds the interpreter lock and swallows Ctrl-C. Here SCIP runs without the lock in a
thread of its own while the caller waits on an event, owns the deadline, and stops SCIP from outside when
the deadline passes or Ctrl-C arrives; SCIP then comes back within milliseconds and keeps its incumbent.
"""

from __future__ import annotations

import contextlib
import enum
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyscipopt
from pyscipopt.scip import PY_SCIP_EVENTTYPE, PY_SCIP_STAGE, Expr, ExprCons

from hremate.errors import SolverError
from hremate.graph import FloatArray
from hremate.solvers.base import Deadline
from hremate.solvers.milp import Milp, MilpBuilder

__all__ = ["FEASTOL", "Milp", "MilpBuilder", "MilpResult", "MilpSolver", "MilpStatus", "solve_milp"]

#: SCIP misses rows and integrality by up to this, relative to the larger of 1 and the side of the row, unless
#: it is told another one; `FINE_FEASTOL` is the smallest at which it may still tighten that of an LP in need.
FEASTOL, FINE_FEASTOL = 1e-6, 1e-7
#: A solution that rounding moves further than this is thrown away.
NOISE = 1e-4
#: Seconds between two requests to stop: the first may come before SCIP listens.
_STOP_INTERVAL = 0.02
#: Where it listens; in some other stages it refuses with a message on stderr.
_LISTENING = (PY_SCIP_STAGE.PRESOLVING, PY_SCIP_STAGE.SOLVING)
#: Longest uninterrupted wait, seconds: a signal that another thread caught is noticed after it.
_WAIT_INTERVAL = 0.2
#: Seconds that SCIP gets to end once it is asked to; then it hangs, and is left to itself.
_PATIENCE = 10.0
#: Variables or rows handed over between two looks at the clock.
_LOAD_CHUNK = 1000
#: Seconds for each coefficient in which SCIP does not listen while it sets itself up; and the time to free a
#: program as a share of that to hand it over. Both are kept clear of the deadline.
_SETUP_SECONDS, _FREE_SHARE = 2e-6, 0.2
_SEED_RANGE = 2**31
#: SCIP's "no time limit", seconds.
_LONGEST = 1e20


class MilpStatus(enum.Enum):
    """How a solve ended."""

    #: Proved optimal within the gaps that were asked for.
    OPTIMAL = "optimal"
    #: A solution, not proved.
    FEASIBLE = "feasible"
    #: Proved: there is no solution.
    INFEASIBLE = "infeasible"
    #: Neither a solution nor a proof.
    NO_SOLUTION = "no_solution"


@dataclass(frozen=True)
class MilpResult:
    """What a solve found out."""

    status: MilpStatus
    #: The best solution, float64[v], or None; integer variables hold exact integers within their bounds.
    x: FloatArray | None
    #: Cost of `x`; +inf without one.
    objective: float
    #: No solution costs less: SCIP's dual bound less its tolerance (1e-6, if not told otherwise, times the
    #: larger of 1 and the bound). +inf when infeasible, -inf when nothing is known.
    bound: float
    #: Branch-and-bound nodes.
    nodes: int
    seconds: float
    #: Ctrl-C arrived during the solve. It is not raised again: the best so far is in `x`, and the caller
    #: is expected to wind up and hand in what it has.
    interrupted: bool


class MilpSolver:
    """A program inside SCIP that can be changed a little and solved again. It cannot be pickled.

    Parameters
    ----------
    milp : Milp
    seed : int
        Seed of SCIP's tie breaking; equal seeds and node limits give equal answers.
    name : str
        Names the program in error messages.
    settings : mapping, optional
        SCIP parameters by name, where the program needs other values than SCIP's own.
    feastol : float
        Tolerance of rows, integrality and bound, at least `FINE_FEASTOL`. That of reduced costs stays at
        1e-7: scale costs so that this is small.
    deadline : Deadline, optional
        When to stop handing the program to SCIP, which takes seconds for a million coefficients; `solve` then
        gives the best of its starts, as it does where there is no time to search.

    Raises
    ------
    SolverError
        From every method, when SCIP fails.
    """

    def __init__(
        self,
        milp: Milp,
        *,
        seed: int = 0,
        name: str = "",
        settings: Mapping[str, bool | int | float | str] | None = None,
        feastol: float = FEASTOL,
        deadline: Deadline | None = None,
    ) -> None:
        self.name = name or "MILP"
        self._feastol = feastol
        self._milp = milp
        self._cost = milp.cost.copy()
        self._row_lower = milp.row_lower.copy()
        self._row_upper = milp.row_upper.copy()
        self._watch: _IncumbentEvent | None = None
        self._dirty = False
        self._lost = False
        start_time = time.monotonic()
        try:
            self._model, self._vars, self._rows = _load(milp, seed % _SEED_RANGE, deadline or Deadline())
            self._free_seconds = _FREE_SHARE * (time.monotonic() - start_time)
            if feastol != FEASTOL:
                self._model.setParam("numerics/feastol", feastol)
            for key, value in (settings or {}).items():
                self._model.setParam(key, value)
        except Exception as error:
            raise SolverError(f"{self.name}: SCIP refused the model: {_told(error)}") from error

    def set_row(self, row: int, lower: float, upper: float) -> None:
        """Change the bounds of a row."""
        self._reset()
        self._row_lower[row], self._row_upper[row] = lower, upper
        if self._partial:
            return
        try:
            self._model.chgLhs(self._rows[row], _finite(lower))
            self._model.chgRhs(self._rows[row], _finite(upper))
        except Exception as error:
            raise SolverError(f"{self.name}: SCIP refused bounds {lower}, {upper}: {error}") from error

    def set_cost(self, var: int, cost: float) -> None:
        """Change the cost of a variable."""
        self._reset()
        self._cost[var] = cost
        if self._partial:
            return
        try:
            self._model.setObjective(cost * self._vars[var], clear=False)
        except Exception as error:
            raise SolverError(f"{self.name}: SCIP refused cost {cost}: {error}") from error

    def solve(
        self,
        *,
        deadline: Deadline | None = None,
        node_limit: int | None = None,
        gap_abs: float = 0.0,
        gap_rel: float = 0.0,
        starts: Sequence[FloatArray] = (),
        cutoff: float = np.inf,
        on_incumbent: Callable[[FloatArray, float], object] | None = None,
    ) -> MilpResult:
        """Solve the program as it stands.

        Parameters
        ----------
        deadline : Deadline, optional
            When to be done, freeing the program included; checked by this side, not by SCIP.
        node_limit : int, optional
            Branch-and-bound nodes, for results that repeat on any machine.
        gap_abs, gap_rel : float
            Stop when objective - bound is at most gap_abs, or gap_rel of the smaller of the two.
        starts : sequence of float64[v]
            Complete solutions. Those that miss a row or bound (by 1e-9, relative) are ignored; the answer
            is never worse than the best of the others.
        cutoff : float
            Solutions that cost more do not count: INFEASIBLE says that none costs less, and so does a bound
            equal to `cutoff`.
        on_incumbent : callable, optional
            Called from SCIP's thread with (x, objective) for each improved solution; the solve stops when
            it returns True. What it raises stops the solve and is raised here.

        Raises
        ------
        SolverError
            SCIP failed, or the program is unbounded.
        """
        start_time = time.monotonic()
        deadline = deadline or Deadline()
        current = self._current()
        good = [np.asarray(x, np.float64) for x in starts]
        rounded = [_rounded(current, x) for x in good if current.satisfied_by(x)]
        good = [x for x in rounded if x is not None and current.objective(x) <= cutoff]
        good.sort(key=current.objective)
        deadline = deadline.within(deadline.remaining - self._free_seconds)
        if self._partial or deadline.remaining <= _SETUP_SECONDS * len(self._milp.row_idx):
            return self._result(good, "timelimit", None, -np.inf, 0, start_time, False)
        self._reset()
        model = self._model
        try:
            model.setParam("limits/nodes", -1 if node_limit is None else node_limit)
            model.setParam("limits/absgap", gap_abs)
            model.setParam("limits/gap", gap_rel)
            # Only so that the LP solver, deaf to interrupts within one LP, stops by itself.
            model.setParam("limits/time", min(deadline.remaining, _LONGEST))
            model.setObjlimit(min(cutoff, model.infinity()))
            for x in good:
                self._offer(x)
            if on_incumbent is not None and self._watch is None:
                self._watch = _IncumbentEvent(self._incumbent)
                model.includeEventhdlr(self._watch, "hremate_incumbent", "reports improved solutions")
            if self._watch is not None:
                self._watch.arm(on_incumbent)
            self._dirty = True
            try:
                interrupted = _optimize(model, deadline)
            except _Hanging:
                self._lost = True
                raise
            if self._watch is not None and self._watch.error is not None:
                raise self._watch.error
            found = self._read(model.getBestSol()) if model.getNSols() else None
            status, bound, nodes = model.getStatus(), model.getDualbound(), model.getNTotalNodes()
        except SolverError:
            raise
        except Exception as error:
            if self._watch is not None and error is self._watch.error:
                raise
            raise SolverError(f"{self.name}: SCIP failed: {_told(error)}") from error
        result = self._result(good, status, found, bound, nodes, start_time, interrupted)
        return replace(result, bound=min(result.bound, cutoff))

    @property
    def _partial(self) -> bool:
        """Whether time was up before SCIP had the whole program."""
        return len(self._vars) < self._milp.n_vars or len(self._rows) < self._milp.n_rows

    def _current(self) -> Milp:
        m = self._milp
        return Milp(
            self._cost, m.lower, m.upper, m.integer, m.row_ptr, m.row_idx, m.row_val,
            self._row_lower, self._row_upper,
        )  # fmt: skip

    def _reset(self) -> None:
        """Back to the stage in which the program may be changed."""
        if self._lost:
            raise SolverError(f"{self.name}: SCIP still hangs in the solve before")
        if self._dirty:
            self._model.freeTransform()
            self._dirty = False

    def _offer(self, x: FloatArray) -> None:
        solution = self._model.createSol()
        for j in np.flatnonzero(x).tolist():
            self._model.setSolVal(solution, self._vars[j], x[j])
        self._model.addSol(solution)

    def _read(self, solution: Any) -> FloatArray:
        value = self._model.getSolVal
        return np.array([value(solution, variable) for variable in self._vars], np.float64)

    def _incumbent(self, solution: Any) -> tuple[FloatArray, float] | None:
        x = _rounded(self._current(), self._read(solution))
        return None if x is None else (x, float(self._cost @ x))

    def _result(
        self,
        good: list[FloatArray],
        status: str,
        found: FloatArray | None,
        dual: float,
        nodes: int,
        start_time: float,
        interrupted: bool,
    ) -> MilpResult:
        """Weigh what SCIP found against the starts. `good` is sorted by objective."""
        if status in ("unbounded", "inforunbd"):
            raise SolverError(f"{self.name}: the program is unbounded")
        current = self._current()
        infinity = self._model.infinity()
        x = None if found is None else _rounded(current, found)
        best = np.inf if x is None else current.objective(x)
        proved = status in ("optimal", "gaplimit")
        if good and current.objective(good[0]) < best:
            # SCIP ends above a start only within its tolerance, unless it was stopped before it looked.
            lost = best - current.objective(good[0])
            proved = proved and lost <= self._feastol * max(1.0, abs(best))
            x, best = good[0], current.objective(good[0])
            if status == "infeasible":
                dual = -np.inf
        bound = dual if abs(dual) < infinity else float(np.sign(dual)) * np.inf
        if np.isfinite(bound):
            bound -= self._feastol * max(1.0, abs(bound))
        if x is not None:
            bound = min(bound, best)
            outcome = MilpStatus.OPTIMAL if proved else MilpStatus.FEASIBLE
        else:
            outcome = MilpStatus.INFEASIBLE if status == "infeasible" else MilpStatus.NO_SOLUTION
            bound = np.inf if outcome is MilpStatus.INFEASIBLE else bound
        return MilpResult(outcome, x, best, bound, nodes, time.monotonic() - start_time, interrupted)


def solve_milp(
    milp: Milp,
    *,
    seed: int = 0,
    name: str = "",
    settings: Mapping[str, bool | int | float | str] | None = None,
    **options: Any,
) -> MilpResult:
    """Solve `milp` once; `options` are those of `MilpSolver.solve`."""
    return MilpSolver(milp, seed=seed, name=name, settings=settings).solve(**options)


class _Hanging(Exception):
    """SCIP does not end when it is asked to."""


class _IncumbentEvent(pyscipopt.Eventhdlr):
    """Hands each improved solution to a callback."""

    def __init__(self, read: Callable[[Any], tuple[FloatArray, float] | None]) -> None:
        self._read = read
        self._callback: Callable[[FloatArray, float], object] | None = None
        self.error: BaseException | None = None

    def arm(self, callback: Callable[[FloatArray, float], object] | None) -> None:
        self._callback = callback
        self.error = None

    def eventinit(self) -> None:
        self.model.catchEvent(PY_SCIP_EVENTTYPE.BESTSOLFOUND, self)

    def eventexit(self) -> None:
        self.model.dropEvent(PY_SCIP_EVENTTYPE.BESTSOLFOUND, self)

    def eventexec(self, event: Any) -> None:
        if self._callback is None or self.error is not None:
            return
        try:
            incumbent = self._read(self.model.getBestSol())
            if incumbent is not None and self._callback(*incumbent) is True:
                self.model.interruptSolve()
        except BaseException as error:  # must not unwind through SCIP; raised by `solve`
            self.error = error
            self.model.interruptSolve()


def _load(milp: Milp, seed: int, deadline: Deadline) -> tuple[Any, list[Any], list[Any]]:
    """A SCIP model of `milp` with the variables and then the rows for which there is time.

    Adding one coefficient at a time is quickest.
    """
    model = pyscipopt.Model()
    model.hideOutput()
    model.setParam("misc/catchctrlc", False)
    model.setParam("parallel/maxnthreads", 1)
    model.setParam("lp/threads", 1)
    # Wrong (optima, even "infeasible") where coefficients of a row differ by about 1e-8, as byte sizes do.
    model.setParam("presolving/domcol/maxrounds", 0)
    model.setParam("randomization/randomseedshift", seed)
    model.setParam("randomization/permutationseed", seed)
    model.setParam("randomization/lpseed", seed)
    variables: list[Any] = []
    columns = zip(
        milp.cost.tolist(), milp.lower.tolist(), milp.upper.tolist(), milp.integer.tolist(), strict=True
    )
    for j, (cost, lower, upper, integer) in enumerate(columns):
        if j % _LOAD_CHUNK == 0 and deadline.expired:
            return model, variables, []
        kind = "C" if not integer else "B" if lower >= 0.0 and upper <= 1.0 else "I"
        variables.append(model.addVar("", kind, _finite(lower), _finite(upper), cost))
    ptr, idx, val = milp.row_ptr.tolist(), milp.row_idx.tolist(), milp.row_val.tolist()
    infinity = model.infinity()
    lower_sides = np.clip(milp.row_lower, -infinity, infinity).tolist()
    upper_sides = np.clip(milp.row_upper, -infinity, infinity).tolist()
    rows: list[Any] = []
    for q in range(milp.n_rows):
        if q % _LOAD_CHUNK == 0 and deadline.expired:
            break
        row = model.addCons(ExprCons(Expr({}), lower_sides[q], upper_sides[q]), name=f"c{q}")
        for k in range(ptr[q], ptr[q + 1]):
            model.addConsCoeff(row, variables[idx[k]], val[k])
        rows.append(row)
    return model, variables, rows


def _optimize(model: Any, deadline: Deadline) -> bool:
    """Run SCIP until it ends, the deadline passes or Ctrl-C arrives; return whether it was Ctrl-C.

    Raises
    ------
    _Hanging
        SCIP did not end when it was asked to. Its thread goes on, and keeps the model alive.
    """
    done = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            model.optimizeNogil()
        except BaseException as error:  # handed to the waiting thread
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work, name="scip", daemon=True)
    interrupted = False
    patience: Deadline | None = None
    thread.start()
    while True:
        try:
            if interrupted or deadline.expired:
                patience = patience or Deadline(_PATIENCE)
                if patience.expired:
                    raise _Hanging(f"it did not end within {_PATIENCE:g} s of being asked to")
                timeout = _STOP_INTERVAL
                _interrupt(model)
            else:
                timeout = min(deadline.remaining, _WAIT_INTERVAL)
            if done.wait(timeout):
                break
        except KeyboardInterrupt:
            interrupted = True
    thread.join()
    if errors:
        raise errors[0]
    return interrupted


def _interrupt(model: Any) -> None:
    """Ask SCIP to stop, unless it sets itself up; then it is asked again."""
    if model.getStage() not in _LISTENING:
        return
    with contextlib.suppress(Exception):  # the stage may have changed; pyscipopt raises bare Exception
        model.interruptSolve()


def _told(error: Exception) -> str:
    """What an exception says, or what it is where it says nothing."""
    return str(error) or type(error).__name__


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _rounded(milp: Milp, x: FloatArray) -> FloatArray | None:
    """`x` with exact integers, clipped into its bounds; None when that moves it by more than noise.

    Presolving may remove a variable as a combination of others, whose tolerances then add up in it.
    """
    y = np.where(milp.integer, np.rint(x), x)
    y = np.clip(y, milp.lower, milp.upper)
    fractional = milp.integer & (y != np.rint(y))
    if fractional.any() or (np.abs(y - x) > NOISE * np.maximum(1.0, np.abs(x))).any():
        return None
    return y + 0.0  # no negative zeros
