"""Which numbers are held in which floating-point format."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax.typing import DTypeLike


@dataclass(frozen=True)
class Dtypes:
    """The formats a model is asked to use. Reductions, softmax, norms and the loss are fp32 whatever is chosen.

    Attributes:
        parameters: how trainable parameters are stored between updates.
        compute: activations and the operands of matrix products.
    """

    parameters: DTypeLike = jnp.float32
    compute: DTypeLike = jnp.float32
