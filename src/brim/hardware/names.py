"""Devices by name: forgiving in spelling, plain about what a family name was taken for.

`RTX 4090`, `rtx4090`, `4090` and `NVIDIA GeForce RTX 4090` are one name (spelling.py says when two are one), and so is
any with the size on the box. A family name means its commonest device: `h100` is `h100-sxm`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from brim.errors import DeviceError
from brim.hardware.entries import Entry, own, shipped
from brim.hardware.facts import Device
from brim.hardware.spelling import all_run_together, closest, run_together, usual, words
from brim.settings import user_path

_SHORT = re.compile(r"\b(rtx|tpu)-")
_GIB = 2**30
_WHAT_IS_HERE = {
    "cpu": "a CPU is planned for only where it is: leave the device out, and set JAX_PLATFORMS=cpu if a GPU is there",
    "gpu": "leave the device out to plan for the GPU that is here",
}


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
    return words(one) == words(other)


def is_path(text: str) -> bool:
    """Whether `find` takes a text for the path of a file."""
    return text.endswith(".toml") or "/" in text or "\\" in text


def _read(name: str) -> Reading:
    spelled, together = _known()
    typed = usual(name)
    reading = spelled.get(words(typed)) or together.get(run_together(typed))
    if reading is None:
        raise DeviceError(f"no device called `{name}`", hint=_WHAT_IS_HERE.get(typed.strip()) or _did_you_mean(name))
    return reading


def _did_you_mean(name: str) -> str:
    others = [other for found in shipped().values() for other in (*found.aliases, *found.stands_for)]
    close = closest(name, [*_SHORT.sub("", " ".join(names())).split(), *names(), *others])
    return f"did you mean `{close}`?" if close else "`brim devices` lists those that brim knows"


@functools.cache
def _known() -> tuple[Mapping[tuple[str, ...], Reading], Mapping[str, Reading]]:
    """Readings by the words of a spelling, and by its parts run together."""
    spelled: dict[tuple[str, ...], Reading] = {}
    together: dict[str, Reading] = {}
    for spelling, reading in _spellings():
        for written in (spelling, usual(spelling)):
            spelled.setdefault(words(written), reading)
            for joined in all_run_together(written):
                together.setdefault(joined, reading)
    return spelled, together


def _spellings() -> Iterator[tuple[str, Reading]]:
    """All names and what each is read as; of one that comes twice, the first counts."""
    for name, found in shipped().items():
        for word in (name, *found.aliases):
            yield from ((one, Reading(name)) for one in _with_size(word, found))
    for name, found in shipped().items():
        for family in found.stands_for:
            yield from ((one, Reading(name, family=True)) for one in _with_size(family, found))
    # Last, since several cards may report one name: then it is a family name, and stays one.
    for name, found in shipped().items():
        yield found.kind, Reading(name)


def _with_size(name: str, found: Entry) -> tuple[str, ...]:
    """A name as it is, and with the number on the box."""
    return (name, f"{name} {found.nominal_bytes // _GIB}") if found.nominal_bytes else (name,)
