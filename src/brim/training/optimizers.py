"""Optimizers by Optax, and the global norm they are clipped by.

Clipping is not part of the optimizer: the step computes the norm of the whole update's gradient once, logs it, and
clips by it, after accumulation.

Sources: AdamW, https://arxiv.org/abs/1711.05101.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from brim.training.schedules import Schedule
from brim.training.settings import OptimizerSettings
from brim.tree import PyTree, cast_floating, path_names

DecayMask = PyTree | Callable[[PyTree], PyTree]
"""A tree of booleans in the shape of the parameters, or a function that makes it from them."""


def matrices(parameters: PyTree, *, stacked: Callable[[str], bool] = lambda name: False) -> PyTree:
    """Which leaves are matrices by logical rank, as a tree of booleans: the default mask for weight decay.

    Args:
        parameters: arrays or specs.
        stacked: says of a leaf's path, such as `layers.norm.scale`, whether its first axis counts layers. Such an
            axis does not count: the scales [layers, width] of a stack of norms are vectors, and are not decayed.
    """
    leaves, structure = jax.tree.flatten(parameters)
    mask = [leaf.ndim - stacked(name) >= 2 for name, leaf in zip(path_names(parameters), leaves, strict=True)]
    return jax.tree.unflatten(structure, mask)


def optimizer(
    settings: OptimizerSettings, schedule: Schedule, decay_mask: DecayMask = matrices
) -> optax.GradientTransformation:
    """The Optax transformation of these settings. It does not clip.

    Args:
        settings: kind, betas, epsilon, weight decay.
        schedule: finished updates -> learning rate.
        decay_mask: which leaves decay. The default takes every leaf with two axes or more; for a model with stacked
            layers pass a mask made by `matrices(parameters, stacked=...)`.

    Returns:
        a transformation whose moments are fp32 whatever the parameters' and gradients' dtype, and whose updates are
        fp32; `optax.apply_updates` casts them to the parameters' dtype last.
    """
    beta1, beta2 = settings.betas
    return _in_fp32(
        optax.adamw(
            schedule,
            b1=beta1,
            b2=beta2,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            mask=decay_mask,
        )
    )


def global_norm(tree: PyTree) -> Float[Array, ""]:
    """The root of the sum of squares of all leaves together, in fp32.

    Squares are taken in fp32, so fp16 values up to their largest (65504) do not overflow. The sum overflows to
    infinity for norms above 1.8e19.
    """
    squares = [jnp.sum(jnp.square(leaf.astype(jnp.float32))) for leaf in jax.tree.leaves(tree)]
    return jnp.sqrt(sum(squares, start=jnp.float32(0)))


def clip_by_norm(tree: PyTree, norm: Float[Array, ""], max_norm: float) -> PyTree:
    """The tree scaled down so that its global norm is at most `max_norm`; the same values when it already is.

    The factor is computed and applied in fp32 and the result cast to each leaf's dtype last: a factor of 1e-8 would be
    0 in fp16.

    Args:
        tree: gradients.
        norm: their global norm, fp32.
        max_norm: the largest norm allowed, above 0.
    """
    factor = jnp.minimum(jnp.float32(1), jnp.float32(max_norm) / norm)
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.float32) * factor).astype(leaf.dtype), tree)


def _in_fp32(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    # Optax gives the second moment the parameters' dtype: in bf16 an update of 0.1% of it would vanish.
    def init(parameters: PyTree) -> PyTree:
        return inner.init(cast_floating(parameters, jnp.float32))

    def update(gradients: PyTree, state: PyTree, parameters: PyTree | None = None) -> tuple[PyTree, PyTree]:
        if parameters is not None:
            parameters = cast_floating(parameters, jnp.float32)
        # Optax raises floats to its int32 count, which strict promotion forbids; all else here is fp32 already.
        with jax.numpy_dtype_promotion("standard"):
            return inner.update(cast_floating(gradients, jnp.float32), state, parameters)

    return optax.GradientTransformation(init, update)
