"""One claim for each kind of layer that is easily got wrong: run by a schedule that runs everything again,
it gives the losses, gradients, buffers and inputs of eager mode, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_models as models  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hremate.torch as ht  # noqa: E402


class Net(nn.Module):
    """Layers, and what is done with them."""

    def __init__(self, function: Callable[..., torch.Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.function = nn.ModuleList(layers), function

    def forward(self, *args: Any) -> torch.Tensor:
        return self.function(self.layers, *args).pow(2).mean()


class Average(nn.Module):
    """Replaces its buffer instead of writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 3 * x * x * gradient


def nested_autocast(layers: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layers[0](x)
    return layers[1](y.float())


def attention(layers: Any, x: torch.Tensor) -> torch.Tensor:
    q = layers[0](x).view(2, 6, 2, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(q, q, q, is_causal=True)


def twice_under_autocast(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Eager mode casts the weights once; their gradients are then added up in bfloat16."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return layers[0](layers[0](x).tanh()).float()


def views_in_place(layers: Any, x: torch.Tensor) -> torch.Tensor:
    y = layers[0](x)
    y[:, :4].mul_(3)
    y.t()[2].add_(1)
    y[0].tanh_()
    z = torch.zeros_like(y).copy_(y)
    z[:2].copy_(y[2:])
    return layers[1](z.fill_diagonal_(1.0)).clone().masked_fill_(y > 0.5, 2.0)


def linear_algebra(layers: Any, x: torch.Tensor) -> torch.Tensor:
    y = layers[0](x)
    a = y @ y.t() + 5 * torch.eye(4)
    return torch.linalg.solve(a, x) + torch.linalg.cholesky(a).sum() + torch.logdet(a)


def strided_draws(layers: Any, x: torch.Tensor) -> torch.Tensor:
    """Each fills memory that is not in rows, where the order of the numbers shows."""
    y = layers[0](x).t()
    draws = [
        torch.empty_like(y).geometric_(0.4), torch.empty_like(y).random_(0, 9),
        torch.empty_like(y).random_(5), torch.empty_like(y).log_normal_(),
        torch.empty_like(y).cauchy_().clamp(-2, 2),
        torch.empty_like(y).bernoulli_(torch.full_like(y, 0.3)), torch.rand_like(y), F.dropout(y),
        torch.normal(y.detach(), 1.0), F.gumbel_softmax(y), torch.randperm(8)[:, None] * y,
    ]  # fmt: skip
    return torch.stack(draws).sum(0)


def spectrum(layers: Any, x: torch.Tensor) -> torch.Tensor:
    z = torch.fft.fft(layers[0](x))
    return (z * z.conj()).real + z.angle() + torch.view_as_real(z).abs().mean()


def gradient_penalty(layers: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    y = layers[0](x).tanh()
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return y + slope.pow(2).sum()


def hooked(layers: Any, x: torch.Tensor) -> torch.Tensor:
    y = layers[0](x)
    y.register_hook(lambda gradient: gradient * 3)
    return y.tanh()


def channels_last() -> nn.Module:
    body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2))
    return body.to(memory_format=torch.channels_last)


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def rows() -> torch.Tensor:
    return torch.randn(4, 8)


CASES: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "lstm": lambda: (Net(lambda m, x: m[0](x)[0], nn.LSTM(8, 8, 2, dropout=0.2)), (torch.randn(3, 2, 8),)),
    "channels last": lambda: (
        Net(lambda m, x: m[0](x), channels_last()),
        (torch.randn(2, 3, 9, 9).to(memory_format=torch.channels_last),),
    ),
    "checkpointed": lambda: (
        Net(lambda m, x: checkpoint(m[0], x, use_reentrant=False), nn.Sequential(linear(), nn.Tanh())),
        (rows(),),
    ),
    "attention": lambda: (Net(attention, linear()), (torch.randn(2, 6, 8),)),
    "multi-head attention": lambda: (
        Net(lambda m, x: m[0](x, x, x)[0], nn.MultiheadAttention(8, 2, dropout=0.1)), (torch.randn(5, 3, 8),),
    ),
    "spectral norm": lambda: (
        Net(lambda m, x: m[0](x), parametrizations.spectral_norm(nn.Linear(8, 8))), (rows(),),
    ),
    "autograd function": lambda: (Net(lambda m, x: Cube.apply(m[0](x)), linear()), (rows(),)),
    "replaced buffer": lambda: (Net(lambda m, x: m[1](m[0](x)), linear(), Average()), (rows(),)),
    "nested autocast": lambda: (Net(nested_autocast, linear(), linear()), (rows(),)),
    "input in place": lambda: (Net(lambda m, x: m[0](x.add_(1) * 2), linear()), (rows(),)),
    "views of a split": lambda: (
        Net(lambda m, x: torch.stack(torch.split(m[0](x), 2, -1))[:, 1:].logsumexp(0), linear()), (rows(),),
    ),
    "noise": lambda: (
        Net(lambda m, x: F.rrelu(m[0](x), training=True) + torch.randn_like(x) + torch.rand(8), linear()),
        (rows(),),
    ),
    "instance norm": lambda: (
        Net(lambda m, x: m[0](x), nn.InstanceNorm2d(4, affine=True, track_running_stats=True)),
        (torch.randn(2, 4, 5, 5),),
    ),
    "cast once by autocast": lambda: (Net(twice_under_autocast, linear()), (rows(),)),
    "views in place": lambda: (Net(views_in_place, linear(), linear()), (rows(),)),
    "linear algebra": lambda: (Net(linear_algebra, linear()), (rows(),)),
    "draws into other strides": lambda: (Net(strided_draws, linear()), (rows(),)),
    "complex": lambda: (Net(spectrum, linear()), (rows(),)),
    "second derivatives inside": lambda: (Net(gradient_penalty, linear()), (rows(),)),
    "hook on an activation": lambda: (Net(hooked, linear()), (rows(),)),
    "bfloat16": lambda: (
        Net(lambda m, x: m[0](x), nn.Sequential(linear(), nn.GELU(), nn.LayerNorm(8)).bfloat16()),
        (rows().bfloat16(),),
    ),
    "gru": lambda: (
        Net(lambda m, x: m[0](x)[0], nn.GRU(8, 8, bidirectional=True, batch_first=True)),
        (torch.randn(2, 3, 8),),
    ),
    "gates whose vectors end within a row": lambda: (  # on AVX2 and on AVX-512
        Net(lambda m, x: m[0](x)[0], nn.GRU(8, 24, batch_first=True)), (torch.randn(2, 3, 8),),
    ),
    "empty tensors": lambda: (Net(lambda m, x: torch.cat([m[0](x), m[0](x[:0])]), linear()), (rows(),)),
    "transposed input": lambda: (Net(lambda m, x: m[0](x), linear()), (torch.randn(8, 4).t(),)),
    "tied and transposed": lambda: (
        Net(lambda m, x: F.linear(m[0](x), m[0].weight.t()) + x @ m[0].weight, linear()), (rows(),),
    ),
    "frozen layer": lambda: (
        Net(lambda m, x: m[1](m[0](x).relu()), linear().requires_grad_(False), linear()), (rows(),),
    ),
    "embedding bag": lambda: (
        Net(lambda m, x: m[0](x), nn.EmbeddingBag(10, 8)), (torch.randint(0, 10, (3, 4)),),
    ),
}  # fmt: skip


def test_an_output_argument_of_another_shape_is_resized_as_in_eager_mode() -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = torch.add(x.detach(), 1, out=torch.empty(0))
            return (x * y).sum()

    x = torch.randn(4, 8, requires_grad=True)
    graph = ht.capture(Shifted(), (x,))
    scheduled = ht.apply(Shifted(), graph, list(range(graph.n_ops)))
    assert torch.equal(scheduled(x), Shifted()(x))


@pytest.mark.parametrize("name", CASES)
def test_running_it_again_gives_the_same_bits(name: str) -> None:
    model, scheduled, args = models.pair(CASES[name])
    graph = ht.capture(scheduled, args)
    start = graph.phase.tolist().index(2)
    order = [*range(start), *(i for i in range(start) if not graph.once[i]), *range(start, graph.n_ops)]
    theirs, ours = copy.deepcopy(args), copy.deepcopy(args)
    losses, _ = models.train(model, theirs)
    found, _ = models.train(ht.apply(scheduled, graph, order), ours)
    assert all(torch.equal(a, b) for a, b in zip(losses, found, strict=True))
    models.assert_same_state(model, scheduled)
    assert all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True))


def test_statistics_that_a_kernel_writes_unasked_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As cudnn_batch_norm does, whose schema does not say so."""

    def normalize(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool) -> torch.Tensor:
        mean.mul_(0.5).add_(x.mean(0))
        return x * weight + bias

    library = torch.library.Library("hremate_tests", "FRAGMENT")
    arguments = "Tensor x, Tensor weight, Tensor bias, Tensor mean, Tensor variance, bool training"
    library.define(f"norm({arguments}) -> Tensor")
    library.impl("norm", normalize, "CompositeExplicitAutograd")
    torch.library.register_fake("hremate_tests::norm", lambda x, *rest: torch.empty_like(x), lib=library)
    monkeypatch.setattr("hremate.torch._program._WRITING_BATCH_NORMS", {"hremate_tests.norm.default"})

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)
            self.register_buffer("mean", torch.zeros(8))
            self.register_buffer("ones", torch.ones(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layer(x)
            call = torch.ops.hremate_tests.norm
            return (y * call(y.detach(), self.ones, self.ones, self.mean, self.ones, True)).sum()

    model, scheduled, args = models.pair(lambda: (Norm(), (rows(),)))
    graph = ht.capture(scheduled, args)
    models.train(model, args)
    models.train(ht.apply(scheduled, graph, models.everything_again(graph)), args)
    models.assert_same_state(model, scheduled)


def test_a_scheduled_module_trains_inside_distributed_data_parallel() -> None:
    distributed = pytest.importorskip("torch.distributed", reason="PyTorch was built without collectives")
    if not distributed.is_gloo_available():
        pytest.skip("PyTorch was built without gloo")
    model, scheduled, args = models.pair(lambda: models.mlp(2))
    graph = ht.capture(scheduled, args)
    module = ht.apply(scheduled, graph, models.everything_again(graph))
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        held = nn.parallel.DistributedDataParallel(module)
        losses, _ = models.train(model, args)
        found, _ = models.train(held, args)
        with pytest.raises(ht.CaptureError, match="is a DistributedDataParallel; capture the module inside"):
            ht.capture(nn.parallel.DistributedDataParallel(model), args)
    finally:
        distributed.destroy_process_group()
    assert all(torch.equal(a, b) for a, b in zip(losses, found, strict=True))
    models.assert_same_state(model, scheduled)


def test_collectives_run_once() -> None:
    distributed = pytest.importorskip("torch.distributed", reason="PyTorch was built without collectives")
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason="no fake process group")
    from torch.distributed._functional_collectives import all_reduce

    distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    try:
        group = distributed.group.WORLD
        net = Net(lambda m, x: m[1](m[0](x) + all_reduce(m[0](x).detach(), "sum", group)), linear(), linear())
        graph = ht.capture(net, (rows(),))
        ht.apply(net, graph, range(graph.n_ops))(rows()).backward()
    finally:
        distributed.destroy_process_group()
    assert graph.once[graph.op_types.index("_c10d_functional.all_reduce.default")]
