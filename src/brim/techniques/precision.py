"""Precision: compute in 16 bits, keep what accumulates in fp32; if asked, keep parameters in bf16 alone.

WHAT IT DOES. Parameters, gradients and optimizer moments stay fp32. Activations and the operands of matrix products are
bf16 or fp16: a model that calls `ops.dtypes` casts each weight where it uses it; for any other model the parameters are
cast before its loss is called. Sums, softmax, norms, rotary angles and the loss are fp32 whatever is chosen here: a
norm summed in bf16 loses the small terms (3% off for one large channel among 4096), a loss in bf16 sits on a grid of
1/128. fp16 comes with loss scaling (`loss_scaling.py`). `parameters = "bfloat16"` keeps no fp32 copy; its updates are
rounded as `rounding` says (`rounding.py`).

BYTES. Saved activations and logits halve: with N tokens in a micro-batch, an array of N x D falls from 4ND to 2ND.
Parameters, gradients and moments do not change: 4 + 4 + 8 bytes per parameter. 16-bit copies of the weights in use are
added, 2 bytes per parameter at most. With bf16 parameters: 2 + 2 + 8 bytes, gradient sums over micro-batches 4 instead
of 2, and 2 more for `kahan`.

TIME. On tensor cores 16-bit products run 8 to 16 times faster than fp32 without TF32 and halve the memory traffic.
On a CPU bf16 is usually slower, because XLA there widens it again: measured 0.83x of fp32 on a 2-core AVX512 machine.

WHEN IT HARMS. bf16 has 8 bits of mantissa, as wide a range as fp32: no loss scale is needed, but a sum of many terms in
bf16 stalls; hence the fp32 list above. fp16 has 11 bits and a small range: activations above 65504 cannot be trained
in it. It is for GPUs without bf16, Volta and Turing. A foreign model computes its own norms and softmax in the cast
dtype unless it promotes them itself. bf16 parameters change the result (see `rounding.py`).

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
from brim.settings import require
from brim.techniques.base import Context, Effect, Points
from brim.techniques.loss_scaling import GROWTH_UPDATES, INITIAL, LossScaling
from brim.techniques.rounding import kahan, nearest, stochastic

_SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_ROUNDINGS = {"stochastic": stochastic, "kahan": kahan, "nearest": nearest}


@dataclass(frozen=True)
class Precision:
    """Formats of computing and of parameters; all that accumulates is fp32.

    Attributes:
        compute: of activations and of the operands of matrix products.
        parameters: as they are kept between updates.
        rounding: of updates to bf16 parameters.
        loss_scale: of fp16: moved by what overflows, or as it is.
        initial_scale: the first scale, or the static one; a power of two.
        growth_updates: good updates in a row after which a dynamic scale is doubled.

    Raises:
        SettingsError: on a value out of range, or one that the other settings would ignore.
    """

    name: ClassVar[str] = "precision"
    points: ClassVar[frozenset[str]] = frozenset({"dtypes", "loss_scaling", "update"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    compute: Literal["float32", "bfloat16", "float16"] = "float32"
    parameters: Literal["float32", "bfloat16"] = "float32"
    rounding: Literal["stochastic", "kahan", "nearest"] = "stochastic"
    loss_scale: Literal["dynamic", "static"] = "dynamic"
    initial_scale: float = INITIAL
    growth_updates: int = GROWTH_UPDATES

    def __post_init__(self) -> None:
        rounds = self.parameters == "bfloat16" or self.rounding == "stochastic"
        require(rounds, "rounding", self.rounding, 'left out: it is for parameters = "bfloat16"')
        self._scaling()
        given = (self.loss_scale, self.initial_scale, self.growth_updates) != ("dynamic", INITIAL, GROWTH_UPDATES)
        require(self.compute == "float16" or not given, "compute", self.compute, '"float16" where a loss scale is set')

    @property
    def effect(self) -> Effect:
        """16 bits round by design, parameters in bf16 learn otherwise; fp32 is the plain step."""
        if self.parameters == "bfloat16":
            return "lossy"
        return "exact" if self.is_plain else "rounding"

    @property
    def is_plain(self) -> bool:
        """fp32 throughout."""
        return self.compute == self.parameters == "float32"

    def apply(self, points: Points, context: Context) -> Points:
        """Set the formats the model is asked to use, the loss scale that fp16 needs, and the rounding of updates."""
        dtypes = Dtypes(parameters=jnp.dtype(self.parameters), compute=jnp.dtype(self.compute))
        points = replace(points, dtypes=dtypes, loss_scaling=self._scaling() if self.compute == "float16" else None)
        if self.parameters == "float32":
            return points
        if self.rounding == "nearest":
            context.say("bf16 parameters rounded to nearest: updates below 0.2% of a parameter are lost")
        return replace(points, update=_ROUNDINGS[self.rounding])

    def needs(self, program: Program, device: Device) -> str | None:
        """16 bits need a device that computes in them; keeping parameters in bf16 needs none."""
        del program
        return None if self.compute == "float32" else device.why_not(self.compute)

    def describe(self) -> str:
        """Such as `bf16` or `fp16 (scale 1024), bf16 parameters (kahan)`."""
        words = _SHORT[self.compute]
        if self.loss_scale == "static":
            words += f" (scale {self.initial_scale:.0f})"
        return words if self.parameters == "float32" else f"{words}, bf16 parameters ({self.rounding})"

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
        """By device: bf16 on a GPU that has it, fp16 on one that has only that, else fp32; then bf16 parameters."""
        fast = (wanted for wanted in (cls("bfloat16"), cls("float16")) if wanted.needs(program, device) is None)
        chosen = next(fast, cls()) if device.platform == "gpu" else cls()
        return chosen, replace(chosen, parameters="bfloat16")

    def _scaling(self) -> LossScaling:
        return LossScaling(self.loss_scale == "dynamic", self.initial_scale, self.growth_updates)
