"""The loss over a vocabulary, written out plainly."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

IGNORED = -100
"""Target of a position that has none: padding, the last token of a document, a prompt."""


@runtime_checkable
class CrossEntropyFunction(Protocol):
    """What models call and loss techniques replace."""

    def __call__(
        self, hidden: Float[Array, "... width"], head: Float[Array, "vocabulary width"], targets: Int[Array, "..."]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]: ...


def reference_cross_entropy(
    hidden: Float[Array, "... width"], head: Float[Array, "vocabulary width"], targets: Int[Array, "..."]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Summed cross-entropy of `hidden @ head.T` against target ids.

    Logits are made in the dtype of `hidden`, then promoted to fp32 before the softmax: a loss in bf16 sits on a coarse
    grid. Targets below 0 do not count.

    Returns: (sum of the loss over targets, number of targets), both fp32.
    Memory: the logits [positions, vocabulary] in the compute dtype and their gradient; often a step's largest arrays.
    """
    # Positions in one axis: with several, XLA's CPU backend takes a slower matrix product.
    logits = hidden.reshape(-1, hidden.shape[-1]) @ head.astype(hidden.dtype).T
    losses = token_losses(logits, targets.reshape(-1))
    return losses.sum(), (targets >= 0).sum(dtype=jnp.float32)


def token_losses(logits: Float[Array, "... vocabulary"], targets: Int[Array, "..."]) -> Float[Array, "..."]:
    """Cross-entropy of each position in fp32; 0 where the target is below 0."""
    logits = logits.astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen
    return jnp.where(targets >= 0, losses, 0.0)
