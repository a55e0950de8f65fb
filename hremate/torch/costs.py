"""What the ops of a traced graph cost: a roofline from shapes, or a measurement on the device present."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from hremate._devices import Device
from hremate.errors import InvalidValueError

_log = logging.getLogger("hremate")

Cost = Callable[[torch.fx.Node], float]


class Roofline:
    """Microseconds of a node by `Device.time`: its FLOPs, and the bytes that it reads and writes."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def __call__(self, node: torch.fx.Node) -> float:
        inputs, outputs = _tensors(_values(node.args, node.kwargs)), _tensors(node.meta.get("val"))
        dtype = str((outputs or inputs)[0].dtype).removeprefix("torch.") if outputs or inputs else ""
        nbytes = sum(t.numel() * t.element_size() for t in {id(t): t for t in inputs + outputs}.values())
        return round(self.device.time(_flops(node), nbytes, dtype), 2)


class Profile:
    """Microseconds of a node measured on the device of its tensors: the median of `repeats` runs.

    Equal ops at equal shapes are measured once. Inputs are zeros for integers (valid as indices) and
    normally distributed otherwise. In one thread on the CPU the time is that of the thread, which other work
    on the machine does not change. An op that cannot be run so takes its roofline time, and that is logged.
    """

    def __init__(self, fallback: Device, repeats: int = 5) -> None:
        if repeats < 1:
            raise InvalidValueError(f"profile is {repeats}; expected at least one run of each op")
        self.fallback = Roofline(fallback)
        self.repeats = repeats
        self._known: dict[Hashable, float] = {}

    def __call__(self, node: torch.fx.Node) -> float:
        args, kwargs = _values(node.args, node.kwargs)
        key = (str(node.target), repr(tree_map(_signature, (args, kwargs))))
        if key not in self._known:
            try:
                self._known[key] = self._measure(node.target, args, kwargs)
            except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as error:
                _log.warning("%s could not be measured (%s); its roofline time is used", node.name, error)
                self._known[key] = self.fallback(node)
        return self._known[key]

    def _measure(self, target: Any, args: Any, kwargs: Any) -> float:
        args, kwargs = tree_map(_example, (args, kwargs))
        devices = [t.device for t in _tensors((args, kwargs))]
        cuda = next((d for d in devices if d.type == "cuda"), None)
        clock = time.perf_counter if cuda is not None or torch.get_num_threads() > 1 else time.thread_time
        times = []
        for _ in range(self.repeats + 1):
            if cuda is not None:
                torch.cuda.synchronize(cuda)
            start = clock()
            target(*args, **kwargs)
            if cuda is not None:
                torch.cuda.synchronize(cuda)
            times.append(clock() - start)
        return round(1e6 * statistics.median(times[1:]), 2)  # the first run warms up


def _flops(node: torch.fx.Node) -> float:
    packet = getattr(node.target, "overloadpacket", None)
    formula = flop_registry.get(packet)
    if formula is None:
        return 0.0
    args, kwargs = _values(node.args, node.kwargs)
    return float(formula(*args, **kwargs, out_val=node.meta.get("val")))


def _values(args: Any, kwargs: Any) -> Any:
    return torch.fx.map_arg((args, kwargs), lambda n: n.meta.get("val"))


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, torch.Tensor)]


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.device)
    return value


def _example(value: Any) -> Any:
    """A real tensor like a fake one."""
    if not isinstance(value, torch.Tensor):
        return value
    real = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return real.normal_() if value.dtype.is_floating_point else real.zero_()
