"""The plain step against answers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import ShapeError, TechniqueError
from brim.hardware.device import Device, detect
from brim.ops import Loss
from brim.program import Program, from_example_loss, from_mean_loss, from_sum_loss
from brim.techniques import Accumulation, Precision, Recipe, Rematerialization
from brim.training.step import Step
from programs import batch_norm_program, linear_batch, linear_program


@pytest.fixture(scope="module")
def cpu() -> Device:
    return detect()


def make_step(program: Program, cpu: Device, micro_batch: int, steps: int) -> Step:
    return Step(program, Recipe.of(micro_batch, Accumulation(steps)), cpu)


def test_acc_s1_loss_is_the_mean_over_all_targets(cpu: Device) -> None:
    step = make_step(linear_program(1, optax.sgd(0.0)), cpu, micro_batch=1, steps=2)
    batch = linear_batch([[0.0], [0.0]], weights=[2, 6], offsets=[3, 1])
    _, metrics = step(step.init(jax.random.key(0)), batch)
    assert float(metrics.loss) == 1.5
    assert float(metrics.count) == 8


def test_acc_s2_short_last_window_is_divided_by_what_it_holds(cpu: Device) -> None:
    step = make_step(linear_program(1, optax.sgd(0.1)), cpu, micro_batch=1, steps=4)
    state = step.init(jax.random.key(0))
    full, short = linear_batch([[1.0]] * 4), linear_batch([[1.0]] * 2 + [[0.0]] * 2, weights=[1, 1, 0, 0])
    for batch in (full, full, short):
        state, _ = step(state, batch)
    np.testing.assert_allclose(state.trainable, [-0.30], rtol=1e-6)
    assert int(state.update) == 3


def test_acc_s3_schedule_counts_updates(cpu: Device) -> None:
    rate = optax.linear_schedule(1e-3, 0.0, 16)
    program = linear_program(1, optax.sgd(rate), learning_rate=rate)
    step = make_step(program, cpu, micro_batch=1, steps=10)
    state, rates, before = step.init(jax.random.key(0)), [], 0.0
    for _ in range(16):
        state, metrics = step(state, linear_batch([[1.0]] * 10))
        moved, before = before - float(state.trainable[0]), float(state.trainable[0])
        rates.append(float(metrics.learning_rate))
        assert moved == pytest.approx(rates[-1], rel=1e-4)  # fp32 differences of a sum near 1e-2
    np.testing.assert_allclose([rates[1], rates[8], rates[15]], [9.375e-4, 5.0e-4, 6.25e-5], rtol=1e-6)


def test_acc_s4_one_clip_after_accumulation(cpu: Device) -> None:
    step = make_step(linear_program(2, optax.sgd(1.0), clip_norm=1.0), cpu, micro_batch=1, steps=2)
    state, metrics = step(step.init(jax.random.key(0)), linear_batch([[6.0, 0.0], [-6.0, 0.8]]))
    np.testing.assert_allclose(state.trainable, [0, -0.4], atol=1e-6)
    np.testing.assert_allclose(metrics.gradient_norm, 0.4, rtol=1e-6)


def test_clip_shortens_to_the_norm_and_logs_the_length_before(cpu: Device) -> None:
    step = make_step(linear_program(2, optax.sgd(1.0), clip_norm=1.0), cpu, micro_batch=2, steps=1)
    state, metrics = step(step.init(jax.random.key(0)), linear_batch([[6.0, 8.0], [0.0, 0.0]]))
    np.testing.assert_allclose(metrics.gradient_norm, 5.0, rtol=1e-6)
    np.testing.assert_allclose(state.trainable, [-0.6, -0.8], rtol=1e-6)


def test_acc_s5_window_without_targets_changes_nothing(cpu: Device) -> None:
    program = linear_program(2, optax.adamw(1e-2, weight_decay=0.1))
    step = make_step(program, cpu, micro_batch=1, steps=2)
    state, _ = step(step.init(jax.random.key(0)), linear_batch([[1.0, 2.0], [3.0, 4.0]]))
    before = jax.tree.map(np.asarray, (state.trainable, state.optimizer, state.update))
    state, metrics = step(state, linear_batch([[1.0, 2.0], [3.0, 4.0]], weights=[0, 0]))
    after = jax.tree.map(np.asarray, (state.trainable, state.optimizer, state.update))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert not bool(metrics.updated) and bool(metrics.finite)
    assert float(metrics.loss) == 0.0
    assert (int(state.window), int(state.skipped_in_a_row)) == (2, 1)


def test_acc_s5_empty_micro_batch_weighs_nothing(cpu: Device) -> None:
    step = make_step(linear_program(1, optax.sgd(0.0)), cpu, micro_batch=1, steps=2)
    batch = linear_batch([[0.0], [0.0]], weights=[0, 4], offsets=[9, 2])
    _, metrics = step(step.init(jax.random.key(0)), batch)
    assert float(metrics.loss) == 2.0


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [1, 1, 1, 5]])
def test_lg_s1_logged_loss_is_that_of_the_whole_update(cpu: Device, weights: list[int]) -> None:
    expected = {4: 2.0, 8: 1.0}[sum(weights)]
    for micro_batch in (1, 2, 4):
        step = make_step(linear_program(1, optax.sgd(0.0)), cpu, micro_batch, 4 // micro_batch)
        batch = linear_batch([[0.0]] * 4, weights=weights, offsets=[4, 2, 2, 0])
        _, metrics = step(step.init(jax.random.key(0)), batch)
        assert float(metrics.loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_update_that_is_not_finite_is_skipped_and_counted(cpu: Device, bad: float) -> None:
    step = make_step(linear_program(2, optax.adamw(1e-2)), cpu, micro_batch=2, steps=1)
    state, _ = step(step.init(jax.random.key(0)), linear_batch([[1.0, 2.0], [3.0, 4.0]]))
    before = jax.tree.map(np.asarray, (state.trainable, state.optimizer))
    for skipped in (1, 2):
        state, metrics = step(state, linear_batch([[bad, 2.0], [3.0, 4.0]]))
        assert (bool(metrics.finite), int(metrics.skipped_in_a_row)) == (False, skipped)
    jax.tree.map(np.testing.assert_array_equal, before, jax.tree.map(np.asarray, (state.trainable, state.optimizer)))
    state, metrics = step(state, linear_batch([[1.0, 2.0], [3.0, 4.0]]))
    assert (bool(metrics.updated), int(state.skipped_in_a_row), int(state.update)) == (True, 0, 2)


def test_bf_s1_updates_do_not_vanish_with_fp32_parameters(cpu: Device) -> None:
    program = linear_program(1, optax.sgd(6e-4))
    program = replace(program, init=lambda key: (jnp.ones(1), (), ()))
    step = Step(program, Recipe.of(1, Precision("bfloat16")), replace(cpu))
    state = step.init(jax.random.key(0))
    for _ in range(100):
        state, _ = step(state, linear_batch([[1.0]]))
    assert state.trainable.dtype == jnp.float32
    np.testing.assert_allclose(state.trainable, [0.9400], rtol=1e-5)


def test_batch_norm_variables_are_updated_per_micro_batch_and_used_when_evaluating(cpu: Device) -> None:
    step = make_step(batch_norm_program(), cpu, micro_batch=4, steps=2)
    x = np.random.default_rng(0).normal(2, 3, (8, 3)).astype(np.float32)
    state, _ = step(step.init(jax.random.key(0)), {"x": jnp.asarray(x)})
    mean, variance = np.zeros(3), np.ones(3)
    for part in (x[:4], x[4:]):
        mean, variance = 0.9 * mean + 0.1 * part.mean(0), 0.9 * variance + 0.1 * part.var(0)
    np.testing.assert_allclose(state.variables["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(state.variables["variance"], variance, rtol=1e-5)
    scale = np.asarray(state.trainable)
    expected = (((x[:4] - mean) / np.sqrt(variance + 1e-5) * scale) ** 3).sum()
    loss = step.evaluate(state, {"x": jnp.asarray(x[:4])})
    np.testing.assert_allclose(loss.total, expected, rtol=1e-4)


def test_frozen_parts_get_no_gradient_no_state_and_do_not_move(cpu: Device) -> None:
    def loss(trainable, frozen, variables, batch, keys, ops):  # type: ignore[no-untyped-def]
        return Loss((trainable * frozen * batch["x"]).sum(), jnp.float32(batch["x"].shape[0])), variables

    row = {"x": jax.ShapeDtypeStruct((), jnp.float32)}
    program = Program(lambda key: (jnp.ones(()), jnp.full((), 3.0), ()), loss, optax.adam(0.1), row)
    step = make_step(program, cpu, micro_batch=2, steps=1)
    state, metrics = step(step.init(jax.random.key(0)), {"x": jnp.ones(2)})
    assert float(state.frozen) == 3.0
    assert float(metrics.gradient_norm) == 3.0
    moments = [leaf for leaf in jax.tree.leaves(state.optimizer) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert len(moments) == 2  # first and second moment of the one trainable scalar, none of the frozen one


def test_the_three_short_loss_forms_agree(cpu: Device) -> None:
    x = jnp.arange(1.0, 5.0)
    forms = {
        "mean": from_mean_loss(lambda w, batch, key: ((w - batch) ** 2).mean()),
        "sum": from_sum_loss(lambda w, batch, key: (((w - batch) ** 2).sum(), jnp.float32(batch.shape[0]))),
        "example": from_example_loss(lambda w, example, key: (w - example) ** 2),
    }
    for name, loss in forms.items():
        program = Program(lambda key: (jnp.zeros(()), (), ()), loss, optax.sgd(0.5), jax.ShapeDtypeStruct((), x.dtype))
        for micro_batch in (1, 2, 4):
            step = make_step(program, cpu, micro_batch, 4 // micro_batch)
            state, metrics = step(step.init(jax.random.key(0)), x)
            assert float(metrics.loss) == 7.5, name  # (1 + 4 + 9 + 16) / 4
            assert float(state.trainable) == 2.5, name  # 0.5 * mean of 2 x


def test_example_loss_keys_do_not_depend_on_the_split(cpu: Device) -> None:
    loss = from_example_loss(lambda w, example, key: w * jax.random.normal(key))
    program = Program(lambda key: (jnp.zeros(()), (), ()), loss, optax.sgd(1.0), jax.ShapeDtypeStruct((), jnp.float32))
    moved = []
    for micro_batch in (1, 2, 4):
        step = make_step(program, cpu, micro_batch, 4 // micro_batch)
        state, _ = step(step.init(jax.random.key(7)), jnp.zeros(4))
        moved.append(float(state.trainable))
    np.testing.assert_allclose(moved, moved[0], rtol=1e-6)
    assert moved[0] != 0


def test_da_s4_another_shape_raises_and_names_it_instead_of_compiling_again(cpu: Device) -> None:
    step = make_step(linear_program(1, optax.sgd(0.1)), cpu, micro_batch=4, steps=1)
    state = step.init(jax.random.key(0))
    compiled = step.compiled
    with pytest.raises(ShapeError, match=r"gradient: float32\[4,1\] -> float32\[3,1\]"):
        step(state, linear_batch([[1.0]] * 3))
    step(state, linear_batch([[1.0]] * 4))
    assert step.compiled is compiled


def test_the_state_is_donated(cpu: Device) -> None:
    step = make_step(linear_program(4, optax.adamw(0.1)), cpu, micro_batch=1, steps=1)
    state = step.init(jax.random.key(0))
    step(state, linear_batch([[1.0] * 4]))
    assert state.trainable.is_deleted()


def test_a_technique_that_cannot_work_says_why(cpu: Device) -> None:
    with pytest.raises(TechniqueError, match="calls no stack"):
        Step(linear_program(1, optax.sgd(0.1)), Recipe.of(1, Rematerialization("full")), cpu)
