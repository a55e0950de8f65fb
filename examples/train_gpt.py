"""Train a small GPT on the CPU twice, as it is and within half its activation memory: the losses are equal.

    pip install 'hremate[torch]'
    python examples/train_gpt.py --budget 50%
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import hremate as hr
import hremate.torch

VOCABULARY = 256


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(attention.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Characters in, loss of the next characters out; the head shares the weights of the embedding."""

    def __init__(self, layers: int, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, text: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.token(text) + self.position(torch.arange(text.shape[1], device=text.device))
        return F.cross_entropy(self.head(self.norm(self.blocks(x))).flatten(0, 1), target.flatten())


def train(module: nn.Module, batches: list[torch.Tensor]) -> tuple[list[float], int, float]:
    """Loss of each step, measured activation peak in bytes, seconds per step."""
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4)
    torch.manual_seed(0)  # the same dropout masks
    losses, peak, start = [], 0, time.perf_counter()
    for batch in batches:
        optimizer.zero_grad()
        with hr.torch.MemoryMeter() as meter:
            loss = module(batch[:, :-1], batch[:, 1:])
            loss.backward()
        peak = max(peak, meter.peak(p.grad for p in module.parameters()))
        optimizer.step()
        losses.append(loss.item())
    return losses, peak, (time.perf_counter() - start) / len(batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="50%", help="bytes, 64MiB, or a share of what eager mode needs")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(1)
    model = GPT(options.layers, options.width, 4, options.length)
    text = torch.frombuffer(bytearray(__doc__.encode() * 400), dtype=torch.uint8).long()
    n = options.batch * (options.length + 1)
    batches = [text[k * n : (k + 1) * n].view(options.batch, -1) for k in range(options.steps)]
    sample = (batches[0][:, :-1], batches[0][:, 1:])

    scheduled = hr.torch.remat(copy.deepcopy(model), sample, budget=options.budget, time_limit=30)
    print(scheduled.result)
    losses, peak, seconds = train(model, batches)
    found, less, slower = train(scheduled, batches)
    print(f"eager     peak {hr.format_bytes(peak)}, {seconds:.2f} s a step, last loss {losses[-1]:.9f}")
    print(f"scheduled peak {hr.format_bytes(less)}, {slower:.2f} s a step, last loss {found[-1]:.9f}")
    print("the losses are", "equal" if losses == found else "NOT equal")


if __name__ == "__main__":
    main()
