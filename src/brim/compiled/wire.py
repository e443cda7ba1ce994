"""Reading protocol buffers without the protobuf package: bytes become fields by number, and nothing else.

A message on the wire is a row of (field number, kind, value). Kinds met here: 0 a varint, 1 and 5 eight and four bytes
as they are, 2 a length and that many bytes (text, a message, or numbers packed together). What a field MEANS is said by
the reader that asks for it. Fields that hold zero are left out on the wire, so a missing field reads as 0 or empty;
a reader that knows better says `required`.

A field of another kind than asked for, or a required one that is missing, means that this XLA writes another format
than brim knows: an error, never a guess.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from brim.errors import DeviceError

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_FIXED = {_EIGHT_BYTES: 8, _FOUR_BYTES: 4}


class Message:
    """One decoded message.

    Args:
        data: its bytes.
        name: what it is called in errors.

    Raises:
        DeviceError: if the bytes are no message; and by every method, if a field is not of the kind that is asked for.
    """

    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self._fields: dict[int, list[Any]] = {}
        position = 0
        try:
            while position < len(data):
                key, position = _varint(data, position)
                value, position = _value(data, position, key & 7)
                self._fields.setdefault(key >> 3, []).append(value)
        except (IndexError, KeyError):
            raise _unknown_format(f"{name} cannot be decoded at byte {position} of {len(data)}") from None

    def number(self, field: int, *, required: bool = False) -> int:
        """A signed integer; 0 if it is missing."""
        return _signed(self._one(field, int, required, 0))

    def data(self, field: int, *, required: bool = False) -> bytes:
        """Bytes as they are; empty if missing."""
        return self._one(field, bytes, required, b"")

    def text(self, field: int, *, required: bool = False) -> str:
        """Text; empty if missing. Bytes that are no UTF-8 are kept as escapes."""
        return self.data(field, required=required).decode("utf-8", "backslashreplace")

    def message(self, field: int, name: str, *, required: bool = False) -> Message:
        """A message; one without fields if missing."""
        return Message(self.data(field, required=required), name)

    def messages(self, field: int, name: str, *, required: bool = False) -> list[Message]:
        """All messages of a repeated field, in order."""
        return [Message(data, name) for data in self._all(field, bytes, required)]

    def texts(self, field: int) -> list[str]:
        """All texts of a repeated field, in order."""
        return [data.decode("utf-8", "backslashreplace") for data in self._all(field, bytes, False)]

    def numbers(self, field: int) -> list[int]:
        """All integers of a repeated field, packed together or one by one."""
        found: list[int] = []
        for value in self._fields.get(field, ()):
            found.extend(_unpacked(value) if isinstance(value, bytes) else [value])
        return [_signed(number) for number in found]

    def has(self, field: int) -> bool:
        """Whether the field is on the wire."""
        return field in self._fields

    def _one(self, field: int, kind: type, required: bool, default: Any) -> Any:
        values = self._all(field, kind, required)
        return values[-1] if values else default

    def _all(self, field: int, kind: type, required: bool) -> list[Any]:
        values = self._fields.get(field, [])
        if required and not values:
            raise _unknown_format(f"{self.name} has no field {field}")
        for value in values:
            if type(value) is not kind:
                raise _unknown_format(
                    f"field {field} of {self.name} holds {type(value).__name__}; {kind.__name__} is expected"
                )
        return values


def _varint(data: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return number, position


def _value(data: bytes, position: int, kind: int) -> tuple[int | bytes, int]:
    if kind == _VARINT:
        return _varint(data, position)
    length = _FIXED.get(kind)
    if length is None:
        if kind != _LENGTH:
            raise KeyError(kind)
        length, position = _varint(data, position)
    if position + length > len(data):
        raise IndexError(position)
    return data[position : position + length], position + length


def _unpacked(data: bytes) -> list[int]:
    numbers, position = [], 0
    while position < len(data):
        number, position = _varint(data, position)
        numbers.append(number)
    return numbers


def _signed(number: int) -> int:
    """Negative numbers are on the wire as their two's complement of 64 bits."""
    return number - (1 << 64) if number >> 63 else number


def _unknown_format(found: str) -> DeviceError:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib"))
    return DeviceError(
        f"XLA's description of a compiled program is not in the format that brim reads ({versions}): {found}",
        hint="use a JAX version that brim names in its pyproject.toml, and tell brim's authors",
    )
