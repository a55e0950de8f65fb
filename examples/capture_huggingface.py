"""Capture a Hugging Face model from its configuration alone: no weights, no GPU, no memory.

    pip install 'hremate[torch]' transformers
    python examples/capture_huggingface.py --layers 48 --width 1600 -o gpt2-xl.json.gz
    hremate solve gpt2-xl.json.gz --budget 50%
"""

from __future__ import annotations

import argparse
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import hremate as hr
import hremate.torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--device", default="a100", help="whose times: a100, h100, rtx4090, ...")
    parser.add_argument("-o", "--output", default="gpt2.json.gz")
    options = parser.parse_args()

    config = GPT2Config(
        n_layer=options.layers, n_embd=options.width, n_head=options.width // 64, n_positions=options.length,
        use_cache=False,
    )  # fmt: skip
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
        tokens = torch.empty(options.batch, options.length, dtype=torch.int64)

    start = time.perf_counter()
    graph = hr.torch.capture(
        model, (), {"input_ids": tokens, "labels": tokens}, device=options.device,
        name=f"gpt2-{options.layers}",
    )  # fmt: skip
    print(
        f"{graph.n_ops} ops in {time.perf_counter() - start:.1f} s: "
        f"activations {hr.format_bytes(hr.base_peak(graph))}, "
        f"weights, gradients and inputs {hr.format_bytes(graph.resident)}"
    )
    hr.write_graph(graph, options.output)


if __name__ == "__main__":
    main()
