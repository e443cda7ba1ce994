"""What a loss function returns.

A loss is kept as the SUM over targets and their NUMBER, never as a mean. The sums of two micro-batches add up to the
sum of their union, so accumulation, evaluation and many devices are exact by construction; a mean of means is not
(two micro-batches with 2 targets of loss 3 and 6 of loss 1: 1.5 is right, 2.0 is the mean of means).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class Loss(eqx.Module):
    """Loss of some rows.

    Attributes:
        total: sum of the loss over all targets, fp32.
        count: number of targets, fp32 (exact up to 2**24 targets in one sum of ones).
        metrics: further sums over targets, by name; divided by `count` when logged.
    """

    total: Float[Array, ""]
    count: Float[Array, ""]
    metrics: Mapping[str, Float[Array, ""]] = field(default_factory=dict)

    def mean(self) -> Float[Array, ""]:
        """Loss per target; 0 when there is none, so that an empty window is no NaN."""
        return self.total / jnp.maximum(self.count, 1)

    def __add__(self, other: Loss) -> Loss:
        return jax.tree.map(jnp.add, self, other)
