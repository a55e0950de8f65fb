"""Small PyTorch models that between them have what makes recomputation hard. Import after `importorskip`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

import hremate as hr
from hremate.torch import MemoryMeter


class WithLoss(nn.Module):
    """A model that returns its loss."""

    def __init__(self, body: nn.Module, loss: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.body = body
        self.loss = loss

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.loss(self.body(x), y)


def mlp(layers: int = 8) -> tuple[nn.Module, tuple[Any, ...]]:
    body: list[nn.Module] = []
    for _ in range(layers):
        body += [nn.Linear(32, 32), nn.ReLU()]
    model = WithLoss(nn.Sequential(*body, nn.Linear(32, 10)), F.cross_entropy)
    return model, (torch.randn(64, 32), torch.randint(0, 10, (64,)))


class Encoder(nn.Module):
    """Embedding, transformer layers with dropout, and a head that shares the weights of the embedding."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embedding(x))).flatten(0, 1)


def encoder(layers: int = 4) -> tuple[nn.Module, tuple[Any, ...]]:
    return WithLoss(Encoder(layers), F.cross_entropy), (
        torch.randint(0, 30, (3, 12)), torch.randint(0, 30, (36,)),
    )  # fmt: skip


def _conv(channels: int, out: int, **options: Any) -> list[nn.Module]:
    return [nn.Conv2d(channels, out, bias=False, **options), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1 = nn.Sequential(*_conv(3, 4, kernel_size=3, padding=1), *_conv(4, 4, kernel_size=1))
        self.down2 = nn.Sequential(*_conv(4, 8, kernel_size=3, padding=1), *_conv(8, 8, kernel_size=1))
        self.up = nn.Sequential(*_conv(12, 4, kernel_size=3, padding=1), *_conv(4, 4, kernel_size=1))
        self.out = nn.Conv2d(4, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = self.down1(x)
        bottom = self.down2(F.max_pool2d(top, 2))
        return self.out(self.up(torch.cat([F.interpolate(bottom, scale_factor=2), top], 1)))


def unet() -> tuple[nn.Module, tuple[Any, ...]]:
    return WithLoss(UNet(), F.mse_loss), (torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16))


class Bottleneck(nn.Module):
    """The block of ResNet-50, with an addition in place."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_conv(channels, width, kernel_size=1),
            *_conv(width, width, kernel_size=3, stride=stride, padding=1),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.body(x)
        result += self.shortcut(x)
        return self.relu(result)


def resnet() -> tuple[nn.Module, tuple[Any, ...]]:
    blocks = [Bottleneck(8, 4, 1), Bottleneck(16, 4, 1), Bottleneck(16, 8, 2), Bottleneck(32, 8, 1)]
    body = nn.Sequential(
        *_conv(3, 8, kernel_size=7, stride=2, padding=3), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )  # fmt: skip
    return WithLoss(body, F.cross_entropy), (torch.randn(4, 3, 32, 32), torch.randint(0, 10, (4,)))


def gpt2() -> tuple[nn.Module, tuple[Any, ...]]:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.GPT2Config(
        vocab_size=40, n_positions=16, n_embd=16, n_layer=3, n_head=2, use_cache=False,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.GPT2LMHeadModel(config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, labels=ids).loss

    return Loss(), (torch.randint(0, 40, (2, 16)),)


def train(
    module: nn.Module, args: tuple[Any, ...], *, steps: int = 3, kwargs: dict[str, Any] | None = None
) -> tuple[list[torch.Tensor], int]:
    """Losses of some SGD steps from a fixed state of the generator, and the measured activation peak."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    losses, peak = [], 0
    for _ in range(steps):
        optimizer.zero_grad()
        with MemoryMeter() as meter:
            loss = module(*args, **(kwargs or {}))
            loss.backward()
        peak = max(peak, meter.peak(p.grad for p in module.parameters()))
        losses.append(loss.detach().clone())
        optimizer.step()
    return losses, peak


def assert_same_state(a: nn.Module, b: nn.Module) -> None:
    """Parameters, buffers and gradients are equal to the bit."""
    states = a.state_dict(), b.state_dict()
    assert states[0].keys() == states[1].keys()
    assert [k for k in states[0] if not torch.equal(states[0][k], states[1][k])] == []
    for (name, p), (_, q) in zip(a.named_parameters(), b.named_parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), name
        assert p.grad is None or torch.equal(p.grad, q.grad), name


def pair(
    build: Callable[[], tuple[nn.Module, tuple[Any, ...]]],
) -> tuple[nn.Module, nn.Module, tuple[Any, ...]]:
    """Two equal models and a sample."""
    torch.manual_seed(3)
    model, args = build()
    return model, copy.deepcopy(model), args


def everything_again(graph: hr.Graph) -> list[int]:
    """Forward part, once more whatever may run again, then the backward part, each op twice in a row."""
    forward = [i for i in range(graph.n_ops) if graph.phase[i] != 2]
    again = [i for i in forward if not graph.once[i]]
    backward = [i for i in range(graph.n_ops) if graph.phase[i] == 2]
    return forward + again + [i for i in backward for _ in range(1 if graph.once[i] else 2)]
