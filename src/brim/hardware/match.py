"""Which entry the GPU that is here belongs to: by the whole name it reports, and by its memory.

A name alone is not enough: the RTX 3080 was sold with 10 and 12 GB, the 4060 Ti with 8 and 16. And part of a name is
too much: a laptop's `RTX 4090 Laptop GPU`, an `H100 NVL` and a slice `A100-SXM4-80GB MIG 3g.40gb` are other devices.
"""

from __future__ import annotations

from brim.hardware.entries import Entry, shipped
from brim.hardware.names import same_name
from brim.hardware.nvidia import Gpu

# What is reported may be less than the table has, because error correction is on (6% of a GDDR card) or the driver is
# newer; it is never more than is on the card.
_LEAST_SHARE = 0.9


def match(gpu: Gpu) -> tuple[str, Entry] | None:
    """Name and entry of a GPU; None for one that is in no table."""
    for name, entry in shipped().items():
        if entry.platform == "gpu" and same_name(entry.kind, gpu.name) and _same_memory(entry, gpu.total_bytes):
            return name, entry
    return None


def _same_memory(entry: Entry, total_bytes: int) -> bool:
    most = entry.nominal_bytes or entry.memory_bytes
    return _LEAST_SHARE * entry.memory_bytes <= total_bytes <= most
