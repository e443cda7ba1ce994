"""What structured models call: the operations that techniques know how to replace.

A model is given an `Ops` and calls it; a technique returns an `Ops` with one member swapped. Neither knows the other.
A model that calls none of these still trains: then only the techniques that need no named place apply to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.ops.attention import AttentionFunction, AttentionMask, reference_attention
from brim.ops.cross_entropy import IGNORED, CrossEntropyFunction, reference_cross_entropy
from brim.ops.dropout import dropout, row_keys, site_keys
from brim.ops.dtypes import Dtypes
from brim.ops.loss import Loss
from brim.ops.stack import ONCE, Block, Repeats, StackFunction, residual, scan_stack

__all__ = [
    "IGNORED",
    "ONCE",
    "AttentionFunction",
    "AttentionMask",
    "Block",
    "CrossEntropyFunction",
    "Dtypes",
    "Loss",
    "Ops",
    "Repeats",
    "StackFunction",
    "dropout",
    "reference_attention",
    "reference_cross_entropy",
    "residual",
    "row_keys",
    "scan_stack",
    "site_keys",
]


@dataclass(frozen=True)
class Ops:
    """The operations handed to a loss function. The defaults are the plain ones, in fp32."""

    dtypes: Dtypes = field(default_factory=Dtypes)
    stack: StackFunction = scan_stack
    attention: AttentionFunction = reference_attention
    cross_entropy: CrossEntropyFunction = reference_cross_entropy
