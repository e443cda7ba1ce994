"""Which compiler a plan comes from, under which settings: between two releases of JAX temporaries moved by 15%."""

from __future__ import annotations

import importlib.metadata
import os
from typing import Any

import jax

import brim
from brim.hardware.device import CUDA_PLUGINS
from brim.hardware.facts import Device

TRACED_SETTINGS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion"),
    *("jax_default_prng_impl", "jax_threefry_partitionable"),
)
"""JAX's settings that change what is traced."""

COMPILE_SETTINGS = (
    *("jax_optimization_level", "jax_memory_fitting_level"),
    *("jax_exec_time_optimization_effort", "jax_memory_fitting_effort", "jax_compiler_enable_remat_pass"),
)
"""JAX's settings that change what XLA makes of it; a JAX that lacks one has None for it."""

COMPILE_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
"""Variables of the environment that do so too."""


def settings_in_force() -> dict[str, Any]:
    """All of the above as they are now, by name."""
    names = (*TRACED_SETTINGS, *COMPILE_SETTINGS)
    settings = {name: getattr(jax.config, name, None) for name in names}
    return settings | {name: os.environ.get(name) for name in COMPILE_VARIABLES}


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
