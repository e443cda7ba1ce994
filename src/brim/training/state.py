"""Everything that changes while a program is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import jax
from jaxtyping import Array, Bool, Float, Int, Key

from brim.techniques.loss_scaling import LossScale
from brim.tree import PyTree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """State of a run between two updates; a checkpoint holds it bit for bit.

    Attributes:
        trainable, frozen, variables: the three parts of a program's parameters; see `brim.program`.
        optimizer: state of the Optax transformation.
        key: the run's random key. It never changes: keys of a window are derived from it and `window`.
        window: windows (global batches) consumed, skipped ones included; also the position in the data.
        update: optimizer updates made. Schedules count these.
        skipped_in_a_row: windows skipped since the last update: not finite, or without a target.
        loss_scale: for the next window; None, and so no array, when the step does not scale its loss.
    """

    trainable: PyTree
    frozen: PyTree
    variables: PyTree
    optimizer: PyTree
    key: Key[Array, ""]
    window: Int[Array, ""]
    update: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    loss_scale: LossScale | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepMetrics:
    """What one window produced, still on the device.

    Attributes:
        loss: mean over all targets of the window, before the update.
        count: number of targets.
        gradient_norm: global norm of the window's mean gradient, before clipping.
        learning_rate: of this update; NaN when the program does not tell.
        updated: False when the window was skipped.
        finite: False when loss or gradient held a NaN or an infinity.
        update, window, skipped_in_a_row: the counters of the state after the window.
        metrics: further means over targets, by name.
        loss_scale: that of this window; None when the step does not scale its loss.
    """

    loss: Float[Array, ""]
    count: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    updated: Bool[Array, ""]
    finite: Bool[Array, ""]
    update: Int[Array, ""]
    window: Int[Array, ""]
    skipped_in_a_row: Int[Array, ""]
    metrics: Mapping[str, Float[Array, ""]]
    loss_scale: Float[Array, ""] | None = None
