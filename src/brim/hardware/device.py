"""Devices by name and the device that is here.

`named` reads devices/*.toml, so that a plan can be made for a card one does not have; `find` reads a file of the user's
too. `detect` looks at this machine. It asks the driver, not JAX, about a GPU: how much memory JAX may take is settled
from what is really free, before it starts.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from typing import Literal

from brim.hardware import host, nvidia, probe
from brim.hardware.facts import Device, PeakFlops, Target
from brim.hardware.match import match
from brim.hardware.names import find, named, names, reading_of, same_name

__all__ = [
    "Device",
    "PeakFlops",
    "Target",
    "detect",
    "driver_shows",
    "find",
    "here",
    "jax_has_started",
    "named",
    "names",
    "reading_of",
    "settle_platform",
]

CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


def detect() -> Device:
    """The device that JAX runs on here, with the memory that is free now. CPU counts.

    Does not start JAX on a GPU, and settles its platform if there is none. Speeds of a CPU, and of a GPU that is in no
    table, are measured once per machine.

    Raises:
        DeviceError: if an unknown GPU cannot be measured.
    """
    settle_platform()
    gpus = nvidia.visible(nvidia.query().gpus, os.environ)
    if gpus and _runs_on(len(gpus)) == "gpu":
        return _detected_gpu(gpus[0], _free_in_jax())
    return _detected_cpu()


def settle_platform() -> None:
    """Tell JAX to start on the CPU where it could not start on a GPU; nothing if it has started or was told already.

    A CUDA plugin without a driver is there to compile for GPUs that are not here. JAX would try to start it all the
    same, print a long complaint, and then refuse to compile for it.
    """
    if jax_has_started() or os.environ.get("JAX_PLATFORMS"):
        return
    if platform_here(len(nvidia.visible(nvidia.query().gpus, os.environ)), os.environ) == "cpu":
        import jax

        jax.config.update("jax_platforms", "cpu")


def here() -> str | None:
    """The name of the first GPU that CUDA shows this process; None where there is none, or it is in no table.

    Asks the driver only, and measures nothing.
    """
    gpus = nvidia.visible(nvidia.query().gpus, os.environ)
    found = match(gpus[0]) if gpus else None
    return found[0] if found else None


def driver_shows(kind: str) -> bool:
    """Whether the driver shows this process a GPU of a kind; does not start JAX, so none of its memory is taken."""
    return any(same_name(gpu.name, kind) for gpu in nvidia.visible(nvidia.query().gpus, os.environ))


def platform_here(gpus: int, variables: Mapping[str, str]) -> Literal["cpu", "gpu"]:
    """Where JAX will run once it starts, by what is installed and set.

    Args:
        gpus: how many GPUs CUDA shows this process.
        variables: the environment variables of the process.
    """
    wanted = variables.get("JAX_PLATFORMS", "").lower()
    allowed = not wanted or wanted.split(",")[0].strip() in {"cuda", "gpu"}
    installed = any(importlib.util.find_spec(name) for name in CUDA_PLUGINS)
    return "gpu" if gpus and allowed and installed else "cpu"


def jax_has_started() -> bool:
    """Whether JAX runs in this process already; does not start it."""
    if "jax" not in sys.modules:
        return False
    # JAX has no public way to ask this without starting it.
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def _runs_on(gpus: int) -> Literal["cpu", "gpu"]:
    if not jax_has_started():
        return platform_here(gpus, os.environ)
    import jax

    return "gpu" if jax.default_backend() == "gpu" else "cpu"


def _free_in_jax() -> int | None:
    """Bytes that a GPU on which JAX already runs can still hand out; None before it runs, or if it does not tell."""
    if not jax_has_started():
        return None
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None


def _detected_gpu(gpu: nvidia.Gpu, free_in_jax: int | None) -> Device:
    free = gpu.free_bytes if free_in_jax is None else free_in_jax
    found = match(gpu)
    if found is not None:
        name, entry = found
        return entry.device(name, memory_bytes=gpu.total_bytes, free_bytes=free)
    speeds = probe.measure_gpu(gpu.name)
    return Device(
        name="gpu",
        platform="gpu",
        kind=gpu.name,
        memory_bytes=gpu.total_bytes,
        free_bytes=free,
        compute_capability=gpu.compute_capability,
        bandwidth_bytes_per_second=speeds.bandwidth_bytes_per_second,
        peak_flops=speeds.peak_flops(),
        source="measured",
    )


def _detected_cpu() -> Device:
    memory, speeds = host.host_memory(), probe.measure_cpu()
    return Device(
        name="cpu",
        platform="cpu",
        kind=host.processor_name(),
        memory_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        compute_capability=None,
        bandwidth_bytes_per_second=speeds.bandwidth_bytes_per_second,
        peak_flops=speeds.peak_flops(),
        source="measured",
    )
