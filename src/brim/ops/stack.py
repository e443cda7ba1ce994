"""A stack: one block applied layer after layer, with the layers' parameters stacked along a leading axis.

A scan compiles the block once whatever the depth, and is what lets rematerialization, offload and compression of
activations act per layer: XLA keeps one slice of each saved residual per layer and nothing else.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array

X = TypeVar("X")


@runtime_checkable
class Block(Protocol):
    """One layer: `block(layer, x, context, index) -> x` with everything it uses in its arguments.

    `layer` is one layer's parameters, `x` what flows through the stack, `context` what all layers share (masks,
    rotary tables, dropout keys), `index` the layer's number as an int32 scalar.
    """

    def __call__(self, layer: Any, x: Any, context: Any, index: Array, /) -> Any: ...


@runtime_checkable
class StackFunction(Protocol):
    """What models call and stack techniques replace."""

    def __call__(self, block: Block, layers: Any, x: X, context: Any) -> X: ...


def depth_of(layers: Any) -> int:
    """Number of layers in a tree whose leaves are stacked along their first axis."""
    return jax.tree.leaves(layers)[0].shape[0]


def scan_stack(block: Block, layers: Any, x: X, context: Any, *, unroll: int = 1) -> X:
    """Apply `block` once per layer by `lax.scan`; `unroll` layers are written out in each turn of the loop."""

    def body(x: X, layer_and_index: tuple[Any, Array]) -> tuple[X, None]:
        layer, index = layer_and_index
        return block(layer, x, context, index), None

    depth = depth_of(layers)
    result, _ = jax.lax.scan(body, x, (layers, jnp.arange(depth)), unroll=min(unroll, depth))
    return result


def residual(x: Array, name: str) -> Array:
    """Give an intermediate a name, by which techniques decide to save, recompute, compress or offload it."""
    return checkpoint_name(x, name)
