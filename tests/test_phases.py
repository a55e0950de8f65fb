"""Claims about where the forward part ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hremate as hr
from hremate.partition.phases import split_position

CAPTURED = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "captured"
TRAINING = ["chain", "transformer", "encdec", "unet", "resnet", "rnn", "ssm"]


def stripped(graph: hr.Graph, *, types: bool = True) -> hr.Graph:
    """`graph` without phases, and without types of ops."""
    bare = replace(graph, phase=np.full(graph.n_ops, -1, np.int8))
    return bare if types else replace(bare, op_types=("",) * graph.n_ops)


@pytest.mark.parametrize("kind", TRAINING)
@pytest.mark.parametrize("ops", [300, 3000])
def test_the_op_whose_type_names_a_loss_ends_the_forward_part(kind: str, ops: int) -> None:
    graph = hr.generate(kind, ops, 1)
    loss = int(np.flatnonzero(graph.phase == 1)[0])
    assert split_position(graph) == loss + 1
    assert split_position(stripped(graph)) == loss + 1


@pytest.mark.parametrize("kind", TRAINING)
def test_without_types_the_split_lies_near_the_loss(kind: str) -> None:
    graph = hr.generate(kind, 3000, 1)
    found = split_position(stripped(graph, types=False))
    assert abs(found - split_position(graph)) <= 0.01 * graph.n_ops


def test_two_ops_named_loss_leave_the_choice_to_the_peak() -> None:
    graph = hr.generate("transformer", 600, 1)
    types = list(graph.op_types)
    types[3] = "my_loss"
    doubled = stripped(replace(graph, op_types=tuple(types)))
    assert abs(split_position(doubled) - split_position(graph)) <= 0.01 * graph.n_ops


def test_the_backward_op_of_a_loss_is_no_loss() -> None:
    graph = stripped(hr.generate("transformer", 600, 1))
    types = [name.replace("nll_loss.default", "nll_loss_backward.default") for name in graph.op_types]
    assert split_position(replace(graph, op_types=tuple(types))) > 100


@pytest.mark.parametrize("kind", ["layered", "series-parallel"])
@pytest.mark.parametrize("ops", [300, 3000, 30000])
def test_a_graph_that_keeps_little_or_reads_it_in_any_order_has_no_backward_part(kind: str, ops: int) -> None:
    graph = hr.generate(kind, ops, 1)
    assert split_position(graph) == ops


def test_a_forward_pass_alone_has_no_backward_part() -> None:
    graph = hr.generate("transformer", 600, 0)
    split = split_position(graph)
    ops = [graph.op(i) for i in range(split)]
    alone = stripped(hr.Graph.from_ops(ops, [ops[-1].outputs[0][0]]), types=False)
    assert split_position(alone) == split


@pytest.mark.skipif(not CAPTURED.is_dir(), reason=f"no captured graphs in {CAPTURED}")
def test_the_loss_of_every_captured_graph_is_found_without_labels() -> None:
    for path in sorted(CAPTURED.glob("*.json.gz")):
        graph = hr.read_graph(path)
        assert split_position(stripped(graph)) == split_position(graph), graph.name
