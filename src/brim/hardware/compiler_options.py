"""Options for XLA that go with one compile, by platform.

They are handed over as `lowered.compile(compiler_options=...)`, never through XLA_FLAGS: an option that this XLA does
not know is then an error that can be caught and named, while an unknown name in XLA_FLAGS ends the process.
"""

from __future__ import annotations

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


def default_options(device: Device) -> dict[str, str]:
    """The options that brim compiles with for a device, by name; none for a CPU, where XLA's own are the best known."""
    return {option.name: option.value for option in OPTIONS if option.platform == device.platform}
