"""Options for XLA that go with one compile, by platform.

They are handed over as `lowered.compile(compiler_options=...)`, never through XLA_FLAGS: an option that this XLA does
not know is then an error that can be caught and named, while an unknown name in XLA_FLAGS ends the process.

OPTIONS are set in every compile. DEPARTURES are other values that a search tries, one at a time, when it is asked to.
It is not by default: what they do to the time only the device itself can tell, and what they do to the bytes is next to
nothing. Measured on GPT-2 124M compiled for an H100 that was not here, with everything kept and with everything
computed again: each of them changed the peak of 4 to 6 GiB by 0.005 MiB, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brim.hardware.facts import Device


@dataclass(frozen=True)
class CompilerOption:
    """One option of XLA, its value as XLA spells it (`True`, not `true`), the platform it is for, and why it is set."""

    name: str
    value: str
    platform: str
    reason: str


OPTIONS = (
    CompilerOption(
        name="xla_gpu_triton_gemm_any",
        value="True",
        platform="gpu",
        reason=(
            "lets the autotuner try a Triton kernel beside cuBLAS for every matrix product and keep the faster; the "
            "one code generation option that JAX's GPU performance guide names for a single device"
        ),
    ),
    CompilerOption(
        name="xla_gpu_enable_latency_hiding_scheduler",
        value="True",
        platform="gpu",
        reason="moves copies between host and device beside the arithmetic that does not wait for them",
    ),
)


DEPARTURES = (
    CompilerOption(
        name="xla_gpu_enable_latency_hiding_scheduler",
        value="False",
        platform="gpu",
        reason="orders operations by memory alone; nothing is lost where no copies cross the link to the host",
    ),
    CompilerOption(
        name="xla_gpu_enable_triton_gemm",
        value="False",
        platform="gpu",
        reason="leaves matrix products to cuBLAS, which needs work space of its own and fuses less into them",
    ),
    CompilerOption(
        name="xla_gpu_enable_command_buffer",
        value="",
        platform="gpu",
        reason="starts kernels one by one instead of as CUDA graphs, which hold memory outside of what XLA counts",
    ),
    CompilerOption(
        name="xla_cpu_enable_concurrency_optimized_scheduler",
        value="False",
        platform="cpu",
        reason="orders operations by memory instead of by what may run at the same time",
    ),
)
"""Other values, tried on request; see the head of this file."""


def option_sets(device: Device) -> tuple[dict[str, str], ...]:
    """The options of a device, then the same with one departure each."""
    usual = default_options(device)
    others = (option for option in DEPARTURES if option.platform == device.platform)
    return (usual, *({**usual, option.name: option.value} for option in others))


def departures_in(options: Mapping[str, str]) -> str:
    """What of some options is not brim's usual choice, such as `xla_gpu_enable_triton_gemm=False`; else empty."""
    usual = {option.name: option.value for option in OPTIONS}
    return ", ".join(f"{name}={value or 'none'}" for name, value in options.items() if usual.get(name) != value)


def default_options(device: Device) -> dict[str, str]:
    """The options that brim compiles with for a device, by name; none for a CPU, where XLA's own are the best known."""
    return {option.name: option.value for option in OPTIONS if option.platform == device.platform}
