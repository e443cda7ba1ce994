"""Sampling from a decoder, one token at a time, with a key-value cache.

Letters: L layers, B rows, T new positions, S slots of the cache, H query heads, K key-value heads, D head width,
V vocabulary.

The cache holds the keys and values of all earlier positions: 2 L S K D numbers per row. A new token then costs one
pass through the weights instead of a pass over the whole text. The layers are those of training (`Block.project` and
`Block.finish`); only the mixing between positions is done here.

When the context is full, sampling goes on with the last half of it: those tokens are read again from position 0, since
learned positions end there, and rotary ones were never trained beyond it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from brim.errors import DataError, SettingsError
from brim.models.decoder import Block, Decoder
from brim.models.layers import Rotary
from brim.models.shape import DecoderShape
from brim.ops import scan_stack
from brim.ops.attention import masked_softmax
from brim.settings import require


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the logits.

    Attributes:
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: draw from the `top_k` likeliest tokens only; None: all.
        top_p: draw from the fewest likeliest tokens that together have this probability; None: all.
            Source: Holtzman et al., The Curious Case of Neural Text Degeneration, 2019.

    Raises:
        SettingsError: on a value out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        require(self.temperature >= 0, "temperature", self.temperature, "a number of at least 0")
        require(self.top_k is None or self.top_k >= 1, "top_k", self.top_k, "a whole number of at least 1")
        require(self.top_p is None or 0 < self.top_p <= 1, "top_p", self.top_p, "a probability above 0, at most 1")


class Cache(eqx.Module):
    """Keys and values of earlier positions, in the compute dtype."""

    keys: Float[Array, "L B S K D"]
    values: Float[Array, "L B S K D"]

    @classmethod
    def create(cls, shape: DecoderShape, rows: int, slots: int, dtype: DTypeLike) -> Cache:
        """Empty slots; what is in them is never looked at before it is written."""
        sizes = (shape.layers, rows, slots, shape.kv_heads, shape.head_width)
        return cls(jnp.zeros(sizes, dtype), jnp.zeros(sizes, dtype))

    def write(
        self, layer: Int[Array, ""], start: Int[Array, ""], key: Float[Array, "B T K D"], value: Float[Array, "B T K D"]
    ) -> Cache:
        """The cache with the keys and values of one layer put into slots from `start` on."""
        at = (layer, 0, start, 0, 0)
        return Cache(
            jax.lax.dynamic_update_slice(self.keys, key[None], at),
            jax.lax.dynamic_update_slice(self.values, value[None], at),
        )


def generate(
    model: Decoder,
    prompt: Sequence[int],
    *,
    new_tokens: int,
    key: Key[Array, ""],
    sampling: Sampling = Sampling(),
    stop_id: int | None = None,
    compute: DTypeLike = jnp.float32,
) -> Iterator[int]:
    """Token ids that continue a prompt, as they are drawn.

    Args:
        model: trained parameters.
        prompt: token ids, at least one and at most a context full.
        new_tokens: how many to draw at most.
        key: the same key gives the same text.
        sampling: how a token is drawn.
        stop_id: ends the text; it is not given out itself.
        compute: dtype of activations and of the cache.

    Raises:
        SettingsError: if `new_tokens` is below 0, or the prompt is empty or longer than the context.
        DataError: if the prompt has ids outside the vocabulary.
    """
    require(new_tokens >= 0, "new_tokens", new_tokens, "a whole number of at least 0")
    _check_prompt(model.shape, prompt)
    return _draw(model, list(prompt), new_tokens, key, sampling, stop_id, compute)


def extend(
    model: Decoder, cache: Cache, tokens: Int[Array, "B T"], start: Int[Array, ""]
) -> tuple[Float[Array, "B V"], Cache]:
    """Read tokens that stand at positions `start`, `start + 1`, ... into the cache.

    Returns: logits of the token after the last one, in the cache's dtype, and the new cache.
    """
    rows, count = tokens.shape
    positions = jnp.broadcast_to((start + jnp.arange(count, dtype=jnp.int32))[None], (rows, count))
    visible = jnp.arange(cache.keys.shape[2], dtype=jnp.int32)[None, None] <= positions[:1, :, None]

    def read(
        layer: Block, carry: tuple[Array, Cache], rotary: Rotary | None, index: Int[Array, ""], /
    ) -> tuple[Array, Cache]:  # fmt: skip
        x, cache = carry
        query, keys, values = layer.project(x, rotary)
        # The cache is carried, not stacked from the scan's outputs, so that XLA writes it in place.
        cache = cache.write(index, start, keys, values)
        mixed = _attend(query, cache.keys[index], cache.values[index], visible)
        return layer.finish(x, mixed), cache

    x = model.embed(tokens, positions, cache.keys.dtype)
    x, cache = scan_stack(read, model.layers, (x, cache), model.rotary(positions), model.repeats)
    last = model.final_norm(x[:, -1])
    return last @ model.head_weight.astype(last.dtype).T, cache


def choose(logits: Float[Array, " V"], key: Key[Array, ""], sampling: Sampling) -> Int[Array, ""]:
    """Draw one token id."""
    logits = logits.astype(jnp.float32)
    if sampling.temperature == 0:
        return jnp.argmax(logits).astype(jnp.int32)
    logits = logits / sampling.temperature
    if sampling.top_k is not None:
        likeliest, _ = jax.lax.top_k(logits, min(sampling.top_k, logits.size))
        logits = jnp.where(logits < likeliest[-1], -jnp.inf, logits)
    if sampling.top_p is not None:
        descending = jnp.sort(logits, descending=True)
        probabilities = jax.nn.softmax(descending)
        mass_before = jnp.cumsum(probabilities) - probabilities
        kept = (mass_before < sampling.top_p).at[0].set(True)
        logits = jnp.where(logits < jnp.where(kept, descending, jnp.inf).min(), -jnp.inf, logits)
    return jax.random.categorical(key, logits).astype(jnp.int32)


def _draw(
    model: Decoder,
    tokens: list[int],
    new_tokens: int,
    key: Key[Array, ""],
    sampling: Sampling,
    stop_id: int | None,
    compute: DTypeLike,
) -> Iterator[int]:
    context = model.shape.context
    slots = min(context, len(tokens) + new_tokens)
    cache, filled, pending = Cache.create(model.shape, 1, slots, compute), 0, tokens
    for count in range(new_tokens):
        if filled + len(pending) > slots:
            filled, pending = 0, tokens[-max(context // 2, 1) :]
        chosen, cache = _advance(
            model, cache, np.asarray([pending], np.int32), np.int32(filled), jax.random.fold_in(key, count), sampling
        )
        filled += len(pending)
        pending = [int(chosen)]
        if pending[0] == stop_id:
            return
        tokens += pending
        yield pending[0]


@functools.partial(jax.jit, static_argnames="sampling", donate_argnames="cache")
def _advance(
    model: Decoder,
    cache: Cache,
    tokens: Int[Array, "1 T"],
    start: Int[Array, ""],
    key: Key[Array, ""],
    sampling: Sampling,
) -> tuple[Int[Array, ""], Cache]:
    """Read tokens and draw the next one; compiled once for the prompt and once for single tokens."""
    logits, cache = extend(model, cache, tokens, start)
    return choose(logits[0], key, sampling), cache


def _attend(
    query: Float[Array, "B T H D"],
    keys: Float[Array, "B S K D"],
    values: Float[Array, "B S K D"],
    visible: Bool[Array, "1 T S"],
) -> Float[Array, "B T H D"]:
    """Attention of new positions to the slots they may see; the meaning of `ops.reference_attention`."""
    rows, count, heads, width = query.shape
    kv_heads = keys.shape[2]
    grouped = query.reshape(rows, count, kv_heads, heads // kv_heads, width)
    logits = jnp.einsum("btkgd,bskd->bkgts", grouped, keys, preferred_element_type=jnp.float32) * width**-0.5
    probabilities = masked_softmax(logits, visible).astype(values.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", probabilities, values).reshape(query.shape)


def _check_prompt(shape: DecoderShape, prompt: Sequence[int]) -> None:
    if len(prompt) == 0:
        raise SettingsError("the prompt has no tokens; expected at least 1", hint="give some text to continue")
    if len(prompt) > shape.context:
        raise SettingsError(
            f"the prompt has {len(prompt)} tokens; the model's context is {shape.context}",
            hint="shorten the prompt: what does not fit is not dropped in silence",
        )
    outside = [token for token in prompt if not 0 <= token < shape.vocabulary]
    if outside:
        raise DataError(
            f"the prompt has token id {outside[0]}; the vocabulary is 0 to {shape.vocabulary - 1}",
            hint="use the tokenizer the model was trained with",
        )
