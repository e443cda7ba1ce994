"""What a run ran on: recorded in every checkpoint, so that a difference later can be explained."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax

import brim

_PACKAGES = ("jax", "jaxlib", "optax", "equinox", "grain", "orbax-checkpoint", "numpy")
_VARIABLE_PREFIXES = ("XLA_", "JAX_", "TF_CUDNN_", "TF_GPU_", "NCCL_")
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS", "LD_PRELOAD")
_GIT_TIMEOUT_SECONDS = 5


def describe_environment(folder: Path | None = None) -> dict[str, Any]:
    """Versions, devices, and settings from outside that can change a run's numbers, as plain JSON.

    Args:
        folder: whose git commit is recorded; the working folder by default.

    Returns:
        `versions` (null for a package that is not installed), `system`, `devices`, `variables`, and `git` with
        `commit` and `changed` (uncommitted changes to tracked files), or null outside a repository.
    """
    return {
        "versions": {"brim": brim.__version__, "python": platform.python_version()}
        | {name: _version(name) for name in _PACKAGES},
        "system": {"platform": platform.platform(), "processors": os.cpu_count()},
        "devices": [{"platform": device.platform, "kind": device.device_kind} for device in jax.local_devices()],
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLE_PREFIXES) or name in _VARIABLES
        },
        "git": _git_state(folder or Path.cwd()),
    }


def memory_in_use_bytes() -> int:
    """Bytes the first device holds now; where the backend does not count them (CPU), the memory of this process."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return int(statistics.get("bytes_in_use", 0)) or _process_bytes()


def peak_memory_bytes() -> int | None:
    """Most bytes the first device held so far; None where the backend does not count them (CPU)."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return int(statistics["peak_bytes_in_use"]) if "peak_bytes_in_use" in statistics else None


def _process_bytes() -> int:
    try:
        resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
        return resident_pages * resource.getpagesize()
    except OSError:  # not Linux: the peak is the nearest thing, in bytes on macOS and in KiB elsewhere
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git_state(folder: Path) -> dict[str, Any] | None:
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _git(folder: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
