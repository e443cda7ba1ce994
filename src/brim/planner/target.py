"""Where a step is compiled for: a device that is here, or the description of one that is not.

All that brim asks of JAX about a target stands in this file: the topology, the sharding of device arguments and of host
arguments, the platform to lower for, and the options that go with one compile. Should a new JAX change any of it, the
tests of this file fail and no other file needs a change.

For a GPU that is not here, the CUDA plugin compiles for a topology of one device that is described by
`Device.target_config()`: no driver and no GPU are needed. XLA changes a program near 80% of the memory that its target
has, so the target always has the card's real size, and a smaller budget only selects among what was compiled.

Arguments in host memory. On the mesh of a described GPU JAX drops the memory kind of a sharding, and XLA then counts
the argument as the device's. On the mesh's ABSTRACT twin the kind is kept, as long as one other argument says by a
sharding of the mesh itself which device is meant. `Target.host_sharding` is that, and a test holds it to the bytes that
XLA counts.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from brim.errors import DeviceError
from brim.hardware.chatter import without_chatter
from brim.hardware.device import CUDA_PLUGINS, driver_shows, jax_has_started, settle_platform
from brim.hardware.facts import Device
from brim.training.assemble import Assembly

HOST_MEMORY = "pinned_host"
"""JAX's name of host memory that a device can copy from and to by itself."""

# Nothing compiled for a device that is only described will ever run. So no kernels are tried (there is no device to try
# them on), and what comes after the buffers are assigned is done as cheaply as may be: the bytes are the same, in two
# thirds of the time.
_DESCRIBED_GPU: Mapping[str, str] = {"xla_gpu_autotune_level": "0", "xla_backend_optimization_level": "0"}


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

    @property
    def host_sharding(self) -> Sharding | None:
        """Sharding of an argument or result in host memory; on a CPU, whose memory is the host's, as any other."""
        if self.platform == "cpu":
            return self.sharding
        if isinstance(self.sharding, NamedSharding):
            return NamedSharding(self.sharding.mesh.abstract_mesh, PartitionSpec(), memory_kind=HOST_MEMORY)
        return SingleDeviceSharding(jax.devices()[0], memory_kind=HOST_MEMORY)

    def lower(self, assembly: Assembly) -> Any:
        """One window of training with the state donated, as a `jax.stages.Lowered` for this target."""
        # Unused arguments are kept, because their arrays lie on the device all the same.
        jit: Any = partial(jax.jit, assembly.window, donate_argnums=(0,), keep_unused=True)
        if self.sharding is None:
            return jit().lower(assembly.state, assembly.batch)
        window = jit(in_shardings=self.sharding, out_shardings=self.sharding)
        return window.trace(assembly.state, assembly.batch).lower(lowering_platforms=(self.platform,))

    def options(self, asked: Mapping[str, str]) -> dict[str, str]:
        """The compiler options of one compile: those that are asked for, and those that a described device needs."""
        return {**(_DESCRIBED_GPU if self.described and self.platform == "cuda" else {}), **asked}


def is_here(device: Device) -> bool:
    """Whether a device is the one that JAX runs on in this process.

    Starts JAX only where the driver shows a GPU of that kind: started, JAX holds three quarters of the memory of the
    GPU that is here, whatever device was asked about.
    """
    if device.platform == "cpu":
        return True
    settle_platform()
    if not jax_has_started() and not driver_shows(device.kind):
        return False
    with without_chatter():
        return jax.default_backend() == "gpu" and jax.devices()[0].device_kind == device.kind


def _described(device: Device) -> Sharding:
    from jax.experimental import topologies

    if device.platform == "tpu":
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # libtpu would ask Google's cloud who it is, and wait for ever
    try:
        with without_chatter():
            topology = topologies.get_topology_desc(**device.topology())
    except (NotImplementedError, RuntimeError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise DeviceError(
            f"cannot compile for {device.kind} here: {said}", hint=_how_to_compile_for(device, error)
        ) from None
    return NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())


def _how_to_compile_for(device: Device, error: Exception) -> str:
    packages, extra = (("libtpu",), "tpu") if device.platform == "tpu" else (CUDA_PLUGINS, "plan")
    if not any(map(importlib.util.find_spec, packages)):
        return f"install the compiler for devices that are not here: pip install 'brim[{extra}]'"
    # Without a driver, the plugin does not register itself while JAX starts, unless JAX was told to start on the CPU.
    if isinstance(error, NotImplementedError) and jax_has_started() and not _told_where_to_start():
        return "JAX was started before brim was asked: set JAX_PLATFORMS=cpu in the environment of this program"
    if isinstance(error, jax.errors.JaxRuntimeError):
        return "the compiler refuses this description of the device: `brim devices` with its name or file shows it"
    return "`brim doctor` says what is wrong with the installation"


def _told_where_to_start() -> bool:
    # Set from JAX_PLATFORMS too; JAX declares its settings while it runs, where a type checker cannot see them.
    return bool(jax.config.jax_platforms)  # type: ignore[attr-defined]
