"""Tiny decoders and batches that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brim.models import DecoderSettings, DecoderShape
from brim.models.decoder import Decoder
from brim.tree import path_names

FAMILIES = {
    "gpt2": {"family": "gpt2"},
    "gpt2 without bias, untied": {"family": "gpt2", "bias": False, "tied": False},
    "llama, grouped": {"family": "llama", "kv_heads": 2, "hidden": 40},
    "llama, tied, one key-value head, wide heads": {"family": "llama", "kv_heads": 1, "head_width": 10, "tied": True},
}


def _shape(**changes: Any) -> DecoderShape:
    sizes = {"layers": 3, "width": 24, "heads": 4, "context": 12, "vocabulary": 32} | changes
    return DecoderSettings(**sizes).resolved()


@pytest.fixture
def make_shape() -> Callable[..., DecoderShape]:
    """A function that makes a tiny shape with some settings changed."""
    return _shape


@pytest.fixture(params=FAMILIES.values(), ids=FAMILIES)
def shape(request: pytest.FixtureRequest) -> DecoderShape:
    """A tiny shape of every kind."""
    return _shape(**request.param)


@pytest.fixture
def make_model() -> Callable[[DecoderShape], Decoder]:
    """A function that makes a model with every parameter random, so that none can be forgotten unnoticed."""

    def make(shape: DecoderShape) -> Decoder:
        specs = jax.eval_shape(lambda key: Decoder.create(key, shape), jax.random.key(0))
        random = np.random.default_rng(1)
        values = [
            name.endswith("scale") + 0.2 * random.normal(size=leaf.shape)
            for name, leaf in zip(path_names(specs), jax.tree.leaves(specs), strict=True)
        ]
        return jax.tree.unflatten(jax.tree.structure(specs), [jnp.asarray(value, jnp.float32) for value in values])

    return make


@pytest.fixture
def packed_batch() -> dict[str, jax.Array]:
    """Three rows of 12: two documents, three documents with padding, and one document."""
    documents = np.array([[1] * 5 + [2] * 7, [1] * 3 + [2] * 4 + [3] * 2 + [0] * 3, [1] * 12])
    positions = np.zeros_like(documents)
    for row, column in np.ndindex(*documents.shape):
        if column and documents[row, column] == documents[row, column - 1]:
            positions[row, column] = positions[row, column - 1] + 1
    random = np.random.default_rng(0)
    targets = np.where(documents > 0, random.integers(0, 32, documents.shape), -100)
    arrays = {
        "tokens": random.integers(0, 32, documents.shape),
        "targets": targets,
        "documents": documents,
        "positions": positions,
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}
