"""`brim.plan` on a loss and parameters that know nothing of brim."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import brim
from brim.errors import DeviceError, NoPlanFits


def mlp_program() -> brim.Program:
    """A plain-JAX MLP with a loss written for one example."""

    def init(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return {"in": jax.random.normal(first, (32, 512)), "out": jax.random.normal(second, (512, 1))}, (), ()

    def loss(params: Any, example: Any, key: Any) -> jax.Array:
        return jnp.square(jnp.tanh(example["x"] @ params["in"]) @ params["out"] - example["y"]).sum()

    row = {"x": jax.ShapeDtypeStruct((32,), jnp.float32), "y": jax.ShapeDtypeStruct((1,), jnp.float32)}
    return brim.Program(init, brim.from_example_loss(loss), optax.adam(1e-3), row)


def test_a_foreign_program_is_planned_built_and_trained() -> None:
    plan = brim.plan(mlp_program(), budget="4MiB", global_batch=2048)
    assert plan.chosen.peak_bytes is not None
    assert plan.chosen.peak_bytes <= 4 * 2**20
    assert plan.recipe.global_batch == 2048
    assert plan.recipe.accumulation > 1
    step = plan.build(mlp_program())
    random = np.random.default_rng(0)
    batch = {"x": random.normal(size=(2048, 32)).astype("f"), "y": random.normal(size=(2048, 1)).astype("f")}
    state = step.init(jax.random.key(0))
    losses = []
    for _ in range(5):
        state, metrics = step(state, batch)
        losses.append(float(metrics.loss))
    assert losses[-1] < losses[0]


def test_nothing_fits_is_an_error_with_a_way_out() -> None:
    with pytest.raises(NoPlanFits) as error:
        brim.plan(mlp_program(), budget="64KiB", global_batch=8)
    assert error.value.exit_code == 3
    assert error.value.hint


def test_an_unknown_device_suggests_the_nearest() -> None:
    with pytest.raises(DeviceError) as error:
        brim.plan(mlp_program(), device="rtx-4080x", budget="1GiB", global_batch=8)
    assert error.value.hint == "did you mean `rtx-4080`?"
