"""Claims about chains of states: what they hold, that plans can be run, and where they help."""

from __future__ import annotations

import numpy as np
import pytest
from chains import random_training_graph
from hypothesis import given, settings
from hypothesis import strategies as st

import hremate as hr
from hremate.ilp import chains, hierarchical
from hremate.ilp.options import thinned
from hremate.partition.phases import split_position
from hremate.simulate import simulate
from hremate.solvers.base import Run
from hremate.solvers.blocks import Chain
from hremate.solvers.chain_cuts import build_states
from hremate.solvers.repair import repair
from hremate.solvers.rotor import Program


def states_of(graph: hr.Graph, most: int, budget: int = 0) -> Chain | None:
    split = split_position(graph)
    return build_states(graph, split, budget, most=most) if 0 < split < graph.n_ops else None


@pytest.mark.parametrize("kind", ["rnn", "unet", "ssm"])
def test_a_state_holds_what_crosses_it(kind: str) -> None:
    graph = hr.generate(kind, 250)
    chain = states_of(graph, 12)
    assert chain is not None and len(chain.blocks) > 4
    starts = [int(block.forward[0]) for block in chain.blocks]
    for j, start in enumerate(starts):
        for a in range(j):
            crossing = [
                x for x in range(graph.out_ptr[starts[a]], graph.out_ptr[start])
                if not chain.stays[x] and any(start <= i < chain.split for i in graph.users_of(x))
            ]  # fmt: skip
            assert chain.state_bytes[a, j] == chain.bytes(crossing)


def test_blocks_hold_all_ops_and_read_only_what_is_at_hand() -> None:
    graph = hr.generate("ssm", 300)
    chain = states_of(graph, 20)
    assert chain is not None
    ops = np.concatenate([part for block in chain.blocks for part in (block.forward, block.backward)])
    assert sorted(ops.tolist()) == list(range(graph.n_ops))
    for op in range(chain.split, graph.n_ops):
        for x in graph.inputs_of(op).tolist():
            maker = int(graph.producer[x])
            if maker >= chain.split:
                assert chain.home[maker] >= chain.home[op]
            elif not chain.stays[x]:
                assert chain.home[maker] <= chain.home[op] <= chain.until[x]


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(2, 6))
def test_every_plan_is_a_valid_schedule(rng, most: int) -> None:  # type: ignore[no-untyped-def]
    graph = random_training_graph(rng)
    chain = states_of(graph, most)
    if chain is None:
        return
    options = chains.block_options(chain, Run(), chains.FRONTIER, lambda found: thinned(found, 4))
    program = Program(chain, options, 2 * hr.base_peak(graph) + 1, 50)
    assert program.levels
    for level in program.levels:
        hr.validate(graph, program.schedule(level))


def test_chains_beat_cuts_on_long_scans() -> None:
    graph = hr.generate("ssm", 400)
    limit = hr.parse_budget("30%", hr.base_peak(graph))
    cut = hr.solve(graph, limit, method="cut", lower_bound=graph.total_time, moments=False, rounds=20)
    orders = chains.chain_orders(graph, limit, Run())
    found = [simulate(graph, repair(graph, order, limit)) for order in orders]
    times = [answer.time for answer in found if answer.peak <= limit]
    assert times and (not cut.solved or min(times) < cut.time)


def test_the_hierarchy_uses_chains_where_cuts_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = hr.generate("chain", 200)
    monkeypatch.setattr(hierarchical, "cut_search", lambda graph, *_: np.arange(graph.n_ops))
    monkeypatch.setattr(hierarchical, "plans", lambda *_: [])
    result = hr.solve(graph, "15%", lower_bound=graph.total_time, polish=0, flat_start=False)
    rotor = hr.solve(graph, "15%", method="rotor", lower_bound=graph.total_time)
    assert result.solved and not result.stats.degraded
    assert "chain" in result.stats.stage_time and result.time <= 1.02 * rotor.time


def test_a_graph_without_a_backward_part_has_no_chain() -> None:
    graph = hr.generate("layered", 80)
    assert list(chains.chain_orders(graph, hr.base_peak(graph) // 2, Run())) == []


@pytest.mark.parametrize("huge", [False, True])
@pytest.mark.parametrize("blocks_find", [False, True])
def test_on_huge_graphs_chains_wait_until_blocks_have_failed(
    monkeypatch: pytest.MonkeyPatch, huge: bool, blocks_find: bool
) -> None:
    graph = hr.generate("chain", 200)
    known = hr.solve(graph, "40%", method="rotor", lower_bound=graph.total_time).schedule
    steps: list[str] = []

    def run_plan(search: hierarchical._Search, plan: object) -> None:
        steps.append("blocks")
        if blocks_find:
            search.offer(known.order, "h-ilp")

    def chain_orders(*args: object) -> list[np.ndarray]:
        steps.append("chains")
        return []

    monkeypatch.setattr(hierarchical, "HUGE_GRAPH", 100 if huge else 1000)
    monkeypatch.setattr(hierarchical._Search, "run_plan", run_plan)
    monkeypatch.setattr(hierarchical, "chain_orders", chain_orders)
    monkeypatch.setattr(hierarchical, "cut_search", lambda graph, *_: np.arange(graph.n_ops))
    monkeypatch.setattr(hierarchical, "_freeing_order", lambda graph, _: np.arange(graph.n_ops))
    hr.solve(graph, "40%", lower_bound=graph.total_time, polish=0, time_limit=20)
    if not huge:
        assert steps[0] == "chains" and steps.count("chains") == 1
    else:
        assert steps[0] == "blocks" and steps.count("chains") == (0 if blocks_find else 1)
