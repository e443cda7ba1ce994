"""The slices of a GPU that is partitioned (MIG): CUDA shows a process one of them, never the whole card.

nvidia-smi tells their memory in XML and their names and UUIDs in its list; both number them within each GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from xml.etree import ElementTree

_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)")


@dataclass(frozen=True)
class Slice:
    """One slice: its UUID and profile, such as `3g.40gb`, and its memory."""

    uuid: str
    profile: str
    total_bytes: int
    free_bytes: int


def parse(xml: str, listing: str) -> Mapping[str, tuple[Slice, ...]]:
    """The slices of each GPU by the GPU's UUID, in CUDA's order.

    Args:
        xml: output of `nvidia-smi -q -x`.
        listing: output of `nvidia-smi -L`.
    """
    memory = dict(_memory(xml))
    slices: dict[str, tuple[Slice, ...]] = {}
    gpu = ""
    for line in listing.splitlines():
        if found := _GPU.match(line):
            gpu = found[1]
        elif found := _SLICE.match(line):
            profile, index, uuid = found.groups()
            total, free = memory.get((gpu, int(index)), (0, 0))
            slices[gpu] = (*slices.get(gpu, ()), Slice(uuid, profile, total, free))
    return slices


def _memory(xml: str) -> Iterator[tuple[tuple[str, int], tuple[int, int]]]:
    """((UUID of the GPU, number of the slice), (bytes that programs can have, bytes free)) of every slice."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError:  # nothing was printed
        return
    for gpu in root.iter("gpu"):
        for part in gpu.iter("mig_device"):
            usage = part.find("fb_memory_usage")
            total, reserved, free = (_bytes(usage, name) for name in ("total", "reserved", "free"))
            yield (gpu.findtext("uuid", ""), int(part.findtext("index", "0"))), (total - reserved, free)


def _bytes(usage: ElementTree.Element | None, name: str) -> int:
    number, _, _unit = ("" if usage is None else usage.findtext(name, "")).strip().partition(" ")
    return int(number) * 2**20 if number.isdigit() else 0
