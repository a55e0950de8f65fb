"""The synthetic models of `hremate.generate`: each writes its forward part on a tape.

Every model takes the number of its repeated units first, so that any depth can be asked for, and draws
from the random generator what its options leave open.
"""

from __future__ import annotations

import math

import numpy as np

from hremate._operators import INDEX, ModelTape
from hremate._tape import FLOAT, Value
from hremate.errors import InvalidValueError

Rng = np.random.Generator


def _pick(rng: Rng, chosen: int | None, choices: tuple[int, ...]) -> int:
    """An option, or a draw in its place; draws always, so that options do not shift later draws."""
    drawn = int(rng.choice(choices))
    return drawn if chosen is None else chosen


def chain(
    tape: ModelTape, units: int, rng: Rng, *, width: int | None = None, batch: int | None = None
) -> Value:
    """A deep chain of linear layers and ReLUs; widths differ from layer to layer unless one is given."""
    rows = _pick(rng, batch, (1024, 2048, 4096))
    widths = rng.integers(2, 17, size=units + 1) * 256 if width is None else [width] * (units + 1)
    x = tape.source("input", (rows, int(widths[0])))
    for i in range(units):
        tape.scope = f"layers.{i}"
        x = tape.relu(tape.dense(x, int(widths[i + 1]), "linear"))
    tape.scope = "head"
    return tape.mse(x)


# -- transformers ---------------------------------------------------------------------------------


def _layer_norm(tape: ModelTape, x: Value, name: str) -> Value:
    return tape.norm("layer", x, math.prod(x.shape[:-1]), x.shape[-1], name)


def _attend(
    tape: ModelTape, q: Value, k: Value, v: Value, batch: int, heads: int, mask: Value | None
) -> Value:
    """Scaled dot-product attention and the output projection; q is (batch * tokens, hidden)."""
    rows, hidden = q.shape
    width = hidden // heads
    tokens, keys = rows // batch, k.shape[0] // batch
    q = tape.clone(q, (batch * heads, tokens, width))
    k = tape.clone(k, (batch * heads, keys, width))
    scores = tape.scale(tape.bmm(q, k, (batch * heads, tokens, keys), width))
    if mask is not None:
        scores = tape.add(scores, mask)
    weights = tape.dropout(tape.softmax(scores))
    v = tape.clone(v, (batch * heads, keys, width))
    mixed = tape.clone(tape.bmm(weights, v, (batch * heads, tokens, width), keys), (rows, hidden))
    return tape.dropout(tape.dense(mixed, hidden, "out_proj"))


def _self_attention(
    tape: ModelTape, x: Value, prefix: str, batch: int, heads: int, mask: Value | None = None
) -> Value:
    tape.scope = f"{prefix}.norm1"
    y = _layer_norm(tape, x, "norm")
    tape.scope = f"{prefix}.attn"
    q, k, v = tape.chunk(tape.dense(y, 3 * x.shape[-1], "qkv"), 3)
    return tape.add(x, _attend(tape, q, k, v, batch, heads, mask))


def _cross_attention(tape: ModelTape, x: Value, memory: Value, prefix: str, batch: int, heads: int) -> Value:
    hidden = x.shape[-1]
    tape.scope = f"{prefix}.norm_cross"
    y = _layer_norm(tape, x, "norm")
    tape.scope = f"{prefix}.cross_attn"
    q = tape.dense(y, hidden, "q")
    k, v = tape.chunk(tape.dense(memory, 2 * hidden, "kv"), 2)
    return tape.add(x, _attend(tape, q, k, v, batch, heads, None))


def _feed_forward(tape: ModelTape, x: Value, prefix: str) -> Value:
    hidden = x.shape[-1]
    tape.scope = f"{prefix}.norm2"
    y = _layer_norm(tape, x, "norm")
    tape.scope = f"{prefix}.mlp"
    y = tape.gelu(tape.dense(y, 4 * hidden, "fc"))
    return tape.add(x, tape.dropout(tape.dense(y, hidden, "proj")))


def _embed(tape: ModelTape, name: str, batch: int, sequence: int, vocab: int, hidden: int) -> Value:
    tape.scope = name
    tokens = tape.source(f"{name}.tokens", (batch * sequence,), INDEX)
    table = tape.parameter("weight", (vocab, hidden))
    positions = tape.source(f"{name}.positions", (batch * sequence, hidden))
    return tape.dropout(tape.add(tape.embedding(tokens, table), positions))


def _vocabulary_loss(tape: ModelTape, x: Value, vocab: int) -> Value:
    tape.scope = "head"
    logits = tape.dense(_layer_norm(tape, x, "norm"), vocab, "lm_head", bias=False)
    return tape.cross_entropy(logits)


def transformer(
    tape: ModelTape,
    units: int,
    rng: Rng,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocab: int = 8192,
) -> Value:
    """A decoder-only transformer (pre-norm, GELU, dropout); a unit is a layer."""
    batch, sequence, hidden, heads = _transformer_sizes(rng, batch, sequence, hidden, heads)
    x = _embed(tape, "embed", batch, sequence, vocab, hidden)
    mask = tape.source("causal_mask", (sequence, sequence))
    for i in range(units):
        x = _self_attention(tape, x, f"h.{i}", batch, heads, mask)
        x = _feed_forward(tape, x, f"h.{i}")
    return _vocabulary_loss(tape, x, vocab)


def encdec(
    tape: ModelTape,
    units: int,
    rng: Rng,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    vocab: int = 8192,
) -> Value:
    """An encoder-decoder transformer; a unit is an encoder layer and a decoder layer."""
    batch, sequence, hidden, heads = _transformer_sizes(rng, batch, sequence, hidden, heads)
    memory = _embed(tape, "encoder.embed", batch, sequence, vocab, hidden)
    for i in range(units):
        memory = _self_attention(tape, memory, f"encoder.{i}", batch, heads)
        memory = _feed_forward(tape, memory, f"encoder.{i}")
    tape.scope = "encoder.norm"
    memory = _layer_norm(tape, memory, "norm")
    x = _embed(tape, "decoder.embed", batch, sequence, vocab, hidden)
    mask = tape.source("causal_mask", (sequence, sequence))
    for i in range(units):
        x = _self_attention(tape, x, f"decoder.{i}", batch, heads, mask)
        x = _cross_attention(tape, x, memory, f"decoder.{i}", batch, heads)
        x = _feed_forward(tape, x, f"decoder.{i}")
    return _vocabulary_loss(tape, x, vocab)


def _transformer_sizes(
    rng: Rng, batch: int | None, sequence: int | None, hidden: int | None, heads: int | None
) -> tuple[int, int, int, int]:
    batch = _pick(rng, batch, (4, 8, 16))
    sequence = _pick(rng, sequence, (256, 512))
    hidden = _pick(rng, hidden, (512, 768, 1024))
    if heads is None:
        heads = math.gcd(hidden, max(1, hidden // 64))
    if hidden % heads:
        raise InvalidValueError(f"hidden is {hidden}, which {heads} heads do not divide")
    return batch, sequence, hidden, heads


# -- convolutional networks -----------------------------------------------------------------------


def _spread(units: int, stages: int) -> list[int]:
    """`units` blocks over at most `stages` stages, the first ones getting the remainder."""
    stages = min(units, stages)
    return [units // stages + (i < units % stages) for i in range(stages)]


def _conv_norm(
    tape: ModelTape, x: Value, channels: int, kernel: int, stride: int, name: str, relu: bool = True
) -> Value:
    y = tape.conv(x, channels, kernel, stride, f"{name}.conv")
    y = tape.norm("batch", y, channels, channels, f"{name}.bn")
    return tape.relu(y) if relu else y


def resnet(
    tape: ModelTape,
    units: int,
    rng: Rng,
    *,
    batch: int | None = None,
    resolution: int | None = None,
    width: int = 64,
    stages: int = 4,
) -> Value:
    """A residual network of bottleneck blocks in `stages` stages; a unit is a block."""
    batch = _pick(rng, batch, (16, 32, 64))
    resolution = _pick(rng, resolution, (160, 192, 224))
    tape.scope = "stem"
    x = tape.source("input", (batch, 3, resolution, resolution))
    x = tape.max_pool(_conv_norm(tape, x, width, 7, 2, "stem"))
    for stage, blocks in enumerate(_spread(units, stages)):
        inner = width * 2**stage
        for block in range(blocks):
            tape.scope = f"layer{stage + 1}.{block}"
            stride = 2 if stage and not block else 1
            y = _conv_norm(tape, x, inner, 1, 1, "1")
            y = _conv_norm(tape, y, inner, 3, stride, "2")
            y = _conv_norm(tape, y, 4 * inner, 1, 1, "3", relu=False)
            if not block:
                x = _conv_norm(tape, x, 4 * inner, 1, stride, "downsample", relu=False)
            x = tape.relu(tape.add(y, x))
    tape.scope = "head"
    pooled = tape.resample("mean.dim", "div.Scalar", x, x.shape[:2])
    return tape.cross_entropy(tape.dense(pooled, 1000, "fc"))


def unet(
    tape: ModelTape,
    units: int,
    rng: Rng,
    *,
    batch: int | None = None,
    resolution: int | None = None,
    width: int = 64,
    levels: int = 4,
) -> Value:
    """A diffusion-style U-Net: every block of the way down has a skip to its mirror on the way up.

    A unit is a pair of such blocks.
    """
    batch = _pick(rng, batch, (4, 8, 16))
    resolution = _pick(rng, resolution, (64, 96, 128))
    tape.scope = "stem"
    x = tape.source("input", (batch, 3, resolution, resolution))
    x = tape.conv(x, width, 3, 1, "conv")
    skips: list[list[Value]] = []
    above: list[Value] = []
    for level, blocks in enumerate(_spread(units, levels)):
        channels = width * min(2**level, 8)
        if level:
            tape.scope = f"down.{level}.pool"
            above.append(x)
            x = tape.max_pool(x)
        skips.append([])
        for block in range(blocks):
            tape.scope = f"down.{level}.{block}"
            x = _residual(tape, x, channels)
            skips[-1].append(x)
    for level in range(len(skips) - 1, -1, -1):
        channels = width * min(2**level, 8)
        for block in range(len(skips[level]) - 1, -1, -1):
            tape.scope = f"up.{level}.{block}"
            skip = skips[level][block]
            both = (*x.shape[:1], x.shape[1] + skip.shape[1], *x.shape[2:])
            x = _residual(tape, tape.cat((x, skip), both), channels)
        if level:
            tape.scope = f"up.{level}.upsample"
            shape = (*x.shape[:2], *above[level - 1].shape[2:])
            x = tape.resample("upsample_nearest2d.default", "upsample_nearest2d_backward.default", x, shape)
    tape.scope = "head"
    return tape.mse(tape.conv(x, 3, 3, 1, "conv"))


def _residual(tape: ModelTape, x: Value, channels: int) -> Value:
    """Group norm, SiLU and convolution, twice, beside a skip (a 1x1 convolution where widths differ)."""
    y = x
    for name in ("1", "2"):
        y = tape.silu(tape.norm("group", y, 32 * y.shape[0], y.shape[1], f"norm{name}"))
        y = tape.conv(y, channels, 3, 1, f"conv{name}")
    return tape.add(y, x if x.shape[1] == channels else tape.conv(x, channels, 1, 1, "skip"))


# -- long scans -----------------------------------------------------------------------------------


def rnn(
    tape: ModelTape,
    units: int,
    rng: Rng,
    *,
    batch: int | None = None,
    hidden: int | None = None,
    layers: int = 1,
) -> Value:
    """An LSTM that reads a long sequence and classifies it at the end; a unit is a time step."""
    batch = _pick(rng, batch, (32, 64, 128))
    hidden = _pick(rng, hidden, (256, 512))
    x_weights, h_weights, biases = [], [], []
    states: list[tuple[Value, Value]] = []
    for layer in range(layers):
        tape.scope = f"lstm.{layer}"
        x_weights.append(tape.parameter("weight_ih", (hidden, 4 * hidden)))
        h_weights.append(tape.parameter("weight_hh", (hidden, 4 * hidden)))
        biases.append(tape.parameter("bias", (4 * hidden,)))
        zero = tape.source(f"lstm.{layer}.zero", (batch, hidden))
        states.append((zero, zero))
    sequence = tape.source("input", (units, batch, hidden))
    frame = Value(sequence.name, (batch, hidden), batch * hidden * FLOAT, differentiable=False)
    for step in range(units):
        x = frame
        for layer, (h, c) in enumerate(states):
            tape.scope = f"lstm.{layer}.{step}"
            gates = tape.add(
                tape.linear(x, x_weights[layer], biases[layer]), tape.linear(h, h_weights[layer])
            )
            i, f, g, o = tape.chunk(gates, 4)
            kept = tape.mul(tape.sigmoid(f), c)
            c = tape.add(kept, tape.mul(tape.sigmoid(i), tape.tanh(g)))
            x = tape.mul(tape.sigmoid(o), tape.tanh(c))
            states[layer] = (x, c)
    tape.scope = "head"
    return tape.cross_entropy(tape.dense(states[-1][0], 1000, "fc"))


def ssm(
    tape: ModelTape,
    units: int,
    rng: Rng,
    *,
    batch: int | None = None,
    hidden: int | None = None,
    state: int = 16,
    layers: int = 4,
) -> Value:
    """A selective state-space model (as Mamba's reference scan); a unit is a time step of all layers.

    Tensors are (time, batch, channels); the states of the scan are (batch, channels, state).
    """
    batch = _pick(rng, batch, (2, 4, 8))
    hidden = _pick(rng, hidden, (128, 256))
    inner = 2 * hidden
    tape.scope = "embed"
    x = tape.dense(tape.source("input", (units, batch, hidden)), hidden, "proj")
    for layer in range(layers):
        prefix = f"layers.{layer}"
        tape.scope = f"{prefix}.in"
        wide = tape.dense(_layer_norm(tape, x, "norm"), 2 * inner, "in_proj", bias=False)
        content, gate = tape.chunk(wide, 2)
        u = tape.silu(tape.clone(content))
        dt = tape.softplus(tape.dense(u, inner, "dt_proj"))
        driven = tape.mul(dt, u)
        b, c = (tape.dense(u, state, name, bias=False) for name in ("b_proj", "c_proj"))
        y = _scan(tape, prefix, dt, driven, b, c, state)
        tape.scope = f"{prefix}.out"
        y = tape.mul(y, tape.silu(gate))
        x = tape.add(x, tape.dense(y, hidden, "out_proj", bias=False))
    tape.scope = "head"
    pooled = tape.resample("mean.dim", "div.Scalar", x, x.shape[1:])
    return tape.cross_entropy(tape.dense(pooled, 1000, "fc"))


def _scan(
    tape: ModelTape, prefix: str, dt: Value, driven: Value, b: Value, c: Value, state: int
) -> Value:
    """h_t = exp(dt_t A) h_(t-1) + B_t (dt_t u_t), y_t = C_t h_t (Gu and Dao, 2023, algorithm 2)."""
    steps, batch, inner = dt.shape
    tape.scope = f"{prefix}.scan"
    decay = tape.parameter("a_log", (inner, state))
    wide = (batch, inner, state)
    h = tape.source(f"{prefix}.zero", wide)
    views = [tape.chunk(x, steps, axis=0) for x in (dt, driven, b, c)]
    ys = []
    for step, (dt_t, driven_t, b_t, c_t) in enumerate(zip(*views, strict=True)):
        tape.scope = f"{prefix}.scan.{step}"
        kept = tape.mul(tape.exp(tape.mul(dt_t, decay, wide)), h)
        h = tape.add(kept, tape.mul(driven_t, b_t, wide))
        ys.append(tape.bmm(h, c_t, (1, batch, inner), state))
    tape.scope = f"{prefix}.scan"
    return tape.cat(ys, dt.shape)
