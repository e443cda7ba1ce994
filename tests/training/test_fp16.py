"""Training in fp16 with loss scaling: equals fp32 where fp16 alone stands still, skips cleanly, resumes bit for bit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import DivergenceError
from brim.hardware.device import detect
from brim.ops import Loss, Ops
from brim.program import Program
from brim.techniques import Accumulation, Precision, Recipe
from brim.training.checkpoint import Checkpoints
from brim.training.loop import Loop
from brim.training.settings import TrainSettings
from brim.training.state import State
from brim.training.step import Step
from brim.training.tracking import Record
from brim.tree import path_names, specs_of
from programs import linear_batch, linear_program

SMALL = 1e-9  # what the loss is multiplied by: its gradients are far below the least fp16, 6e-8


def small_program() -> Program:
    """A network whose loss is so small that its gradients vanish in fp16."""

    def init(key: Any) -> Any:
        first, second = jax.random.split(key)
        return {"in": jax.random.normal(first, (4, 16)) / 2, "out": jax.random.normal(second, (16, 2)) / 4}, (), ()

    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Ops) -> tuple[Loss, Any]:
        del frozen, keys
        weights = jax.tree.map(lambda leaf: leaf.astype(ops.dtypes.compute), trainable)
        hidden = jnp.tanh(batch["x"].astype(ops.dtypes.compute) @ weights["in"])
        errors = (hidden @ weights["out"]).astype(jnp.float32) - batch["y"]
        return Loss(SMALL * jnp.square(errors).sum(), jnp.float32(batch["x"].shape[0])), variables

    row = {"x": jax.ShapeDtypeStruct((4,), jnp.float32), "y": jax.ShapeDtypeStruct((2,), jnp.float32)}
    return Program(init, loss, optax.sgd(0.1 / SMALL), row, calls=frozenset({"dtypes"}))


def train(precision: Precision, micro_batches: int = 1, windows: int = 60) -> tuple[State, list[float]]:
    step = Step(small_program(), Recipe.of(8 // micro_batches, precision, Accumulation(micro_batches)), detect())
    state, losses = step.init(jax.random.key(3)), []
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    batch = {"x": jnp.asarray(x), "y": jnp.asarray(np.sin(x[:, :2]) + x[:, 2:] / 2)}
    for _ in range(windows):
        state, metrics = step(state, batch)
        assert bool(metrics.updated)
        losses.append(float(metrics.loss) / SMALL)
    return state, losses


def moved(state: State, other: State) -> float:
    """Largest difference of parameters."""
    pairs = zip(jax.tree.leaves(state.trainable), jax.tree.leaves(other.trainable), strict=True)
    return max(float(jnp.abs(a - b).max()) for a, b in pairs)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_fp16_with_a_scale_learns_as_fp32_does_and_without_it_stands_still(micro_batches: int) -> None:
    wide, wide_losses = train(Precision(), micro_batches)
    scaled, losses = train(Precision("float16", initial_scale=2.0**24), micro_batches)
    alone, _ = train(Precision("float16", loss_scale="static", initial_scale=1.0), micro_batches)
    start, _ = train(Precision(), windows=0)
    assert moved(wide, start) > 0.2 and wide_losses[-1] < 0.2 * wide_losses[0]
    # 11 bits of mantissa, 60 updates that depend on each other: a few units of 5e-4.
    assert moved(scaled, wide) < 5e-3
    np.testing.assert_allclose(losses, wide_losses, rtol=1e-2)
    assert moved(alone, start) == 0
    assert float(scaled.loss_scale.value) == 2.0**24


def fp16_step(optimizer: Any, micro_batch: int = 1, steps: int = 1, **settings: Any) -> Step:
    clip = settings.pop("clip_norm", None)
    recipe = Recipe.of(micro_batch, Precision("float16", **settings), Accumulation(steps))
    return Step(linear_program(2, optimizer, clip_norm=clip), recipe, detect())


GOOD, BAD = [[1.0, 2.0]], [[np.inf, 2.0]]


def test_a_window_that_overflows_moves_only_the_scale_and_the_counters() -> None:
    rate = optax.linear_schedule(1e-1, 0.0, 10)
    step = fp16_step(optax.adamw(rate, weight_decay=0.1), initial_scale=2.0**10, growth_updates=2)
    state, _ = step(step.init(jax.random.key(0)), linear_batch(GOOD))
    before = jax.tree.map(np.asarray, (state.trainable, state.optimizer, state.update))
    state, metrics = step(state, linear_batch(BAD))
    after = jax.tree.map(np.asarray, (state.trainable, state.optimizer, state.update))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert not bool(metrics.finite) and float(metrics.loss_scale) == 2.0**10
    assert (float(state.loss_scale.value), int(state.loss_scale.good_updates)) == (2.0**9, 0)
    state, metrics = step(state, linear_batch(GOOD, weights=[0]))
    assert float(metrics.loss_scale) == float(state.loss_scale.value) == 2.0**9
    for scale in (2.0**9, 2.0**10):
        state, _ = step(state, linear_batch(GOOD))
        assert float(state.loss_scale.value) == scale


def test_a_scale_that_is_too_large_for_fp16_falls_until_it_is_not() -> None:
    step = fp16_step(optax.sgd(1.0), initial_scale=2.0**15)
    state = step.init(jax.random.key(0))
    scales = []
    for _ in range(6):
        state, metrics = step(state, linear_batch([[30.0, 3.0]]))
        scales.append(float(metrics.loss_scale))
    # 30 x 2**15 and the next three are above 65504; 30 x 2**11 = 61440 is not.
    assert scales == [2.0**15, 2.0**14, 2.0**13, 2.0**12, 2.0**11, 2.0**11]
    np.testing.assert_array_equal(state.trainable, [-60.0, -6.0])


def test_unscaling_comes_before_the_norm_and_the_clip() -> None:
    step = fp16_step(optax.sgd(1.0), 2, 2, clip_norm=1.0, initial_scale=2.0**10)
    state, metrics = step(step.init(jax.random.key(0)), linear_batch([[6.0, 8.0], [0.0, 0.0]] * 2))
    np.testing.assert_allclose(metrics.gradient_norm, 5.0, rtol=1e-6)
    np.testing.assert_allclose(state.trainable, [-0.6, -0.8], rtol=1e-6)


def test_fp_s3_the_clip_factor_does_not_underflow() -> None:
    step = fp16_step(optax.sgd(1.0), clip_norm=1e-3, loss_scale="static", initial_scale=1.0)
    state, metrics = step(step.init(jax.random.key(0)), linear_batch([[6e4, 6e4]]))
    np.testing.assert_allclose(metrics.gradient_norm, 84852.8, rtol=1e-5)
    np.testing.assert_allclose(state.trainable, [-7.07e-4, -7.07e-4], rtol=1e-3)


def test_fp_s2_a_resumed_run_has_the_scale_and_counter_of_the_straight_one(tmp_path: Path) -> None:
    step = fp16_step(optax.adam(1e-2), initial_scale=65536.0, growth_updates=5)
    batches = [linear_batch(BAD)] * 8 + [linear_batch(GOOD)] * 6

    def play(state: State, batches: list[Any]) -> State:
        for batch in batches:
            state, _ = step(state, batch)
        return state

    straight = play(step.init(jax.random.key(0)), batches)
    saved = play(step.init(jax.random.key(0)), batches[:11])
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    try:
        checkpoints.save(11, saved, {}, wait=True)
        restored, _ = checkpoints.restore(11, like=step.assembly.state)
    finally:
        checkpoints.close()
    assert (float(restored.loss_scale.value), int(restored.loss_scale.good_updates)) == (256.0, 3)
    twelve = play(restored, batches[11:13])
    assert (float(twelve.loss_scale.value), int(twelve.loss_scale.good_updates)) == (512.0, 0)
    resumed = play(twelve, batches[13:])
    for name, one, other in zip(
        path_names(straight), jax.tree.leaves(straight), jax.tree.leaves(resumed), strict=True
    ):  # fmt: skip
        same = jax.random.key_data if jnp.issubdtype(one.dtype, jax.dtypes.prng_key) else jnp.asarray
        np.testing.assert_array_equal(same(one), same(other), err_msg=name)


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def log(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing is buffered."""


def diverge(skips: int, **settings: Any) -> tuple[DivergenceError, list[Record]]:
    recorder = Recorder()
    loop = Loop(
        step=fp16_step(optax.adamw(0.1), **settings),
        settings=TrainSettings(updates=100, global_batch=1, stop_after_skips=skips),
        trackers=[recorder],
        evaluate=None,
        save=lambda *a: None,
        stop=lambda: False,
    )
    with pytest.raises(DivergenceError) as error:
        loop.run(loop.step.init(jax.random.key(0)), itertools.repeat(linear_batch(GOOD, offsets=[np.inf])))
    return error.value, recorder.records


def test_fp_s1_a_run_whose_scale_is_at_its_floor_stops_and_says_so() -> None:
    error, records = diverge(20, initial_scale=65536.0)
    assert [record.loss_scale for record in records] == [2.0**power for power in range(16, 0, -1)] + [1.0] * 4
    assert "20 windows in a row were not finite" in error.message
    assert "loss scale 1, the least there is" in error.message
    assert error.hint is not None and "bfloat16 or float32" in error.hint


def test_a_run_that_stops_before_its_scale_is_at_the_floor_says_what_it_was() -> None:
    error, _ = diverge(4)
    assert "loss scale 4,096)" in error.message
    assert error.hint is not None and "initial_scale" in error.hint


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
def test_states_without_scaling_hold_what_they_held_before(compute: Any) -> None:
    step = Step(linear_program(2, optax.sgd(0.1)), Recipe.of(1, Precision(compute)), detect())
    names = path_names(specs_of(step.assembly.state))
    assert sorted(names) == ["key", "skipped_in_a_row", "trainable", "update", "window"]
    _, metrics = step(step.init(jax.random.key(0)), linear_batch(GOOD))
    assert metrics.loss_scale is None


@pytest.mark.parametrize("rounding", ["stochastic", "kahan"])
def test_bf16_parameters_resume_bit_for_bit_in_half_the_bytes(tmp_path: Path, rounding: Any) -> None:
    precision = Precision("bfloat16", "bfloat16", rounding)
    step = Step(linear_program(64, optax.adam(1e-3)), Recipe.of(2, precision, Accumulation(2)), detect())
    batch = linear_batch(np.random.default_rng(0).normal(size=(4, 64)))

    def play(state: State, windows: int) -> State:
        for _ in range(windows):
            state, _ = step(state, batch)
        return state

    straight = play(step.init(jax.random.key(0)), 6)
    assert straight.trainable.dtype == jnp.bfloat16
    checkpoints = Checkpoints(tmp_path, keep_last=1, keep_best=0)
    try:
        checkpoints.save(3, play(step.init(jax.random.key(0)), 3), {}, wait=True)
        restored, _ = checkpoints.restore(3, like=step.assembly.state)
    finally:
        checkpoints.close()
    resumed = play(restored, 3)
    jax.tree.map(
        np.testing.assert_array_equal,
        (straight.trainable, straight.optimizer),
        (resumed.trainable, resumed.optimizer),
    )
