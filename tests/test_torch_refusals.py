"""Claims about what cannot be captured or run: an error names it, and no number is silently another."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import torch.nn as nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.torch as ht  # noqa: E402


class Net(nn.Module):
    """A linear layer, other layers, and what is done with them; the loss is the mean square."""

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.others = nn.ModuleList(layers)
        self.function = function

    def forward(self, *args: Any) -> Any:
        result = self.function(self, *args)
        return result.pow(2).mean() if isinstance(result, torch.Tensor) else result


class Loose(nn.Module):
    """Has a tensor that is neither a parameter nor a buffer."""

    def __init__(self, function: Callable[..., torch.Tensor], loose: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.function, self.loose = nn.Linear(8, 8), function, loose

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x).sum()


def rows() -> torch.Tensor:
    return torch.randn(4, 8)


def replace_loose(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.loose = model.loose + 1
    return model.layer(x) * model.loose


def in_a_checkpoint(model: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(model.others[0], model.layer(x), use_reentrant=False)


def twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x, x


MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, Any]], str]] = {
    "a tensor that is no buffer is modified": (
        lambda: (Loose(lambda m, x: m.layer(x) * m.loose.add_(1), torch.zeros(8)), (rows(),)),
        r"modifies a tensor that is no buffer .* at .*test_torch_refusals\.py:\d+",
    ),
    "a tensor that is no buffer is replaced": (
        lambda: (Loose(replace_loose, torch.zeros(8)), (rows(),)),
        "reads its attribute 'loose' and replaces it",
    ),
    "a tensor that is no parameter requires a gradient": (
        lambda: (Loose(lambda m, x: m.layer(x) * m.loose, torch.ones(8, requires_grad=True)), (rows(),)),
        r"no parameter of the model.* at .*test_torch_refusals\.py:\d+",
    ),
    "batch norm in a checkpoint counts twice": (
        lambda: (Net(in_a_checkpoint, nn.BatchNorm1d(8)), (rows(),)),
        "'others.0.running_mean' in its backward part; .*switch it off",
    ),
    "dropout in a checkpoint draws twice": (
        lambda: (Net(in_a_checkpoint, nn.Dropout(0.3)), (rows(),)),
        "draws random numbers in the backward part; .*switch it off",
    ),
    "two inputs share memory and one is modified": (
        lambda: (Net(lambda m, x, y: m.layer(x.add_(1)) * y), twice(rows())),
        "modifies 'input 0', which shares memory",
    ),
    "an input that requires a gradient is modified": (
        lambda: (Net(lambda m, x: m.layer(x.add_(1))), (rows().requires_grad_() * 1,)),
        "modifies 'input 0', which requires a gradient",
    ),
    "a parameter is modified": (
        lambda: (Net(lambda m, x: m.layer(x) + m.layer.weight.data.mul_(0.5)[0]), (rows(),)),
        "modifies its weight 'layer.weight'",
    ),
    "a shape depends on values": (
        lambda: (Net(lambda m, x: m.layer(x)[x > 0]), (rows(),)),
        r"nonzero.* at .*test_torch_refusals\.py:\d+",
    ),
    "an input does not fit": (
        lambda: (Net(lambda m, x: m.layer(x)), (torch.randn(4, 5),)),
        r"in module 'layer', at .*test_torch_refusals\.py:\d+",
    ),
    "nothing is computed": (lambda: (Net(lambda m, x: None), (rows(),)), "computes nothing"),
    "a lazy module": (
        lambda: (Net(lambda m, x: m.others[0](x), nn.LazyLinear(4)), (rows(),)), "'others.0' is lazy",
    ),
    "a sparse gradient": (
        lambda: (nn.Embedding(10, 8, sparse=True), (torch.zeros(3, dtype=torch.int64),)), "sparse gradient",
    ),
    "a data-parallel module": (
        lambda: (nn.DataParallel(nn.Linear(8, 8)), (rows(),)), "is a DataParallel; capture the module inside",
    ),
    "a sparse input": (lambda: (nn.Linear(8, 8), (rows().to_sparse(),)), "torch.sparse_coo"),
    "a function": (lambda: (torch.exp, (rows(),)), "expected a torch.nn.Module"),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_the_capture_is_refused(name: str) -> None:
    build, message = MODELS[name]
    model, args = build()
    with pytest.raises(ht.CaptureError, match=message):
        ht.capture(model, args)


def test_arguments_of_a_capture_are_checked() -> None:
    model = nn.Linear(8, 8)
    for options, message in (
        ({"kwargs": [1]}, "kwargs is a list"),
        ({"loss": 3}, "loss is a int"),
        ({"loss": lambda y: 3.0}, "one scalar tensor"),
        ({"args": "text"}, "args is a str"),
    ):
        with pytest.raises(ht.CaptureError, match=message):
            ht.capture(model, **{"args": (rows(),), **options})
    with pytest.raises(hr.HremateError, match="at least one run"):
        ht.capture(model, (rows(),), profile=-1)


def scheduled(function: Callable[..., Any], *args: torch.Tensor) -> ht.RematModule:
    model = Net(function)
    graph = ht.capture(model, args)
    return ht.apply(model, graph, range(graph.n_ops))


def test_a_call_whose_tensors_lie_otherwise_in_memory_is_refused() -> None:
    """Whether `reshape` copies is decided at the capture, and kernels add up in the order of memory."""
    module = scheduled(lambda m, x: m.layer(x), rows())
    with pytest.raises(ht.ExecutionError, match=r"strides \[1, 4\]"):
        module(torch.randn(8, 4).t())
    one_row = scheduled(lambda m, x: m.layer(x), torch.randn(1, 8))
    one_row(torch.randn(8, 1).t()).backward()  # the stride of one row makes no difference


def test_a_call_that_modifies_shared_memory_is_refused() -> None:
    module = scheduled(lambda m, x, y: m.layer(x.add_(1)) * y, rows(), rows())
    with pytest.raises(ht.ExecutionError, match="input 0, which the model modifies, shares memory"):
        module(*twice(rows()))


def test_second_derivatives_raise_instead_of_being_zero() -> None:
    module = scheduled(lambda m, x: m.layer(x).tanh(), rows())
    with pytest.raises(ht.ExecutionError, match="no second derivatives"):
        torch.autograd.grad(module(rows()), list(module.parameters()), create_graph=True)


def test_a_scheduled_module_says_how_to_save_it() -> None:
    model = nn.Linear(8, 8)
    module = ht.apply(model, graph := ht.capture(model, (rows(),)), range(graph.n_ops))
    with pytest.raises(pickle.PicklingError, match=r"save module\.module"):
        pickle.dumps(module)


class Remembering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last, self.log, self.calls = nn.Linear(8, 8), None, {"calls": 0}, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.layer(x)
        self.seen = self.last
        self.log["last"] = self.last
        self.calls += 1
        return self.last.sum()


def test_a_capture_leaves_the_attributes_of_a_model_as_they_were(caplog: pytest.LogCaptureFixture) -> None:
    model = Remembering()
    with caplog.at_level("WARNING", "hremate"):
        ht.capture(model, (rows(),))
    assert (model.last, model.calls, model.log) == (None, 0, {"calls": 0})
    assert not hasattr(model, "seen")
    told = [record.getMessage() for record in caplog.records]
    assert [name for name in ("last", "log", "calls", "seen") if any(repr(name) in t for t in told)] == [
        "last", "log", "calls", "seen",
    ]  # fmt: skip
