"""Reading and printing quantities: bytes, seconds, counts.

Binary units when bytes are printed (GiB = 2**30 bytes); both kinds are read (`22GiB`, `24GB`).
"""

from __future__ import annotations

import math
import re

from brim.errors import SettingsError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_MOST_BYTES = 2**63
_UNITS = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gib": GIB, "gb": 10**9,
    "t": TIB, "tib": TIB, "tb": 10**12,
}  # fmt: skip
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([a-zA-Z]*)\s*")


def parse_bytes(text: str | int, key: str = "") -> int:
    """Bytes from text such as `1.5GiB`, `800 MB` or `1073741824`, rounded to whole ones.

    Args:
        key: the setting that is read, for messages.

    Raises:
        SettingsError: if the text is no amount in a known unit, or not from 1 byte to below 8 EiB.

    >>> parse_bytes("1.5GiB")
    1610612736
    """
    amount = _amount(text)
    if amount < _MOST_BYTES and round(amount) >= 1:
        return round(amount)
    raise SettingsError(
        f"{f'`{key}` is' if key else 'found'} {text!r}; expected an amount of memory from 1 byte to below 8 EiB",
        hint="write a number and a unit, such as 22GiB, 800MiB or 24GB",
    )


def _amount(text: str | int) -> float:
    """Bytes, which may be infinite; 0 for what is no amount."""
    if isinstance(text, int):
        return 0 if isinstance(text, bool) else text
    match = _QUANTITY.fullmatch(str(text))
    return float(match[1]) * _UNITS.get(match[2].lower(), 0) if match else 0


def format_bytes(count: float) -> str:
    """Bytes for people, in the largest binary unit that leaves at least 1.

    >>> format_bytes(1610612736), format_bytes(-3 * 2**20), format_bytes(12)
    ('1.50 GiB', '-3.0 MiB', '12 B')
    """
    size = abs(count)
    for unit, name, digits in ((TIB, "TiB", 2), (GIB, "GiB", 2), (MIB, "MiB", 1), (KIB, "KiB", 1)):
        if size >= unit:
            return f"{count / unit:.{digits}f} {name}"
    return f"{count:.0f} B"


def format_seconds(seconds: float) -> str:
    """A duration for people.

    >>> format_seconds(0.0123), format_seconds(75), format_seconds(93784)
    ('12.3 ms', '1m15s', '1d02h')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s"


def format_count(count: float) -> str:
    """A count for people: `124.4M`, `2.1k`, `966`, `0.25`; three digits below a thousand.

    >>> format_count(124439808), format_count(2100), format_count(966.126), format_count(0.25)
    ('124.4M', '2.1k', '966', '0.25')
    """
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= 0.9995 * unit:  # what would be rounded up to it
            return f"{count / unit:.1f}{name}"
    return f"{count:.3g}"
