"""Measures what share of its speeds a device really reaches in training steps; shares.py says what for.

cost.py divides FLOPs and bytes by a share of the device's peak and of its bandwidth. Assumed, both are numbers for a
device in general. Here two fixed small decoders are trained for some steps: one whose time goes into matrix products,
one whose time goes into moving bytes. The two shares are those with which cost.py predicts both times best. The share
of the bandwidth may exceed 1: it also makes up for how much XLA fuses, which cost.py can only assume, and for caches.

    device = calibrated(detect())       # measured now or earlier; as it was on a busy machine

The result is kept (shares.py). On a machine where more programs run than there are processors nothing is measured,
because every step would look slower than it is. A GPU is measured by a process of its own, so that JAX does not start
on it here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from brim.hardware import probe
from brim.hardware.device import detect
from brim.hardware.facts import Device
from brim.models.decoder import decoder_program
from brim.models.settings import DecoderSettings
from brim.planner.cost import KERNEL_SECONDS
from brim.planner.cost_model import work_of
from brim.planner.shares import (
    LEAST_SHARE,
    MOST_BANDWIDTH_SHARE,
    MOST_PRODUCT_SHARE,
    Shares,
    is_calibrated,
    is_plausible,
    keep,
    known,
    with_shares,
)
from brim.techniques import AttentionKernel, Precision, Recipe
from brim.training.step import Step

_STEPS_PER_DECADE = 60
_TRY_SECONDS = 0.3
_LEAST_RUNS = 4
_CHILD_TIMEOUT_SECONDS = 240


@dataclass(frozen=True)
class Case:
    """A decoder that is timed: its sizes, and rows per update."""

    layers: int
    width: int
    heads: int
    context: int
    vocabulary: int
    rows: int


@dataclass(frozen=True)
class Timed:
    """One measured step beside what it asks for: seconds at full peak, bytes of products and of the rest, seconds."""

    arithmetic_seconds: float
    product_bytes: float
    other_bytes: float
    kernel_seconds: float
    measured_seconds: float

    def predicted_seconds(self, shares: Shares, bandwidth: float) -> float:
        """As cost.py predicts it under some shares of the peak and of a bandwidth."""
        reached = shares.bandwidth * bandwidth
        products = max(self.arithmetic_seconds / shares.products, self.product_bytes / reached)
        return products + self.other_bytes / reached + self.kernel_seconds


# Mostly products, and mostly bytes. Large enough to fill the device, small enough that both take seconds in all.
CASES: Mapping[str, tuple[Case, Case]] = {
    "cpu": (Case(2, 384, 4, 64, 512, 8), Case(4, 48, 12, 128, 256, 8)),
    "gpu": (Case(6, 2048, 16, 512, 8192, 16), Case(8, 256, 8, 512, 4096, 32)),
}


def calibrated(
    device: Device, cache_folder: Path | None = None, progress: Callable[[str], None] | None = None
) -> Device:
    """A device that is HERE with its shares, from an earlier measurement or measured now.

    Args:
        cache_folder: where measurements are kept; brim's own below the user's if left out.
        progress: is told before something is measured.

    Returns: the device as it was if it is of a kind that has no cases, or the machine is busy, or measuring fails.
    """
    found = known(device, cache_folder)
    if is_calibrated(found) or device.platform not in CASES or probe.busy():
        return found
    if progress is not None:
        progress(f"timing two small decoders on {device.kind}, once, to calibrate predicted times")
    shares = measure(device) if device.platform == "cpu" else _measured_in_child()
    if shares is None:
        return device
    keep(device, shares, cache_folder)
    return with_shares(device, shares)


def measure(device: Device, cases: Sequence[Case] = ()) -> Shares:
    """Time both cases on JAX's default device, now."""
    steps = [_step(case, device) for case in cases or CASES[device.platform]]
    with ThreadPoolExecutor() as pool:  # XLA is what takes the time, and leaves Python's lock alone
        list(pool.map(lambda step: step.compiled, steps))
    return fitted([_timed(step) for step in steps], device)


def fitted(timed: Sequence[Timed], device: Device) -> Shares:
    """The shares with which the predicted times are nearest to the measured ones, by the squares of their ratios.

    On a grid of shares from 2% up: two times decide two shares, and no rounding or odd time leads out of it.
    """
    bandwidth = device.bandwidth_bytes_per_second

    def miss(shares: Shares) -> float:
        ratios = (one.predicted_seconds(shares, bandwidth) / one.measured_seconds for one in timed)
        return sum(math.log(ratio) ** 2 for ratio in ratios)

    grid = (Shares(p, b) for p in _grid(MOST_PRODUCT_SHARE) for b in _grid(MOST_BANDWIDTH_SHARE))
    return min(grid, key=miss)


def _grid(most: float) -> list[float]:
    steps = math.ceil(_STEPS_PER_DECADE * math.log10(most / LEAST_SHARE))
    return [LEAST_SHARE * (most / LEAST_SHARE) ** (step / steps) for step in range(steps + 1)]


def _step(case: Case, device: Device) -> Step:
    sizes = dataclasses.asdict(case)
    rows = sizes.pop("rows")
    program = decoder_program(DecoderSettings(**sizes).resolved(), optax.sgd(1e-4), packed=False)
    recipe = Recipe.of(rows, Precision.options(program, device)[0], AttentionKernel("reference"))
    return Step(program, recipe, device)


def _timed(step: Step) -> Timed:
    device = step.device
    work = work_of(step.program, step.recipe, device)
    return Timed(
        arithmetic_seconds=sum(count / device.peak_flops.of(dtype) for dtype, count in work.flops.items()),
        product_bytes=work.traffic.products,
        other_bytes=work.traffic.elementwise + work.traffic.loops,
        kernel_seconds=work.traffic.kernels * KERNEL_SECONDS[device.platform],
        measured_seconds=_best_seconds(step),
    )


def _best_seconds(step: Step) -> float:
    """The quickest of some steps: other work on the machine can only make a step slower."""
    state = jax.device_put(jax.tree.map(_filled, step.assembly.state))
    batch = jax.device_put(jax.tree.map(_filled, step.assembly.batch))
    best, runs, until = math.inf, 0, math.inf
    while time.perf_counter() < until or runs < _LEAST_RUNS:
        start = time.perf_counter()
        state, metrics = step(state, batch)
        metrics.loss.block_until_ready()
        best = min(best, time.perf_counter() - start)
        if runs == 0:  # the first touches memory for the first time
            best, until = math.inf, time.perf_counter() + _TRY_SECONDS
        runs += 1
    return best


def _filled(spec: jax.ShapeDtypeStruct) -> Any:
    """Numbers as they occur in training, without compiling a program that makes them; zeros would run faster."""
    if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
        return jax.random.key(0)
    if not jnp.issubdtype(spec.dtype, jnp.inexact):
        return np.zeros(spec.shape, spec.dtype)
    values = np.random.default_rng(0).normal(scale=0.02, size=2**16)
    return np.resize(values, spec.shape).astype(spec.dtype)


def _measured_in_child() -> Shares | None:
    command = [sys.executable, "-m", "brim.planner.calibration"]
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_SECONDS, check=True, env=environment
        )
        shares = Shares(**json.loads(done.stdout))
    except (subprocess.SubprocessError, OSError, ValueError, TypeError):
        return None  # plans go on with what is assumed, and say so
    return shares if is_plausible(shares) else None


if __name__ == "__main__":
    print(json.dumps(dataclasses.asdict(measure(detect()))))
