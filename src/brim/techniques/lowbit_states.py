"""Low-bit states: the optimizer's moments in 8 bits instead of 32.

WHAT IT DOES. Between updates each moment (both of AdamW, the momentum of SGD or Lion) is kept as one byte per element
and one fp32 scale per block of 256; `ops/blockwise.py` says what the codes mean. Every update is computed in fp32: a
layer's moments are decoded, updated and encoded again, then the next layer's (eight_bit.py). Which moments are kept so
is a rule on the LOGICAL parameter, one layer's where layers are stacked: those of embedding tables, and of parameters
with fewer elements than `smallest`, stay fp32. The last block of a parameter may be short; nothing is ever left out
because a size does not divide.

BYTES, per parameter of n elements and per moment:
    plain      4 n
    8 bits     n + 4 ceil(n / block)
For AdamW in blocks of 256 that is 2.03 bytes per parameter instead of 8. Decoded moments are alive for one layer at a
time; the gradient's bytes hold the updates, so nothing else is added. With an optimizer that mixes elements, such as
Muon, all moments are decoded at once during the update, and its peak is that of the plain step.

TIME. The same matrix products. Moments are read and written in a quarter of the bytes, but two table look-ups per
element are added, and gradients and updates pass through memory once more each, since layers are updated in a loop.

WHEN IT HARMS. Moments of 8 bits are not those of 32: a run is no longer the same, and its loss may end a little higher.
Embedding tables were found to suffer, because a token that is not in the batch has a gradient of 0 among large ones;
hence they are excluded. An accumulator that only grows, as in Adagrad, stalls when what is added is below half a level.

SOURCES. Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022 (arXiv:2110.02861). On embeddings:
bitsandbytes-foundation/bitsandbytes#11. On one rule for all layouts: pytorch/ao#4912.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import Any, ClassVar, Literal, Self

import jax

from brim.hardware.facts import Device
from brim.program import Program, Sizes
from brim.settings import require
from brim.techniques.base import Context, Effect, Points
from brim.techniques.eight_bit import eight_bit
from brim.techniques.moments import Layout
from brim.tree import path_names

_EMBEDDING = re.compile(r"emb(ed|\b)|wte|wpe", re.IGNORECASE)


@dataclass(frozen=True)
class LowbitStates:
    """How the optimizer's moments are kept between updates.

    Attributes:
        bits: per element; 32: as the optimizer makes them.
        block: elements that share a scale.
        smallest: elements of the smallest parameter, or layer of a stacked one, whose moments are kept in 8 bits.
    """

    name: ClassVar[str] = "lowbit_states"
    points: ClassVar[frozenset[str]] = frozenset({"optimizer"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    bits: Literal[8, 32] = 32
    block: int = 256
    smallest: int = 4096

    def __post_init__(self) -> None:
        require(self.block >= 1, "block", self.block, "at least 1 element")
        require(self.smallest >= 1, "smallest", self.smallest, "at least 1 element")

    @property
    def effect(self) -> Effect:
        """Moments are rounded from update to update."""
        return "exact" if self.is_plain else "lossy"

    @property
    def is_plain(self) -> bool:
        """Moments in 32 bits."""
        return self.bits == 32

    def apply(self, points: Points, context: Context) -> Points:
        """Wrap the optimizer; says which moments are kept in 8 bits."""
        if self.is_plain:
            return points
        layout_of = partial(self.layout, context.program)
        context.say(self._choice(context.program))
        return replace(points, optimizer=partial(eight_bit, layout_of=layout_of))

    def needs(self, program: Program, device: Device) -> str | None:
        """Nothing: a program without large parameters simply keeps its moments."""
        del program, device
        return None

    def describe(self) -> str:
        """Such as `8-bit moments`."""
        return f"{self.bits}-bit moments" + (f" in blocks of {self.block}" if self.block != 256 else "")

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """Nothing beside the state, which is counted to the byte among the arguments of the step."""
        del sizes, micro_batch, compute_bytes
        return 0

    def flops_ratio(self, sizes: Sizes) -> float:
        """The same products."""
        del sizes
        return 1.0

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """Moments as they are, and, where lossy techniques are allowed, in 8 bits."""
        del program, device
        return cls(), cls(bits=8)

    def layout(self, program: Program, name: str, leaf: Any) -> Layout:
        """How the moments of a parameter are kept, by its path and its array or spec."""
        stacked = bool(leaf.shape) and program.stacked(name)
        elements = prod(leaf.shape[1:] if stacked else leaf.shape)
        small = elements < self.smallest
        return Layout(0 if small or _EMBEDDING.search(name) else self.block, stacked)

    def _choice(self, program: Program) -> str:
        """A sentence for the plan."""
        trainable = program.part_specs()[0]
        leaves = zip(path_names(trainable), jax.tree.leaves(trainable), strict=True)
        chosen = {name: bool(self.layout(program, name, leaf).block) for name, leaf in leaves}
        kept, low = ([name for name, is_low in chosen.items() if is_low is wanted] for wanted in (False, True))
        return f"moments in 8 bits: {', '.join(low) or 'none'}; in 32 bits: {', '.join(kept) or 'none'}"
