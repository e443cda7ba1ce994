"""Tiny programs whose right answers can be worked out by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from brim.ops import Loss, Ops
from brim.program import Program

SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def linear_program(width: int, optimizer: optax.GradientTransformation, **settings: Any) -> Program:
    """Loss of a row = weight * <w, gradient>: the row's gradient is `gradient`, its target count is `weight`."""

    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Ops) -> tuple[Loss, Any]:
        del frozen, keys, ops
        losses = batch["gradient"] @ trainable + batch["offset"]
        return Loss((batch["weight"] * losses).sum(), batch["weight"].sum()), variables

    row = {"gradient": jax.ShapeDtypeStruct((width,), jnp.float32), "weight": SCALAR, "offset": SCALAR}
    return Program(lambda key: (jnp.zeros(width), (), ()), loss, optimizer, row, **settings)


def linear_batch(gradients: Any, weights: Any = None, offsets: Any = None) -> dict[str, jax.Array]:
    """A batch for `linear_program`; weights default to 1 and offsets to 0."""
    gradients = jnp.asarray(gradients, jnp.float32)
    rows = len(gradients)
    weights = jnp.ones(rows) if weights is None else jnp.asarray(weights, jnp.float32)
    offsets = jnp.zeros(rows) if offsets is None else jnp.asarray(offsets, jnp.float32)
    return {"gradient": gradients, "weight": weights, "offset": offsets}


def batch_norm_program(momentum: float = 0.9) -> Program:
    """y = batch_norm(x) * scale, loss = sum y**3: `variables` hold the running mean and variance."""

    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Ops) -> tuple[Loss, Any]:
        del frozen, ops
        x = batch["x"]
        training = keys is not None
        mean, variance = (x.mean(0), x.var(0)) if training else (variables["mean"], variables["variance"])
        y = (x - mean) / jnp.sqrt(variance + 1e-5) * trainable
        if training:
            blend = {"mean": mean, "variance": variance}
            variables = jax.tree.map(lambda old, new: momentum * old + (1 - momentum) * new, variables, blend)
        return Loss((y**3).sum(), jnp.float32(x.shape[0])), variables

    def init(key: Any) -> Any:
        del key
        return jnp.ones(3), (), {"mean": jnp.zeros(3), "variance": jnp.ones(3)}

    row = {"x": jax.ShapeDtypeStruct((3,), jnp.float32)}
    return Program(init, loss, optax.sgd(0.1), row, rows_independent=False)
