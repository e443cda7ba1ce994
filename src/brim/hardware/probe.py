"""The speeds of a device that no table holds: one matrix product and one copy, timed.

A CPU has no published figure that its users would know, so its speeds are measured once, in less than a second, and
kept in the user's cache folder under the processor's name, its share of cores and JAX's version. The best of several
tries counts, since other work on the machine can only make a try slower; on a busy machine nothing is kept.

Run as a program (`python -m brim.hardware.probe`), it measures JAX's default device and prints the result as JSON, so
that a GPU can be measured without starting JAX on it in the process that will train.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.errors import DeviceError
from brim.hardware import host
from brim.hardware.facts import PeakFlops

_CHILD_TIMEOUT_SECONDS = 120
_TRY_SECONDS = 0.12


@dataclass(frozen=True)
class Speeds:
    """Measured speeds: matrix products in FLOP/s by dtype, and bytes read plus written per second."""

    float32_flops: float
    bfloat16_flops: float
    bandwidth_bytes_per_second: float

    def peak_flops(self) -> PeakFlops:
        """The same as the facts of a device."""
        return PeakFlops(float32=self.float32_flops, bfloat16=self.bfloat16_flops)


@dataclass(frozen=True)
class Sizes:
    """How much work one try is: the side of the square matrices, and the bytes of the copied array."""

    float32_side: int
    bfloat16_side: int
    copied_bytes: int


# Past the caches of a CPU, yet a try takes milliseconds; large enough to fill a GPU.
CPU_SIZES = Sizes(float32_side=1024, bfloat16_side=512, copied_bytes=2**26)
GPU_SIZES = Sizes(float32_side=4096, bfloat16_side=8192, copied_bytes=2**29)


def measure_cpu(cache_folder: Path | None = None) -> Speeds:
    """The speeds of the processor that is here, from the cache or measured now (under 1 s) and kept there."""
    key = f"{host.processor_name()} x {host.processor_count()}, JAX {importlib.metadata.version('jax')}"
    return _cached(key, _measure_cpu_now, cache_folder, keep=not busy())


def measure_gpu(kind: str, cache_folder: Path | None = None) -> Speeds:
    """The speeds of JAX's default GPU, from the cache or measured now in another process.

    Raises:
        DeviceError: if the measuring process fails.
    """
    return _cached(f"{kind}, JAX {importlib.metadata.version('jax')}", _measure_in_child, cache_folder)


def measure(device: Any, sizes: Sizes) -> Speeds:
    """Time one JAX device."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    product = jax.jit(lambda a, b: a @ b)
    # In place: a fresh 64 MiB output per call would time the operating system's page faults, not the memory.
    add_one = jax.jit(lambda a: a + 1, donate_argnums=0)

    def flops(side: int, dtype: Any) -> float:
        matrix = jax.device_put(np.ones((side, side), dtype), device)
        return 2 * side**3 / _best_seconds(lambda: product(matrix, matrix).block_until_ready())

    def bandwidth(size: int) -> float:
        array = jax.device_put(np.ones(size // 4, np.float32), device)

        def touch() -> None:
            nonlocal array
            array = add_one(array).block_until_ready()

        return 2 * size / _best_seconds(touch)

    return Speeds(
        float32_flops=flops(sizes.float32_side, np.float32),
        bfloat16_flops=flops(sizes.bfloat16_side, jnp.bfloat16),
        bandwidth_bytes_per_second=bandwidth(sizes.copied_bytes),
    )


def cache_folder() -> Path:
    """The user's cache folder for brim, by the XDG rules."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brim"


def _best_seconds(work: Callable[[], object]) -> float:
    work()  # compiles
    best, until = float("inf"), time.perf_counter() + _TRY_SECONDS
    while time.perf_counter() < until:
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


@functools.cache
def _measure_cpu_now() -> Speeds:
    import jax

    return measure(jax.devices("cpu")[0], CPU_SIZES)


def busy() -> bool:
    """Whether more programs run than there are processors, so that a measured CPU would look slower than it is."""
    try:
        return os.getloadavg()[0] > host.processor_count()
    except (AttributeError, OSError):  # a system without load averages
        return False


def _measure_in_child() -> Speeds:
    command = [sys.executable, "-m", "brim.hardware.probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_CHILD_TIMEOUT_SECONDS, check=True)
        return Speeds(**json.loads(done.stdout))
    except (subprocess.SubprocessError, OSError, ValueError, TypeError) as error:
        raise DeviceError(
            f"the speed of this GPU could not be measured: {error}",
            hint="`brim doctor` says what is wrong with the installation",
        ) from None


def _cached(key: str, measured: Callable[[], Speeds], folder: Path | None, *, keep: bool = True) -> Speeds:
    path = (folder or cache_folder()) / "speeds.json"
    kept = read_kept(path)
    try:
        return Speeds(**kept[key])
    except (KeyError, TypeError):
        speeds = measured()
        if keep:
            # A cache that cannot be written costs a second the next time, and nothing else.
            with contextlib.suppress(OSError):
                write_kept(path, {**kept, key: dataclasses.asdict(speeds)})
        return speeds


def read_kept(path: Path) -> dict[str, Any]:
    """What a file of measurements holds; nothing if it cannot be read."""
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def write_kept(path: Path, kept: dict[str, Any]) -> None:
    """Replace a file of measurements; it is never half written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem}-", suffix=".tmp")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(kept, file, indent=1)
    Path(name).replace(path)


if __name__ == "__main__":
    import jax

    default = jax.devices()[0]
    speeds = measure(default, CPU_SIZES if default.platform == "cpu" else GPU_SIZES)
    print(json.dumps(dataclasses.asdict(speeds)))
