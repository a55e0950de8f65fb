"""PyTorch: capture a model as a graph, schedule it, and train with the schedule.

    model = hr.torch.remat(model, (x, y), budget="50%")
    loss = model(x, y)
    loss.backward()

See docs/pytorch.md. Needs the extra `torch`.
"""

from __future__ import annotations

from hremate.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise MissingExtraError(
        "hremate.torch needs PyTorch: pip install 'hremate[torch]', or torch from the index for your device"
    ) from error

from hremate._devices import DEVICES, Device
from hremate.torch._capture import CapturedGraph, capture
from hremate.torch._step import CaptureError
from hremate.torch.execute import ExecutionError, RematModule, apply, remat
from hremate.torch.meter import MemoryMeter

__all__ = [
    "DEVICES",
    "CaptureError",
    "CapturedGraph",
    "Device",
    "ExecutionError",
    "MemoryMeter",
    "RematModule",
    "apply",
    "capture",
    "remat",
]
