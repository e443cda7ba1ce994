"""Attention, written out plainly: the meaning that every faster kernel must match.

Letters: B rows, T query positions, S key positions, H query heads, K key-value heads, D head width.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from brim.ops.dropout import keep_mask


class AttentionMask(eqx.Module):
    """Who may look at whom in self-attention. All conditions that are given must hold.

    Attributes:
        documents: document number of each position, 0 for padding. A position sees its own document only; padding
            sees nothing and nothing sees it. None: the row is one document without padding.
        causal: a position sees itself and earlier positions only.
    """

    documents: Int[Array, "B T"] | None = None
    causal: bool = eqx.field(default=True, static=True)

    def visible(self, queries: slice, keys: slice, length: int) -> Bool[Array, "#B q k"] | None:
        """Which keys each query sees, for a block of positions of a row of `length`; None means all of them."""
        positions = jnp.arange(length)
        seen = positions[queries, None] >= positions[None, keys] if self.causal else None
        seen = None if seen is None else seen[None]
        if self.documents is not None:
            query_documents, key_documents = self.documents[:, queries, None], self.documents[:, None, keys]
            same = (query_documents == key_documents) & (query_documents > 0)
            seen = same if seen is None else seen & same
        return seen


@runtime_checkable
class AttentionFunction(Protocol):
    """What models call and attention techniques replace."""

    def __call__(
        self,
        query: Float[Array, "B T H D"],
        key: Float[Array, "B T K D"],
        value: Float[Array, "B T K D"],
        mask: AttentionMask,
        *,
        dropout_rate: float = 0.0,
        dropout_keys: Key[Array, " B"] | None = None,
    ) -> Float[Array, "B T H D"]: ...


def reference_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B T K D"],
    value: Float[Array, "B T K D"],
    mask: AttentionMask,
    *,
    dropout_rate: float = 0.0,
    dropout_keys: Key[Array, " B"] | None = None,
) -> Float[Array, "B T H D"]:
    """Scaled dot-product attention with softmax in fp32, scale `1 / sqrt(D)`.

    Query head `i` uses key-value head `i // (H / K)`. A query that sees no key gives exactly 0, with zero gradient.
    Dropout acts on the attention probabilities; `dropout_keys` None means evaluation.

    Returns: the mixed values, in the dtype of `query`. Memory: the [B, H, T, T] probabilities, in fp32.
    Source: Vaswani et al., Attention Is All You Need, 2017; grouped heads: Ainslie et al., GQA, 2023.
    """
    length, kv_heads = query.shape[1], key.shape[2]
    grouped = _group_heads(query, kv_heads)
    logits = jnp.einsum("btkgd,bskd->bkgts", grouped, key, preferred_element_type=jnp.float32)
    logits = logits * query.shape[-1] ** -0.5
    probabilities = masked_softmax(logits, mask.visible(slice(None), slice(None), length))
    if dropout_rate > 0 and dropout_keys is not None:
        keep = keep_mask(dropout_keys, dropout_rate, probabilities.shape[1:])
        probabilities = jnp.where(keep, probabilities / (1 - dropout_rate), 0.0)
    mixed = jnp.einsum("bkgts,bskd->btkgd", probabilities.astype(value.dtype), value)
    return mixed.reshape(query.shape).astype(query.dtype)


def masked_softmax(
    logits: Float[Array, "B K G q k"], visible: Bool[Array, "#B q k"] | None
) -> Float[Array, "B K G q k"]:
    """Softmax over the last axis, in fp32, over visible entries only; all zeros where nothing is visible.

    A large finite number stands for minus infinity, since `inf - inf` is NaN in both directions.
    """
    if visible is None:
        return jax.nn.softmax(logits, axis=-1)
    visible = jnp.expand_dims(visible, (1, 2))
    logits = jnp.where(visible, logits, jnp.finfo(jnp.float32).min)
    highest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    weights = jnp.where(visible, jnp.exp(logits - highest), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    return weights / jnp.where(total > 0, total, 1.0)


def _group_heads(query: Float[Array, "B T H D"], kv_heads: int) -> Float[Array, "B T K G D"]:
    batch, length, heads, width = query.shape
    return query.reshape(batch, length, kv_heads, heads // kv_heads, width)
