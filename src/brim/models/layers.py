"""The parts of a decoder: linear, embedding, norms, rotary positions, attention projections, feed-forward.

Letters: B rows, T positions, H query heads, K key-value heads, D head width, I inputs, O outputs.

Weights are stored [out, in]: the gradient of `x @ weight.T` then comes out of the matrix product in the layout of the
weight, without a transpose. Parameters are kept as they are given (fp32) and cast to the dtype of `x` where they are
used, so that the casted copy lives no longer than the product. Norms and rotary turns are computed in fp32 always.
Every array of a module is a trainable parameter; what is fixed is a static field.

Norms and activation functions keep only their INPUTS for the backward pass and make the rest again (`keep_inputs`), as
PyTorch does. Plain differentiation would save some ten arrays of [B, T, width] and four of [B, T, hidden] per layer in
a scanned stack: 1000 MiB instead of 634 MiB of temporaries for 6 layers of width 384 at 8 x 256 positions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from brim.models.shape import DecoderShape
from brim.ops import residual

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights: GPT-2's. The Llama papers give none; its released configurations say 0.02."""


keep_inputs = functools.partial(jax.checkpoint, prevent_cse=False)
"""Decorator for cheap elementwise functions. XLA may still merge both computations: then nothing is lost in time."""


def named(name: str, function: Callable[..., Array], *inputs: Any) -> Array:
    """An intermediate of a block under its name: a residual for techniques, and a scope in what is read of XLA."""
    with jax.named_scope(name):
        return residual(function(*inputs), name)


class Linear(eqx.Module):
    """`x @ weight.T + bias`, in the dtype of `x`."""

    weight: Float[Array, "O I"]
    bias: Float[Array, " O"] | None

    @classmethod
    def create(
        cls, key: Key[Array, ""], inputs: int, outputs: int, *, bias: bool, deviation: float = INITIAL_DEVIATION
    ) -> Linear:
        """Normal weights with the given standard deviation, and a zero bias, in fp32."""
        weight = deviation * jax.random.normal(key, (outputs, inputs), jnp.float32)
        return cls(weight, jnp.zeros(outputs, jnp.float32) if bias else None)

    def __call__(self, x: Float[Array, "*batch I"]) -> Float[Array, "*batch O"]:
        # As a product of two plain matrices: XLA's CPU backend takes a slower routine when the rows have several axes.
        rows = x.reshape(-1, x.shape[-1])
        y = jax.lax.dot_general(rows, self.weight.astype(x.dtype), (((1,), (1,)), ((), ())))
        y = y.reshape(*x.shape[:-1], y.shape[-1])
        return y if self.bias is None else y + _spread(self.bias.astype(x.dtype), y)


class Embedding(eqx.Module):
    """Rows of a table, in the table's dtype."""

    weight: Float[Array, "entries width"]

    @classmethod
    def create(cls, key: Key[Array, ""], entries: int, width: int) -> Embedding:
        """A normal table in fp32."""
        return cls(INITIAL_DEVIATION * jax.random.normal(key, (entries, width), jnp.float32))

    def __call__(self, ids: Int[Array, "*batch"]) -> Float[Array, "*batch width"]:
        return self.weight[ids]


class LayerNorm(eqx.Module):
    """Zero mean and unit variance over the last axis, then scale and shift. In fp32 whatever the dtype of `x`.

    Source: Ba et al., Layer Normalization, 2016.
    """

    scale: Float[Array, " width"]
    bias: Float[Array, " width"] | None
    epsilon: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return _layer_norm(x, self.scale, self.bias, self.epsilon)


class RMSNorm(eqx.Module):
    """Unit mean square over the last axis, then scale. In fp32 whatever the dtype of `x`.

    Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """

    scale: Float[Array, " width"]
    epsilon: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return _rms_norm(x, self.scale, self.epsilon)


def create_norm(shape: DecoderShape) -> LayerNorm | RMSNorm:
    """The norm of the family, with scale 1 and shift 0."""
    scale = jnp.ones(shape.width, jnp.float32)
    if shape.family == "llama":
        return RMSNorm(scale, shape.norm_epsilon)
    return LayerNorm(scale, jnp.zeros(shape.width, jnp.float32) if shape.bias else None, shape.norm_epsilon)


class Rotary(eqx.Module):
    """Cosines and sines of the angles by which positions turn pairs of numbers; fp32, made once per forward pass.

    Pairs are half a head apart (`i` and `i + D/2`), the order of the released Llama weights in the Hugging Face layout.
    Source: Su et al., RoFormer, 2021.
    """

    cosine: Float[Array, "B T half"]
    sine: Float[Array, "B T half"]

    @classmethod
    def create(cls, positions: Int[Array, "B T"], head_width: int, theta: float) -> Rotary:
        """Tables for the positions of a batch; a rounded position or angle would turn by an unrelated amount."""
        frequencies = np.asarray(theta ** (-np.arange(0, head_width, 2) / head_width), np.float32)
        angles = positions.astype(jnp.float32)[..., None] * frequencies[None, None]
        return cls(jnp.cos(angles), jnp.sin(angles))

    def __call__(self, x: Float[Array, "B T heads D"]) -> Float[Array, "B T heads D"]:
        first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
        cosine, sine = self.cosine[:, :, None], self.sine[:, :, None]
        turned = jnp.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned.astype(x.dtype)


class Attention(eqx.Module):
    """The projections around attention, with grouped key-value heads. Mixing itself is `ops.attention`."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    head_width: int = eqx.field(static=True)

    @classmethod
    def create(cls, key: Key[Array, ""], shape: DecoderShape) -> Attention:
        """As published; the projection back into the residual stream is scaled down by depth."""
        query_key, key_key, value_key, out_key = jax.random.split(key, 4)
        inner, kv_inner = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        return cls(
            query=Linear.create(query_key, shape.width, inner, bias=shape.bias),
            key=Linear.create(key_key, shape.width, kv_inner, bias=shape.bias),
            value=Linear.create(value_key, shape.width, kv_inner, bias=shape.bias),
            out=Linear.create(out_key, inner, shape.width, bias=shape.bias, deviation=residual_deviation(shape)),
            head_width=shape.head_width,
        )

    def project(
        self, x: Float[Array, "B T width"], rotary: Rotary | None
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"], Float[Array, "B T K D"]]:
        """Queries, keys and values; queries and keys are turned by their positions."""
        rows = x.reshape(-1, x.shape[-1])  # once: every reshape would be a residual of its own

        def heads(linear: Linear, rotary: Rotary | None) -> Float[Array, "B T heads D"]:
            found = linear(rows).reshape(*x.shape[:2], -1, self.head_width)
            return found if rotary is None else rotary(found)

        query = named("query", heads, self.query, rotary)
        return query, named("key", heads, self.key, rotary), named("value", heads, self.value, None)

    def merge(self, mixed: Float[Array, "B T H D"]) -> Float[Array, "B T width"]:
        """Project mixed values back into the residual stream."""
        mixed = residual(mixed, "attention")
        return named("attention_out", _merged, self.out, mixed)


@keep_inputs
def _merged(out: Linear, mixed: Float[Array, "B T H D"]) -> Float[Array, "B T width"]:
    # Fused attention keeps its result too, in this shape: as rows of their own they would be kept a second time.
    return out(mixed.reshape(*mixed.shape[:2], -1))


class FeedForward(eqx.Module):
    """GELU between two linear layers, or SwiGLU: `down(silu(gate(x)) * up(x))`.

    GELU is the tanh form of GPT-2. Sources: Hendrycks and Gimpel, GELUs, 2016; Shazeer, GLU Variants, 2020.
    """

    up: Linear
    gate: Linear | None
    down: Linear

    @classmethod
    def create(cls, key: Key[Array, ""], shape: DecoderShape) -> FeedForward:
        """As published; the projection back into the residual stream is scaled down by depth."""
        up_key, gate_key, down_key = jax.random.split(key, 3)
        gate = Linear.create(gate_key, shape.width, shape.hidden, bias=shape.bias) if shape.gated else None
        return cls(
            up=Linear.create(up_key, shape.width, shape.hidden, bias=shape.bias),
            gate=gate,
            down=Linear.create(
                down_key, shape.hidden, shape.width, bias=shape.bias, deviation=residual_deviation(shape)
            ),
        )

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        rows = x.reshape(-1, x.shape[-1])  # once: every reshape would be a residual of its own
        hidden = named("mlp_hidden", self.up, rows)
        if self.gate is None:
            activation = named("mlp_activation", _gelu, hidden)
        else:
            activation = named("mlp_activation", _swiglu, named("mlp_gate", self.gate, rows), hidden)
        return named("mlp_out", self.down, activation).reshape(x.shape)


def residual_deviation(shape: DecoderShape) -> float:
    """Initial deviation of projections that add to the residual stream, of which there are two per layer.

    Source: Radford et al. 2019, section 2.3: weights of residual layers are scaled by 1 / sqrt(number of them).
    """
    return INITIAL_DEVIATION * (2 * shape.layers) ** -0.5


@functools.partial(keep_inputs, static_argnums=3)
def _layer_norm(
    x: Float[Array, "*batch width"], scale: Float[Array, " width"], bias: Float[Array, " width"] | None, epsilon: float
) -> Float[Array, "*batch width"]:
    wide = x.astype(jnp.float32)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(centered).mean(axis=-1, keepdims=True)
    y = centered * jax.lax.rsqrt(variance + epsilon) * _spread(scale.astype(jnp.float32), x)
    if bias is not None:
        y = y + _spread(bias.astype(jnp.float32), x)
    return y.astype(x.dtype)


@functools.partial(keep_inputs, static_argnums=2)
def _rms_norm(
    x: Float[Array, "*batch width"], scale: Float[Array, " width"], epsilon: float
) -> Float[Array, "*batch width"]:
    wide = x.astype(jnp.float32)
    mean_square = jnp.square(wide).mean(axis=-1, keepdims=True)
    y = wide * jax.lax.rsqrt(mean_square + epsilon) * _spread(scale.astype(jnp.float32), x)
    return y.astype(x.dtype)


@keep_inputs
def _gelu(x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    if x.dtype == jnp.float16:  # the cube of 41 is infinite there
        return jax.nn.gelu(x.astype(jnp.float32), approximate=True).astype(x.dtype)
    return jax.nn.gelu(x, approximate=True)


@keep_inputs
def _swiglu(gate: Float[Array, "*batch hidden"], up: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    return jax.nn.silu(gate) * up


def _spread(vector: Float[Array, " width"], like: Float[Array, "*batch width"]) -> Float[Array, "*ones width"]:
    """A vector with leading axes of size 1, so that it meets `like` without implicit rank promotion."""
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape)
