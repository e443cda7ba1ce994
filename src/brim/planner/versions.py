"""Which compiler a plan comes from, under which settings: between two releases of JAX temporaries moved by 15%."""

from __future__ import annotations

import importlib.metadata

import jax

import brim
from brim.hardware.device import CUDA_PLUGINS
from brim.hardware.facts import Device

TRACED_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"),
    *("jax_default_prng_impl", "jax_threefry_partitionable"),
)
"""JAX's settings that change what is traced."""


def versions(device: Device) -> dict[str, str]:
    """Versions of brim, jax, jaxlib, and of the platform that compiled: by package for a GPU."""
    found = {"brim": brim.__version__, "jax": jax.__version__, "jaxlib": importlib.metadata.version("jaxlib")}
    return found | {"platform": _platform(device)}


def _platform(device: Device) -> str:
    if device.platform == "cpu":
        return "cpu"
    name, plugins = ("tpu", ("libtpu",)) if device.platform == "tpu" else ("cuda", CUDA_PLUGINS)
    for plugin in plugins:
        try:
            return f"{name}, {plugin.replace('_', '-')} {importlib.metadata.version(plugin)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return device.platform
