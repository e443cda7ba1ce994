"""Seconds per update, predicted before anything is compiled: what orders the candidates of a search.

    products      matrix products at a stated share of the device's peak for their dtype, or the time to read their
                  operands and write their results, whichever is longer
    elementwise   everything else, by the bytes it moves
    loops         copies into and out of the stacked arrays of loops; none where a stack is written out
    kernels       the time to start each kernel, which many small micro-batches pay more often
    host_link     copies between device and host over the link between them. Counted in full: inside one jitted step
                  they hardly overlap with computing

The terms add up, because one kernel waits for the other on one device. FLOPs and bytes are counted on the jaxpr of the
whole step (cost_model.py), so recomputation, accumulation and the optimizer are in them.

This is a prediction, good for an order of candidates. `KERNEL_SECONDS` and `LINK_SHARE` are assumed; so are the shares
of peak and bandwidth, unless steps were measured on the device (calibration.py), and then times read off them are right
to a factor of two, not to a percent. None of this decides what fits: that is the compiler's word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.hardware.facts import Device
from brim.hardware.roofline import utilization
from brim.planner.traffic import Traffic

PRODUCT_SHARE = 0.6
BANDWIDTH_SHARE = 0.8
LINK_SHARE = 0.8
KERNEL_SECONDS = {"gpu": 2e-6, "tpu": 2e-6, "cpu": 5e-6}


@dataclass(frozen=True)
class Work:
    """What one update asks of a device.

    Attributes:
        flops: of matrix products, by dtype.
        traffic: bytes moved.
    """

    flops: Mapping[str, float]
    traffic: Traffic

    def __add__(self, more: Work) -> Work:
        dtypes = sorted(self.flops.keys() | more.flops.keys())
        flops = {dtype: self.flops.get(dtype, 0) + more.flops.get(dtype, 0) for dtype in dtypes}
        return Work(flops, self.traffic + more.traffic)

    def __mul__(self, times: float) -> Work:
        return Work({dtype: times * count for dtype, count in self.flops.items()}, self.traffic * times)

    @property
    def matmul_flops(self) -> float:
        """FLOPs of all matrix products."""
        return sum(self.flops.values())


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of one update, by term, and how much of its arithmetic is done twice.

    Attributes:
        terms: name -> seconds; see the head of this file.
        recompute_share: FLOPs of matrix products beyond those of the same recipe without recomputation, as a share of
            the latter.
        mfu: predicted model FLOPs utilization: products without recomputation over peak times seconds.
    """

    terms: Mapping[str, float]
    recompute_share: float = 0.0
    mfu: float = 0.0

    @property
    def seconds(self) -> float:
        """Predicted seconds of one update."""
        return sum(self.terms.values())

    @classmethod
    def of(cls, work: Work, device: Device, *, without_recomputation: Work | None = None) -> Cost:
        """What the work costs on a device."""
        bandwidth = (device.bandwidth_share or BANDWIDTH_SHARE) * device.bandwidth_bytes_per_second
        share = device.product_share or PRODUCT_SHARE
        link = LINK_SHARE * (device.host_link_bytes_per_second or device.bandwidth_bytes_per_second)
        arithmetic = sum(count / (share * device.peak_flops.of(dtype)) for dtype, count in work.flops.items())
        terms = {
            "products": max(arithmetic, work.traffic.products / bandwidth),
            "elementwise": work.traffic.elementwise / bandwidth,
            "loops": work.traffic.loops / bandwidth,
            "kernels": work.traffic.kernels * KERNEL_SECONDS[device.platform],
            "host_link": work.traffic.host / link,
        }
        # What splitting adds is taken from one setting; where another has less of a term, it may fall below 0.
        terms = {name: max(0.0, seconds) for name, seconds in terms.items()}
        plain = work if without_recomputation is None else without_recomputation
        again = max(0.0, work.matmul_flops / plain.matmul_flops - 1) if plain.matmul_flops else 0.0
        return cls(terms, again, utilization(plain.flops, sum(terms.values()), device))
