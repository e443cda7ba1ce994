"""Small helpers over pytrees of arrays or of their specs (`jax.ShapeDtypeStruct`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

PyTree = Any
Specs = Any
"""A pytree of `jax.ShapeDtypeStruct`."""


def specs_of(tree: PyTree) -> Specs:
    """Shapes and dtypes of every array leaf, without the data."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def leaf_bytes(leaf: Any) -> int:
    """Bytes of one array or spec. A typed PRNG key counts its raw words."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))
    return int(np.prod(leaf.shape, dtype=np.int64)) * jnp.dtype(leaf.dtype).itemsize


def tree_bytes(tree: PyTree) -> int:
    """Bytes of all array leaves together."""
    return sum(map(leaf_bytes, jax.tree.leaves(tree)))


def tree_size(tree: PyTree) -> int:
    """Number of elements in all array leaves together."""
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) for leaf in jax.tree.leaves(tree))


def is_floating(leaf: Any) -> bool:
    """Whether an array or spec holds floating-point numbers."""
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def cast_floating(tree: PyTree, dtype: DTypeLike) -> PyTree:
    """The tree with every floating-point leaf in `dtype`; integers, booleans and keys are left alone."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if is_floating(leaf) else leaf, tree)


def select(condition: jax.Array, yes: PyTree, no: PyTree) -> PyTree:
    """`yes` where a scalar condition holds, else `no`; leaf by leaf, any dtype, typed keys included."""
    return jax.tree.map(lambda a, b: jax.lax.select(jnp.broadcast_to(condition, a.shape), a, b), yes, no)


def path_names(tree: PyTree) -> list[str]:
    """A readable path for every leaf, such as `trainable.layers.query.weight`."""
    return [
        ".".join(str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key)))) for key in path)
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]
    ]


def shape_changes(expected: Specs, found: PyTree) -> list[str]:
    """What differs between two trees' structures, shapes or dtypes, one readable line each; empty when alike."""
    names_expected, names_found = path_names(expected), path_names(found)
    if names_expected != names_found:
        missing = sorted(set(names_expected) - set(names_found))
        surplus = sorted(set(names_found) - set(names_expected))
        return [f"missing {name}" for name in missing] + [f"unexpected {name}" for name in surplus]
    pairs = zip(names_expected, jax.tree.leaves(expected), jax.tree.leaves(found), strict=True)
    return [
        f"{name}: {_shown(old)} -> {_shown(new)}"
        for name, old, new in pairs
        if (tuple(old.shape), old.dtype) != (tuple(new.shape), new.dtype)
    ]


def _shown(leaf: Any) -> str:
    return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
