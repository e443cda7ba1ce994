"""What nvidia-smi says, without starting CUDA or JAX.

Asking the driver this way matters before training: the moment JAX starts on a GPU it takes most of the memory for
itself, and how much it may take must be settled before, from what is really free.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from brim.hardware import mig

_FIELDS = (
    *("uuid", "name", "driver_version", "compute_cap", "memory.total", "memory.reserved", "memory.free"),
    "mig.mode.current",
)
_TIMEOUT_SECONDS = 20
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU, or one slice of it (MIG), as the driver sees it.

    Attributes:
        sliced: whether CUDA shows slices of this GPU in its place.
        total_bytes: memory of the card less what the driver keeps for itself.
        free_bytes: memory that no process holds now.
    """

    uuid: str
    name: str
    driver: str
    compute_capability: tuple[int, int] | None
    total_bytes: int
    free_bytes: int
    sliced: bool = False


@dataclass(frozen=True)
class Answer:
    """The GPUs that nvidia-smi lists, and its complaint if it is there but did not work."""

    gpus: tuple[Gpu, ...] = ()
    complaint: str = ""


def query() -> Answer:
    """All GPUs of this machine; none, without a complaint, where there is no nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Answer()
    text, complaint = _run([program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"])
    gpus = parse(text)
    if any(gpu.sliced for gpu in gpus):
        gpus = with_slices(gpus, mig.parse(_run([program, "-q", "-x"])[0], _run([program, "-L"])[0]))
    return Answer(gpus, complaint)


def with_slices(gpus: Sequence[Gpu], slices: Mapping[str, Sequence[mig.Slice]]) -> tuple[Gpu, ...]:
    """The GPUs as CUDA shows them: one that is sliced gives way to its slices, and is not there if it has none.

    Args:
        slices: of each GPU by its UUID.
    """
    shown: list[Gpu] = []
    for gpu in gpus:
        if not gpu.sliced:
            shown.append(gpu)
        for part in slices.get(gpu.uuid, ()) if gpu.sliced else ():
            name = f"{gpu.name} MIG {part.profile}"
            shown.append(
                replace(gpu, uuid=part.uuid, name=name, total_bytes=part.total_bytes, free_bytes=part.free_bytes)
            )
    return tuple(shown)


def parse(text: str) -> tuple[Gpu, ...]:
    """The GPUs in the lines of `nvidia-smi --query-gpu`; a field that the driver does not know reads 0."""
    rows = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return tuple(_gpu(row) for row in rows if len(row) == len(_FIELDS))


def visible(gpus: Sequence[Gpu], variables: Mapping[str, str]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA shows a process with these environment variables, in its order.

    CUDA_VISIBLE_DEVICES is read as CUDA reads it: numbers or the beginnings of UUIDs; what follows one that matches
    no GPU is hidden.
    """
    wanted = variables.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(gpus)
    shown: list[Gpu] = []
    for word in (word.strip() for word in wanted.split(",")):
        if word.isdigit():
            match = list(gpus)[int(word) : int(word) + 1]
        else:
            match = [gpu for gpu in gpus if word and gpu.uuid.startswith(word)]
        if not match:
            break
        shown += match
    return tuple(shown)


def _gpu(row: Sequence[str]) -> Gpu:
    uuid, name, driver, capability, total, reserved, free, sliced = row
    major, _, minor = capability.partition(".")
    return Gpu(
        uuid=uuid,
        name=name,
        driver=driver,
        compute_capability=(int(major), int(minor)) if major.isdigit() and minor.isdigit() else None,
        total_bytes=(_mib(total) - _mib(reserved)) * _MIB,
        free_bytes=_mib(free) * _MIB,
        sliced=sliced == "Enabled",
    )


def _run(command: Sequence[str]) -> tuple[str, str]:
    """What a command prints, and what was wrong with it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return "", f"no answer in {_TIMEOUT_SECONDS} s"
    except OSError as error:
        return "", str(error)
    return ("", (done.stdout + done.stderr).strip()) if done.returncode else (done.stdout, "")


def _mib(text: str) -> int:
    return int(text) if text.isdigit() else 0
