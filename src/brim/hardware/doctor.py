"""What is wrong with this installation, found without letting it take the doctor down.

An XLA flag that this jaxlib does not know ends the process that starts JAX; a broken driver may hang it. So everything
that touches JAX happens in child processes with a time limit: `examine` asks and writes down what it saw as an
`Environment`. `findings` reads that record and nothing else, which is how each fault can be planted in a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from brim.hardware.nvidia import Gpu, visible

# Oldest drivers, from the release notes of CUDA 12.0 and 13.0 for Linux.
_LEAST_DRIVER = {"12": 525, "13": 580}
FRACTIONS = _FRACTION, _OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""Variables that say which share of a GPU's memory JAX takes: the name of today, and the old one."""
_PREALLOCATE, _ALLOCATOR = "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_ALLOCATOR"
_OFF = {"false", "False", "0"}  # as jaxlib reads it
_ALLOCATORS = {"default", "bfc", "platform", "cuda_async", "vmm", "address"}
_PLUGIN = re.compile(r"jax-cuda(\d+)-(plugin|pjrt)")


@dataclass(frozen=True)
class Started:
    """What JAX said when it was started in a child process.

    Attributes:
        devices: the kinds of the devices it found.
        platform: its default platform; empty if it did not start.
        complaint: the end of what it wrote to stderr, if it did not start.
    """

    devices: tuple[str, ...] = ()
    platform: str = ""
    complaint: str = ""


@dataclass(frozen=True)
class Environment:
    """Everything the doctor looked at.

    Attributes:
        python: version of Python.
        packages: version of each installed package that matters, by its name in lower case.
        variables: environment variables that change what JAX does.
        gpus: all GPUs of the machine, by nvidia-smi.
        gpu_complaint: what nvidia-smi wrote if it is there but failed.
        xla_flags: the flags in force, one by one.
        refused_flags: those that this jaxlib does not start with, and why.
        started: what JAX said when it started, without the refused flags.
    """

    python: str
    packages: Mapping[str, str]
    variables: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[Gpu, ...] = ()
    gpu_complaint: str = ""
    xla_flags: tuple[str, ...] = ()
    refused_flags: Mapping[str, str] = field(default_factory=dict)
    started: Started = Started()

    @property
    def plugins(self) -> dict[str, str]:
        """Version of each installed CUDA plugin, by its CUDA version."""
        return {cuda: self.packages[name] for cuda, name in self._cuda_packages("plugin")}

    @property
    def runtimes(self) -> dict[str, str]:
        """Version of each installed CUDA runtime of XLA (jax-cuda*-pjrt), by its CUDA version."""
        return {cuda: self.packages[name] for cuda, name in self._cuda_packages("pjrt")}

    def _cuda_packages(self, part: str) -> Iterator[tuple[str, str]]:
        for name in sorted(self.packages):
            match = _PLUGIN.fullmatch(name)
            if match and match[2] == part:
                yield match[1], name


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and what to do about it."""

    name: str
    message: str
    hint: str


def findings(environment: Environment) -> tuple[Finding, ...]:
    """All that is wrong; empty when all is well."""
    return tuple(finding for check in _CHECKS for finding in check(environment))


def _jax_missing(seen: Environment) -> Iterator[Finding]:
    for name in ("jax", "jaxlib"):
        if name not in seen.packages:
            yield Finding("jax-missing", f"{name} is not installed.", "pip install brim")


def _flags_refused(seen: Environment) -> Iterator[Finding]:
    for flag, why in seen.refused_flags.items():
        yield Finding(
            "xla-flag-refused",
            f"XLA_FLAGS has `{flag}`: {why}. Every process that starts JAX with it dies.",
            "take it out of XLA_FLAGS; options that are worth setting are set by brim for each compile",
        )


def _start_failed(seen: Environment) -> Iterator[Finding]:
    if not seen.started.platform and "jax" in seen.packages:
        yield Finding(
            "jax-does-not-start",
            f"JAX does not start: {seen.started.complaint or 'no reason was given'}",
            "the last line above is JAX's own; reinstall jax and jaxlib of one version if it says nothing useful",
        )


def _driver(seen: Environment) -> Iterator[Finding]:
    if seen.gpu_complaint:
        yield Finding(
            "driver-broken",
            f"nvidia-smi is installed but failed: {seen.gpu_complaint}",
            "reboot after a driver update; in a container, start it with the GPU passed through",
        )
    for cuda in seen.plugins:
        old = {gpu.driver for gpu in seen.gpus if _major(gpu.driver) < _LEAST_DRIVER.get(cuda, 0)}
        for driver in sorted(old):
            yield Finding(
                "driver-too-old",
                f"The NVIDIA driver is {driver}; JAX's CUDA {cuda} plugin needs {_LEAST_DRIVER[cuda]} or newer.",
                "update the driver" + (", or install brim[cuda12] instead of brim[cuda13]" if cuda == "13" else ""),
            )


def _gpu_without_plugin(seen: Environment) -> Iterator[Finding]:
    if seen.gpus and not seen.plugins:
        extra = "cuda13" if min(_major(gpu.driver) for gpu in seen.gpus) >= _LEAST_DRIVER["13"] else "cuda12"
        yield Finding(
            "gpu-without-plugin",
            f"There is a GPU ({seen.gpus[0].name}), but the installed JAX can only use the CPU.",
            f'pip install "brim[{extra}]"',
        )


def _gpu_hidden(seen: Environment) -> Iterator[Finding]:
    if not seen.gpus or not seen.plugins:
        return
    platforms = seen.variables.get("JAX_PLATFORMS", "")
    if platforms and not {"cuda", "gpu"} & {word.strip().lower() for word in platforms.split(",")}:
        yield Finding(
            "gpu-hidden",
            f"JAX_PLATFORMS is `{platforms}`, which hides the GPU ({seen.gpus[0].name}) from JAX.",
            "unset JAX_PLATFORMS",
        )
    elif not visible(seen.gpus, seen.variables):
        yield Finding(
            "gpu-hidden",
            f"CUDA_VISIBLE_DEVICES is `{seen.variables['CUDA_VISIBLE_DEVICES']}`, which hides every GPU.",
            "unset CUDA_VISIBLE_DEVICES, or set it to the number of the GPU to use",
        )
    elif seen.started.platform == "cpu":
        yield Finding(
            "gpu-not-used",
            f"There is a GPU ({seen.gpus[0].name}) and JAX's plugin for it, but JAX starts on the CPU.",
            'run `python -c "import jax; print(jax.devices())"`: JAX says there why it passed the GPU over',
        )


def _versions_differ(seen: Environment) -> Iterator[Finding]:
    jaxlib = seen.packages.get("jaxlib")
    for cuda in sorted(seen.plugins.keys() | seen.runtimes.keys()):
        parts = {"plugin": seen.plugins.get(cuda), "pjrt": seen.runtimes.get(cuda)}
        for part, version in parts.items():
            if jaxlib and version != jaxlib:
                yield Finding(
                    "plugin-mismatch",
                    f"jax-cuda{cuda}-{part} is {version or 'missing'}, but jaxlib is {jaxlib}; JAX needs them equal.",
                    f'pip install --upgrade "jax[cuda{cuda}]=={jaxlib}"',
                )
    if len(seen.plugins) > 1:
        both = " and ".join(f"jax-cuda{cuda}-plugin" for cuda in seen.plugins)
        yield Finding("two-plugins", f"{both} are both installed; JAX may load the wrong one.", "uninstall one of them")


def _memory_fraction(seen: Environment) -> Iterator[Finding]:
    new, old = seen.variables.get(_FRACTION), seen.variables.get(_OLD_FRACTION)
    if new and old:
        yield Finding(
            "memory-fraction-clash",
            f"{_FRACTION} ({new}) and {_OLD_FRACTION} ({old}) are both set; JAX refuses to start on a GPU.",
            f"unset {_OLD_FRACTION}",
        )
    elif old:
        yield Finding(
            "memory-fraction-deprecated",
            f"{_OLD_FRACTION} is the old name of {_FRACTION}; brim sets the new one, and both together stop JAX.",
            f"unset {_OLD_FRACTION}: brim sets the fraction from the plan",
        )
    for name, text in ((_FRACTION, new), (_OLD_FRACTION, old)):
        if text and not _is_fraction(text):
            yield Finding(
                "memory-fraction-wrong",
                f"{name} is `{text}`; expected a number above 0 and below 1 (CUDA needs a little memory beside it).",
                f"unset {name}: brim sets the fraction from the plan",
            )


def _preallocation(seen: Environment) -> Iterator[Finding]:
    preallocate, allocator = seen.variables.get(_PREALLOCATE, ""), seen.variables.get(_ALLOCATOR, "").lower()
    fraction = next((name for name in (_FRACTION, _OLD_FRACTION) if seen.variables.get(name)), None)
    if allocator and allocator not in _ALLOCATORS:
        known = ", ".join(sorted(_ALLOCATORS))
        yield Finding(
            "allocator-unknown",
            f"{_ALLOCATOR} is `{allocator}`; JAX refuses to start on a GPU with it, and knows {known}.",
            f"unset {_ALLOCATOR}",
        )
    if allocator == "platform":
        idle = " and ".join(name for name in (fraction, preallocate and _PREALLOCATE) if name)
        yield Finding(
            "allocator-without-pool",
            f"{_ALLOCATOR} is `platform`: every array is asked of the driver anew, which is very slow"
            + (f"; {idle} has no effect beside it." if idle else "."),
            f"unset {_ALLOCATOR}",
        )
    elif preallocate in _OFF:
        clash = f" though {fraction} says how much" if fraction else ""
        yield Finding(
            "preallocation-off",
            f"{_PREALLOCATE} is `{preallocate}`: JAX sets no memory aside at the start{clash}. "
            "The memory then breaks into pieces, and a plan that fits can fail.",
            f"unset {_PREALLOCATE}",
        )


def _libtpu(seen: Environment) -> Iterator[Finding]:
    if "libtpu" in seen.packages:
        yield Finding(
            "libtpu-installed",
            f"libtpu {seen.packages['libtpu']} is installed: with it, JAX's profiler crashes the process on a CPU.",
            "pip uninstall libtpu, or keep it in an environment of its own for planning TPU runs",
        )


_CHECKS: tuple[Callable[[Environment], Iterator[Finding]], ...] = (
    _jax_missing,
    _flags_refused,
    _start_failed,
    _driver,
    _gpu_without_plugin,
    _gpu_hidden,
    _versions_differ,
    _memory_fraction,
    _preallocation,
    _libtpu,
)


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdigit() else 0


def _is_fraction(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False
