"""Claims about training by a schedule on a CUDA device; run with `pytest -m cuda`.

The figures that the tests print (`pytest -m cuda -s`) are the peak of the allocator and the time of a step,
beside eager mode and `torch.utils.checkpoint`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.torch as ht  # noqa: E402

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


class Stack(nn.Module):
    """Layers in a row and a loss; each layer is checkpointed on demand."""

    def __init__(self, layers: list[nn.Module], head: nn.Module) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList(layers), head
        self.checkpointed = False

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return F.cross_entropy(self.head(x), y)


def transformer() -> tuple[Stack, tuple[Any, ...]]:
    layers = [nn.TransformerEncoderLayer(512, 8, 2048, 0.1, batch_first=True) for _ in range(6)]
    head = nn.Sequential(nn.Flatten(0, 1), nn.Linear(512, 1000))
    return Stack(layers, head), (torch.randn(16, 256, 512), torch.randint(0, 1000, (4096,)))


def convolutional() -> tuple[Stack, tuple[Any, ...]]:
    def block(channels: int, out: int) -> nn.Module:
        convolution = nn.Conv2d(channels, out, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(inplace=True))

    layers = [block(3, 64), *(block(64, 64) for _ in range(7))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    return Stack(layers, head), (torch.randn(32, 3, 64, 64), torch.randint(0, 10, (32,)))


def step(module: nn.Module, args: tuple[Any, ...]) -> tuple[list[torch.Tensor], int, float]:
    """Losses of three SGD steps, bytes above what lay there before (gradients left out), seconds a step."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    torch.manual_seed(0)
    losses, peak, seconds = [], 0, []
    weights = sum(p.nbytes for p in module.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        torch.cuda.synchronize()
        before, start = torch.cuda.memory_allocated(), time.perf_counter()
        torch.cuda.reset_peak_memory_stats()
        loss = module(*args)
        loss.backward()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        peak = max(peak, torch.cuda.max_memory_allocated() - before)
        losses.append(loss.detach().clone())
        optimizer.step()
    return losses, max(peak - weights, 0), min(seconds)


@pytest.mark.parametrize("build", [transformer, convolutional])
@pytest.mark.parametrize("share", [0.7, 0.5])
def test_training_on_cuda_stays_within_the_budget(build: Callable[..., Any], share: float) -> None:
    torch.manual_seed(1)
    model, sample = build()
    model.cuda()
    args = tuple(t.cuda() for t in sample)
    eager, checkpointed = copy.deepcopy(model), copy.deepcopy(model)
    checkpointed.checkpointed = True
    graph = ht.capture(model, args, profile=True)
    result = hr.solve(graph, f"{100 * share:.0f}%", "cut", time_limit=20)
    assert result.solved, result.reason
    figures = {
        "eager": step(eager, args),
        "checkpoint": step(checkpointed, args),
        "hremate": step(ht.apply(model, graph, result.schedule), args),
    }
    for name, (_, peak, seconds) in figures.items():
        print(f"{build.__name__} {share:.0%} {name}: {hr.format_bytes(peak)}, {1e3 * seconds:.1f} ms a step")
    for a, b in zip(figures["eager"][0], figures["hremate"][0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)
    # The allocator rounds blocks up and kernels take workspace, which the graph does not know.
    assert figures["hremate"][1] <= 1.1 * result.budget + (32 << 20)
