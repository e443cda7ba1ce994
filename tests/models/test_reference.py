"""The decoder against a slow, obvious one in NumPy float64, written from the papers and knowing only the parameters."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brim.models import DecoderShape
from brim.models.decoder import Decoder, decoder_loss
from brim.models.layers import LayerNorm, Linear, RMSNorm
from brim.ops import Dtypes, Ops

MakeModel = Callable[[DecoderShape], Decoder]
logits_of = jax.jit(Decoder.logits, static_argnames="ops")


def array(x: jax.Array) -> np.ndarray:
    return np.asarray(x, np.float64)


def linear(part: Linear, x: np.ndarray) -> np.ndarray:
    y = np.einsum("oi,i->o", array(part.weight), x)
    return y if part.bias is None else y + array(part.bias)


def norm(part: LayerNorm | RMSNorm, x: np.ndarray, shape: DecoderShape) -> np.ndarray:
    if shape.family == "llama":
        return x / np.sqrt(np.mean(x**2) + shape.norm_epsilon) * array(part.scale)
    y = (x - x.mean()) / np.sqrt(x.var() + shape.norm_epsilon) * array(part.scale)
    return y if part.bias is None else y + array(part.bias)


def turned(x: np.ndarray, position: int, shape: DecoderShape) -> np.ndarray:
    """RoPE on one head: pair (i, i + half) is turned by position / theta ** (2 i / head width)."""
    if shape.rope_theta is None:
        return x
    half, y = len(x) // 2, x.copy()
    for i in range(half):
        angle = position * shape.rope_theta ** (-2 * i / len(x))
        y[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
        y[i + half] = x[i] * np.sin(angle) + x[i + half] * np.cos(angle)
    return y


def attention(layer: Decoder, xs: list[np.ndarray], positions: list[int], shape: DecoderShape) -> list[np.ndarray]:
    part, width = layer.attention, shape.head_width
    queries = [linear(part.query, x).reshape(-1, width) for x in xs]
    keys = [linear(part.key, x).reshape(-1, width) for x in xs]
    values = [linear(part.value, x).reshape(-1, width) for x in xs]
    outputs = []
    for now in range(len(xs)):
        heads = []
        for head in range(shape.heads):
            served_by = head // (shape.heads // shape.kv_heads)
            query = turned(queries[now][head], positions[now], shape)
            scores = np.array(
                [query @ turned(keys[past][served_by], positions[past], shape) for past in range(now + 1)]
            )
            weights = np.exp(scores / np.sqrt(width))
            weights /= weights.sum()
            heads.append(sum(weights[past] * values[past][served_by] for past in range(now + 1)))
        outputs.append(linear(part.out, np.concatenate(heads)))
    return outputs


def feed_forward(layer: Decoder, x: np.ndarray) -> np.ndarray:
    up = linear(layer.mlp.up, x)
    if layer.mlp.gate is None:
        return linear(layer.mlp.down, 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up**3))))
    gate = linear(layer.mlp.gate, x)
    return linear(layer.mlp.down, gate / (1 + np.exp(-gate)) * up)


def document_logits(model: Decoder, tokens: list[int], positions: list[int]) -> np.ndarray:
    """Logits of ONE document, [tokens, vocabulary]."""
    shape = model.shape
    xs = [array(model.token_embedding.weight)[token] for token in tokens]
    if model.position_embedding is not None:
        xs = [x + array(model.position_embedding.weight)[at] for x, at in zip(xs, positions, strict=True)]
    for index in range(shape.layers):
        layer = jax.tree.map(operator.itemgetter(index), model.layers)
        mixed = attention(layer, [norm(layer.attention_norm, x, shape) for x in xs], positions, shape)
        xs = [x + change for x, change in zip(xs, mixed, strict=True)]
        xs = [x + feed_forward(layer, norm(layer.mlp_norm, x, shape)) for x in xs]
    head = array(model.token_embedding.weight if model.head is None else model.head.weight)
    return np.stack([head @ norm(model.final_norm, x, shape) for x in xs])


def batch_logits(model: Decoder, batch: dict[str, jax.Array]) -> np.ndarray:
    """Each document of each row on its own; zeros at padding."""
    tokens, documents, positions = (np.asarray(batch[name]) for name in ("tokens", "documents", "positions"))
    logits = np.zeros((*tokens.shape, model.shape.vocabulary))
    for row, document in itertools.product(range(len(tokens)), range(1, documents.max() + 1)):
        at = np.flatnonzero(documents[row] == document)
        if at.size:
            logits[row, at] = document_logits(model, tokens[row, at].tolist(), positions[row, at].tolist())
    return logits


def test_logits_equal_the_reference(shape: DecoderShape, make_model: MakeModel, packed_batch: dict) -> None:
    model = make_model(shape)
    expected = batch_logits(model, packed_batch)
    found = np.where(packed_batch["documents"][..., None] > 0, logits_of(model, packed_batch, Ops()), 0)
    assert np.abs(expected).max() > 2, "logits must be large enough for a mistake to show"
    # fp32 against float64, relative to the largest logit.
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())


def batch_loss(model: Decoder, batch: dict[str, jax.Array]) -> float:
    """Summed cross-entropy of the targets that are not below 0."""
    logits, targets = batch_logits(model, batch), np.asarray(batch["targets"])
    chosen = np.take_along_axis(logits, np.maximum(targets, 0)[..., None], axis=-1)[..., 0]
    return (np.log(np.exp(logits).sum(axis=-1)) - chosen)[targets >= 0].sum()


def moved(model: Decoder, direction: Decoder, distance: float) -> Decoder:
    """The model with float64 parameters, moved along a direction."""
    return jax.tree.map(lambda leaf, change: np.asarray(leaf, np.float64) + distance * change, model, direction)


def test_loss_and_gradient_equal_the_reference(shape: DecoderShape, make_model: MakeModel, packed_batch: dict) -> None:
    model = make_model(shape)

    @jax.jit
    @jax.value_and_grad
    def total(model: Decoder) -> jax.Array:
        loss, variables = decoder_loss(model, (), (), packed_batch, None, Ops())
        assert variables == ()
        return loss.total

    found, gradient = total(model)
    assert found == pytest.approx(batch_loss(model, packed_batch), rel=1e-5)

    # The slope along a random direction that touches every parameter, by central differences in float64.
    random, step = np.random.default_rng(2), 1e-5
    direction = jax.tree.map(lambda leaf: random.normal(size=leaf.shape), model)
    ahead, behind = (moved(model, direction, distance) for distance in (step, -step))
    slope = (batch_loss(ahead, packed_batch) - batch_loss(behind, packed_batch)) / (2 * step)
    products = jax.tree.map(lambda leaf, change: np.vdot(np.asarray(leaf, np.float64), change), gradient, direction)
    # fp32 sums of gradients of some hundred; the central difference itself is right to 1e-7.
    assert sum(jax.tree.leaves(products)) == pytest.approx(slope, rel=1e-4)


def test_bf16_compute_is_near_the_reference(shape: DecoderShape, make_model: MakeModel, packed_batch: dict) -> None:
    model = make_model(shape)
    expected = batch_logits(model, packed_batch)
    found = logits_of(model, packed_batch, Ops(Dtypes(compute=jnp.bfloat16)))
    assert found.dtype == jnp.bfloat16
    found = np.where(packed_batch["documents"][..., None] > 0, np.asarray(found, np.float64), 0)
    # Some ten roundings of 2**-9 on the way; a norm, softmax or rotary table in bf16 would be far off.
    assert np.abs(found - expected).max() < 0.06 * np.abs(expected).max()
