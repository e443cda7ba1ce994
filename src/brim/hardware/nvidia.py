"""What nvidia-smi says, without starting CUDA or JAX.

Asking the driver this way matters before training: the moment JAX starts on a GPU it takes most of the memory for
itself, and how much it may take must be settled before, from what is really free.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FIELDS = ("uuid", "name", "driver_version", "compute_cap", "memory.total", "memory.reserved", "memory.free")
_TIMEOUT_SECONDS = 20
_MIB = 2**20


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as the driver sees it.

    Attributes:
        total_bytes: memory of the card less what the driver keeps for itself.
        free_bytes: memory that no process holds now.
    """

    uuid: str
    name: str
    driver: str
    compute_capability: tuple[int, int] | None
    total_bytes: int
    free_bytes: int


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
    command = [program, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return Answer(complaint=f"no answer in {_TIMEOUT_SECONDS} s")
    except OSError as error:
        return Answer(complaint=str(error))
    if done.returncode:
        return Answer(complaint=(done.stdout + done.stderr).strip())
    return Answer(parse(done.stdout))


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
    uuid, name, driver, capability, total, reserved, free = row
    major, _, minor = capability.partition(".")
    return Gpu(
        uuid=uuid,
        name=name,
        driver=driver,
        compute_capability=(int(major), int(minor)) if major.isdigit() and minor.isdigit() else None,
        total_bytes=(_mib(total) - _mib(reserved)) * _MIB,
        free_bytes=_mib(free) * _MIB,
    )


def _mib(text: str) -> int:
    return int(text) if text.isdigit() else 0
