"""Claims about training by a schedule: the bits of eager mode, within the budget."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import hypothesis.strategies as st  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_models as models  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.torch as ht  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Sums in parallel may be rounded in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Mixed(nn.Module):
    """Two random branches, a batch norm, a buffer of its own, and an op in place."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, 6), nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.dropout(self.left(x), 0.3)
        b = F.dropout(self.right(x), 0.4)
        y = self.norm(a).relu_() * self.scale.clone() + b
        with torch.no_grad():
            self.scale.mul_(0.9).add_(y.detach().abs().mean(0))
        return (y * self.scale).tanh().sum()


@given(st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_valid_schedule_computes_the_same_bits(data: st.DataObject) -> None:
    model, scheduled, args = models.pair(lambda: (Mixed(), (torch.randn(5, 6),)))
    graph = ht.capture(scheduled, args)
    ptr, idx = graph.predecessors
    order: list[int] = []
    left = list(range(graph.n_ops))
    while left:
        done = set(order)
        ready = [i for i in left if all(int(p) in done for p in idx[ptr[i] : ptr[i + 1]])]
        repeatable = [i for i in done if not graph.once[i]]
        again = data.draw(st.booleans()) if repeatable else False
        if again and len(order) < 3 * graph.n_ops:
            order.append(data.draw(st.sampled_from(sorted(repeatable))))
        else:
            order.append(data.draw(st.sampled_from(ready)))
            left.remove(order[-1])
    hr.validate(graph, order)
    losses, _ = models.train(model, args, steps=2)
    found, _ = models.train(ht.apply(scheduled, graph, order), args, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(losses, found, strict=True))
    models.assert_same_state(model, scheduled)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, *, y: torch.Tensor, scale: float = 2.0) -> dict[str, Any]:
        h = self.a(x).sigmoid()
        return {"sum": h + y, "parts": (self.b(h).tanh() * scale, h.argmax(1)), "scale": scale}


def loss_of(result: dict[str, Any]) -> torch.Tensor:
    return (result["sum"] * 3).sum() + result["parts"][0].pow(2).mean()


def test_inputs_and_outputs_may_be_nested_and_have_gradients() -> None:
    model, scheduled, _ = models.pair(lambda: (TwoOutputs(), ()))
    x = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    x[1].data.copy_(x[0].data)
    y = torch.randn(3, 4)
    graph = ht.capture(scheduled, (x[1],), {"y": y, "scale": 0.5})
    module = ht.apply(scheduled, graph, models.everything_again(graph))
    results = model(x[0], y=y, scale=0.5), module(x[1], y=y, scale=0.5)
    assert results[1]["scale"] == 0.5 and not results[1]["parts"][1].requires_grad
    for key in ("sum",):
        assert torch.equal(results[0][key], results[1][key])
    assert torch.equal(results[0]["parts"][0], results[1]["parts"][0])
    assert torch.equal(results[0]["parts"][1], results[1]["parts"][1])
    for result in results:
        loss_of(result).backward()
    models.assert_same_state(model, scheduled)
    assert torch.equal(x[0].grad, x[1].grad)


def test_with_a_loss_function_the_module_returns_the_loss() -> None:
    model, scheduled, _ = models.pair(lambda: (TwoOutputs(), ()))
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    module = ht.remat(scheduled, (x,), {"y": y}, budget="90%", loss=loss_of, method="cut")
    loss_of(model(x, y=y)).backward()
    module(x, y=y).backward()
    models.assert_same_state(model, scheduled)


def test_gradients_accumulate_and_scale_as_in_eager_mode() -> None:
    model, scheduled, args = models.pair(lambda: models.mlp(3))
    graph = ht.capture(scheduled, args)
    module = ht.apply(scheduled, graph, models.everything_again(graph))
    for f in (model, module):
        for scale in (0.25, 3.0):
            (f(*args) * scale).backward()
    models.assert_same_state(model, scheduled)


def test_two_forward_parts_may_come_before_their_backward_parts() -> None:
    model, scheduled, args = models.pair(models.unet)
    graph = ht.capture(scheduled, args)
    module = ht.apply(scheduled, graph, models.everything_again(graph))
    for f in (model, module):
        (f(*args) + f(*args)).backward()
    models.assert_same_state(model, scheduled)


def test_a_kept_graph_can_be_run_backward_twice_and_another_not() -> None:
    model, scheduled, args = models.pair(lambda: models.encoder(1))
    graph = ht.capture(scheduled, args)
    module = ht.apply(scheduled, graph, models.everything_again(graph))
    for f in (model, module):
        torch.manual_seed(0)
        loss = f(*args)
        loss.backward(retain_graph=True)
        loss.backward()
    models.assert_same_state(model, scheduled)
    with pytest.raises(ht.ExecutionError, match="retain_graph"):
        loss.backward()


def test_weights_that_change_between_forward_and_backward_are_noticed() -> None:
    model, args = models.mlp(3)
    module = ht.apply(model, graph := ht.capture(model, args), range(graph.n_ops))
    loss = module(*args)
    with torch.no_grad():
        next(model.parameters()).add_(1)
        model.body[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_outputs_may_be_modified_in_place_unless_the_backward_part_reads_them() -> None:
    model, scheduled, args = models.pair(lambda: (nn.Linear(4, 4), (torch.randn(2, 4),)))
    module = ht.apply(scheduled, graph := ht.capture(scheduled, args), range(graph.n_ops))
    for f in (model, module):
        f(*args).mul_(2).sum().backward()
    models.assert_same_state(model, scheduled)
    sigmoid = nn.Sequential(nn.Linear(4, 4), nn.Sigmoid())
    module = ht.apply(sigmoid, graph := ht.capture(sigmoid, args), range(graph.n_ops))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        module(*args).mul_(2).sum().backward()


def test_no_output_keeps_the_tensors_of_a_step_alive() -> None:
    model, args = models.mlp(3)
    module = ht.apply(model, graph := ht.capture(model, args), range(graph.n_ops))
    with ht.MemoryMeter() as meter:
        loss = module(*args)
        del loss
        torch.zeros(1)
    assert meter.memory()[-1] == 4


def test_without_gradients_and_in_evaluation_mode_the_model_itself_runs() -> None:
    model, scheduled, args = models.pair(models.unet)
    module = ht.apply(scheduled, graph := ht.capture(scheduled, args), range(graph.n_ops))
    with torch.no_grad():
        assert torch.equal(model(*args), module(*args))
    module.eval()
    model.eval()
    for f in (model, module):
        f(*args).backward()
    models.assert_same_state(model, scheduled)


def test_an_inference_graph_runs_by_its_schedule() -> None:
    model, scheduled, args = models.pair(lambda: models.encoder(1))
    model.eval()
    scheduled.eval()
    with torch.no_grad():
        graph = ht.capture(scheduled, args)
        assert set(graph.phase.tolist()) == {0}
        again = [i for i in range(graph.n_ops) for _ in range(1 if graph.once[i] else 2)]
        assert torch.equal(model(*args), ht.apply(scheduled, graph, again)(*args))


def test_autocast_is_part_of_the_captured_step() -> None:
    model, scheduled, args = models.pair(lambda: models.mlp(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = ht.capture(scheduled, args)
        module = ht.apply(scheduled, graph, models.everything_again(graph))
        losses = model(*args), module(*args)
    assert torch.equal(*losses)
    for loss in losses:
        loss.backward()
    models.assert_same_state(model, scheduled)
    with pytest.raises(ht.ExecutionError, match="autocast"):
        module(*args)


class Repeated(nn.Module):
    """One layer, several times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = self.layer(x).tanh()
        return x.float().pow(2).mean()


def test_a_weight_used_often_is_cast_once_within_the_budget() -> None:
    """The gradients of its uses are added up in bfloat16 then, so a second cast would give other bits."""
    model, scheduled, args = models.pair(lambda: (Repeated(), (torch.randn(16, 32),)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        graph = ht.capture(scheduled, args)
        casts = [i for i in range(graph.n_ops) if "layer.weight" in graph.op(i).inputs]
        assert len(casts) == 1
        result = hr.solve(graph, "70%", "cut")
        module = ht.apply(scheduled, graph, result.schedule)
        expected = model(*args)
    for _ in range(2):
        scheduled.zero_grad()
        with ht.MemoryMeter() as meter:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found = module(*args)
            found.backward()
    expected.backward()
    assert torch.equal(expected, found)
    models.assert_same_state(model, scheduled)
    assert abs(meter.peak(p.grad for p in scheduled.parameters()) - result.peak) <= 64


class WithLogits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layer(x)
        return {"loss": F.cross_entropy(logits, y), "logits": logits}


def test_outputs_beside_a_named_loss_have_values_and_refuse_gradients() -> None:
    model, scheduled, args = models.pair(
        lambda: (WithLogits(), (torch.randn(5, 4), torch.randint(0, 3, (5,))))
    )
    module = ht.apply(scheduled, graph := ht.capture(scheduled, args), range(graph.n_ops))
    expected, found = model(*args), module(*args)
    assert torch.equal(expected["logits"], found["logits"])
    expected["loss"].backward()
    found["loss"].backward()
    models.assert_same_state(model, scheduled)
    found = module(*args)
    with pytest.raises(ht.ExecutionError, match="beside the loss"):
        (found["loss"] + found["logits"].sum()).backward()


def test_calls_unlike_the_sample_are_refused_or_run_without_a_schedule() -> None:
    model, scheduled, args = models.pair(lambda: models.mlp(3))
    graph = ht.capture(scheduled, args)
    shorter = tuple(t[:5] for t in args)
    with pytest.raises(ht.ExecutionError, match=r"input 0 is torch.float32 \[5, 32\]"):
        ht.apply(scheduled, graph, range(graph.n_ops))(*shorter)
    with pytest.raises(ht.ExecutionError, match="nested otherwise"):
        ht.apply(scheduled, graph, range(graph.n_ops))(args[0], y=args[1])
    module = ht.apply(scheduled, graph, range(graph.n_ops), fallback=True)
    for f in (model, module):
        f(*shorter).backward()
    models.assert_same_state(model, scheduled)
    nested, sample = TwoOutputs(), (torch.randn(3, 4),)
    graph_of_nested = ht.capture(nested, sample, {"y": sample[0], "scale": 1.0})
    with pytest.raises(ht.ExecutionError, match=r"an argument is 2\.0, and 1\.0 in the sample"):
        ht.apply(nested, graph_of_nested, range(graph_of_nested.n_ops))(*sample, y=sample[0], scale=2.0)
    scheduled.body[1].eval()
    with pytest.raises(ht.ExecutionError, match="another mode"):
        ht.apply(scheduled, graph, range(graph.n_ops))(*args)


def test_a_graph_from_a_file_is_traced_again_and_must_fit_the_model(tmp_path: Path) -> None:
    model, scheduled, args = models.pair(lambda: models.mlp(3))
    hr.write_graph(ht.capture(scheduled, args), tmp_path / "graph.json")
    graph = hr.read_graph(tmp_path / "graph.json")
    with pytest.raises(ht.ExecutionError, match="pass the sample"):
        ht.apply(scheduled, graph, range(graph.n_ops))
    module = ht.apply(scheduled, graph, models.everything_again(graph), args)
    for f in (model, module):
        f(*args).backward()
    models.assert_same_state(model, scheduled)
    other, other_args = models.mlp(4)
    with pytest.raises(ht.ExecutionError, match="not what capturing this model gives"):
        ht.apply(other, graph, range(graph.n_ops), other_args)
    with pytest.raises(ht.ExecutionError, match="another model"):
        ht.apply(other, ht.capture(scheduled, args), range(graph.n_ops))


def test_copies_of_a_module_train_by_themselves() -> None:
    model, scheduled, args = models.pair(lambda: models.encoder(1))
    graph = ht.capture(scheduled, args)
    module = ht.apply(scheduled, graph, models.everything_again(graph))
    copied = copy.deepcopy(module)
    models.train(model, args)
    models.train(copied, args)
    models.assert_same_state(model, copied.module)
    assert not torch.equal(scheduled.body.head.weight, copied.module.body.head.weight)


def test_invalid_schedules_and_unreachable_budgets_raise() -> None:
    model, args = models.mlp(3)
    graph = ht.capture(model, args)
    with pytest.raises(hr.ScheduleError, match="never runs"):
        ht.apply(model, graph, range(graph.n_ops - 1))
    with pytest.raises(hr.BudgetError, match="needs by itself"):
        ht.remat(model, args, budget=100)
