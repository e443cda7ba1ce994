"""Devices by name and the device that is here.

`named` reads devices.toml, so that a plan can be made for a card one does not have. `detect` looks at this machine.
It asks the driver, not JAX, about a GPU: how much memory JAX may take is settled from what is really free, before it
starts.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from brim.errors import DeviceError, did_you_mean
from brim.hardware import host, nvidia, probe
from brim.hardware.facts import Device, PeakFlops, Target
from brim.settings import build, load_toml

__all__ = ["Device", "PeakFlops", "Target", "detect", "named", "names"]

CUDA_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")

# The CUDA context and the handles of cuBLAS and cuDNN live outside of what XLA hands out. Assumed, and not measured on
# each card; a device that is here needs no assumption.
CONTEXT_BYTES = 512 * 2**20


@dataclass(frozen=True)
class _Table:
    """One table of devices.toml."""

    kind: str
    compute_capability: tuple[int, ...]
    memory_bytes: int
    bandwidth_bytes_per_second: float
    peak_flops: PeakFlops
    target: Target
    aliases: tuple[str, ...] = ()

    def device(self, name: str, *, memory_bytes: int, free_bytes: int) -> Device:
        major, minor = self.compute_capability
        return Device(
            name=name,
            platform="gpu",
            kind=self.kind,
            memory_bytes=memory_bytes,
            free_bytes=free_bytes,
            compute_capability=(major, minor),
            bandwidth_bytes_per_second=self.bandwidth_bytes_per_second,
            peak_flops=self.peak_flops,
            source="published",
            target=self.target,
        )


def names() -> tuple[str, ...]:
    """The devices that `named` knows, sorted."""
    return tuple(sorted(_tables()))


def named(name: str) -> Device:
    """The facts of a GPU that need not be here, idle.

    Case, `-`, `_`, spaces and the words NVIDIA and GeForce do not matter: `RTX 4090`, `rtx4090`, `4090` are one.

    Raises:
        DeviceError: if no table has that name; names the nearest one.

    >>> named("RTX 4090").compute_capability
    (8, 9)
    """
    known = {_plain(word): key for key, table in _tables().items() for word in (key, table.kind, *table.aliases)}
    key = known.get(_plain(name))
    if key is None:
        raise DeviceError(f"no device called `{name}`", hint=did_you_mean(name, names()))
    table = _tables()[key]
    return table.device(key, memory_bytes=table.memory_bytes, free_bytes=table.memory_bytes - CONTEXT_BYTES)


def detect() -> Device:
    """The device that JAX runs on here, with the memory that is free now. CPU counts.

    Does not start JAX on a GPU. Speeds of a CPU, and of a GPU that is in no table, are measured once per machine.

    Raises:
        DeviceError: if an unknown GPU cannot be measured.
    """
    gpus = nvidia.visible(nvidia.query().gpus, os.environ)
    if gpus and _runs_on(len(gpus)) == "gpu":
        return _detected_gpu(gpus[0], _free_in_jax())
    return _detected_cpu()


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


def _runs_on(gpus: int) -> Literal["cpu", "gpu"]:
    if not _jax_has_started():
        return platform_here(gpus, os.environ)
    import jax

    return "gpu" if jax.default_backend() == "gpu" else "cpu"


def _jax_has_started() -> bool:
    if "jax" not in sys.modules:
        return False
    # JAX has no public way to ask this without starting it.
    from jax._src import xla_bridge

    return xla_bridge.backends_are_initialized()


def _free_in_jax() -> int | None:
    """Bytes that a GPU on which JAX already runs can still hand out; None before it runs, or if it does not tell."""
    if not _jax_has_started():
        return None
    import jax

    stats = jax.devices()[0].memory_stats() or {}
    return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None


def _detected_gpu(gpu: nvidia.Gpu, free_in_jax: int | None) -> Device:
    free = gpu.free_bytes if free_in_jax is None else free_in_jax
    for name, table in _tables().items():
        if _plain(table.kind) == _plain(gpu.name):
            return table.device(name, memory_bytes=gpu.total_bytes, free_bytes=free)
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


@functools.cache
def _tables() -> Mapping[str, _Table]:
    tables = load_toml(Path(__file__).with_name("devices.toml"))
    return {name: build(_Table, table, source=f"devices.toml [{name}]") for name, table in tables.items()}


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|[^a-z0-9]", "", name.lower())
