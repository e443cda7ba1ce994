"""Devices by name: forgiving in spelling, plain about what a family name was taken for.

`RTX 4090`, `rtx4090`, `4090` and `NVIDIA GeForce RTX 4090` are one name: only its words and numbers count, in any
order, without the maker's brands. A family name means its commonest device: `h100` is `h100-sxm`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from brim.errors import DeviceError, nearest
from brim.hardware.entries import Entry, own, shipped
from brim.hardware.facts import Device
from brim.settings import user_path

_BRANDS = {"nvidia", "geforce", "tesla", "quadro", "rtx", "google", "tpu", "gpu", "gb", "gib"}
_SHORT = re.compile(r"\b(rtx|tpu)-")
_GIB = 2**30


@dataclass(frozen=True)
class Reading:
    """What a typed name was taken for.

    Attributes:
        name: of the entry.
        family: whether the name stands for several devices, of which this is the commonest.
    """

    name: str
    family: bool = False


def names() -> tuple[str, ...]:
    """The devices that `named` knows, sorted."""
    return tuple(sorted(shipped()))


def entry(name: str) -> Entry:
    """The facts behind `named`, with their sources.

    Raises:
        DeviceError: as `named`.
    """
    return shipped()[_read(name).name]


def named(name: str) -> Device:
    """The facts of a device that need not be here, idle.

    Raises:
        DeviceError: if no table has that name; names the nearest one.

    >>> named("RTX 4090").compute_capability
    (8, 9)
    >>> named("h100").name
    'h100-sxm'
    """
    reading = _read(name)
    return shipped()[reading.name].device(reading.name)


def reading_of(name: str) -> str | None:
    """One line to show where a family name was taken for one device of several; None where nothing was guessed.

    Raises:
        DeviceError: as `named`.

    >>> reading_of("h100")
    'h100 read as h100-sxm (NVIDIA H100 80GB HBM3, 80 GB)'
    """
    if is_path(name) or not (reading := _read(name)).family:
        return None
    found = shipped()[reading.name]
    return f"{name} read as {reading.name} ({found.kind}, {(found.nominal_bytes or found.memory_bytes) // _GIB} GB)"


def find(name_or_path: str) -> Device:
    """A device by name, or the one that a TOML file of the user's describes (see entries.py for the keys).

    Raises:
        DeviceError: if no table has that name; names the nearest one.
        SettingsError: if it is a path, and the file is missing or wrong; names the key.
    """
    if not is_path(name_or_path):
        return named(name_or_path)
    name, described = own(user_path(name_or_path))
    return described.device(name)


def same_name(one: str, other: str) -> bool:
    """Whether two spellings name one device."""
    return _words(one) == _words(other)


def is_path(text: str) -> bool:
    """Whether `find` takes a text for the path of a file."""
    return text.endswith(".toml") or "/" in text or "\\" in text


def _read(name: str) -> Reading:
    reading = _known().get(_words(name))
    if reading is None:
        close = nearest(name.strip(), [*_SHORT.sub("", " ".join(names())).split(), *names(), *_families()])
        hint = f"did you mean `{close}`?" if close else "`brim devices` lists those that brim knows"
        raise DeviceError(f"no device called `{name}`", hint=hint)
    return reading


def _families() -> list[str]:
    return [family for found in shipped().values() for family in found.stands_for]


@functools.cache
def _known() -> Mapping[tuple[str, ...], Reading]:
    known: dict[tuple[str, ...], Reading] = {}
    for name, found in shipped().items():
        size = f" {found.nominal_bytes // _GIB}" if found.nominal_bytes else ""
        for word in (name, *found.aliases):
            known[_words(word)] = known[_words(word + size)] = Reading(name)
    for name, found in shipped().items():
        for family in found.stands_for:
            known[_words(family)] = Reading(name, family=True)
    # Last, since several cards may report one name: then it is a family name, and stays one.
    for name, found in shipped().items():
        known.setdefault(_words(found.kind), Reading(name))
    return known


def _words(name: str) -> tuple[str, ...]:
    return tuple(sorted(word for word in re.findall(r"[a-z]+|[0-9]+", name.lower()) if word not in _BRANDS))
