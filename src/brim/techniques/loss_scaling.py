"""Loss scaling: the backward pass of an fp16 step at a size that fp16 can hold.

WHAT IT DOES. fp16 has 5 bits of exponent: below 6e-8 a number is 0, below 6e-5 it loses bits, above 65504 it is
infinite. Many gradients of activations lie below that. So the loss is multiplied by a power of two before it is
differentiated, and the gradients are divided by it, in fp32, before they are averaged and clipped: a power of two moves
the exponent and rounds nothing. A scale that is too large shows as a gradient that is not finite. That window makes no
update (no parameter, moment, schedule position or decay moves) and the scale is halved; after `growth_updates` good
updates in a row it is doubled. So it stays near the largest that works.

    window            scale after it                                    good updates in a row after it
    not finite        max(scale / 2, 1)                                 0
    updated           min(2 scale, 2**24) at `growth_updates`           one more; 0 where the scale was doubled
    without target    as before                                         as before

THE SCALE IS OF THE MEAN. A program's loss is a sum over targets. Scaled as it stands, gradients of weights would be as
many times larger as a micro-batch has tokens, and a scale of 1 could still be too large. So the sum is also divided by
the largest power of two within the number of tokens of the micro-batch: a given scale means what it means elsewhere.

BYTES. 8 in all: scale and counter, which are part of the state and of checkpoints.

TIME. One more product per gradient element, which XLA joins with what reads it.

WHEN IT HARMS. A forward pass that overflows fp16 does so at every scale: the scale falls to 1 and the run stops with a
message. bf16 has the range of fp32 and needs none of this.

SOURCES. Micikevicius et al., Mixed Precision Training, 2018 (arXiv:1710.03740), section 3.2. The numbers are those of
NVIDIA's Train With Mixed Precision guide; the floor answers NVIDIA/apex#715.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from brim.settings import require
from brim.tree import PyTree

INITIAL, LEAST, LARGEST = 2.0**15, 1.0, 2.0**24
GROWTH_UPDATES = 2000


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LossScale:
    """The part of a run's state that scaling moves.

    Attributes:
        value: what the mean loss of the next window is multiplied by.
        good_updates: updates in a row since the scale last changed.
    """

    value: Float[Array, ""]
    good_updates: Int[Array, ""]


@dataclass(frozen=True)
class LossScaling:
    """How the scale moves.

    Attributes:
        dynamic: whether it moves at all.
        initial: the first scale, a power of two.
        growth_updates: good updates in a row after which it is doubled.

    Raises:
        SettingsError: on a value out of range.
    """

    dynamic: bool = True
    initial: float = INITIAL
    growth_updates: int = GROWTH_UPDATES

    def __post_init__(self) -> None:
        power = LEAST <= self.initial <= LARGEST and math.frexp(self.initial)[0] == 0.5
        require(power, "initial_scale", self.initial, f"a power of two from {LEAST:.0f} to {LARGEST:.0f} (2**24)")
        require(self.growth_updates >= 1, "growth_updates", self.growth_updates, "1 or more updates")

    def init(self) -> LossScale:
        """The scale of a new run."""
        return LossScale(jnp.float32(self.initial), jnp.int32(0))

    def after(self, scale: LossScale, *, finite: Bool[Array, ""], updated: Bool[Array, ""]) -> LossScale:
        """The scale after a window.

        Args:
            scale: that of the window.
            finite: whether its loss and gradients were finite.
            updated: whether it made an update; a finite window without a target makes none.
        """
        if not self.dynamic:
            return scale
        good = jnp.where(finite, scale.good_updates + updated.astype(jnp.int32), 0)
        grows = good >= self.growth_updates
        larger = jnp.where(grows, jnp.minimum(2 * scale.value, LARGEST), scale.value)
        value = jnp.where(finite, larger, jnp.maximum(scale.value / 2, LEAST))
        return LossScale(value, jnp.where(grows, 0, good))


def factor_of_sum(scale: LossScale, tokens: int) -> Float[Array, ""]:
    """What the SUM of the loss of a micro-batch of so many tokens is multiplied by; a power of two if the scale is."""
    return scale.value * 2.0 ** -math.floor(math.log2(max(tokens, 1)))


def unscaled(gradients: PyTree, factor: Float[Array, ""]) -> PyTree:
    """Gradients divided by the factor, in fp32, and back in the dtype they have."""
    share = 1 / factor
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.float32) * share).astype(leaf.dtype), gradients)
