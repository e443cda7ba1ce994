from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import SettingsError
from brim.training.optimizers import OptimizerSettings, clip_by_norm, global_norm, matrices, optimizer
from brim.training.schedules import ScheduleSettings, schedule


def constant(learning_rate: float):
    return schedule(ScheduleSettings(kind="constant", learning_rate=learning_rate), 100)


def test_fp_s3_the_clip_factor_stays_in_fp32():
    gradients = {"w": jnp.full((2,), 6e4, jnp.float16)}
    norm = global_norm(gradients)
    assert norm.dtype == jnp.float32
    assert float(norm) == pytest.approx(84852.8, rel=1e-5)
    clipped = clip_by_norm(gradients, norm, 1e-3)["w"]
    assert clipped.dtype == jnp.float16
    # fp16 keeps about three digits here; a factor rounded to fp16 would give 0.
    assert np.asarray(clipped, np.float32) == pytest.approx([7.07e-4] * 2, rel=1e-3)


def test_the_global_norm_is_over_all_leaves():
    tree = {"a": jnp.array([3.0]), "b": (jnp.array([[4.0]]), jnp.array(12.0, jnp.bfloat16))}
    assert float(global_norm(tree)) == pytest.approx(13, rel=1e-7)
    assert float(global_norm({})) == 0


def test_clipping_below_the_limit_changes_no_bit_and_above_it_sets_the_norm():
    tree = {"a": jax.random.normal(jax.random.key(0), (64,)), "zero": jnp.zeros(3)}
    norm = global_norm(tree)
    same = clip_by_norm(tree, norm, float(norm) * 1.001)
    assert all(np.array_equal(same[name], tree[name]) for name in tree)
    clipped = clip_by_norm(tree, norm, 0.5)
    assert float(global_norm(clipped)) == pytest.approx(0.5, rel=1e-6)
    zeros = {"a": jnp.zeros(3)}
    assert np.array_equal(clip_by_norm(zeros, global_norm(zeros), 1.0)["a"], np.zeros(3))


def test_adamw_equals_its_definition_with_decay_on_matrices_only():
    rate, beta1, beta2, epsilon, decay = 1e-2, 0.9, 0.95, 1e-8, 0.3
    settings = OptimizerSettings(betas=(beta1, beta2), epsilon=epsilon, weight_decay=decay)
    made = optimizer(settings, constant(rate))
    rng = np.random.default_rng(0)
    expected = {"matrix": rng.normal(size=(3, 2)), "vector": rng.normal(size=3)}
    parameters = {name: jnp.asarray(value, jnp.float32) for name, value in expected.items()}
    state = made.init(parameters)
    first, second = ({name: np.zeros_like(value) for name, value in expected.items()} for _ in range(2))
    for count in range(1, 6):
        gradients = {name: rng.normal(size=value.shape) for name, value in expected.items()}
        for name, gradient in gradients.items():
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
            step = first[name] / (1 - beta1**count) / (np.sqrt(second[name] / (1 - beta2**count)) + epsilon)
            step = step + (decay if name == "matrix" else 0) * expected[name]
            expected[name] = expected[name] - rate * step
        updates, state = made.update(
            {name: jnp.asarray(value, jnp.float32) for name, value in gradients.items()}, state, parameters
        )
        parameters = optax.apply_updates(parameters, updates)
    for name, value in expected.items():
        assert np.asarray(parameters[name]) == pytest.approx(value, rel=1e-5, abs=1e-6)


def test_a_stacked_vector_is_no_matrix():
    parameters = {
        "embedding": jnp.zeros((5, 4)),
        "layers": {"scale": jnp.zeros((2, 4)), "weight": jnp.zeros((2, 4, 4))},
        "scale": jnp.zeros(4),
    }
    mask = matrices(parameters, stacked=lambda name: name.startswith("layers."))
    assert mask == {"embedding": True, "layers": {"scale": False, "weight": True}, "scale": False}
    assert matrices(parameters)["layers"]["scale"] is True
    made = optimizer(OptimizerSettings(weight_decay=1.0), constant(0.1), mask)
    ones = jax.tree.map(jnp.ones_like, parameters)
    updates, _ = made.update(jax.tree.map(jnp.zeros_like, ones), made.init(ones), ones)
    assert jax.tree.map(lambda leaf: float(leaf.min()), updates) == {
        "embedding": pytest.approx(-0.1),
        "layers": {"scale": 0, "weight": pytest.approx(-0.1)},
        "scale": 0,
    }


def test_moments_and_updates_are_fp32_for_bf16_parameters():
    parameters = {"w": jnp.ones((2, 2), jnp.bfloat16)}
    made = optimizer(OptimizerSettings(), constant(1e-3))
    state = made.init(parameters)
    updates, state = made.update({"w": jnp.full((2, 2), 0.1, jnp.bfloat16)}, state, parameters)
    floating = [leaf.dtype for leaf in jax.tree.leaves((updates, state)) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert floating == [jnp.float32] * 3
    with jax.numpy_dtype_promotion("standard"):
        assert optax.apply_updates(parameters, updates)["w"].dtype == jnp.bfloat16


def test_the_schedule_is_read_once_per_update():
    rate = schedule(ScheduleSettings(kind="linear", learning_rate=1.0), 4)
    made = optimizer(OptimizerSettings(betas=(0.0, 0.0), weight_decay=0.0), rate)
    parameters = {"w": jnp.zeros(1)}
    state = made.init(parameters)
    steps = []
    for _ in range(4):
        updates, state = made.update({"w": jnp.ones(1)}, state, parameters)
        steps.append(-float(updates["w"][0]))
    assert steps == pytest.approx([1.0, 0.75, 0.5, 0.25], rel=1e-6)


@pytest.mark.parametrize(
    "fields",
    [{"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}, {"epsilon": 0.0}, {"weight_decay": -1.0}, {"clip_norm": 0.0}],
)
def test_values_out_of_range_are_errors(fields):
    with pytest.raises(SettingsError, match=f"`{next(iter(fields))}`"):
        OptimizerSettings(**fields)
