"""Rounding of updates: bf16 parameters that learn without an fp32 copy.

WHAT IT DOES. bf16 keeps 8 bits of a number. An update below half of the last one, 0.2% of the parameter, is lost when
the sum is rounded to nearest, and lost again in every update: the parameter stands still. Two remedies:

    stochastic   16 random bits are added to the fp32 sum, then the lower 16 are cut off. bf16 is the upper half of
                 fp32, so the sum goes up with the probability of what is cut off: E[round(x)] = x.
    kahan        what rounding took away is kept in bf16 beside the parameter, and added to the next update.

Gradients are taken at the bf16 parameters; the optimizer works in fp32 on fp32 copies that live within one operation,
and its moments stay fp32. Random bits come from the run's key, the window and the leaf: a resumed run draws the same.

BYTES. Parameters fall from 4 to 2 bytes each, `kahan` adds 2 again; a gradient in one piece falls from 4 to 2.

TIME. `stochastic` makes 32 random bits for every parameter and update, joined with the update by XLA.

WHEN IT HARMS. Each rounding adds noise of up to one last bit, 0.4% to 0.8% of the parameter; over n updates it grows
with the root of n. `kahan` has none, and is as if parameters had 16 bits. `nearest` is there for comparison, and is
warned about. A large learning rate hides the fault: it shows when the rate has fallen.

SOURCES. Zamirai et al., Revisiting BFloat16 Training, 2021 (arXiv:2010.06192).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, BFloat16, Bool, Float, Float32, Key, UInt

from brim.program import Optimizer
from brim.techniques.base import Updater
from brim.tree import PyTree, cast_floating, select

# Row keys are made from the same key by folding in the numbers of rows, which never come near this.
_SITE = 2**32 - 1
_BF16_BITS = {"exponent_bits": 8, "mantissa_bits": 7}


class Compensated(NamedTuple):
    """State of an optimizer with `kahan`.

    Attributes:
        inner: the optimizer's own.
        compensation: what parameters lack of what they should be; bf16, in their shapes.
    """

    inner: PyTree
    compensation: PyTree


def round_stochastically(x: Float32[Array, "*shape"], bits: UInt[Array, "*shape"]) -> BFloat16[Array, "*shape"]:
    """bf16 above or below each number, with expectation equal to it; numbers that bf16 has, and what is not finite,
    stay as they are.

    Args:
        x: fp32.
        bits: uniform uint16.
    """
    words = jax.lax.bitcast_convert_type(x, jnp.uint32) + bits.astype(jnp.uint32)
    # Sign and size are apart in a word: adding to it moves away from 0, so negative numbers round the same way.
    rounded = jax.lax.bitcast_convert_type((words >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), rounded, x.astype(jnp.bfloat16))


def nearest(optimizer: Optimizer) -> Updater:
    """Updates added in fp32 and rounded to the nearest bf16."""

    def update(
        gradients: PyTree, state: PyTree, trainable: PyTree, key: Key[Array, ""], updated: Bool[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        del key
        wide, updates, state = _in_fp32(optimizer, gradients, state, trainable, updated)
        return jax.tree.map(lambda old, w, u: (w + u).astype(old.dtype), trainable, wide, updates), state

    return Updater(_init_in_fp32(optimizer), update)


def stochastic(optimizer: Optimizer) -> Updater:
    """Updates added in fp32 and rounded up or down by chance."""

    def update(
        gradients: PyTree, state: PyTree, trainable: PyTree, key: Key[Array, ""], updated: Bool[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        wide, updates, state = _in_fp32(optimizer, gradients, state, trainable, updated)
        leaves, structure = jax.tree.flatten(trainable)
        keys = [jax.random.fold_in(jax.random.fold_in(key, _SITE), leaf) for leaf in range(len(leaves))]
        return jax.tree.map(_add_stochastically, wide, updates, jax.tree.unflatten(structure, keys)), state

    return Updater(_init_in_fp32(optimizer), update)


def kahan(optimizer: Optimizer) -> Updater:
    """Updates added with the remainder of the updates before."""

    def init(trainable: PyTree) -> Compensated:
        return Compensated(_init_in_fp32(optimizer)(trainable), jax.tree.map(jnp.zeros_like, trainable))

    def update(
        gradients: PyTree, state: Compensated, trainable: PyTree, key: Key[Array, ""], updated: Bool[Array, ""]
    ) -> tuple[PyTree, Compensated]:
        del key
        wide, updates, inner = _in_fp32(optimizer, gradients, state.inner, trainable, updated)
        pairs = jax.tree.map(_add_compensated, wide, updates, state.compensation)
        trainable, compensation = jax.tree.transpose(jax.tree.structure(trainable), jax.tree.structure((0, 0)), pairs)
        return trainable, Compensated(inner, select(updated, compensation, state.compensation))

    return Updater(init, update)


def _init_in_fp32(optimizer: Optimizer):  # type: ignore[no-untyped-def]
    return lambda trainable: optimizer.init(cast_floating(trainable, jnp.float32))


def _in_fp32(
    optimizer: Optimizer, gradients: PyTree, state: PyTree, trainable: PyTree, updated: Bool[Array, ""]
) -> tuple[PyTree, PyTree, PyTree]:
    """Parameters and updates in fp32, and the optimizer's new state."""
    wide = cast_floating(trainable, jnp.float32)
    updates, state = optimizer.update(cast_floating(gradients, jnp.float32), state, wide, updated=updated)
    return wide, cast_floating(updates, jnp.float32), state


def _add_stochastically(old: Array, update: Array, key: Key[Array, ""]) -> Array:
    return round_stochastically(old + update, jax.random.bits(key, old.shape, jnp.uint16))


def _add_compensated(old: Float[Array, "..."], update: Array, compensation: Array) -> tuple[Array, Array]:
    change = update + compensation.astype(jnp.float32)
    # Not a cast there and back: XLA takes such a pair away, and with it the remainder.
    new = jax.lax.reduce_precision(old + change, **_BF16_BITS)
    return new.astype(jnp.bfloat16), (change - (new - old)).astype(jnp.bfloat16)
