"""The least time that work can take on a device: its arithmetic or its memory traffic, whichever is longer.

A lower bound (Williams, Waterman and Patterson, "Roofline", 2009): it orders programs, and says which of the two a
program waits for. What a program really takes is measured.
"""

from __future__ import annotations

from collections.abc import Mapping

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


def utilization(by_dtype: Mapping[str, float], seconds: float, device: Device) -> float:
    """Model FLOPs utilization (MFU): the share of the peak that the products of a model keep busy over some seconds.

    The peak is that of the fastest type among the products, so a float32 product that was left in a bfloat16 step does
    not raise it. What is computed a second time is no work of the model: leave it out of the count.
    Source: Chowdhery et al., PaLM, 2022, appendix B.

    Args:
        by_dtype: FLOPs of matrix products by the dtype of their factors.
    """
    if not by_dtype or not seconds > 0:
        return 0.0
    return sum(by_dtype.values()) / (seconds * max(map(device.peak_flops.of, by_dtype)))
