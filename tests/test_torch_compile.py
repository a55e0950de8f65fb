"""Claims about `torch.compile` with a choice of hremate: right results, and saved bytes within the share."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra torch is not installed: nothing of PyTorch is tested")
pytest.importorskip(
    "torch._inductor.custom_graph_pass", reason="this PyTorch has no hook for the partitioner"
)
if not hasattr(__import__("torch._inductor.custom_graph_pass")._inductor.custom_graph_pass,
               "CustomKnapsackSolver"):  # fmt: skip
    pytest.skip("this PyTorch has no hook for the partitioner", allow_module_level=True)

import torch_models as models  # noqa: E402

from hremate.torch.compile import KnapsackSolver, memory_budget  # noqa: E402


def test_compiled_gradients_are_right_and_the_saved_values_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    choose = KnapsackSolver.__call__

    def spy(self: KnapsackSolver, memory: list[float], *rest: Any) -> Any:
        answer = choose(self, memory, *rest)
        asked.append((memory, rest[1], answer))
        return answer

    monkeypatch.setattr(KnapsackSolver, "__call__", spy)
    model, compiled, args = models.pair(lambda: models.mlp(4))
    torch._dynamo.reset()
    with memory_budget(0.5):
        loss = torch.compile(compiled, backend="aot_eager")(*args)
    loss.backward()
    model(*args).backward()
    for p, q in zip(model.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)
    (memory, limit, (saved, recomputed)) = asked[0]
    assert sorted([*saved, *recomputed]) == list(range(len(memory)))
    assert 0 < sum(memory[k] for k in saved) <= limit
    assert recomputed


def test_the_solver_names_its_choice_for_the_caches_of_the_compiler() -> None:
    assert KnapsackSolver().uuid() == KnapsackSolver().uuid() != KnapsackSolver("mincut").uuid()
