"""Claims about graphs captured from PyTorch: what is an op, what is resident, what is whose phase."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import torch_models as models  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.torch as ht  # noqa: E402


def op_of_type(graph: hr.Graph, kind: str) -> hr.Op:
    return graph.op(graph.op_types.index(kind))


def nbytes(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def test_an_mlp_has_one_op_for_each_kernel_and_none_for_views() -> None:
    model, args = models.mlp(2)
    graph = ht.capture(model, args)
    forward = [t for t, p in zip(graph.op_types, graph.phase, strict=True) if p == 0]
    assert forward == ["aten.addmm.default", "aten.relu.default"] * 2 + [
        "aten.addmm.default", "aten._log_softmax.default",
    ]  # fmt: skip
    assert [graph.op_types[i] for i in range(graph.n_ops) if graph.phase[i] == 1] == [
        "aten.nll_loss_forward.default"
    ]
    assert not set(graph.op_types) & {"aten.t.default", "aten.view.default", "aten.detach.default"}


def test_weights_inputs_and_weight_gradients_are_resident() -> None:
    model, args = models.mlp(2)
    graph = ht.capture(model, args)
    weights = list(model.parameters())
    assert graph.resident == 2 * nbytes(*weights) + nbytes(*args)
    first = graph.op(0)
    assert set(first.inputs) == {"body.0.weight", "body.0.bias", "input.0"}
    kept = [graph.size[x] for x in graph.outputs]
    assert len(kept) == len(weights) + 2  # the loss and its incoming gradient, a scalar each
    assert sorted(kept) == [0] * len(weights) + [4, 4]


def test_an_mlp_captured_before_comes_out_the_same() -> None:
    path = Path(__file__).resolve().parent.parent.parent / "shared" / "data" / "captured" / "mlp-8.json.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    before = hr.read_graph(path)
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.ReLU()) for _ in range(8)))
        sample = torch.empty(4096, 2048)
    device = ht.Device("of that capture", {"float32": 90e12}, bandwidth=1.4e12, launch=4.0)
    graph = ht.capture(model, sample, loss=lambda y: y.pow(2).mean(), device=device)
    assert graph.op_types == before.op_types
    for key in ("time", "size", "phase", "in_ptr", "in_idx"):
        assert (getattr(graph, key) == getattr(before, key)).all(), key
    assert graph.resident == before.resident
    # The gradient of the loss, a scalar, now counts until the end.
    assert hr.base_peak(graph) == hr.base_peak(before) + 4


def test_an_op_with_several_outputs_is_one_op() -> None:
    graph = ht.capture(nn.LayerNorm(8), (torch.randn(4, 8),))
    norm = op_of_type(graph, "aten.native_layer_norm.default")
    assert [size for _, size in norm.outputs] == [128, 16, 16]


def test_a_view_keeps_its_base_alive() -> None:
    class Split(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b = x.exp().chunk(2)
            return (a.sigmoid() * b.t().reshape(2, 4)).sum()

    graph = ht.capture(Split(), (torch.randn(4, 4, requires_grad=True),))
    readers = [graph.op(i).type for i in range(graph.n_ops) if "exp" in graph.op(i).inputs]
    assert readers[:2] == ["aten.sigmoid.default", "aten.clone.default"]


def test_the_gradient_of_an_input_takes_room_and_is_an_output() -> None:
    graph = ht.capture(nn.Linear(4, 4), (torch.randn(8, 4, requires_grad=True),))
    assert 128 in [graph.size[x] for x in graph.outputs if graph.phase[graph.producer[x]] == 2]


def test_meta_cpu_and_another_seed_give_the_same_graph() -> None:
    model, args = models.unet()
    graph = ht.capture(model, args, device="a100")
    assert ht.capture(model, args, device="a100").sha256 == graph.sha256
    with torch.device("meta"):
        meta, _ = models.unet()
    sample = tuple(torch.empty_like(t, device="meta") for t in args)
    assert ht.capture(meta, sample, device="a100").sha256 == graph.sha256


def test_a_model_larger_than_memory_is_captured_on_meta() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 1))
    graph = ht.capture(model, (torch.empty(1 << 20, 1 << 20, device="meta"),), loss=lambda y: y.sum())
    assert hr.base_peak(graph) > 1 << 42


def test_ops_carry_the_module_they_come_from_in_both_parts() -> None:
    model, args = models.encoder(2)
    graph = ht.capture(model, args)
    scopes = {p: {graph.op_scopes[i] for i in range(graph.n_ops) if graph.phase[i] == p} for p in (0, 2)}
    for part in scopes.values():
        assert {"body.layers.layers.0.linear1", "body.layers.layers.1.norm2"} <= part


def test_mutated_buffers_are_not_taken_for_the_loss() -> None:
    model, args = models.unet()
    graph = ht.capture(model, args)
    assert graph.op_types[graph.phase.tolist().index(1)] == "aten.mse_loss.default"
    assert graph.tensor_names[graph.outputs[0]].startswith("mse_loss")


def test_buffer_updates_come_before_the_backward_part() -> None:
    model, args = models.unet()
    graph = ht.capture(model, args)
    start = graph.op_types.index("aten.ones_like.default")
    counters = [i for i, t in enumerate(graph.op_types) if t == "aten.add.Tensor" and graph.phase[i] == 0]
    assert len(counters) == 6
    assert all(graph.op(i).outputs[0][0] in graph.op(start).inputs for i in counters)


def test_a_weight_without_gradient_has_none() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3)
            self.frozen.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.frozen(self.used(x)).sum()

    graph = ht.capture(Unused(), (torch.randn(2, 3),))
    gradients = [x for x in graph.outputs if graph.phase[graph.producer[x]] == 2 and graph.size[x] == 0]
    assert len(gradients) == 2


def test_random_ops_keep_their_order_and_may_run_again() -> None:
    class Branches(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (F.dropout(x, 0.1) + F.dropout(x, 0.2)).sum()

    graph = ht.capture(Branches(), (torch.randn(4, requires_grad=True),))
    draws = [i for i, t in enumerate(graph.op_types) if t == "hremate.draw.default"]
    assert len(draws) == 2
    assert not graph.once[draws].any()
    with pytest.raises(hr.ScheduleError, match="before it is computed"):
        hr.simulate(graph, sorted(range(graph.n_ops), key=lambda i: (i != draws[1], i)))


def test_what_the_caller_gets_runs_once() -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x.exp(), x.sin().cos()

    graph = ht.capture(Two(), (torch.randn(4, requires_grad=True),))
    once = {graph.op_names[i] for i in range(graph.n_ops) if graph.once[i]}
    assert once == {"exp", "cos", "ones_like", "ones_like_1"}
    assert {"exp", "cos"} <= set(graph.op(graph.op_names.index("ones_like")).inputs)


def test_without_gradients_there_is_a_forward_part_only() -> None:
    model, args = models.mlp(2)
    with torch.no_grad():
        graph = ht.capture(model, args)
    assert set(graph.phase.tolist()) == {0}
    assert graph.resident == nbytes(*model.parameters(), *args)


def test_captured_graphs_are_written_and_pickled_as_plain_graphs(tmp_path: Path) -> None:
    model, args = models.mlp(2)
    graph = ht.capture(model, args, name="tiny")
    hr.write_graph(graph, tmp_path / "graph.json.gz")
    for other in (hr.read_graph(tmp_path / "graph.json.gz"), pickle.loads(pickle.dumps(graph))):
        assert type(other) is hr.Graph
        assert other.sha256 == graph.sha256


class Branching(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == "input" and x.sum() > 0:
            x = x + 1
        if self.kind == "constant" and torch.arange(3).sum() == 3:
            x = x * 2
        if self.kind == "weight":
            with torch.no_grad():
                self.weight.clamp_(0, 1)
        if self.kind == "numpy":
            x = torch.from_numpy(x.detach().numpy())
        return (x * self.weight).sum()


def test_a_branch_on_values_names_its_line() -> None:
    with pytest.raises(ht.CaptureError, match=r'test_torch_capture.py:\d+: if self.kind == "input"'):
        ht.capture(Branching("input"), (torch.randn(3),))


def test_a_branch_on_what_shapes_determine_is_followed() -> None:
    graph = ht.capture(Branching("constant"), (torch.randn(3),))
    assert graph.op_types[:2] == ("aten.mul.Tensor", "aten.mul.Tensor")


def test_a_branch_that_the_compiler_avoids_is_avoided_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Library(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling() and bool((x > 0).all()):
                return x.sum()
            return x.relu().sum()

    with caplog.at_level("WARNING", logger="hremate"):
        graph = ht.capture(Library(), (torch.randn(3, requires_grad=True),))
    assert graph.op_types[0] == "aten.relu.default"
    assert "branches on the value of a tensor" in caplog.text
    assert not torch.compiler.is_compiling()


def test_what_cannot_be_traced_says_why_and_where() -> None:
    with pytest.raises(ht.CaptureError, match="modifies its weight 'weight'"):
        ht.capture(Branching("weight"), (torch.randn(3),))
    with pytest.raises(ht.CaptureError, match=r"cannot be traced .*capture.py:\d+: x = torch.from"):
        ht.capture(Branching("numpy"), (torch.randn(3),))
    with pytest.raises(ht.CaptureError, match=r"cannot be traced \(RuntimeError: .* in module '0'"):
        ht.capture(nn.Sequential(nn.Linear(3, 3)), (torch.randn(2, 4),))
    with pytest.raises(ht.CaptureError, match="one scalar tensor"):
        ht.capture(nn.Linear(3, 3), (torch.randn(2, 3),), loss=lambda y: y)
    with pytest.raises(ht.CaptureError, match=r"expected a torch.nn.Module, not function"):
        ht.capture(lambda x: x, (torch.randn(2, 3),))
    with pytest.raises(ht.CaptureError, match="args is a dict; expected a tuple"):
        ht.capture(nn.Linear(3, 3), {"input": torch.randn(2, 3)})
    with pytest.raises(ht.CaptureError, match="only dense tensors"):
        ht.capture(nn.Linear(3, 3), (torch.eye(3).to_sparse(),))


def test_times_follow_the_roofline_of_the_device() -> None:
    slow = ht.Device("slow", {"float32": 1e9}, bandwidth=1e9, launch=2.0)
    graph = ht.capture(nn.Linear(64, 32), (torch.randn(16, 64),), device=slow)
    assert graph.op(0).time == pytest.approx(2.0 + 1e6 * 2 * 16 * 64 * 32 / 1e9, abs=0.01)
    model, args = models.mlp(2)
    times = [ht.capture(model, args, device=name).total_time for name in ("h100", "t4")]
    assert times[0] < times[1]
    with pytest.raises(hr.InvalidValueError, match="no device 'abacus'; known are v100"):
        ht.capture(model, args, device="abacus")
    with pytest.raises(hr.InvalidValueError, match="expected flops > 0"):
        ht.Device("bad", {"float32": -1.0}, 1.0, 1.0)


def test_profiled_times_are_measured_once_for_equal_ops() -> None:
    model, args = models.mlp(3)
    state = torch.get_rng_state()
    graph = ht.capture(model, args, profile=3)
    assert torch.equal(torch.get_rng_state(), state)
    relu = [graph.time[i] for i, t in enumerate(graph.op_types) if t == "aten.relu.default"]
    assert relu[0] > 0 and len(set(relu)) == 1
    assert graph.metadata["source"].endswith("times measured")
