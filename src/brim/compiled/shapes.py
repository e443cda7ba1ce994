"""Types of the values in a compiled program: element type and dimensions, or a tuple of such."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from brim.compiled.wire import Message

_TYPES = {
    1: ("pred", 8), 2: ("s8", 8), 3: ("s16", 16), 4: ("s32", 32), 5: ("s64", 64),
    6: ("u8", 8), 7: ("u16", 16), 8: ("u32", 32), 9: ("u64", 64),
    10: ("f16", 16), 11: ("f32", 32), 12: ("f64", 64), 15: ("c64", 64), 16: ("bf16", 16), 18: ("c128", 128),
    19: ("f8e5m2", 8), 20: ("f8e4m3fn", 8), 21: ("s4", 4), 22: ("u4", 4), 23: ("f8e4m3b11fnuz", 8),
    24: ("f8e5m2fnuz", 8), 25: ("f8e4m3fnuz", 8), 26: ("s2", 2), 27: ("u2", 2), 28: ("f8e4m3", 8), 29: ("f8e3m4", 8),
    32: ("f4e2m1fn", 4), 33: ("f8e8m0fnu", 8),
}  # fmt: skip
_NO_ARRAY = {0: "invalid", 13: "tuple", 14: "opaque", 17: "token", 34: "buffer"}
HOST_SPACE = 5
"""XLA's number of the host's memory space."""
FLOATING = frozenset(name for name, _ in _TYPES.values() if name.startswith(("f", "bf")))
"""Names of the floating-point element types."""


@dataclass(frozen=True)
class Shape:
    """Type of one value.

    Attributes:
        dtype: XLA's name of the element type, such as `bf16`; `tuple` for a tuple.
        dimensions: of an array.
        parts: of a tuple.
        bits: of one element; 0 for what is no array.
        on_host: whether it lies in the host's memory.
    """

    dtype: str
    dimensions: tuple[int, ...] = ()
    parts: tuple[Shape, ...] = ()
    bits: int = 0
    on_host: bool = False

    @classmethod
    def read(cls, message: Message) -> Shape:
        """From an `xla.ShapeProto`."""
        number = message.number(2)
        name, bits = _TYPES.get(number) or (_NO_ARRAY.get(number, f"type {number}"), 0)
        parts = tuple(cls.read(part) for part in message.messages(4, "ShapeProto"))
        layout = message.message(5, "LayoutProto")
        return cls(name, tuple(message.numbers(3)), parts, bits, layout.number(8) == HOST_SPACE)

    @cached_property
    def elements(self) -> int:
        """Number of elements of an array."""
        return math.prod(self.dimensions) if self.bits else 0

    @cached_property
    def bytes(self) -> int:
        """Bytes of all arrays in it, without padding."""
        return sum(part.bytes for part in self.parts) + self.elements * self.bits // 8

    @property
    def is_floating(self) -> bool:
        """Whether it is an array of floating-point numbers."""
        return self.dtype in FLOATING

    def part(self, index: int | None) -> Shape:
        """A part of a tuple; itself if it is no tuple or no part is asked for."""
        return self.parts[index] if index is not None and index < len(self.parts) else self

    def __str__(self) -> str:
        if self.parts:
            return f"({', '.join(map(str, self.parts))})"
        return f"{self.dtype}[{','.join(map(str, self.dimensions))}]"
