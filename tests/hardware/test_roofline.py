from __future__ import annotations

import pytest

from brim.hardware.device import Device, PeakFlops
from brim.hardware.flops import Flops
from brim.hardware.roofline import matmul_seconds, predicted_seconds, utilization

CARD = Device(
    name="gpu",
    platform="gpu",
    kind="Some Card",
    memory_bytes=10**9,
    free_bytes=10**9,
    compute_capability=(8, 0),
    bandwidth_bytes_per_second=1e9,
    peak_flops=PeakFlops(float32=1e12, tensorfloat32=4e12, bfloat16=8e12),
    source="published",
)


def test_products_take_the_peak_of_their_dtype():
    flops = Flops({"bfloat16": 16 * 10**12, "float32": 4 * 10**12}, other=10**15)
    assert matmul_seconds(flops, CARD) == pytest.approx(2 + 1)


@pytest.mark.parametrize(("traffic_bytes", "seconds"), [(10**9, 2.0), (5 * 10**9, 5.0)])
def test_the_longer_of_arithmetic_and_traffic_counts(traffic_bytes, seconds):
    assert predicted_seconds(Flops({"bfloat16": 16 * 10**12}), traffic_bytes, CARD) == pytest.approx(seconds)


def test_utilization_is_measured_against_the_fastest_type_that_is_used():
    assert utilization({"bfloat16": 4e12}, 1.0, CARD) == pytest.approx(0.5)
    assert utilization({"bfloat16": 3e12, "float32": 1e12}, 1.0, CARD) == pytest.approx(0.5)
    assert utilization({"float32": 1e12}, 1.0, CARD) == pytest.approx(0.25)
    assert utilization({}, 1.0, CARD) == utilization({"float32": 1.0}, 0.0, CARD) == 0
