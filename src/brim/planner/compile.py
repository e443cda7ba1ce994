"""Compile the real train step for a device, here or elsewhere, without allocating anything.

For the device that is here, JAX compiles as the run itself will. For a GPU that is not here, the CUDA plugin compiles
for a topology of one device that is described by `Device.target_config()`: no driver and no GPU are needed. The rest of
the planner does not see the difference.

XLA changes a program near 80% of the memory its target has. So the target always has the card's real size, and a
smaller budget only selects among what was compiled.

JAX's persistent compilation cache may be on: on a CPU the memory analysis of a program that comes from the cache is
that of the program that went in (tested). For a target that is not here, JAX 0.10 cannot read it back and would compile
it again; brim's own cache (cache.py) keeps the figures and not the program, for any target.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from brim.compiled import Audit, audit_compile
from brim.errors import DeviceError
from brim.hardware.chatter import without_chatter
from brim.hardware.device import CUDA_PLUGINS, settle_platform
from brim.hardware.facts import Device
from brim.planner.cache import Cache, key_of
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
        description: all that XLA is told of the device, or the name it goes by here.
        described: whether it is not here and only described.
    """

    platform: str
    sharding: Sharding | None = None
    description: str = ""
    described: bool = False

    @classmethod
    def of(cls, device: Device) -> Target:
        """The device that is here, or the description of one that is not.

        Raises:
            DeviceError: if the device is not here and cannot be described, or the plugin that compiles for it is not
                installed.
        """
        if device.platform == "cpu":
            here = SingleDeviceSharding(jax.devices("cpu")[0]) if jax.default_backend() != "cpu" else None
            return cls("cpu", here, device.kind)
        if is_here(device):
            return cls("cuda", description=f"{device.kind}, {device.memory_bytes} bytes")
        platform, told = ("tpu", device.tpu_topology) if device.platform == "tpu" else ("cuda", device.target_config())
        return cls(platform, _described(device), str(told), described=True)


def is_here(device: Device) -> bool:
    """Whether a device is the one that JAX runs on in this process; starts JAX, unless the device is a CPU."""
    if device.platform == "cpu":
        return True
    settle_platform()
    with without_chatter():
        return jax.default_backend() == "gpu" and jax.devices()[0].device_kind == device.kind


@dataclass(frozen=True)
class Compiled:
    """What compiling one recipe told.

    Attributes:
        memory: bytes by kind and owner.
        seconds: of tracing, lowering and XLA.
        notes: what techniques had to decide, such as a kernel that fell back.
        cached: whether the memory was known from an earlier compile of the same program.
    """

    memory: Memory
    seconds: float
    notes: tuple[str, ...] = ()
    cached: bool = False


# There is no device to try kernels on. The bytes are the same; JAX 0.12 takes half the time. No run is compiled so.
_DESCRIBED_GPU: Mapping[str, str] = {"xla_gpu_autotune_level": "0"}

CompileFunction = Callable[[Program, Recipe, Device], Compiled]
AuditFunction = Callable[[Program, Recipe, Device], Audit]


def compile_window(
    program: Program, recipe: Recipe, device: Device, target: Target | None = None, cache: Cache | None = None
) -> Compiled:
    """Compile one window of training, with the state donated, and read what it will allocate.

    Args:
        target: where to compile, if it is at hand already; else that of the device.
        cache: where earlier compiles are looked up and this one is kept; None: nowhere.

    Raises:
        TechniqueError: if a technique of the recipe cannot work on this program or device.
        DeviceError: if the device cannot be compiled for from here.
        jax.errors.JaxRuntimeError: if XLA refuses the program.
    """
    notes: list[str] = []
    start = time.perf_counter()
    assembly = assemble(program, recipe, device, notes.append)
    target = target or Target.of(device)
    lowered = _lower(assembly, target)
    options = _options(recipe, target)
    key = "" if cache is None else _key(lowered, assembly, recipe, target, options)
    known = None if cache is None else cache.read(key)
    if known is not None:
        memory = Memory(**known)
    else:
        compiled = lowered.compile(compiler_options=options or None)
        memory = Memory.of(compiled, assembly, accumulating=recipe.accumulation > 1)
        if cache is not None:
            cache.write(key, dataclasses.asdict(memory))
    seconds = time.perf_counter() - start
    return Compiled(memory, seconds, tuple(dict.fromkeys(notes)), cached=known is not None)


def audit_window(program: Program, recipe: Recipe, device: Device, target: Target | None = None) -> Audit:
    """Compile one window as `compile_window` does, and keep XLA's own description of it.

    Raises:
        TechniqueError, DeviceError, jax.errors.JaxRuntimeError: as `compile_window` and `audit_compile`.
    """
    assembly = assemble(program, recipe, device, lambda note: None)
    target = target or Target.of(device)
    return audit_compile(_lower(assembly, target), _options(recipe, target))


def _options(recipe: Recipe, target: Target) -> dict[str, str]:
    described = _DESCRIBED_GPU if target.described and target.platform == "cuda" else {}
    return {**described, **recipe.compiler_options}


def _lower(assembly: Assembly, target: Target) -> Any:
    # Unused arguments are kept, because their arrays lie on the device all the same.
    jit: Any = partial(jax.jit, assembly.window, donate_argnums=(0,), keep_unused=True)
    if target.sharding is None:
        return jit().lower(assembly.state, assembly.batch)
    window = jit(in_shardings=target.sharding, out_shardings=target.sharding)
    return window.trace(assembly.state, assembly.batch).lower(lowering_platforms=(target.platform,))


def _key(lowered: Any, assembly: Assembly, recipe: Recipe, target: Target, options: Mapping[str, str]) -> str:
    """The key of a compile in the cache. The text has no source lines; owners come from the trees of the arguments."""
    facts = {
        "program": lowered.as_text(),
        "arguments": str(jax.tree.structure((assembly.state, assembly.batch))),
        "accumulating": recipe.accumulation > 1,
        "options": options,
        "target": [target.platform, target.description],
    }
    return key_of("compile", facts)


def _described(device: Device) -> Sharding:
    from jax.experimental import topologies

    if device.platform == "tpu":
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu would ask Google's cloud who it is, and wait for ever
    try:
        with without_chatter():
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
