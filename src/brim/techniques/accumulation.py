"""Gradient accumulation: one update from several micro-batches, exactly.

WHAT IT DOES. The global batch of an update is cut into `steps` micro-batches that are run one after the other by
`lax.scan`; gradient SUMS over targets are added in fp32 and divided once, by the number of targets in the whole window.
So a micro-batch with few targets weighs little, an empty one nothing, and a short last window is divided by what it
really holds. The norm is taken and clipped once, after all have been added. Row keys travel with their rows: dropout
does not notice the split.

BYTES. Activations and logits fall by the factor `steps`: they belong to one micro-batch. A gradient sum of 4 bytes per
parameter is alive during every backward pass, beside the micro-batch's own gradient (which XLA may fuse away).

TIME. The same FLOPs. Smaller products use the device less well, and the sum is read and written once per micro-batch.

WHEN IT HARMS. A program whose rows depend on each other (batch norm, contrastive losses) means something else with
another micro-batch; such programs are never split by the planner. Never raise `steps` beyond what memory asks for.

SOURCES. Ott et al., Scaling Neural Machine Translation, 2018 (arXiv:1806.00187). On exact weighting: the fault of
averaging means was found in most trainers in October 2024 (huggingface/transformers#34191).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from brim.errors import ShapeError
from brim.hardware.facts import Device
from brim.ops import Loss
from brim.program import Program, Sizes, rows_of
from brim.settings import require
from brim.techniques.base import Context, Effect, Points, ValueAndGradient
from brim.tree import PyTree


@dataclass(frozen=True)
class Accumulation:
    """Number of micro-batches that make one update."""

    name: ClassVar[str] = "accumulation"
    points: ClassVar[frozenset[str]] = frozenset({"gradients"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    steps: int = 1

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "at least 1 micro-batch per update")

    @property
    def effect(self) -> Effect:
        """Sums in another order."""
        return "exact" if self.is_plain else "noise"

    @property
    def is_plain(self) -> bool:
        """The whole batch in one piece."""
        return self.steps == 1

    def apply(self, points: Points, context: Context) -> Points:
        """Compute an update's gradients micro-batch by micro-batch."""
        del context
        return points if self.is_plain else replace(points, gradients=partial(accumulated, self.steps))

    def needs(self, program: Program, device: Device) -> str | None:
        """Nothing; that dependent rows keep their micro-batch is the planner's care, not a hindrance."""
        del program, device
        return None

    def describe(self) -> str:
        """Such as `x4`."""
        return f"x{self.steps}"

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """The gradient sum is counted with the gradients, which no setting here removes."""
        del sizes, micro_batch, compute_bytes
        return 0

    def flops_ratio(self, sizes: Sizes) -> float:
        """The same products, in smaller pieces."""
        del sizes
        return 1.0

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """Follows from the micro-batch at a fixed global batch, so nothing of its own to search."""
        del program, device
        return (cls(),)


def accumulated(
    steps: int,
    value_and_gradient: ValueAndGradient,
    trainable: PyTree,
    variables: PyTree,
    batch: PyTree,
    keys: Key[Array, " rows"],
    /,
) -> tuple[Loss, PyTree, PyTree]:
    """Loss, gradient sums (fp32) and last variables of a batch that is run in `steps` equal micro-batches.

    Raises:
        ShapeError: if the rows cannot be cut into `steps` equal parts.
    """
    rows = rows_of(batch)
    if rows % steps:
        raise ShapeError(
            f"{rows} rows cannot be cut into {steps} equal micro-batches",
            hint="fill the last micro-batch with empty rows, or choose a divisor of the global batch",
        )
    parts = jax.tree.map(lambda leaf: leaf.reshape(steps, rows // steps, *leaf.shape[1:]), (batch, keys))

    def add(carry: tuple[Loss, PyTree, PyTree], part: tuple[PyTree, Any]) -> tuple[tuple[Loss, PyTree, PyTree], None]:
        loss_sum, gradient_sum, variables = carry
        loss, gradient, variables = value_and_gradient(trainable, variables, *part)
        with jax.named_scope("accumulation"):
            gradient_sum = jax.tree.map(lambda total, new: total + new.astype(total.dtype), gradient_sum, gradient)
        return (loss_sum + loss, gradient_sum, variables), None

    loss_specs, gradient_specs, _ = jax.eval_shape(
        value_and_gradient, trainable, variables, *jax.tree.map(lambda leaf: leaf[0], parts)
    )
    zero_loss = jax.tree.map(lambda spec: jnp.zeros(spec.shape, spec.dtype), loss_specs)
    zero_gradient = jax.tree.map(lambda spec: jnp.zeros(spec.shape, jnp.float32), gradient_specs)
    total, _ = jax.lax.scan(add, (zero_loss, zero_gradient, variables), parts)
    return total
