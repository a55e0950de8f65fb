"""What calls of a captured step must have in common with the sample: tensors, and the state of autocast."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Description:
    """What a tensor must have in common with the one that was traced."""

    shape: tuple[int, ...]
    #: 0 where it makes no difference.
    strides: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    device: torch.device

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        required = ", requires_grad" if self.requires_grad else ""
        return f"{self.dtype} {list(self.shape)} with strides {list(self.strides)} on {self.device}{required}"


def describe(tensor: torch.Tensor) -> Description:
    """The description of a tensor; one on `meta` is traced as if on the CPU."""
    device = torch.device("cpu") if tensor.device.type == "meta" else tensor.device
    empty = tensor.numel() == 0
    strides = tuple(
        0 if empty or n == 1 else s for n, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return Description(tuple(tensor.shape), strides, tensor.dtype, tensor.requires_grad, device)


def autocast_state() -> tuple[Any, ...]:
    """(device type, dtype) of autocast where it is on."""
    return tuple(
        (kind, torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    )
