"""The plain assembler: a program and a recipe become pure functions, ready to be compiled for any target.

Order within a window: forward and backward in micro-batches, gradient SUMS, one division by the number of targets, one
global norm, one clip, one optimizer update. A window without a target, or with a number that is not finite, changes
nothing but the counters and the loss scale: no parameter, moment, schedule position or weight decay moves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from brim.errors import TechniqueError
from brim.hardware.facts import Device
from brim.ops import ONCE, Block, Loss, Ops, Repeats, row_keys, scan_stack
from brim.program import Program, rows_of
from brim.techniques import Context, Points, Recipe
from brim.techniques.loss_scaling import LossScale, factor_of_sum, unscaled
from brim.training.optimizers import clip_by_norm, global_norm
from brim.training.state import State, StepMetrics
from brim.tree import PyTree, Specs, cast_floating, select, specs_of


@dataclass(frozen=True)
class Assembly:
    """The pure functions of a run, and the specs of what they take.

    Attributes:
        init: key -> state.
        window: (state, batch) -> (state, metrics); meant to be jitted with the state donated.
        evaluate: (state, batch of one micro-batch) -> summed loss.
        state, batch, evaluation_batch: specs of their arguments.
    """

    init: Callable[[Key[Array, ""]], State]
    window: Callable[[State, PyTree], tuple[State, StepMetrics]]
    evaluate: Callable[[State, PyTree], Loss]
    state: Specs
    batch: Specs
    evaluation_batch: Specs


def assemble(program: Program, recipe: Recipe, device: Device, say: Callable[[str], None] = print) -> Assembly:
    """Put a train step together; nothing is compiled or allocated.

    Args:
        say: is told what techniques had to decide, such as a kernel that fell back, when the step is traced.

    Raises:
        TechniqueError: if a technique cannot work on the program or device, or the assembler is unknown.
    """
    if recipe.assembler != "plain":
        raise TechniqueError(f"no assembler `{recipe.assembler}`", hint="the assembler here is `plain`")
    points = recipe.points(Context(program, device, say))
    initial = partial(_init, program, points)
    return Assembly(
        init=initial,
        window=partial(_window, program, points),
        evaluate=partial(_evaluate, program, points),
        state=specs_of(jax.eval_shape(initial, jax.eval_shape(jax.random.key, 0))),
        batch=program.batch_specs(recipe.global_batch),
        evaluation_batch=program.batch_specs(recipe.micro_batch),
    )


def ops_from(points: Points) -> Ops:
    """The operations a model is handed, with the techniques' functions in place."""

    def stack(block: Block, layers: Any, x: Any, context: Any, repeats: Repeats = ONCE) -> Any:
        # Inside a loop XLA cannot merge recomputation with the first computation; written out, it would.
        wrapped = points.residuals.wrap(block, prevent_cse=points.unroll != 1)
        return scan_stack(wrapped, layers, x, context, repeats, unroll=points.unroll)

    return Ops(points.dtypes, stack, points.attention, points.cross_entropy)


def _init(program: Program, points: Points, key: Key[Array, ""]) -> State:
    init_key, run_key = jax.random.split(key)
    trainable, frozen, variables = program.init(init_key)
    trainable = cast_floating(trainable, points.dtypes.parameters)
    optimizer = points.update(points.optimizer(program.optimizer)).init(trainable)
    zero = jnp.zeros((), jnp.int32)
    scale = points.loss_scaling.init() if points.loss_scaling else None
    return State(trainable, frozen, variables, optimizer, run_key, zero, zero, zero, scale)


def _window(program: Program, points: Points, state: State, batch: PyTree) -> tuple[State, StepMetrics]:
    rows = jax.tree.leaves(batch)[0].shape[0]
    key = jax.random.fold_in(state.key, state.window)
    keys = row_keys(key, rows)
    value_and_gradient = _value_and_gradient(program, points, state.frozen, state.loss_scale)
    loss, sums, variables = points.gradients(value_and_gradient, state.trainable, state.variables, batch, keys)
    with jax.named_scope("clip"):
        gradients = _mean(sums, loss.count)
        norm = global_norm(gradients)
        if program.clip_norm is not None:
            gradients = clip_by_norm(gradients, norm, program.clip_norm)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss.total)
    updated = finite & (loss.count > 0)
    with jax.named_scope("optimizer"):
        updater = points.update(points.optimizer(program.optimizer))
        trainable, optimizer = updater.update(gradients, state.optimizer, state.trainable, key, updated)
        new = _advance(state, updated, trainable, variables, optimizer)
    if points.loss_scaling and state.loss_scale:
        new = replace(new, loss_scale=points.loss_scaling.after(state.loss_scale, finite=finite, updated=updated))
    return new, _metrics(program, state, new, loss, norm, updated, finite)


def _value_and_gradient(program: Program, points: Points, frozen: PyTree, scale: LossScale | None) -> Any:
    ops = ops_from(points)
    compute = None if "dtypes" in program.calls else points.dtypes.compute

    def total(
        trainable: PyTree, variables: PyTree, batch: PyTree, keys: Any, factor: Array | None
    ) -> tuple[Array, tuple[Loss, PyTree]]:
        if compute is not None:
            trainable = cast_floating(trainable, compute)
        loss, variables = program.loss(trainable, frozen, variables, batch, keys, ops)
        return loss.total if factor is None else loss.total * factor, (loss, variables)

    def value_and_gradient(
        trainable: PyTree, variables: PyTree, batch: PyTree, keys: Key[Array, " rows"], /
    ) -> tuple[Loss, PyTree, PyTree]:
        factor = factor_of_sum(scale, rows_of(batch) * program.tokens_per_row) if scale else None
        (_, (loss, variables)), gradient = jax.value_and_grad(total, has_aux=True)(
            trainable, variables, batch, keys, factor
        )
        return loss, gradient if factor is None else unscaled(gradient, factor), variables

    return value_and_gradient


def _mean(sums: PyTree, count: Float[Array, ""]) -> PyTree:
    share = 1 / jnp.maximum(count, 1)
    return jax.tree.map(lambda leaf: (leaf.astype(jnp.float32) * share).astype(leaf.dtype), sums)


def _advance(state: State, updated: Array, trainable: PyTree, variables: PyTree, optimizer: PyTree) -> State:
    return State(
        trainable=select(updated, trainable, state.trainable),
        frozen=state.frozen,
        variables=select(updated, variables, state.variables),
        optimizer=optimizer,
        key=state.key,
        window=state.window + 1,
        update=state.update + updated.astype(jnp.int32),
        skipped_in_a_row=jnp.where(updated, 0, state.skipped_in_a_row + 1),
        loss_scale=state.loss_scale,
    )


def _metrics(
    program: Program, old: State, new: State, loss: Loss, norm: Array, updated: Array, finite: Array
) -> StepMetrics:
    rate = program.learning_rate
    return StepMetrics(
        loss=loss.mean(),
        count=loss.count,
        gradient_norm=norm,
        learning_rate=jnp.asarray(jnp.nan if rate is None else rate(old.update), jnp.float32),
        updated=updated,
        finite=finite,
        update=new.update,
        window=new.window,
        skipped_in_a_row=new.skipped_in_a_row,
        metrics={name: value / jnp.maximum(loss.count, 1) for name, value in loss.metrics.items()},
        loss_scale=old.loss_scale.value if old.loss_scale else None,
    )


def _evaluate(program: Program, points: Points, state: State, batch: PyTree) -> Loss:
    trainable = state.trainable
    if "dtypes" not in program.calls:
        trainable = cast_floating(trainable, points.dtypes.compute)
    loss, _ = program.loss(trainable, state.frozen, state.variables, batch, None, ops_from(points))
    return loss
