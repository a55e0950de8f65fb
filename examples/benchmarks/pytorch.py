"""Peak and time of training steps in PyTorch: eager, by a schedule, and with torch.utils.checkpoint.

    pip install 'hremate[torch]'
    python examples/benchmarks/pytorch.py --budgets 100%,70%,50%

A Markdown table for a small GPT with dropout and a U-Net with batch norm, on the CPU. Budgets are shares of
the activation peak of eager mode; all peaks are measured by `hremate.torch.MemoryMeter`. `checkpoint` is
applied to as few blocks, counted from the input, as the budget asks for, or to all of them where that is
not enough. Each time is the median of the CPU seconds of some steps in one thread, the variants in turn, so
that other work on the machine hits all of them alike. The schedule is found for times that are measured op
by op (`profile=True`). `measured` and `predicted` are overheads over eager mode; `roofline` is the prediction
for the same schedule from shapes alone.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import hremate as hr
import hremate.torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from train_gpt import GPT


def convolutions(channels: int, out: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in ((channels, out), (out, out)):
        layers += [nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Three resolutions; returns the loss of an image against another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [convolutions(3, width), convolutions(width, 2 * width), convolutions(2 * width, 4 * width)]
        )
        self.up = nn.ModuleList([convolutions(6 * width, 2 * width), convolutions(3 * width, width)])
        self.out = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        left = []
        for k, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if k else x)
            left.append(x)
        left.pop()
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2), left.pop()], 1))
        return F.mse_loss(self.out(x), y)


class Checkpointed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: Any) -> Any:
        return checkpoint(self.block, *args, use_reentrant=False)


def gpt() -> tuple[nn.Module, list[str], tuple[torch.Tensor, ...]]:
    """The model, the names of its blocks and a sample."""
    text = torch.randint(0, 256, (8, 129))
    return GPT(6, 128, 4, 128), [f"blocks.{k}" for k in range(6)], (text[:, :-1], text[:, 1:])


def unet() -> tuple[nn.Module, list[str], tuple[torch.Tensor, ...]]:
    names = ["down.0", "down.1", "down.2", "up.0", "up.1"]
    return UNet(16), names, (torch.randn(4, 3, 64, 64), torch.randn(4, 3, 64, 64))


def checkpointed(model: nn.Module, names: list[str]) -> nn.Module:
    """A copy of a model whose blocks `names` are checkpointed."""
    model = copy.deepcopy(model)
    for name in names:
        path, _, last = name.rpartition(".")
        setattr(model.get_submodule(path), last, Checkpointed(model.get_submodule(name)))
    return model


def peak(module: nn.Module, args: tuple[torch.Tensor, ...]) -> int:
    """Activation peak of a step in bytes; a step before makes what is made once."""
    for _ in range(2):
        module.zero_grad()
        with hr.torch.MemoryMeter() as meter:
            module(*args).backward()
    return meter.peak(p.grad for p in module.parameters())


def seconds(modules: list[nn.Module], args: tuple[torch.Tensor, ...], repeats: int) -> list[float]:
    """Median CPU seconds of a step of each module."""
    found: list[list[float]] = [[] for _ in modules]
    for k in range(repeats + 1):
        for module, times in zip(modules, found, strict=True):
            module.zero_grad()
            start = time.process_time()
            module(*args).backward()
            if k:  # the first round warms up
                times.append(time.process_time() - start)
    return [statistics.median(times) for times in found]


def rows(name: str, build: Callable[[], Any], budgets: list[str], repeats: int) -> None:
    """Print the rows of one model."""
    torch.manual_seed(0)
    model, blocks, args = build()
    eager = copy.deepcopy(model)
    eager_peak = peak(eager, args)
    graph = hr.torch.capture(model, args, profile=True)
    shapes = hr.torch.capture(model, args)
    for budget in budgets:
        nbytes = hr.parse_budget(budget, eager_peak)
        result = hr.solve(graph, nbytes, "cut", time_limit=30)
        if result.schedule is None:
            print(f"| {name} | {budget} | {result.reason} |")
            continue
        ours = hr.torch.apply(copy.deepcopy(model), graph, result.schedule)
        for n_blocks in range(len(blocks) + 1):
            theirs = checkpointed(model, blocks[:n_blocks])
            their_peak = peak(theirs, args)
            if their_peak <= nbytes:
                break
        base, mine, other = seconds([eager, ours, theirs], args, repeats)
        cells = [
            f"{name} ({graph.n_ops:,} ops)", budget,
            hr.format_bytes(nbytes), hr.format_bytes(peak(ours, args)),
            f"{1e3 * base:.0f} ms", f"{1e3 * mine:.0f} ms", f"{mine / base - 1:+.1%}",
            f"{overhead(graph, result.schedule):+.1%}", f"{overhead(shapes, result.schedule):+.1%}",
            f"{n_blocks} of {len(blocks)}", hr.format_bytes(their_peak), f"{1e3 * other:.0f} ms",
            f"{other / base - 1:+.1%}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def overhead(graph: hr.Graph, schedule: hr.Schedule) -> float:
    return float(hr.simulate(graph, schedule).time / graph.total_time - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budgets", default="100%,70%,50%", help="separated by commas (%(default)s)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="steps each (%(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    heads = [
        "model", "budget", "bytes", "peak", "eager", "schedule", "measured", "predicted", "roofline",
        "checkpointed", "its peak", "its time", "its overhead",
    ]  # fmt: skip
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for name, build in (("GPT", gpt), ("U-Net", unet)):
        rows(name, build, options.budgets.split(","), options.repeats)
    print(f"\nhremate {hr.__version__}, PyTorch {torch.__version__}, one thread")


if __name__ == "__main__":
    main()
