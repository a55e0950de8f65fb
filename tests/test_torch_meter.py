"""Claims about the memory meter: what it counts, and that it counts what `simulate` says."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import torch_models as models  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.torch as ht  # noqa: E402


def test_inputs_and_outputs_of_an_op_are_in_memory_together() -> None:
    with ht.MemoryMeter() as meter:
        x = torch.ones(256)
        x = x.exp()
        x = x.sum()
    assert meter.memory() == [1024, 2048, 1028]
    assert meter.peak() == 2048
    assert meter.ops() == ["aten.ones.default", "aten.exp.default", "aten.sum.default"]


def test_views_and_what_was_there_before_do_not_count() -> None:
    before = torch.ones(8)
    with ht.MemoryMeter() as meter:
        before.add_(1)
        before.view(2, 4).t()
        y = before + 1
        y[:2].mul_(2)
    assert meter.peak() == 32


def test_excluded_tensors_do_not_count() -> None:
    with ht.MemoryMeter() as meter:
        x = torch.ones(8)
        y = torch.ones(4)
    assert meter.memory([x]) == [0, 16]
    assert meter.memory([None, y, torch.ones(1)]) == [32, 32]


@pytest.mark.parametrize("build", [models.mlp, models.encoder, models.unet, models.resnet])
def test_each_op_takes_the_memory_that_the_simulator_says(build: object) -> None:
    model, _, args = models.pair(build)
    graph = ht.capture(model, args)
    module = ht.apply(model, graph, range(graph.n_ops))
    with ht.MemoryMeter() as meter:
        module(*args).backward()
    measured = dict.fromkeys(graph.op_types, 0)
    for op, memory in zip(meter.ops(), meter.memory(p.grad for p in model.parameters()), strict=True):
        if op in measured:
            measured[op] = max(measured[op], memory)
    simulated = dict.fromkeys(graph.op_types, 0)
    for op, memory in zip(graph.op_types, hr.simulate(graph, range(graph.n_ops)).memory, strict=True):
        simulated[op] = max(simulated[op], int(memory))
    # The buffers are counted up at once, and the graph keeps the new counts until the backward part; the
    # mean of mse_loss comes in scratch memory, which is given back.
    counters = sum(b.nbytes for b in model.buffers() if b.dtype == torch.int64)
    scratch = args[1].nbytes if build is models.unet else 0
    for op in simulated:
        if op not in ("aten.ones_like.default", "aten.add.Tensor"):
            difference = measured[op] - simulated[op]
            assert -counters <= difference <= (scratch if op == "aten.mse_loss.default" else 0), op
