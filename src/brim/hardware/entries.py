"""The tables of facts in devices/*.toml, and one of the user's own: read strictly, with a source for every number.

Keys of a table (the first four, and `topology` or `compute_capability` and `[target]`, must be there):
    kind                        the name that the driver and JAX report
    memory_bytes                what programs see as total: less than the number on the box
    bandwidth_bytes_per_second  of the device's own memory, reads and writes together
    [peak_flops]                dense matrix products with float32 sums, FLOP/s by type; what it cannot do is left out
    platform                    "gpu" (if left out) or "tpu"
    compute_capability          [major, minor], GPU only
    [target]                    what XLA needs to compile for a GPU; names as in its GpuDeviceInfoProto
    topology                    the name that libtpu compiles for, TPU only
    architecture                generation and chip
    nominal_bytes               the number on the box
    memory_bus_bits, memory_bits_per_pin_per_second    their product must be the bandwidth
    host_link, host_link_bytes_per_second              the link to the host, and its speed one way
    matrix_clock_ghz            the clock of the matrix units, where it is not target.clock_rate_ghz
    aliases, stands_for         other names; family names of which this is the commonest device
    notes                       what a reader must know besides

A value is written plainly, or as [value, "source"] where the source begins with a word of `SOURCES`.
Usable memory is not stored; `Device.usable_bytes` says how it is derived.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from brim.errors import SettingsError
from brim.hardware.facts import CONTEXT_BYTES, Device, PeakFlops, Target
from brim.hardware.limits import RANGES, check_peaks, check_target
from brim.settings import build, load_toml, require

SOURCES = {
    "specs": "openxla/xla, xla/backends/gpu/target_config/specs/*.txtpb, written there from real cards",
    "query": "published output of CUDA's deviceQuery, or of PyTorch or llama.cpp asking CUDA, on Linux; memory varies "
    "by some 100 MB with the driver, and the smallest that was found is kept",
    "paper": "NVIDIA's architecture papers: V100, Turing, A100, GA102, Ada 2.02, H100",
    "guide": "CUDA C++ Programming Guide, Technical Specifications per Compute Capability",
    "sheet": "the maker's data sheet or product page",
    "book": "How to Scale Your Model (jax-ml/scaling-book), TPU chapter",
    "libtpu": "the TPU compiler itself, without a TPU",
    "derived": "computed from the other numbers of the table; peaks are cores x clock x FLOP per core and clock",
}
_UNSOURCED = {"aliases", "stands_for", "notes"}
_TABLES = {"peak_flops", "target"}
_NEEDED = {"gpu": ("compute_capability", "target"), "tpu": ("topology",)}


@dataclass(frozen=True)
class Entry:
    """One table, by the keys above, and the source of each value by its dotted key."""

    kind: str
    memory_bytes: int
    bandwidth_bytes_per_second: float
    peak_flops: PeakFlops
    platform: Literal["gpu", "tpu"] = "gpu"
    architecture: str = ""
    compute_capability: tuple[int, int] | None = None
    topology: str | None = None
    nominal_bytes: int | None = None
    memory_bus_bits: int | None = None
    memory_bits_per_pin_per_second: float | None = None
    host_link: str = ""
    host_link_bytes_per_second: float | None = None
    matrix_clock_ghz: float | None = None
    aliases: tuple[str, ...] = ()
    stands_for: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    target: Target | None = None
    sources: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _RANGED:
            if (value := getattr(self, name)) is not None:
                RANGES[name].check(name, value)
        nominal = self.nominal_bytes or self.memory_bytes
        require(self.memory_bytes <= nominal, "memory_bytes", self.memory_bytes, f"at most nominal_bytes, {nominal}")
        if self.memory_bus_bits and self.memory_bits_per_pin_per_second:
            bus = self.memory_bus_bits * self.memory_bits_per_pin_per_second / 8
            fits = abs(self.bandwidth_bytes_per_second / bus - 1) <= 0.01
            key = "bandwidth_bytes_per_second"
            require(fits, key, self.bandwidth_bytes_per_second, f"bus width x rate per pin / 8 = {bus:.4g}, within 1%")
        capability = self.compute_capability
        fits = capability is None or (5 <= capability[0] < 100 and 0 <= capability[1] < 10)
        require(fits, "compute_capability", capability, "[major, minor] as CUDA gives it, such as [8, 9]")

    def device(self, name: str, *, memory_bytes: int | None = None, free_bytes: int | None = None) -> Device:
        """The device as facts; idle and with the memory of the table unless told otherwise."""
        context = CONTEXT_BYTES if self.platform == "gpu" else 0
        return Device(
            name=name,
            platform=self.platform,
            kind=self.kind,
            memory_bytes=self.memory_bytes if memory_bytes is None else memory_bytes,
            free_bytes=self.memory_bytes - context if free_bytes is None else free_bytes,
            compute_capability=self.compute_capability,
            bandwidth_bytes_per_second=self.bandwidth_bytes_per_second,
            peak_flops=self.peak_flops,
            source="published",
            target=self.target,
            architecture=self.architecture,
            nominal_bytes=self.nominal_bytes,
            host_link=self.host_link,
            host_link_bytes_per_second=self.host_link_bytes_per_second,
            tpu_topology=self.topology,
        )


_RANGED = tuple(item.name for item in dataclasses.fields(Entry) if item.name in RANGES)


def read_entry(table: Mapping[str, Any], *, source: str) -> Entry:
    """Check one table.

    Args:
        source: where the table is from, for messages.

    Raises:
        SettingsError: on an unknown, missing or mistyped key, or a number out of limits.py; names the key.
    """
    values, sources = _split(table)
    if "sources" in values:
        raise SettingsError(f"{source}: unknown key `sources`", hint='write `key = [value, "source"]`')
    target = values.pop("target", None)
    entry = build(Entry, values, source=source)
    _check_platform(entry.platform, {*values, *({"target"} if target else ())}, source)
    described = build(Target, target, source=f"{source}: target") if target else None
    entry = dataclasses.replace(entry, target=described, sources=sources)
    _check_speeds(entry, source)
    return entry


@functools.cache
def shipped() -> Mapping[str, Entry]:
    """The entries that come with brim, by name."""
    files = sorted(Path(__file__).with_name("devices").glob("*.toml"))
    return {
        name: read_entry(table, source=f"{path.name} [{name}]")
        for path in files
        for name, table in load_toml(path).items()
    }


def own(path: Path) -> tuple[str, Entry]:
    """Name and entry of a device that a user describes: the keys of one device, alone or under one `[name]`.

    Raises:
        SettingsError: if the file is missing, holds no device or several, or as `read_entry` does.
    """
    tables = load_toml(path)
    named = tables and all(isinstance(table, Mapping) for table in tables.values()) and not tables.keys() & _TABLES
    if not named:
        return path.stem, read_entry(tables, source=path.name)
    if len(tables) > 1:
        raise SettingsError(f"{path.name} holds {len(tables)} devices: {', '.join(tables)}; expected one")
    ((name, table),) = tables.items()
    return name, read_entry(table, source=f"{path.name} [{name}]")


def _split(table: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, str]]:
    """The table with plain values, and the source of each by its dotted key."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            values[key], below = _split(value, f"{prefix}{key}.")
            sources |= below
        elif key not in _UNSOURCED and isinstance(value, list) and len(value) == 2 and isinstance(value[1], str):
            values[key], sources[f"{prefix}{key}"] = value
        else:
            values[key] = value
    return values, sources


def _check_platform(platform: str, there: set[str], source: str) -> None:
    if missing := [key for key in _NEEDED[platform] if key not in there]:
        raise SettingsError(
            f"{source}: missing {', '.join(f'`{key}`' for key in missing)}",
            hint=f"nothing can be compiled for a {platform.upper()} without; brim/hardware/devices/ has examples",
        )
    for other, keys in _NEEDED.items():
        if other != platform and (wrong := [key for key in keys if key in there]):
            raise SettingsError(f"{source}: `{wrong[0]}` does not go with platform = {platform!r}; expected {other!r}")


def _check_speeds(entry: Entry, source: str) -> None:
    try:
        if entry.target is not None:
            check_target(entry.target)
        check_peaks(entry.peak_flops, entry.target)
    except SettingsError as error:
        raise SettingsError(f"{source}: {error.message}", hint=error.hint) from None
