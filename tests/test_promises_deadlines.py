"""A time limit is kept: the answer comes within the limit and a second, or a tenth of it if that is more."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

import hremate as hr
from hremate.solvers import scip
from hremate.solvers.base import Deadline
from hremate.solvers.checkmate_model import build_checkmate_model
from hremate.solvers.scip import MilpBuilder, MilpSolver, MilpStatus

GRAPHS = [
    ("chain", 5000), ("transformer", 1500), ("transformer", 20_000), ("encdec", 1500), ("unet", 400),
    ("unet", 1500), ("resnet", 1000), ("rnn", 1500), ("layered", 600), ("ssm", 800),
]  # fmt: skip
#: Options of methods that take long without a time limit.
LITTLE = {"exact": {"node_limit": 5}, "checkmate": {"node_limit": 5}, "anneal": {"proposals": 20_000}}


def promised(limit: float) -> float:
    return limit + max(1.0, 0.1 * limit)


class Looks(Deadline):
    """A deadline that passes after so many looks at it."""

    def __init__(self, looks: int) -> None:
        super().__init__(math.inf)
        self.left = looks

    @property
    def expired(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("tight", [False, True])
def test_the_program_of_checkmate_is_given_up_between_any_two_stages(tight: bool) -> None:
    graph = hr.generate("unet", ops=30, seed=1)
    looks = Looks(10**9)
    assert build_checkmate_model(graph, 10**6, tight=tight, integer=True, deadline=looks) is not None
    needed = 10**9 - looks.left
    assert needed >= 4 * graph.n_ops - 1  # each stage of the variables and of three kinds of rows
    for few in range(0, needed, 7):
        deadline = Looks(few)
        assert build_checkmate_model(graph, 10**6, tight=tight, integer=True, deadline=deadline) is None


@pytest.mark.parametrize("method", ["checkmate", "checkmate-lp"])
def test_a_program_that_there_is_no_time_for_is_not_begun(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time is judged by the size of the program, which is known beforehand."""
    monkeypatch.setattr(MilpBuilder, "add_var", None)
    graph = hr.generate("unet", ops=300, seed=1)
    result = hr.solve(graph, "50%", method, time_limit=1.0, lower_bound=0.0)
    assert result.stats.timed_out and not result.stats.degraded
    assert result.solved or "in the time given" in result.reason


@pytest.mark.parametrize("looks", range(6))
def test_a_program_that_scip_has_only_in_part_gives_its_best_start(
    looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scip, "_LOAD_CHUNK", 1)
    build = MilpBuilder()
    items = [build.add_var(cost=-1.0, upper=1.0, integer=True) for _ in range(3)]
    for item in items:
        build.add_row([item], [1.0], upper=1.0)
    solver = MilpSolver(build.build(), deadline=Looks(looks))
    result = solver.solve(starts=[np.zeros(3)])
    assert (result.status, result.objective, result.bound) == (MilpStatus.FEASIBLE, 0.0, -np.inf)


@pytest.fixture(scope="module")
def compiled() -> None:
    """Kernels are compiled or loaded once, and that time is nobody's; no limit leaves some of them out."""
    for kind in ("unet", "transformer"):
        hr.solve(hr.generate(kind, ops=120, seed=1), "50%", milp_seconds=2.0)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("limit", [0.0, 1.0, 5.0])
@pytest.mark.parametrize(("kind", "ops"), GRAPHS)
def test_the_hierarchy_keeps_its_time_limit(kind: str, ops: int, limit: float) -> None:
    """Judged by the time of this process, so that a busy machine fails nobody; wall time is told."""
    graph = hr.generate(kind, ops=ops, seed=1)
    busy, start = time.process_time(), time.monotonic()
    result = hr.solve(graph, "50%", time_limit=limit)
    busy, wall = time.process_time() - busy, time.monotonic() - start
    print(f"{kind} {graph.n_ops} ops, limit {limit:g} s: {busy:.2f} s of work, {wall:.2f} s, {result.status}")
    assert busy <= promised(limit)
    assert result.schedule is not None
    hr.validate(graph, result.schedule, result.budget if result.solved else None)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize(
    "method", ["exact", "beam", "cut", "anneal", "twremat", "checkmate", "checkmate-lp"]
)
@pytest.mark.parametrize("limit", [0.0, 1.0, 5.0])
def test_flat_methods_keep_their_time_limit(method: str, limit: float) -> None:
    graph = hr.generate("unet", ops=300, seed=1)
    # Loads its kernels.
    hr.solve(hr.generate("unet", ops=40, seed=1), "50%", method, **LITTLE.get(method, {}))
    busy, start = time.process_time(), time.monotonic()
    result = hr.solve(graph, "50%", method, time_limit=limit)
    busy, wall = time.process_time() - busy, time.monotonic() - start
    print(f"{method}, limit {limit:g} s: {busy:.2f} s of work, {wall:.2f} s, {result.status}")
    assert busy <= promised(limit)
