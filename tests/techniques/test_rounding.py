"""Rounding to bf16: unbiased by chance, exact in sum with a compensation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.hardware.device import detect
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.techniques import LowbitStates, Precision, Recipe
from brim.techniques.base import guarded
from brim.techniques.rounding import kahan, nearest, round_stochastically, stochastic
from brim.training.step import Step

DRAWS = 1 << 16


def rounded(values: np.ndarray, seed: int = 0) -> np.ndarray:
    bits = jax.random.bits(jax.random.key(seed), values.shape, jnp.uint16)
    return np.asarray(jax.jit(round_stochastically)(jnp.asarray(values), bits).astype(jnp.float32))


def spacing(value: float) -> float:
    """Distance of bf16 numbers around a value: 8 bits of mantissa."""
    return 2.0 ** (np.floor(np.log2(abs(value))) - 7)


@pytest.mark.parametrize("value", [1.002344, -1.002344, 0.3333333, -7.7e-5, 3.14159e20, 1.0 + 2**-23, 1.9999999])
def test_stochastic_rounding_is_unbiased(value: float) -> None:
    value = float(np.float32(value))
    found = rounded(np.full(DRAWS, value, np.float32)).astype(np.float64)
    gap = spacing(value)
    share = abs(value) / gap % 1
    sigma = gap * np.sqrt(share * (1 - share) / DRAWS)
    assert abs(found.mean() - value) <= 4 * sigma
    assert np.abs(found - value).max() < gap
    assert found.var() <= gap**2 / 4
    assert len(set(found.tolist())) <= 2


def test_nearest_rounding_is_biased_where_stochastic_is_not() -> None:
    """The measure itself: what the test above would say of rounding to nearest."""
    value, gap = 1.002344, 2.0**-7
    assert abs(float(jnp.float32(value).astype(jnp.bfloat16)) - value) > 4 * gap / 2 / np.sqrt(DRAWS)


def test_numbers_that_bf16_has_stay() -> None:
    values = np.asarray(jnp.asarray(np.random.default_rng(0).normal(0, 5, 4096), jnp.bfloat16).astype(jnp.float32))
    special = np.array([0.0, -0.0, 1.0, -2.0, 2.0**-126, 3.3895314e38], np.float32)
    values = np.concatenate([values, special])
    np.testing.assert_array_equal(rounded(values).view(np.uint32), values.view(np.uint32))


def test_what_is_not_finite_stays_so() -> None:
    found = rounded(np.repeat(np.array([np.inf, -np.inf, np.nan], np.float32), 1000))
    np.testing.assert_array_equal(found, np.repeat(np.array([np.inf, -np.inf, np.nan], np.float32), 1000))


TRUE = jnp.bool_(True)


def after(updater, steps: int, *, start: float = 1.0, weights: int = 4096) -> tuple[dict, object]:  # type: ignore[no-untyped-def]
    trainable = {"a": jnp.full(weights, start, jnp.bfloat16), "b": jnp.full(weights, -start, jnp.bfloat16)}
    gradients = {"a": jnp.ones(weights), "b": -jnp.ones(weights)}
    state = updater.init(trainable)

    def step(carry, window):  # type: ignore[no-untyped-def]
        trainable, state = carry
        return updater.update(gradients, state, trainable, jax.random.fold_in(jax.random.key(5), window), TRUE), None

    return jax.jit(lambda carry: jax.lax.scan(step, carry, jnp.arange(steps))[0])((trainable, state))


def test_bf_s1_updates_vanish_with_nearest_rounding_and_do_not_by_chance_or_with_compensation() -> None:
    optimizer = guarded(optax.sgd(6e-4))
    stuck, _ = after(nearest(optimizer), 100)
    assert float(stuck["a"].astype(jnp.float32).mean()) == 1.0
    moved, _ = after(stochastic(optimizer), 100)
    assert moved["a"].dtype == jnp.bfloat16
    assert float(moved["a"].astype(jnp.float32).mean()) == pytest.approx(0.940, abs=0.002)
    assert float(moved["b"].astype(jnp.float32).mean()) == pytest.approx(-0.940, abs=0.002)
    exact, state = after(kahan(optimizer), 100)
    weights = np.asarray(exact["a"], np.float32)
    np.testing.assert_allclose(weights, 0.94, atol=spacing(0.94) / 2)
    # Each update rounds the compensation to 8 bits of something below half a spacing of the weight.
    whole = weights + np.asarray(state.compensation["a"], np.float32)
    np.testing.assert_allclose(whole, 0.94, atol=100 * spacing(0.94) / 2 * 2**-9)
    assert state.compensation["a"].dtype == jnp.bfloat16


def test_random_bits_differ_between_leaves_and_windows() -> None:
    optimizer = stochastic(guarded(optax.sgd(2.0**-9)))  # a quarter of the spacing: a quarter of the weights move
    gradients = {"a": jnp.ones(4096), "b": jnp.ones(4096)}
    trainable = {name: jnp.full(4096, 1.5, jnp.bfloat16) for name in gradients}
    moved = []
    for window in range(2):
        new, _ = optimizer.update(
            gradients, optimizer.init(trainable), trainable, jax.random.fold_in(jax.random.key(5), window), TRUE
        )
        moved += [np.asarray(new[name], np.float32) < 1.5 for name in "ab"]
    for i, first in enumerate(moved):
        assert first.mean() == pytest.approx(0.25, abs=4 * np.sqrt(0.25 * 0.75 / 4096))
        for second in moved[i + 1 :]:
            assert (first & second).mean() == pytest.approx(0.25**2, abs=4 * np.sqrt(0.0625 * 0.9375 / 4096))


@pytest.mark.parametrize("rounding", [nearest, stochastic, kahan])
def test_moments_are_fp32_whatever_the_optimizer(rounding) -> None:  # type: ignore[no-untyped-def]
    trainable = {"w": jnp.ones((2, 2), jnp.bfloat16)}
    updater = rounding(guarded(optax.adam(1e-3)))
    new, state = updater.update({"w": jnp.ones((2, 2), jnp.bfloat16)}, updater.init(trainable), trainable,
                                jax.random.key(0), TRUE)  # fmt: skip
    assert new["w"].dtype == jnp.bfloat16
    inner = state.inner if rounding is kahan else state
    floating = [leaf.dtype for leaf in jax.tree.leaves(inner) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert floating == [jnp.float32, jnp.float32]


def test_a_skipped_window_leaves_the_compensation_as_it_is() -> None:
    updater = kahan(guarded(optax.adam(1e-3)))
    trainable = {"w": jnp.ones((2, 2), jnp.bfloat16)}
    key, gradients = jax.random.key(0), {"w": jnp.full((2, 2), 0.3)}
    _, before = updater.update(gradients, updater.init(trainable), trainable, key, TRUE)
    assert float(jnp.abs(before.compensation["w"]).max()) > 0
    _, after_skip = updater.update({"w": jnp.full((2, 2), jnp.nan)}, before, trainable, key, jnp.bool_(False))
    jax.tree.map(np.testing.assert_array_equal, before, after_skip)


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["stochastic", "kahan"])
def test_bf16_parameters_and_moments_in_8_bits_learn_together(rounding) -> None:  # type: ignore[no-untyped-def]
    program = decoder_program(
        DecoderSettings(layers=2, width=32, heads=2, context=16, vocabulary=64).resolved(), optax.adamw(3e-3)
    )
    recipe = Recipe.of(8, Precision(parameters="bfloat16", rounding=rounding), LowbitStates(8, smallest=256))
    step = Step(program, recipe, detect())
    state = step.init(jax.random.key(0))
    tokens = np.arange(8 * 16, dtype=np.int32).reshape(8, 16) % 61
    batch = {"tokens": tokens, "targets": np.roll(tokens, -1, 1)}
    batch |= {"documents": np.ones_like(tokens), "positions": np.broadcast_to(np.arange(16, dtype=np.int32), (8, 16))}
    losses = []
    for _ in range(30):
        state, metrics = step(state, {name: batch[name] for name in program.row})
        losses.append(float(metrics.loss))
    assert losses[-1] < 0.5 * losses[0]
    assert any(leaf.dtype.itemsize == 1 for leaf in jax.tree.leaves(state.optimizer))
    assert {leaf.dtype for leaf in jax.tree.leaves(state.trainable)} == {jnp.dtype("bfloat16")}
