"""The facts of one device, and the questions that plans ask of them."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Literal

from brim.errors import DeviceError, did_you_mean

_LEAST_CAPABILITY = {
    # Tensor cores for the type, and XLA's support of it without emulation.
    "float16": (7, 0),
    "bfloat16": (8, 0),
    "tensorfloat32": (8, 0),
    "float8": (8, 9),
    # jax.nn.dot_product_attention(implementation="cudnn") refuses older cards. cuDNN has kernels for both passes in
    # float16 and bfloat16 on all that are newer, compute capability 12.0 included (NVIDIA/cudnn-frontend#381).
    "cudnn_attention": (8, 0),
}
FEATURES = tuple(_LEAST_CAPABILITY)
"""What `Device.can` and `Device.why_not` are asked."""

_ON_CPU = {"float16", "bfloat16"}  # correct there, though no faster than float32
_ON_TPU = {"bfloat16"}

# The CUDA context and the handles of cuBLAS and cuDNN live outside of what XLA hands out. Assumed, and not measured on
# each card (published readings go up to 627 MiB); a device that is here needs no assumption.
CONTEXT_BYTES = 512 * 2**20

# What no plan can see: on a device, loaded kernels, work space of the libraries and gaps between arrays; on a CPU the
# Python process itself and the data pipeline, beside all else that runs there. Assumed, until each kind was measured.
LEAST_RESERVE_BYTES = 512 * 2**20
RESERVE_SHARE = {"gpu": 0.03, "tpu": 0.03, "cpu": 0.10}

# Versions of the libraries a target stands for. They belong to no card: they are what XLA's own description of the
# H100 states, and describe the oldest cuDNN and CUDA that JAX 0.10 runs with.
_CUDNN_VERSION = (9, 7)
_CUDA_VERSION = (12, 8, 0)


@dataclass(frozen=True)
class PeakFlops:
    """Dense matrix products per second, in FLOP/s, by the type of the factors; None where it has no such units."""

    float32: float
    tensorfloat32: float | None = None
    bfloat16: float | None = None
    float16: float | None = None
    float8: float | None = None
    float64: float | None = None

    def of(self, dtype: str) -> float:
        """FLOP/s for factors of a dtype, by its JAX name.

        float32 counts as TF32 where the device has it, because that is what XLA uses at JAX's default matmul
        precision. A type without units of its own is computed as float32.
        """
        name = "float8" if dtype.startswith("float8") else dtype
        if name == "float32":
            return self.tensorfloat32 or self.float32
        known = dataclasses.asdict(self)
        return known.get(name) or self.float32


@dataclass(frozen=True)
class Target:
    """What XLA must know to compile for a GPU that is not here; names as in its GpuDeviceInfoProto."""

    core_count: int
    fpus_per_core: int
    clock_rate_ghz: float
    l2_cache_size: int
    shared_memory_per_core: int
    shared_memory_per_block_optin: int
    threads_per_core_limit: int


@dataclass(frozen=True)
class Device:
    """A GPU, TPU or CPU as facts.

    Attributes:
        name: short name, as in devices/*.toml; "cpu" or "gpu" for a device that is in no table.
        platform: JAX's word for it.
        kind: the name that the driver and JAX report.
        memory_bytes: all memory that programs can have.
        free_bytes: what is free of it now; of a device that is not here, what a process finds on an idle one.
        compute_capability: CUDA's (major, minor); None on a CPU.
        bandwidth_bytes_per_second: of its own memory, reads and writes together.
        peak_flops: see `PeakFlops`.
        source: where the two speeds come from: "published" or "measured".
        target: what XLA needs to compile for a GPU from elsewhere; None where that is not known.
        architecture: generation and chip, such as "Ada AD102"; "" where it is not known.
        nominal_bytes: the memory that is written on the box.
        host_link: what connects it to the host, such as "PCIe 4.0 x16".
        host_link_bytes_per_second: of that link, one way, by its line rate; real copies reach some 80% to 90% of it.
        tpu_topology: the name that libtpu compiles one chip for; None on other devices.
        product_share, bandwidth_share: of the two speeds, what training steps reach, as measured (see
            planner/calibration.py); None: not measured. They order plans and never decide what fits.
    """

    name: str
    platform: Literal["cpu", "gpu", "tpu"]
    kind: str
    memory_bytes: int
    free_bytes: int
    compute_capability: tuple[int, int] | None
    bandwidth_bytes_per_second: float
    peak_flops: PeakFlops
    source: Literal["published", "measured"]
    target: Target | None = None
    architecture: str = ""
    nominal_bytes: int | None = None
    host_link: str = ""
    host_link_bytes_per_second: float | None = None
    tpu_topology: str | None = None
    product_share: float | None = None
    bandwidth_share: float | None = None

    @property
    def reserve_bytes(self) -> int:
        """What is kept back of the free memory: 3% on a GPU or TPU, 10% on a CPU, and 512 MiB at the least."""
        return max(LEAST_RESERVE_BYTES, math.ceil(RESERVE_SHARE[self.platform] * self.free_bytes))

    @property
    def usable_bytes(self) -> int:
        """Memory that arrays of one program can fill: what is free, less the reserve. Below 0 where too little is free.

        Of a GPU that is not here: total - 512 MiB for the CUDA context - the reserve for what is between the arrays.
        """
        return self.free_bytes - self.reserve_bytes

    def can(self, feature: str) -> bool:
        """Whether the device has a feature, one of `FEATURES`.

        Raises:
            DeviceError: on a word that names no feature.
        """
        return self.why_not(feature) is None

    def why_not(self, feature: str) -> str | None:
        """Why the device lacks a feature, as a sentence; None if it has it.

        Raises:
            DeviceError: on a word that names no feature.
        """
        if feature not in _LEAST_CAPABILITY:
            raise DeviceError(f"no device feature `{feature}`", hint=did_you_mean(feature, _LEAST_CAPABILITY))
        if self.platform == "cpu":
            return None if feature in _ON_CPU else f"{feature} needs a GPU; this device is a CPU ({self.kind})"
        if self.platform == "tpu":
            return None if feature in _ON_TPU else _why_not_on_tpu(feature, self.kind)
        least, found = _LEAST_CAPABILITY[feature], self.compute_capability
        if found is None:
            return f"the compute capability of {self.kind} is not known; {feature} needs {_dotted(least)}"
        if found < least:
            return f"{feature} needs compute capability {_dotted(least)}; {self.kind} has {_dotted(found)}"
        return None

    def target_config(self) -> str:
        """The description of this GPU that XLA compiles for, as a GpuTargetConfigProto in text form.

        Raises:
            DeviceError: if the device is no GPU, or one whose inner numbers are not known.
        """
        if self.platform == "tpu":
            raise DeviceError(
                f"{self.kind} is a TPU: it is compiled for by the name of its topology, {self.tpu_topology}",
                hint="Device.topology() has what jax.experimental.topologies.get_topology_desc takes",
            )
        if self.target is None or self.compute_capability is None:
            raise DeviceError(
                f"brim does not know the numbers that XLA needs to compile for {self.kind} from elsewhere",
                hint="plan on the machine that has it, or describe it in a file: --device card.toml",
            )
        return _target_text(self, self.target, self.compute_capability)

    def topology(self) -> dict[str, str]:
        """What `jax.experimental.topologies.get_topology_desc(**...)` takes to compile for one such device.

        Raises:
            DeviceError: as `target_config`; on a CPU too, which has no topology and is compiled for as it is.
        """
        if self.platform == "tpu" and self.tpu_topology is not None:
            return {"platform": "tpu", "topology_name": self.tpu_topology}
        return {"platform": "cuda", "target_config": self.target_config(), "topology": "1x1x1"}


def _why_not_on_tpu(feature: str, kind: str) -> str:
    if feature == "cudnn_attention":
        return f"{feature} needs a GPU; this device is a TPU ({kind})"
    return f"the matrix units of {kind} take bfloat16, not {feature}"


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _target_text(device: Device, target: Target, capability: tuple[int, int]) -> str:
    fields = {
        # CUDA's limits, the same on every card from compute capability 7.0 on.
        "threads_per_block_limit": 1024,
        "threads_per_warp": 32,
        "shared_memory_per_block": 49152,
        "block_dim_limit_x": 2147483647,
        "block_dim_limit_y": 65535,
        "block_dim_limit_z": 65535,
        "registers_per_core_limit": 65536,
        "registers_per_block_limit": 65536,
        "memory_bandwidth": round(device.bandwidth_bytes_per_second),
        "device_memory_size": device.memory_bytes,
        **dataclasses.asdict(target),
    }
    major, minor = capability
    return "\n".join(
        [
            "gpu_device_info {",
            *(f"  {name}: {value}" for name, value in fields.items()),
            f"  cuda_compute_capability {{ major: {major} minor: {minor} }}",
            "}",
            'platform_name: "CUDA"',
            "dnn_version_info {{ major: {} minor: {} }}".format(*_CUDNN_VERSION),
            "runtime_version {{ major: {} minor: {} patch: {} }}".format(*_CUDA_VERSION),
            f"device_description_str: {json.dumps(device.kind, ensure_ascii=False)}",  # the same escapes
        ]
    )
