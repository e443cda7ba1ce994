"""Compile the real train step for a device, here or elsewhere, without allocating anything.

For the device that is here, JAX compiles as the run itself will. For a GPU that is not here, the CUDA plugin compiles
for a topology of one device that is described by `Device.target_config()`: no driver and no GPU are needed. The rest of
the planner does not see the difference.

XLA changes a program near 80% of the memory its target has. So the target always has the card's real size, and a
smaller budget only selects among what was compiled.

JAX's persistent compilation cache may be on: on a CPU the memory analysis of a program that comes from the cache is
that of the program that went in (tested). For a target that is not here, JAX 0.10 cannot read it back and compiles it
again.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from brim.compiled import Audit, audit_compile
from brim.errors import DeviceError
from brim.hardware.device import CUDA_PLUGINS, settle_platform
from brim.hardware.facts import Device
from brim.planner.memory import Memory
from brim.program import Program
from brim.techniques import Recipe
from brim.training.assemble import Assembly, assemble


@dataclass(frozen=True)
class Target:
    """Where a program is compiled for.

    Attributes:
        platform: JAX's name of the platform to lower for.
        sharding: the one device, as a sharding of every argument; None for JAX's default device.
    """

    platform: str
    sharding: Sharding | None = None

    @classmethod
    def of(cls, device: Device) -> Target:
        """The device that is here, or the description of one that is not.

        Raises:
            DeviceError: if the device is not here and cannot be described, or the plugin that compiles for it is not
                installed.
        """
        settle_platform()
        with _native_chatter_hidden():
            return cls._of(device)

    @classmethod
    def _of(cls, device: Device) -> Target:
        if device.platform == "cpu":
            return cls("cpu", SingleDeviceSharding(jax.devices("cpu")[0]) if jax.default_backend() != "cpu" else None)
        if jax.default_backend() == "gpu" and jax.devices()[0].device_kind == device.kind:
            return cls("cuda")
        return cls("tpu" if device.platform == "tpu" else "cuda", _described(device))


@dataclass(frozen=True)
class Compiled:
    """What compiling one recipe told.

    Attributes:
        memory: bytes by kind and owner.
        seconds: of tracing, lowering and XLA.
        notes: what techniques had to decide, such as a kernel that fell back.
    """

    memory: Memory
    seconds: float
    notes: tuple[str, ...] = ()


CompileFunction = Callable[[Program, Recipe, Device], Compiled]
AuditFunction = Callable[[Program, Recipe, Device], Audit]


def compile_window(program: Program, recipe: Recipe, device: Device, target: Target | None = None) -> Compiled:
    """Compile one window of training, with the state donated, and read what it will allocate.

    Args:
        target: where to compile, if it is at hand already; else that of the device.

    Raises:
        TechniqueError: if a technique of the recipe cannot work on this program or device.
        DeviceError: if the device cannot be compiled for from here.
        jax.errors.JaxRuntimeError: if XLA refuses the program.
    """
    notes: list[str] = []
    start = time.perf_counter()
    assembly = assemble(program, recipe, device, notes.append)
    compiled = _compile(assembly, recipe, target or Target.of(device))
    seconds = time.perf_counter() - start
    memory = Memory.of(compiled, assembly, accumulating=recipe.accumulation > 1)
    return Compiled(memory, seconds, tuple(dict.fromkeys(notes)))


def audit_window(program: Program, recipe: Recipe, device: Device, target: Target | None = None) -> Audit:
    """Compile one window as `compile_window` does, and keep XLA's own description of it.

    Raises:
        TechniqueError, DeviceError, jax.errors.JaxRuntimeError: as `compile_window` and `audit_compile`.
    """
    assembly = assemble(program, recipe, device, lambda note: None)
    return audit_compile(_lowered(assembly, target or Target.of(device)), recipe.compiler_options)


def _compile(assembly: Assembly, recipe: Recipe, target: Target) -> Any:
    return _lowered(assembly, target).compile(compiler_options=dict(recipe.compiler_options) or None)


def _lowered(assembly: Assembly, target: Target) -> Any:
    # Unused arguments are kept, because their arrays lie on the device all the same.
    jit: Any = partial(jax.jit, assembly.window, donate_argnums=(0,), keep_unused=True)
    if target.sharding is None:
        return jit().lower(assembly.state, assembly.batch)
    window = jit(in_shardings=target.sharding, out_shardings=target.sharding)
    return window.trace(assembly.state, assembly.batch).lower(lowering_platforms=(target.platform,))


def _described(device: Device) -> Sharding:
    from jax.experimental import topologies

    try:
        topology = topologies.get_topology_desc(**device.topology())
    except (NotImplementedError, RuntimeError) as error:
        raise DeviceError(
            f"cannot compile for {device.kind} here: {str(error).splitlines()[0]}", hint=_how_to_compile_for(device)
        ) from None
    return NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())


def _how_to_compile_for(device: Device) -> str:
    package, extra = ("libtpu", "tpu") if device.platform == "tpu" else (CUDA_PLUGINS[0], "plan")
    if importlib.util.find_spec(package) is None:
        return f"install the compiler for devices that are not here: pip install 'brim[{extra}]'"
    return "JAX was started before brim was asked: set JAX_PLATFORMS=cpu in the environment of this program"


@contextmanager
def _native_chatter_hidden() -> Iterator[None]:
    """Without what native code writes to stderr: the compiler says four times that it finds no driver, which is so."""
    sys.stderr.flush()
    kept = os.dup(2)
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
