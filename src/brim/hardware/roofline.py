"""The least time that work can take on a device: its arithmetic or its memory traffic, whichever is longer.

A lower bound (Williams, Waterman and Patterson, "Roofline", 2009): it orders programs, and says which of the two a
program waits for. What a program really takes is measured.
"""

from __future__ import annotations

from brim.hardware.facts import Device
from brim.hardware.flops import Flops


def predicted_seconds(flops: Flops, traffic_bytes: float, device: Device) -> float:
    """Seconds below which the device cannot do the work.

    Args:
        flops: of the program; matrix products count at the peak rate of their dtype. Other FLOPs are not charged:
            they wait for memory, and are in its bytes.
        traffic_bytes: bytes read from and written to the device's own memory.
        device: where it would run.
    """
    return max(matmul_seconds(flops, device), traffic_bytes / device.bandwidth_bytes_per_second)


def matmul_seconds(flops: Flops, device: Device) -> float:
    """Seconds that the matrix products alone need at peak rate."""
    return sum(count / device.peak_flops.of(dtype) for dtype, count in flops.by_dtype.items())
