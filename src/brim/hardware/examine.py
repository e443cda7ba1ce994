"""Looks at this machine for the doctor; all that could end or hang a process is done in children with a time limit."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from brim.hardware import nvidia
from brim.hardware.doctor import Environment, Started

PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt", "libtpu"),
    *("numpy", "optax", "equinox", "grain", "orbax-checkpoint"),
)
_PREFIXES = ("JAX_", "XLA_", "TF_GPU_ALLOCATOR", "CUDA_VISIBLE_DEVICES")
_MEMORY_PREFIXES = ("XLA_CLIENT_MEM_", "XLA_PYTHON_CLIENT_")
_TIMEOUT_SECONDS = 90
_NO_ANSWER = "no answer"

# Making compile options is the quickest thing that has jaxlib read XLA_FLAGS: 0.3 s, against 1 s to start JAX.
_READ_FLAGS = "from jaxlib import xla_client; xla_client.CompileOptions()"
_START_JAX = """
import json, jax
print(json.dumps({"platform": jax.default_backend(), "devices": [device.device_kind for device in jax.devices()]}))
"""


def examine(variables: Mapping[str, str] | None = None) -> Environment:
    """Everything the doctor needs to know of this machine.

    Args:
        variables: environment variables to examine it under; those of this process if None.
    """
    variables = dict(os.environ if variables is None else variables)
    packages = installed()
    gpus = nvidia.query()
    flags = flags_in_force(variables.get("XLA_FLAGS", ""))
    refused = refused_flags(flags, variables) if "jaxlib" in packages else {}
    accepted = [flag for flag in flags if flag not in refused]
    return Environment(
        python=platform.python_version(),
        packages=packages,
        variables={name: value for name, value in sorted(variables.items()) if name.startswith(_PREFIXES)},
        gpus=gpus.gpus,
        gpu_complaint=gpus.complaint,
        xla_flags=flags,
        refused_flags=refused,
        started=start_jax(accepted, variables) if "jax" in packages else Started(),
    )


def installed() -> dict[str, str]:
    """Version of each package of `PACKAGES` that is installed."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def flags_in_force(text: str) -> tuple[str, ...]:
    """The flags in the value of XLA_FLAGS, which is either flags or, if it begins otherwise, the name of their file.

    A file that cannot be read stays as it is, and is refused later.
    """
    text = text.strip()
    if text and not text.startswith("--"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return (text,)
    try:
        return tuple(shlex.split(text))
    except ValueError:  # a quote that is never closed
        return tuple(text.split())


def refused_flags(flags: Iterable[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The flags that this jaxlib does not start with, and why. Tries all together; each alone only if that fails."""
    flags = tuple(flags)
    if not flags or _refusal(flags, variables) is None:
        return {}
    alone = {flag: _refusal((flag,), variables) for flag in flags}
    return {flag: why for flag, why in alone.items() if why is not None}


def start_jax(flags: Iterable[str], variables: Mapping[str, str]) -> Started:
    """Start JAX in a child process and say what it found.

    It must not take the memory of a GPU that somebody trains on, so the memory settings are not those in force.
    """
    kept = {name: value for name, value in variables.items() if not name.startswith(_MEMORY_PREFIXES)}
    code, output, errors = _child(
        _START_JAX, {**kept, **_flag_variable(flags), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    )
    try:
        found = json.loads(output.splitlines()[-1]) if code == 0 else {}
        return Started(devices=tuple(found["devices"]), platform=found["platform"])
    except (ValueError, IndexError, KeyError):
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        return Started(complaint="\n".join(lines[-3:]))


def _refusal(flags: Iterable[str], variables: Mapping[str, str]) -> str | None:
    flags = tuple(flags)
    if not all(flag.startswith("--") for flag in flags):
        return "it is neither a flag, which begins with --, nor a file that can be read"
    code, _output, errors = _child(_READ_FLAGS, {**variables, **_flag_variable(flags)})
    if code == 0:
        return None
    if errors.startswith(_NO_ANSWER):
        return f"jaxlib gave {errors} with it"
    return "this jaxlib does not know it" if "Unknown flag" in errors else "this jaxlib does not take its value"


def _flag_variable(flags: Iterable[str]) -> dict[str, str]:
    # Only the value is quoted: what does not begin with -- is read as the name of a file.
    parts = (flag.partition("=") for flag in flags)
    return {
        "XLA_FLAGS": " ".join(name + equals + (shlex.quote(value) if equals else "") for name, equals, value in parts)
    }


def _child(program: str, variables: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a Python program."""
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=variables,
        )
    except subprocess.TimeoutExpired:
        return 1, "", f"{_NO_ANSWER} in {_TIMEOUT_SECONDS} s"
    return done.returncode, done.stdout, done.stderr
