"""A stack: one block applied layer after layer, with the layers' parameters stacked along a leading axis.

A scan compiles the block once whatever the depth, and is what lets rematerialization, offload and compression of
activations act per layer: XLA keeps one slice of each saved residual per layer and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Repeats:
    """How often each layer of a stack is used, and in which order.

    Two layers, three times each, in groups: 0 0 0 1 1 1; in cycles: 0 1 0 1 0 1.

    Attributes:
        times: uses of each layer.
        in_cycles: whether the whole stack is gone through again and again.
    """

    times: int = 1
    in_cycles: bool = False


ONCE = Repeats()


@runtime_checkable
class StackFunction(Protocol):
    """What models call and stack techniques replace."""

    def __call__(self, block: Block, layers: Any, x: X, context: Any, repeats: Repeats = ONCE) -> X: ...


def depth_of(layers: Any) -> int:
    """Number of layers in a tree whose leaves are stacked along their first axis."""
    return jax.tree.leaves(layers)[0].shape[0]


def scan_stack(block: Block, layers: Any, x: X, context: Any, repeats: Repeats = ONCE, *, unroll: int = 1) -> X:
    """Apply `block` once per layer by `lax.scan`; `unroll` layers are written out in each turn of the loop.

    With `repeats` it is one loop within another, so that no copy of a layer is made and gradients are summed over its
    uses layer by layer; `index` then numbers the uses.
    """
    if repeats.times > 1:
        return _scan_repeated(block, layers, x, context, repeats, unroll)

    def body(x: X, layer_and_index: tuple[Any, Array]) -> tuple[X, None]:
        layer, index = layer_and_index
        return block(layer, x, context, index), None

    depth = depth_of(layers)
    result, _ = jax.lax.scan(body, x, (layers, jnp.arange(depth)), unroll=min(unroll, depth))
    return result


def _scan_repeated(block: Block, layers: Any, x: X, context: Any, repeats: Repeats, unroll: int) -> X:
    depth, uses = depth_of(layers), jnp.arange(repeats.times)
    numbered = (layers, jnp.arange(depth))
    inner, outer = (depth, repeats.times) if repeats.in_cycles else (repeats.times, depth)
    written_inner = min(unroll, inner)
    written_outer = min(max(1, unroll // inner), outer) if unroll else 0

    def cycle(x: X, use: Array) -> tuple[X, None]:
        def body(x: X, layer_and_index: tuple[Any, Array]) -> tuple[X, None]:
            layer, index = layer_and_index
            return block(layer, x, context, use * depth + index), None

        return jax.lax.scan(body, x, numbered, unroll=written_inner)[0], None

    def group(x: X, layer_and_index: tuple[Any, Array]) -> tuple[X, None]:
        layer, index = layer_and_index

        def body(x: X, use: Array) -> tuple[X, None]:
            return block(layer, x, context, index * repeats.times + use), None

        return jax.lax.scan(body, x, uses, unroll=written_inner)[0], None

    if repeats.in_cycles:
        return jax.lax.scan(cycle, x, uses, unroll=written_outer)[0]
    return jax.lax.scan(group, x, numbered, unroll=written_outer)[0]


def residual(x: Array, name: str) -> Array:
    """Give an intermediate a name, by which techniques decide to save, recompute, compress or offload it."""
    return checkpoint_name(x, name)
