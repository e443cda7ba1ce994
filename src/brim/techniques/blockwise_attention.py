"""Blockwise attention: exact attention that keeps no probabilities for its backward pass.

WHAT IT DOES. Queries are taken in blocks. A block's scores against its keys are made, turned into weights, used, and
dropped; of each query only the logarithm of the sum of its exponentials (fp32) is kept. The backward pass makes the
scores again, block by block, and with that logarithm gets the same probabilities in one step, without another softmax.
Under a causal mask a block looks only at keys up to its own end, so the upper triangle is mostly never computed.

BYTES, for B rows, H query heads, T positions, blocks of t, with T^2 probabilities per row and head in the reference:
    reference    8 B H T^2 kept for each layer: exponentials and probabilities, in fp32
    blockwise    4 B H T kept for each layer
While a layer is differentiated, a GPU has about 12 B H t T alive (compiled for an H100: 221 MiB for B = 2, H = 8,
T = 2048, t = 512, where the reference has 768). XLA's CPU backend works on all blocks of a row at the same time, so
there it is about 7 H T^2 of one row with `row_by_row`, and of all rows without.

TIME. Seven matrix products of [T, D] by [D, T] per head where the reference needs six; with n causal blocks only
(n + 1) / 2n of each is computed: 3.9 products' worth at n = 8. `row_by_row` runs the rows of the batch one after the
other, so that the scores of one row stay in a CPU's cache; a GPU wants all rows at once.

Scores stand as [keys, queries]: the matrix products that follow are faster that way on XLA's CPU backend, and the
softmax over keys is then a sum over rows, which vectorizes along queries.

WHEN IT HARMS. Not in the result: sums in another order. Documents are masked, not skipped. Blocks are written out in
the program, so very long rows with small blocks compile slowly. Reverse mode only, as for every custom VJP.

SOURCES. Rabe and Staats, Self-attention Does Not Need O(n^2) Memory, 2021 (arXiv:2112.05682); Dao, FlashAttention-2,
2023 (arXiv:2307.08691), section 3.1 for the backward pass.

Letters: B rows, T query positions, S key positions, K key-value heads, G query heads per key-value head, D head width;
Q the queries of one block in all G heads. Inside, *B is [B, K], or [K] when rows go one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from brim.ops import AttentionMask, residual

SMALLEST_BLOCK, LARGEST_BLOCK = 64, 512
# Stands for minus infinity, whose difference with itself would be NaN.
HIDDEN = float(jnp.finfo(jnp.float32).min)


def chosen_block(length: int) -> int:
    """Queries per block for rows of `length`: an eighth of the row, between 64 and 512.

    Eight blocks skip 7/16 of all scores, of the half that causality allows; smaller ones make the products inefficient.
    """
    return min(LARGEST_BLOCK, max(SMALLEST_BLOCK, -(-length // 8)))


def blockwise_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B T K D"],
    value: Float[Array, "B T K D"],
    mask: AttentionMask,
    *,
    block: int = 0,
    row_by_row: bool = False,
) -> Float[Array, "B T H D"]:
    """As `ops.reference_attention` without dropout.

    Args:
        query: in the compute dtype; its dtype is that of the result.
        key: K key-value heads; query head `i` uses head `i // (H / K)`.
        value: as `key`.
        mask: who may look at whom. A query that sees no key gives exactly 0, with zero gradient.
        block: queries per block; 0: see `chosen_block`.
        row_by_row: whether the rows of the batch are handled one after the other (faster on a CPU, fewer bytes).
    """
    batch, length, heads, width = query.shape
    grouped = query.reshape(batch, length, key.shape[2], heads // key.shape[2], width)
    documents = None if mask.documents is None else mask.documents[:, None]
    plan = _Plan(block or chosen_block(length), mask.causal, row_by_row)
    mixed = _attention(plan, *(jnp.moveaxis(x, 1, -2) for x in (grouped, key, value)), documents)
    return zero_padding(jnp.moveaxis(mixed, -2, 1).reshape(query.shape), mask)


def zero_padding(mixed: Float[Array, "B T H D"], mask: AttentionMask) -> Float[Array, "B T H D"]:
    """The result of attention with padded positions at exactly 0, in value and in gradient.

    Meant for kernels that treat padding as a document of its own. They meet no query without a key, whose softmax
    would be 0 / 0; what they compute for padding means nothing, reaches nothing else, and is taken away here.
    """
    return mixed if mask.documents is None else jnp.where(mask.documents[:, :, None, None] > 0, mixed, 0)


class _Plan(NamedTuple):
    block: int
    causal: bool
    row_by_row: bool

    def blocks(self, length: int) -> list[tuple[slice, slice]]:
        """Positions of each block of queries and of the keys it looks at, the last block first."""
        starts = reversed(range(0, length, self.block))
        ends = [(start, min(start + self.block, length)) for start in starts]
        return [(slice(start, end), slice(0, end if self.causal else length)) for start, end in ends]

    def over_rows(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function of arrays with rows first: on all rows, or on one row after the other, without that axis."""
        if not self.row_by_row:
            return function(self, *arguments)
        return jax.lax.map(lambda row: function(self, *row), arguments)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    plan: _Plan,
    query: Float[Array, "B K G T D"],
    key: Float[Array, "B K T D"],
    value: Float[Array, "B K T D"],
    documents: Int[Array, "B 1 T"] | None,
) -> Float[Array, "B K G T D"]:
    return plan.over_rows(_mix, query, key, value, documents)[0]


def _forward(plan: _Plan, query: Array, key: Array, value: Array, documents: Array | None) -> tuple[Array, Any]:
    # Named as the models name attention's result: whoever keeps that does not run the forward pass again.
    results = plan.over_rows(_mix, query, key, value, documents)
    mixed, log_total = (residual(result, "attention") for result in results)
    return mixed, (query, key, value, documents, mixed, log_total)


def _backward(plan: _Plan, kept: Any, gradient: Array) -> tuple[Array, Array, Array, None]:
    # Without the barrier XLA sees that the scores are those of the forward pass, and on a GPU keeps them after all.
    query, key, value, documents, mixed, log_total, gradient = jax.lax.optimization_barrier((*kept, gradient))
    correction = (gradient.astype(jnp.float32) * mixed.astype(jnp.float32)).sum(axis=-1)
    gradients = plan.over_rows(_gradients, query, key, value, documents, log_total, correction, gradient)
    return *gradients, None


_attention.defvjp(_forward, _backward)


def _mix(
    plan: _Plan,
    query: Float[Array, "*B G T D"],
    key: Float[Array, "*B T D"],
    value: Float[Array, "*B T D"],
    documents: Int[Array, "*#B T"] | None,
) -> tuple[Float[Array, "*B G T D"], Float[Array, "*B G T"]]:
    """Mixed values, and the logarithm of each query's sum of exponentials."""
    groups, length, _ = query.shape[-3:]
    mixed, log_total = [], []
    for queries, keys in plan.blocks(length):
        scores = _scores(_join(query[..., queries, :]), key[..., keys, :])
        scores = _hide(plan, documents, queries, keys, scores, HIDDEN)
        highest = scores.max(axis=-2)
        weights = jnp.exp(scores - highest[..., None, :])
        total = weights.sum(axis=-2)
        product = _einsum("...sq,...sd->...qd", weights.astype(value.dtype), value[..., keys, :])
        mixed.append(_split(product / total[..., None], groups).astype(query.dtype))
        log_total.append(_split((highest + jnp.log(total))[..., None], groups)[..., 0])
    return jnp.concatenate(mixed[::-1], axis=-2), jnp.concatenate(log_total[::-1], axis=-1)


def _gradients(
    plan: _Plan,
    query: Float[Array, "*B G T D"],
    key: Float[Array, "*B T D"],
    value: Float[Array, "*B T D"],
    documents: Int[Array, "*#B T"] | None,
    log_total: Float[Array, "*B G T"],
    correction: Float[Array, "*B G T"],
    gradient: Float[Array, "*B G T D"],
) -> tuple[Float[Array, "*B G T D"], Float[Array, "*B T D"], Float[Array, "*B T D"]]:
    """Gradients with respect to query, key and value.

    `correction` is the sum over keys of probability times its gradient, which equals result times its gradient.
    """
    groups, length, width = query.shape[-3:]
    of_query, of_key, of_value = [], [], []
    for queries, keys in plan.blocks(length):
        block, incoming = _join(query[..., queries, :]), _join(gradient[..., queries, :])
        scores = _scores(block, key[..., keys, :])
        weights = jnp.exp(scores - _per_query(log_total[..., queries]))
        weights = _hide(plan, documents, queries, keys, weights, 0.0)
        change = _einsum("...sd,...qd->...sq", value[..., keys, :], incoming)
        change = weights * (change - _per_query(correction[..., queries])) * width**-0.5
        weights, change = weights.astype(query.dtype), change.astype(query.dtype)
        of_query.append(_split(_einsum("...sq,...sd->...qd", change, key[..., keys, :]), groups).astype(query.dtype))
        of_key.append(_einsum("...sq,...qd->...sd", change, block))
        of_value.append(_einsum("...sq,...qd->...sd", weights, incoming))
    key_gradient, value_gradient = reduce(_add, of_key), reduce(_add, of_value)
    return jnp.concatenate(of_query[::-1], axis=-2), key_gradient.astype(key.dtype), value_gradient.astype(value.dtype)


def _scores(query: Float[Array, "*B Q D"], key: Float[Array, "*B S D"]) -> Float[Array, "*B S Q"]:
    return _einsum("...sd,...qd->...sq", key, query) * query.shape[-1] ** -0.5


def _hide(
    plan: _Plan,
    documents: Int[Array, "*#B T"] | None,
    queries: slice,
    keys: slice,
    x: Float[Array, "*B S Q"],
    hidden: float,
) -> Float[Array, "*B S Q"]:
    """`hidden` in place of the entries that the mask does not allow."""
    positions = jnp.arange(max(queries.stop, keys.stop))
    conditions = [positions[keys, None] <= positions[queries]] if plan.causal else []
    if documents is not None:
        conditions.append(documents[..., keys, None] == documents[..., None, queries])
    for visible in conditions:
        x = jnp.where(jnp.tile(visible, x.shape[-1] // visible.shape[-1]), x, hidden)
    return x


def _add(total: Float[Array, "*B T D"], part: Float[Array, "*B S D"]) -> Float[Array, "*B T D"]:
    """Add the part of a block to the sum over blocks; the last block, which sees all keys, comes first."""
    return total.at[..., : part.shape[-2], :].add(part)


def _einsum(letters: str, first: Array, second: Array) -> Array:
    return jnp.einsum(letters, first, second, preferred_element_type=jnp.float32)


def _per_query(x: Float[Array, "*B G T"]) -> Float[Array, "*B 1 Q"]:
    return x.reshape(*x.shape[:-2], 1, -1)


def _join(x: Float[Array, "*B G T D"]) -> Float[Array, "*B Q D"]:
    return x.reshape(*x.shape[:-3], -1, x.shape[-1])


def _split(x: Float[Array, "*B Q D"], groups: int) -> Float[Array, "*B G T D"]:
    return x.reshape(*x.shape[:-2], groups, -1, x.shape[-1])
