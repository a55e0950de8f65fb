"""Roofline times: what an op costs on a device that nobody needs to have.

time = launch + max(FLOPs / rate of the data type, bytes / bandwidth). The figures of the table are data-sheet
peaks scaled by the share that large kernels reach in practice; schedules depend on the ratios only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hremate.errors import InvalidValueError

#: Share of the peak rates that large matrix products and large copies reach.
COMPUTE_SHARE, MEMORY_SHARE = 0.6, 0.8


@dataclass(frozen=True)
class Device:
    """What a roofline needs to know about a device."""

    name: str
    #: FLOP/s by data type ("float32", "float16", "bfloat16", "float64"); others run at "float32".
    flops: Mapping[str, float]
    #: Bytes/s of the device's memory.
    bandwidth: float
    #: Microseconds that starting an op takes.
    launch: float

    def __post_init__(self) -> None:
        if "float32" not in self.flops or not all(rate > 0 for rate in self.flops.values()):
            raise InvalidValueError(f"device {self.name!r}: expected flops > 0, with a rate for float32")
        if not self.bandwidth > 0 or not self.launch >= 0:
            raise InvalidValueError(f"device {self.name!r}: expected bandwidth > 0 and launch >= 0")

    def time(self, flops: float, nbytes: int, dtype: str) -> float:
        """Microseconds of an op that computes `flops` and moves `nbytes`."""
        rate = self.flops.get(dtype, self.flops["float32"])
        return self.launch + 1e6 * max(flops / rate, nbytes / self.bandwidth)


def _gpu(name: str, single: float, half: float, double: float, bandwidth: float) -> Device:
    """A GPU from its data sheet: TFLOP/s of dense matrix products, GB/s."""
    rates = {"float32": single, "float16": half, "bfloat16": half, "float64": double}
    return Device(
        name,
        {dtype: tera * 1e12 * COMPUTE_SHARE for dtype, tera in rates.items()},
        bandwidth * 1e9 * MEMORY_SHARE,
        4.0,
    )


#: Devices by name. float32 is the rate with TF32 where a device has it.
DEVICES: Mapping[str, Device] = {
    device.name: device
    for device in (
        _gpu("v100", 15.7, 125.0, 7.8, 900.0),
        _gpu("t4", 8.1, 65.0, 0.25, 320.0),
        _gpu("a10", 62.5, 125.0, 0.98, 600.0),
        _gpu("a100", 156.0, 312.0, 19.5, 2039.0),
        _gpu("l4", 60.0, 121.0, 0.47, 300.0),
        _gpu("l40s", 183.0, 362.0, 1.4, 864.0),
        _gpu("rtx3090", 35.6, 71.0, 0.56, 936.0),
        _gpu("rtx4090", 82.6, 165.0, 1.29, 1008.0),
        _gpu("h100", 494.0, 989.0, 67.0, 3350.0),
        _gpu("h200", 494.0, 989.0, 67.0, 4800.0),
        _gpu("b200", 1100.0, 2250.0, 37.0, 8000.0),
        Device("cpu", {"float32": 1.5e11, "float64": 7.5e10, "float16": 2e10, "bfloat16": 1.5e11}, 2e10, 5.0),
    )
}


def get_device(device: str | Device) -> Device:
    """The entry of `DEVICES` with this name, or the `Device` itself.

    Raises
    ------
    InvalidValueError
        No such device.
    """
    if isinstance(device, Device):
        return device
    if device not in DEVICES:
        raise InvalidValueError(f"no device {device!r}; known are {', '.join(DEVICES)}, or pass a Device")
    return DEVICES[device]
