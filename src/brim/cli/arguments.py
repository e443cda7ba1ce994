"""Reading a command's words: its few flags by tyro; every `--section.key value` is an override of the run file."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

import tyro

from brim.settings import require

T = TypeVar("T")


def read(kind: type[T], words: list[str], command: str) -> T:
    """The flags of a command that takes no overrides; a wrong one ends the program with exit code 2."""
    return tyro.cli(kind, args=words, prog=f"brim {command}")


def read_with_overrides(kind: type[T], words: list[str], command: str) -> tuple[T, list[str]]:
    """The flags of a command, and the words that override keys of its run file, in any order."""
    flags, overrides = _apart(words)
    known, unknown = tyro.cli(kind, args=flags, prog=f"brim {command}", return_unknown_args=True)
    return known, [*overrides, *unknown]


def require_price(price_per_hour: float | None) -> None:
    """Check `--price-per-hour`.

    Raises:
        SettingsError: if it is not a number of 0 or more.
    """
    right = price_per_hour is None or 0 <= price_per_hour < math.inf
    require(right, "--price-per-hour", price_per_hour, "0 or more per hour", hint="such as --price-per-hour 0.35")


def _apart(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words of flags, and words of overrides: `--a.b VALUE` or `--a.b=VALUE`, which no flag looks like."""
    flags: list[str] = []
    overrides: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if not (name.startswith("--") and "." in name):
            flags.append(word)
            continue
        # tyro would take the value for the run file if that comes later.
        overrides += [word] if equals else [word, *itertools.islice(remaining, 1)]
    return flags, overrides
