"""The method `moccasin`: retention intervals in CP-SAT, an optional extra.

Bartan et al., "Moccasin: Efficient tensor rematerialization for neural networks", ICML 2023; the program is
in `hremate.solvers.moccasin_model`. Its schedules are those staged along the given order with at most C runs
per op. Some budgets need more runs, so the status is `optimal`, with a staged proof, only where no op could
use more than C; otherwise it is `feasible`, and the reason says what was proved for C runs.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass
from typing import Any

from hremate.budget import format_bytes
from hremate.errors import HremateError, MethodError, MissingExtraError, SolverError
from hremate.graph import Graph, IntArray
from hremate.result import Result, Status
from hremate.simulate import simulate
from hremate.solvers.base import Run, finish
from hremate.solvers.incumbent import Incumbent, announcer
from hremate.solvers.moccasin_model import Program

#: The grid of slots grows with the square of the ops; beyond this it alone takes gigabytes.
MAX_OPS = 5_000
#: Seconds between two looks at the clock.
_WAIT = 0.1


@dataclass(frozen=True)
class Params:
    """Parameters of Moccasin."""

    #: Largest number of runs of each op (C of the paper), >= 1.
    max_runs: int = 2
    #: Search threads, >= 1; they take turns, so that results repeat where no time limit cuts them short.
    workers: int = 8

    def __post_init__(self) -> None:
        if self.max_runs < 1:
            raise MethodError(f"max_runs is {self.max_runs}. Expected max_runs >= 1.")
        if self.workers < 1:
            raise MethodError(f"workers is {self.workers}. Expected workers >= 1.")


def solve(graph: Graph, budget: int, run: Run, params: Params) -> Result:
    """The best staged schedule of `graph` with at most C runs per op, as far as the time allows.

    Raises
    ------
    MissingExtraError
        OR-tools is not installed.
    MethodError
        More than `MAX_OPS` ops.
    SolverError
        CP-SAT failed.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise MissingExtraError(
            "method 'moccasin' needs OR-tools; install it with: pip install 'hremate[moccasin]'"
        ) from None
    if graph.n_ops > MAX_OPS:
        raise MethodError(
            f"moccasin takes graphs of at most {MAX_OPS} ops; {graph.name!r} has {graph.n_ops}"
        )
    program = Program(graph, budget, params.max_runs, cp_model)
    run.stats.counts.update(cp_variables=program.n_vars, cp_intervals=program.n_intervals)
    if run.warm_start is not None:
        program.hint(run.warm_start)
    answer = _optimize(program, budget, cp_model, run, params)
    run.stats.timed_out |= run.deadline.expired
    order = answer.order
    # Nothing takes less than the sum of all op times, in any order.
    bound = max(graph.total_time, graph.total_time + program.quantum * answer.bound)
    all_staged = params.max_runs >= program.needed_runs
    order_bound = bound if all_staged and math.isfinite(bound) else None
    who = "staged schedule" if all_staged else f"staged schedule of at most {params.max_runs} runs per op"
    if order is None:
        reason = "no schedule within the budget was found in the time given"
        if answer.status == cp_model.INFEASIBLE:
            reason = f"no {who} fits {format_bytes(budget)}; others may"
        return finish(
            graph, budget, run, "moccasin", None, order_lower_bound=order_bound, reason=reason
        )
    time = simulate(graph, order).time
    proved = answer.status == cp_model.OPTIMAL
    any_order = time <= graph.total_time
    reason = ""
    if not any_order and not all_staged:
        reason = f"no {who} takes less than {time if proved and program.exact_times else bound:.10g}"
    staged = proved and all_staged and program.exact_times
    return finish(
        graph, budget, run, "moccasin", order,
        status=Status.OPTIMAL if any_order or staged else Status.FEASIBLE,
        proof="any-order" if any_order else "staged" if staged else None,
        lower_bound=graph.total_time,
        order_lower_bound=time if staged else order_bound,
        reason=reason,
    )  # fmt: skip


@dataclass(frozen=True)
class _Answer:
    """How CP-SAT ended."""

    #: A status of CP-SAT.
    status: int
    order: IntArray | None
    #: No solution costs less, in quanta of time.
    bound: float


def _optimize(program: Program, budget: int, cp_model: Any, run: Run, params: Params) -> _Answer:
    """Run CP-SAT in a thread of its own; this thread owns the deadline and hears Ctrl-C."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = params.workers
    solver.parameters.interleave_search = True
    solver.parameters.random_seed = run.seed % 2**31
    solver.parameters.catch_sigint_signal = False
    best = Incumbent(program.graph, budget, announcer(run, "moccasin"))
    errors: list[BaseException] = []
    done = threading.Event()

    class Watch(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            try:
                best.offer(program.order_of(self.value))
            except BaseException as error:  # must not unwind through CP-SAT; raised below
                errors.append(error)
                self.stop_search()

    status = cp_model.UNKNOWN

    def work() -> None:
        nonlocal status
        try:
            status = solver.solve(program.model, Watch())
        except BaseException as error:  # handed to the waiting thread
            errors.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=work, name="cp-sat", daemon=True)
    thread.start()
    while True:
        try:
            if run.deadline.expired or run.stats.interrupted:
                solver.stop_search()
            if done.wait(_WAIT):
                break
        except KeyboardInterrupt:
            run.stats.interrupted = True
    thread.join()
    if errors:
        if isinstance(errors[0], (HremateError, KeyboardInterrupt)):
            raise errors[0]
        raise SolverError(f"moccasin on {program.graph.name!r}: CP-SAT failed: {errors[0]}") from errors[0]
    if status == cp_model.MODEL_INVALID:
        raise SolverError(f"moccasin on {program.graph.name!r}: {program.model.validate()}")
    bound = math.inf if status == cp_model.INFEASIBLE else 0.0
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        bound = float(solver.best_objective_bound)
    return _Answer(status, best.order, bound)
