"""Claims about graphs captured from JAX."""

from __future__ import annotations

from typing import Any

import pytest

jax = pytest.importorskip("jax", reason="the extra jax is not installed: nothing of JAX is tested")

import jax.numpy as jnp  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.jax as hj  # noqa: E402
from hremate._devices import Device  # noqa: E402

FLOAT = jnp.float32


def shape(*dims: int) -> Any:
    return jax.ShapeDtypeStruct(dims, FLOAT)


def mlp(weights: Any, x: Any, y: Any) -> Any:
    for w, b in weights:
        x = jax.nn.relu(x @ w + b)
    return jnp.mean((x - y) ** 2)


WEIGHTS = [(shape(8, 8), shape(8)) for _ in range(3)]


def test_weights_inputs_and_gradients_are_resident() -> None:
    graph = hj.capture(mlp, WEIGHTS, shape(16, 8), shape(16, 8))
    weights = 3 * (8 * 8 + 8) * 4
    assert graph.resident == 2 * weights + 2 * 16 * 8 * 4
    kept = sorted(int(graph.size[x]) for x in graph.outputs)
    assert kept == [0] * 6 + [4]


def test_forward_comes_before_the_loss_and_backward_after_it() -> None:
    graph = hj.capture(mlp, WEIGHTS, shape(16, 8), shape(16, 8))
    phases = graph.phase.tolist()
    assert phases == sorted(phases) and phases.count(1) == 1
    assert graph.op_types.count("dot_general") == 8  # 3 forward, 2 + 3 backward: no gradient of the input


def test_views_cost_nothing_and_calls_are_opened() -> None:
    graph = hj.capture(mlp, WEIGHTS, shape(16, 8), shape(16, 8))
    assert not set(graph.op_types) & {"reshape", "broadcast_in_dim", "transpose", "pjit", "jit"}
    assert "relu" in graph.op_scopes[graph.op_types.index("max")]


def test_the_graph_can_be_scheduled() -> None:
    graph = hj.capture(mlp, WEIGHTS * 3, shape(64, 8), shape(64, 8))
    result = hr.solve(graph, "60%", "cut", time_limit=2)
    assert result.solved
    hr.validate(graph, result.schedule, result.budget)


def test_without_a_gradient_there_is_a_forward_part_only() -> None:
    graph = hj.capture(mlp, WEIGHTS, shape(16, 8), shape(16, 8), grad=False)
    assert set(graph.phase.tolist()) == {0}


def test_auxiliary_outputs_keep_their_bytes() -> None:
    def loss(w: Any, x: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y.sum(), y

    graph = hj.capture(loss, shape(8, 8), shape(4, 8), has_aux=True)
    assert sorted(int(graph.size[x]) for x in graph.outputs) == [0, 4, 128]


def test_a_loop_is_one_op_with_the_flops_of_its_body() -> None:
    def rnn(w: Any, xs: Any) -> Any:
        final, _ = jax.lax.scan(lambda h, x: (jnp.tanh(h @ w + x), None), jnp.zeros(xs.shape[1:]), xs)
        return final.sum()

    slow = Device("slow", {"float32": 1e9}, bandwidth=1e12, launch=4.0)
    graphs = [hj.capture(rnn, shape(16, 16), shape(n, 4, 16), device=slow) for n in (10, 20)]
    assert [g.op_types.count("scan") for g in graphs] == [2, 2]
    times = [g.time[g.op_types.index("scan")] - 4.0 for g in graphs]
    assert times[1] == pytest.approx(2 * times[0], abs=0.02)


def test_convolutions_and_checkpointed_functions_are_understood() -> None:
    @jax.checkpoint
    def block(w: Any, x: Any) -> Any:
        return jax.nn.gelu(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME"))

    graph = hj.capture(lambda w, x: block(w, x).mean(), shape(8, 3, 3, 3), shape(2, 3, 16, 16), device="cpu")
    i = graph.op_types.index("conv_general_dilated")
    assert graph.time[i] == pytest.approx(5.0 + 1e6 * 2 * 2 * 8 * 16 * 16 * 27 / 1.5e11, abs=0.01)


def test_what_cannot_be_traced_is_refused() -> None:
    with pytest.raises(hr.GraphError, match="TracerBoolConversionError"):
        hj.capture(lambda w: w.sum() if w.sum() > 0 else -w.sum(), shape(3))
    with pytest.raises(hr.GraphError, match="scalar"):
        hj.capture(lambda w: w * 2, shape(3))
    with pytest.raises(hr.GraphError, match="computes nothing"):
        hj.capture(lambda w: w, shape(3), grad=False)
