"""Precision: compute in bf16, keep what accumulates in fp32.

WHAT IT DOES. Parameters, gradients and optimizer moments stay fp32. Activations and the operands of matrix products are
bf16: a model that calls `ops.dtypes` casts each weight where it uses it; for any other model the parameters are cast
before its loss is called. Sums, softmax, norms, rotary angles and the loss are fp32 whatever is chosen here: a norm
summed in bf16 loses the small terms (3% off for one large channel among 4096), a loss in bf16 sits on a grid of 1/128.

BYTES. Saved activations and logits halve: with N tokens in a micro-batch, an array of N x D falls from 4ND to 2ND.
Parameters, gradients and moments do not change: 4 + 4 + 8 bytes per parameter. bf16 copies of the weights in use are
added, 2 bytes per parameter at most.

TIME. On tensor cores bf16 products run 8 to 16 times faster than fp32 without TF32 and halve the memory traffic.
On a CPU it is usually slower, because XLA there widens bf16 again: measured 0.83x of fp32 on a 2-core AVX512 machine.

WHEN IT HARMS. bf16 has 8 bits of mantissa, as wide a range as fp32: no loss scale is needed, but a sum of many terms in
bf16 stalls; hence the fp32 list above. A foreign model computes its own norms and softmax in the cast dtype unless it
promotes them itself.

SOURCES. Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740); Kalamkar et al., A Study of BFLOAT16
for Deep Learning Training, 2019 (arXiv:1905.12322).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import jax.numpy as jnp

from brim.hardware.facts import Device
from brim.ops import Dtypes
from brim.program import Program, Sizes
from brim.techniques.base import Context, Effect, Points


@dataclass(frozen=True)
class Precision:
    """Format of activations and of the operands of matrix products; all that accumulates is fp32."""

    name: ClassVar[str] = "precision"
    points: ClassVar[frozenset[str]] = frozenset({"dtypes"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    compute: Literal["float32", "bfloat16"] = "float32"

    @property
    def effect(self) -> Effect:
        """bf16 rounds by design; fp32 is the plain step."""
        return "exact" if self.is_plain else "rounding"

    @property
    def is_plain(self) -> bool:
        """fp32 throughout."""
        return self.compute == "float32"

    def apply(self, points: Points, context: Context) -> Points:
        """Set the formats the model is asked to use."""
        del context
        return replace(points, dtypes=Dtypes(parameters=jnp.float32, compute=jnp.dtype(self.compute)))

    def needs(self, program: Program, device: Device) -> str | None:
        """bf16 needs a device that computes in it."""
        del program
        return None if self.is_plain else device.why_not(self.compute)

    def describe(self) -> str:
        """Short name of the format."""
        return {"float32": "fp32", "bfloat16": "bf16"}[self.compute]

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """Nothing of its own: it sets `compute_bytes` for the others."""
        del sizes, micro_batch, compute_bytes
        return 0

    def flops_ratio(self, sizes: Sizes) -> float:
        """The same products, in another format."""
        del sizes
        return 1.0

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """bf16 on a GPU that has it, fp32 elsewhere: a choice by device, not a search."""
        wanted = cls("bfloat16")
        on_gpu = device.platform == "gpu" and wanted.needs(program, device) is None
        return (wanted if on_gpu else cls(),)
