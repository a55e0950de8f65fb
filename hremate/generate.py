"""Synthetic graphs: training graphs of common models at any depth, and two kinds of random DAG.

Equal arguments give equal graphs. The training graphs imitate graphs captured from PyTorch (a forward
part, one loss op, the backward part that autodiff derives) with times from a roofline model:
4 us launch + max(FLOPs / 90e12, bytes / 1.4e12). Gradients of parameters are graph outputs of 0 bytes,
because their buffers are resident.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np

from hremate import _models, _random_dags
from hremate._gc import paused_collection
from hremate._operators import ModelTape
from hremate._tape import Value
from hremate.errors import InvalidValueError
from hremate.graph import Graph

#: The kinds of graph that `generate` knows, each with one line about it.
KINDS: dict[str, str] = {
    "chain": "training graph of a deep chain of linear layers and ReLUs",
    "transformer": "training graph of a decoder-only transformer",
    "encdec": "training graph of an encoder-decoder transformer",
    "unet": "training graph of a U-Net with a skip for every block",
    "resnet": "training graph of a residual network of bottleneck blocks",
    "rnn": "training graph of an LSTM over a long sequence",
    "ssm": "training graph of a state-space model with long scans",
    "layered": "random layered DAG (Gagrani et al., NeurIPS 2022)",
    "series-parallel": "random series-parallel DAG",
}

_MODELS: dict[str, Callable[..., Value]] = {
    "chain": _models.chain,
    "transformer": _models.transformer,
    "encdec": _models.encdec,
    "unet": _models.unet,
    "resnet": _models.resnet,
    "rnn": _models.rnn,
    "ssm": _models.ssm,
}
_RANDOM = {"layered": _random_dags.layered, "series-parallel": _random_dags.series_parallel}

#: Depths at which the op count of a model is measured; from the first on it grows evenly.
_PROBES = (8, 16)


def options_of(kind: str) -> list[str]:
    """Names of the options that `generate` takes for `kind` (all of them positive integers).

    Raises
    ------
    InvalidValueError
        No such kind.
    """
    if kind not in KINDS:
        raise InvalidValueError(f"unknown kind of graph {kind!r}; known: {', '.join(KINDS)}")
    if kind not in _MODELS:
        return []
    parameters = inspect.signature(_MODELS[kind]).parameters.values()
    return [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]


def generate(kind: str, ops: int, seed: int = 0, **options: int) -> Graph:
    """A synthetic graph with about `ops` ops.

    Random DAGs have exactly `ops` ops; a model has the whole number of layers (blocks, time steps) that
    comes closest, and at least one.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    ops : int
        Number of ops aimed at, >= 1.
    seed : int
        Seed >= 0 of all random choices: times, sizes and edges of random DAGs; widths, batch and lengths
        of a model where no option sets them.
    options : int
        Sizes of a model, by kind: chain: width, batch; transformer, encdec: batch, sequence, hidden,
        heads, vocab; unet: batch, resolution, width, levels; resnet: batch, resolution, width, stages;
        rnn: batch, hidden, layers; ssm: batch, hidden, state, layers.

    Raises
    ------
    InvalidValueError
        Unknown kind or option, or a value out of range.

    Examples
    --------
    >>> generate("layered", 100, seed=3).n_ops
    100
    """
    known = options_of(kind)
    for key in options:
        if key not in known:
            raise InvalidValueError(
                f"a graph of kind {kind!r} has no option {key!r}; known: {', '.join(known) or 'none'}"
            )
    ops, seed = _integer("ops", ops, 1), _integer("seed", seed, 0)
    options = {key: _integer(key, value, 1) for key, value in options.items()}
    name = f"{kind}-{ops}-seed{seed}"
    metadata: dict[str, object] = {"generator": {"kind": kind, "ops": ops, "seed": seed, **options}}
    if kind in _RANDOM:
        return _RANDOM[kind](ops, np.random.default_rng(seed), name, metadata)

    def tape_of(units: int) -> ModelTape:
        tape = ModelTape()
        tape.finish(_MODELS[kind](tape, units, np.random.default_rng(seed), **options))
        return tape

    units = _units_for(ops, lambda count: len(tape_of(count).ops))
    with paused_collection():
        return tape_of(units).graph(name, metadata)


def _units_for(ops: int, count: Callable[[int], int]) -> int:
    """The number of units for which `count` comes closest to `ops`."""
    low, high = count(_PROBES[0]), count(_PROBES[1])
    per_unit = (high - low) / (_PROBES[1] - _PROBES[0])
    if ops >= low:
        return _PROBES[0] + round((ops - low) / per_unit)
    return min(range(1, _PROBES[0] + 1), key=lambda units: abs(count(units) - ops))


def _integer(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InvalidValueError(f"{name} is {value!r}; expected an integer >= {least}")
    return int(value)
