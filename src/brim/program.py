"""A program: the pure functions and specs that a train step is made of.

    program = Program(init=my_init, loss=my_loss, optimizer=optax.adamw(3e-4), row=row_specs)

There is ONE loss signature, `loss(trainable, frozen, variables, batch, keys, ops) -> (Loss, variables)`:

    trainable   parameters that get gradients and optimizer state
    frozen      parameters that get neither (a base model under adapters, a fixed embedding)
    variables   model state that the forward pass itself changes, such as batch-norm statistics; `()` for most
    batch       a tree of arrays with rows first
    keys        one random key per row, or None when evaluating (no dropout, no update of statistics)
    ops         the operations techniques can replace; a foreign model ignores it

Three short forms are adapted to it: `from_mean_loss` for `loss(params, batch, key) -> mean over rows`,
`from_sum_loss` for `loss(params, batch, key) -> (sum, count)`, and `from_example_loss` for a loss written for ONE
example, which is vmapped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from brim.errors import ShapeError
from brim.ops import Loss, Ops
from brim.tree import PyTree, Specs

DTYPES, STACK, ATTENTION, CROSS_ENTROPY = "dtypes", "stack", "attention", "cross_entropy"


@runtime_checkable
class LossFunction(Protocol):
    """The one loss signature; see the head of this file."""

    def __call__(
        self,
        trainable: PyTree,
        frozen: PyTree,
        variables: PyTree,
        batch: PyTree,
        keys: Key[Array, " rows"] | None,
        ops: Ops,
    ) -> tuple[Loss, PyTree]: ...


def nothing_is_stacked(name: str) -> bool:
    """For a program whose parameters all have their own axes only."""
    del name
    return False


@runtime_checkable
class Optimizer(Protocol):
    """What is needed of an `optax.GradientTransformation`; so that nobody loads Optax who does not use it.

    Attributes:
        init: parameters -> state.
        update: (gradients, state, parameters) -> (updates, state).
    """

    @property
    def init(self) -> Callable[[PyTree], PyTree]: ...

    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]: ...


@dataclass(frozen=True)
class Sizes:
    """The sizes of a transformer-like program, for formulas. Counts are per row where a row matters.

    Attributes: length (positions per row), width, heads, kv_heads, head_width, hidden (of the feed-forward part),
        gated (whether that part has a gate), layers, vocabulary.
    """

    length: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    hidden: int
    gated: bool
    layers: int
    vocabulary: int


@dataclass(frozen=True)
class Program:
    """What is trained, on what, and how it is updated.

    Attributes:
        init: key -> (trainable, frozen, variables).
        loss: the one loss signature.
        optimizer: an Optax transformation, without clipping (that is `clip_norm`, so that it happens once per update).
        row: specs of ONE row of the batch, without the leading axis.
        clip_norm: largest global norm of the gradient of an update; None: no clipping.
        rows_independent: False when a row's loss depends on the other rows of its micro-batch (batch norm,
            contrastive losses). Then the micro-batch is part of the model and planning leaves it alone.
        calls: which ops the loss really calls, of `dtypes`, `stack`, `attention`, `cross_entropy`.
        learning_rate: update -> learning rate, for the log only; None: not logged.
        stacked: says of a trainable parameter's path, such as `layers.norm.scale`, whether its first axis counts
            layers.
        sizes: sizes for formulas; None for a foreign model.
        tokens_per_row: what throughput counts; 1 for rows that are not sequences.
    """

    init: Callable[[Key[Array, ""]], tuple[PyTree, PyTree, PyTree]]
    loss: LossFunction
    optimizer: Optimizer
    row: Specs
    clip_norm: float | None = None
    rows_independent: bool = True
    calls: frozenset[str] = frozenset()
    learning_rate: Callable[[Array], Array] | None = None
    stacked: Callable[[str], bool] = nothing_is_stacked
    sizes: Sizes | None = None
    tokens_per_row: int = 1

    def batch_specs(self, rows: int) -> Specs:
        """Specs of a batch of `rows` rows."""
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype), self.row)

    def part_specs(self) -> tuple[Specs, Specs, Specs]:
        """Specs of (trainable, frozen, variables), without making them."""
        return jax.eval_shape(self.init, jax.eval_shape(jax.random.key, 0))


def rows_of(batch: PyTree) -> int:
    """Number of rows in a batch.

    Raises:
        ShapeError: if the leaves disagree or there are none.
    """
    counts = {leaf.shape[0] for leaf in jax.tree.leaves(batch)}
    if len(counts) != 1:
        raise ShapeError(f"the arrays of a batch must share their first axis; found {sorted(counts)} rows")
    return counts.pop()


def from_sum_loss(
    loss: Callable[[PyTree, PyTree, Key[Array, ""] | None], tuple[Float[Array, ""], Float[Array, ""]]],
) -> LossFunction:
    """Adapt `loss(params, batch, key) -> (sum over targets, number of targets)`.

    The single key is that of the micro-batch's first row: random choices then depend on how the batch is split.
    """

    def adapted(
        trainable: PyTree, frozen: PyTree, variables: PyTree, batch: PyTree, keys: Any, ops: Ops
    ) -> tuple[Loss, PyTree]:
        del frozen, ops
        total, count = loss(trainable, batch, None if keys is None else keys[0])
        return Loss(_fp32(total), _fp32(count)), variables

    return adapted


def from_mean_loss(loss: Callable[[PyTree, PyTree, Key[Array, ""] | None], Float[Array, ""]]) -> LossFunction:
    """Adapt `loss(params, batch, key) -> mean over rows`; every row weighs the same.

    A mean over tokens with unequal numbers per row cannot be split exactly: return sums (`from_sum_loss`) instead.
    """

    def summed(params: PyTree, batch: PyTree, key: Any) -> tuple[Float[Array, ""], Float[Array, ""]]:
        rows = rows_of(batch)
        return loss(params, batch, key) * rows, jnp.float32(rows)

    return from_sum_loss(summed)


def from_example_loss(loss: Callable[[PyTree, PyTree, Key[Array, ""] | None], Float[Array, ""]]) -> LossFunction:
    """Adapt a loss written for ONE example, `loss(params, example, key) -> scalar`, by `jax.vmap` over rows.

    Each example has its own key, so random choices do not depend on how the batch is split.
    """

    def adapted(
        trainable: PyTree, frozen: PyTree, variables: PyTree, batch: PyTree, keys: Any, ops: Ops
    ) -> tuple[Loss, PyTree]:
        del frozen, ops
        losses = jax.vmap(loss, in_axes=(None, 0, None if keys is None else 0))(trainable, batch, keys)
        return Loss(_fp32(losses.sum()), jnp.float32(rows_of(batch))), variables

    return adapted


def _fp32(x: Float[Array, ""]) -> Float[Array, ""]:
    return jnp.asarray(x, jnp.float32)
