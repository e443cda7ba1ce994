"""Dropout that does not notice how the batch was split.

Every row of the GLOBAL batch has its own key, made from the run's key, the update and the row's number. A mask is drawn
per row from that key, so micro-batching, rematerialization and the order of micro-batches cannot change it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key


def row_keys(key: Key[Array, ""], rows: int) -> Key[Array, " rows"]:
    """One key for each row of the global batch."""
    return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(rows))


def site_keys(keys: Key[Array, " rows"], site: int | Array) -> Key[Array, " rows"]:
    """Row keys for one place in the model, such as `3 * layer + 1`."""
    return jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, site)


def keep_mask(keys: Key[Array, " rows"], rate: float, shape: tuple[int, ...]) -> Bool[Array, "rows ..."]:
    """Which elements are kept, each with probability `1 - rate`; `shape` is that of one row."""
    return jax.vmap(lambda key: jax.random.bernoulli(key, 1 - rate, shape))(keys)


def dropout(x: Float[Array, "rows ..."], rate: float, keys: Key[Array, " rows"] | None) -> Float[Array, "rows ..."]:
    """Set elements to zero with probability `rate` and scale the rest by `1 / (1 - rate)`.

    Args:
        x: activations, rows first.
        rate: probability of dropping, 0 <= rate < 1. Zero costs nothing.
        keys: one key per row, or None when evaluating: then nothing is dropped.

    Source: Srivastava et al., Dropout, JMLR 2014.
    """
    if rate == 0 or keys is None:
        return x
    keep = keep_mask(keys, rate, x.shape[1:])
    return jnp.where(keep, x / jnp.asarray(1 - rate, x.dtype), jnp.zeros((), x.dtype))
