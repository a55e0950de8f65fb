"""Claims about whole models: some steps within the budget give what eager mode gives, to the bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")

import torch_models as models  # noqa: E402

import hremate as hr  # noqa: E402
import hremate.torch as ht  # noqa: E402


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Any:
    """Sums in parallel may be rounded in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("build", [models.mlp, models.encoder, models.unet, models.resnet, models.gpt2])
def test_three_steps_at_70_and_50_percent_equal_eager_and_stay_within_the_budget(
    build: Callable[..., Any],
) -> None:
    model, _, args = models.pair(build)
    eager = copy.deepcopy(model)
    losses, eager_peak = models.train(eager, args)
    graph = ht.capture(model, args)
    for share in (0.7, 0.5):
        scheduled = copy.deepcopy(model)
        budget = int(share * eager_peak)
        result = hr.solve(graph, budget, "cut", time_limit=20)
        assert result.solved, result.reason
        found, peak = models.train(ht.apply(scheduled, graph, result.schedule), args)
        assert all(torch.equal(a, b) for a, b in zip(losses, found, strict=True))
        models.assert_same_state(eager, scheduled)
        assert peak <= budget
        assert abs(peak - result.peak) <= 64


@pytest.mark.parametrize("build", [models.encoder, models.unet, models.gpt2])
def test_running_everything_again_draws_the_same_masks_and_updates_buffers_once(
    build: Callable[..., Any],
) -> None:
    model, scheduled, args = models.pair(build)
    losses, _ = models.train(model, args)
    graph = ht.capture(scheduled, args)
    found, _ = models.train(ht.apply(scheduled, graph, models.everything_again(graph)), args)
    assert all(torch.equal(a, b) for a, b in zip(losses, found, strict=True))
    models.assert_same_state(model, scheduled)


def test_remat_with_the_default_method_halves_the_peak() -> None:
    model, scheduled, args = models.pair(models.mlp)
    losses, peak = models.train(model, args)
    module = ht.remat(scheduled, args, budget="50%", time_limit=5)
    found, less = models.train(module, args)
    assert less <= module.result.budget <= peak / 2 + 64
    assert all(torch.equal(a, b) for a, b in zip(losses, found, strict=True))
    models.assert_same_state(model, scheduled)
