"""Ops of our own that stand in traces for ops of PyTorch that tracing loses something of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

#: Integers up to here are floats.
_EXACT = 1 << 53


def _draw(method: str, size: Any, stride: Any, dtype: Any, device: Any, args: Any) -> torch.Tensor:
    fresh = torch.empty_strided(size, stride, dtype=dtype, device=device)
    numbers = [int(a) for a in args] if method == "random_" else args
    result: torch.Tensor = getattr(fresh, method)(*numbers)
    return result


def _fake_draw(method: str, size: Any, stride: Any, dtype: Any, device: Any, args: Any) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _check(infos: torch.Tensor, name: str, is_matrix: bool) -> None:
    torch.ops.aten._linalg_check_errors.default(infos, name, is_matrix=is_matrix)


def _fake_check(infos: torch.Tensor, name: str, is_matrix: bool) -> None:
    return None


def _laid_out(value: torch.Tensor, stride: Any) -> torch.Tensor:
    return _fake_laid_out(value, stride).copy_(value)


def _fake_laid_out(value: torch.Tensor, stride: Any) -> torch.Tensor:
    return torch.empty_strided(value.shape, stride, dtype=value.dtype, device=value.device)


#: Holds the registration of the ops below; it ends with the process.
_LIBRARY = torch.library.Library("hremate", "FRAGMENT")
_LIBRARY.define(
    "draw(str method, int[] size, int[] stride, ScalarType dtype, Device device, float[] args) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
_LIBRARY.impl("draw", _draw, "CompositeExplicitAutograd")
torch.library.register_fake("hremate::draw", _fake_draw, lib=_LIBRARY)
_LIBRARY.define("check(Tensor infos, str name, bool is_matrix) -> ()")
_LIBRARY.impl("check", _check, "CompositeExplicitAutograd")
torch.library.register_fake("hremate::check", _fake_check, lib=_LIBRARY)
_LIBRARY.define("laid_out(Tensor value, int[] stride) -> Tensor")
_LIBRARY.impl("laid_out", _laid_out, "CompositeExplicitAutograd")
torch.library.register_fake("hremate::laid_out", _fake_laid_out, lib=_LIBRARY)


def _in_place_draw(method: str) -> Callable[..., torch.Tensor]:
    def decomposition(like: torch.Tensor, *args: Any, generator: Any = None) -> torch.Tensor:
        if generator is not None:
            raise NotImplementedError("a random op with a generator of its own cannot be repeated")
        numbers = [a for a in args if a is not None]  # `random_` has an open end
        if any(isinstance(a, int) and abs(a) > _EXACT for a in numbers):
            raise NotImplementedError(f"{method} with a bound beyond 2^53")
        result: torch.Tensor = torch.ops.hremate.draw(
            method, like.shape, like.stride(), like.dtype, like.device, [float(a) for a in numbers]
        )
        return result

    return decomposition


_ATEN: Any = torch.ops.aten

#: Random ops that overwrite a tensor in place (dropout is one) become functional ops that ignore the strides
#: of the tensor, and the order in which it is filled with them. Drawing into fresh memory with these
#: strides is what eager mode does.
IN_PLACE_DRAWS: Mapping[Any, Callable[..., torch.Tensor]] = {
    _ATEN.bernoulli.p: _in_place_draw("bernoulli_"),
    _ATEN.uniform.default: _in_place_draw("uniform_"),
    _ATEN.normal_functional.default: _in_place_draw("normal_"),
    _ATEN.exponential.default: _in_place_draw("exponential_"),
    _ATEN.geometric.default: _in_place_draw("geometric_"),
    _ATEN.log_normal.default: _in_place_draw("log_normal_"),
    _ATEN.cauchy.default: _in_place_draw("cauchy_"),
    _ATEN.random.default: _in_place_draw("random_"),
    _ATEN.random.to: _in_place_draw("random_"),
    getattr(_ATEN.random, "from"): _in_place_draw("random_"),
}
