from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from brim.models import DecoderShape
from brim.models.decoder import Block, Decoder
from brim.models.layers import LayerNorm, Linear, RMSNorm, Rotary, create_norm

create = jax.jit(Decoder.create, static_argnums=1)


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def one_large(length: int = 4096) -> np.ndarray:
    """The input of BF-S3: one channel of 256 among ones. Sums of it in bf16 lose the ones."""
    x = np.ones(length)
    x[0] = 256
    return x


def ulp_bf16(x: np.ndarray) -> np.ndarray:
    """Distance of neighbouring bf16 numbers (8 significant bits) around x."""
    return 2.0 ** (np.floor(np.log2(np.abs(x))) - 7)


def norm_and_gradient(x: np.ndarray, slope: np.ndarray, epsilon: float, center: bool) -> tuple[np.ndarray, np.ndarray]:
    """LayerNorm (or RMSNorm) of a vector with scale 1, and d sum(slope * y) / dx, by hand in float64."""
    centered = x - x.mean() if center else x
    deviation = np.sqrt(np.mean(centered**2) + epsilon)
    y = centered / deviation
    gradient = (slope - y * np.mean(slope * y)) / deviation
    return y, gradient - gradient.mean() if center else gradient


def test_weights_are_stored_out_in() -> None:
    linear = Linear.create(jax.random.key(0), 3, 5, bias=True)
    linear = Linear(linear.weight, jnp.arange(5.0))
    x = jnp.asarray(random(2, 4, 3), jnp.float32)
    assert linear.weight.shape == (5, 3)
    expected = np.asarray(x, np.float64) @ np.asarray(linear.weight, np.float64).T + np.arange(5)
    np.testing.assert_allclose(linear(x), expected, atol=1e-6)
    # A gradient that needs no transpose to meet its weight.
    assert jax.grad(lambda linear: linear(x).sum())(linear).weight.shape == (5, 3)


def test_linear_computes_in_the_dtype_of_its_input_and_keeps_its_parameters() -> None:
    linear = Linear.create(jax.random.key(0), 3, 5, bias=True)
    x = jnp.ones((2, 3), jnp.bfloat16)
    assert linear(x).dtype == jnp.bfloat16
    assert jax.grad(lambda linear: linear(x).astype(jnp.float32).sum())(linear).weight.dtype == jnp.float32
    products = [eqn for eqn in jax.make_jaxpr(linear)(x).eqns if eqn.primitive.name == "dot_general"]
    assert [variable.aval.dtype for eqn in products for variable in eqn.invars] == [jnp.bfloat16] * 2


def test_a_wrong_width_is_caught_at_the_door() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Linear(jnp.ones((5, 3)), jnp.ones(4))


def test_bf_s3_rms_norm_of_bf16_is_computed_in_fp32() -> None:
    norm = RMSNorm(jnp.ones(4096), 1e-6)
    y = np.asarray(norm(jnp.asarray(one_large(), jnp.bfloat16)[None]), np.float64)[0]
    assert abs(y[0] - 62.0896) <= ulp_bf16(np.float64(62.0896))
    assert np.all(np.abs(y[1:] - 0.242537) <= ulp_bf16(np.float64(0.242537)))


@pytest.mark.parametrize("center", [True, False], ids=["LayerNorm", "RMSNorm"])
def test_bf_s3_norms_of_bf16_are_right_to_one_ulp_forward_and_backward(center: bool) -> None:
    epsilon, x, slope = 1e-6, one_large(), np.where(np.arange(4096) % 3 == 0, 1.0, -2.0)
    norm = LayerNorm(jnp.ones(4096), jnp.zeros(4096), epsilon) if center else RMSNorm(jnp.ones(4096), epsilon)
    y, pull = jax.vjp(norm, jnp.asarray(x, jnp.bfloat16)[None])
    (gradient,) = pull(jnp.asarray(slope, jnp.bfloat16)[None])
    assert y.dtype == gradient.dtype == jnp.bfloat16
    expected, expected_gradient = norm_and_gradient(x, slope, epsilon, center)
    assert np.all(np.abs(np.asarray(y[0], np.float64) - expected) <= ulp_bf16(expected))
    # The large channel's gradient cancels to 3e-8: there the sums' fp32 rounding is what is left.
    error = np.abs(np.asarray(gradient[0], np.float64) - expected_gradient)
    assert np.all(error <= ulp_bf16(expected_gradient) + 1e-6)


@pytest.mark.parametrize("center", [True, False], ids=["LayerNorm", "RMSNorm"])
def test_norms_scale_and_shift(center: bool) -> None:
    x, scale, bias = random(2, 5, 24), random(24, seed=1), random(24, seed=2)
    single = [jnp.asarray(array, jnp.float32) for array in (x, scale, bias)]
    norm = LayerNorm(single[1], single[2], 1e-5) if center else RMSNorm(single[1], 1e-5)
    expected = np.stack([[norm_and_gradient(v, v, 1e-5, center)[0] for v in row] for row in x]) * scale
    np.testing.assert_allclose(norm(single[0]), expected + bias * center, atol=1e-5)


def test_norm_of_a_row_of_zeros_is_finite_with_finite_gradients(make_shape: Callable[..., DecoderShape]) -> None:
    for family in ("gpt2", "llama"):
        norm = create_norm(make_shape(family=family))
        y, pull = jax.vjp(norm, jnp.zeros((1, 24)))
        assert np.all(np.asarray(y) == 0)
        assert np.all(np.isfinite(pull(jnp.ones((1, 24)))[0]))


def test_bf_s4_rotary_tables_are_exact_at_large_positions() -> None:
    positions = jnp.asarray([[256, 257, 1000, 1001, 1002]], jnp.int32)
    rotary = Rotary.create(positions, 64, 10000.0)
    assert rotary.cosine.dtype == rotary.sine.dtype == jnp.float32
    np.testing.assert_allclose(rotary.cosine[0, :4, 0], [-0.03979, 0.81931, 0.56238, -0.39194], atol=1e-5)
    angles = np.asarray(positions, np.float64)[0, :, None] * 10000.0 ** (-np.arange(32) / 32)
    # fp32 angles near 1000 are 3e-5 off at most.
    np.testing.assert_allclose(rotary.cosine[0], np.cos(angles), atol=1e-4)
    np.testing.assert_allclose(rotary.sine[0], np.sin(angles), atol=1e-4)


def test_bf_s4_bf16_queries_are_turned_by_fp32_angles() -> None:
    x = jnp.asarray(random(1, 3, 2, 64), jnp.bfloat16)
    positions = np.array([256, 257, 1001])
    turned = Rotary.create(jnp.asarray(positions[None], jnp.int32), 64, 10000.0)(x)
    assert turned.dtype == jnp.bfloat16
    # Complex numbers as the oracle: entry i and entry i + 32 are one number, turned by its angle.
    wide = np.asarray(x, np.float64)
    angles = positions[None, :, None, None] * 10000.0 ** (-np.arange(32) / 32)
    expected = (wide[..., :32] + 1j * wide[..., 32:]) * np.exp(1j * angles)
    expected = np.concatenate([expected.real, expected.imag], axis=-1)
    # Half a bf16 spacing for numbers below 4 is 2**-7; angles are 3e-5 off at most.
    np.testing.assert_allclose(np.asarray(turned, np.float64), expected, atol=2.0**-7 + 1e-3)


def test_rotary_products_depend_on_the_distance_only() -> None:
    query, key = (jnp.asarray(random(1, 1, 1, 8, seed=seed), jnp.float32) for seed in (1, 2))

    def product(at: int, distance: int) -> float:
        first, second = (Rotary.create(jnp.full((1, 1), p, jnp.int32), 8, 100.0) for p in (at, at + distance))
        return float(jnp.vdot(first(query), second(key)))

    assert product(3, 5) == pytest.approx(product(40, 5), abs=1e-4)
    assert abs(product(3, 5) - product(3, 6)) > 1e-2


def test_initial_weights_are_as_published_and_follow_the_key() -> None:
    shape = DecoderShape(
        family="gpt2", layers=8, width=128, heads=4, kv_heads=4, head_width=32, hidden=512, context=256,
        vocabulary=300, tied=False, bias=True, rope_theta=None, norm_epsilon=1e-5,
    )  # fmt: skip
    model = create(jax.random.key(0), shape)
    layers, positions, head = model.layers, model.position_embedding, model.head
    assert positions is not None
    assert head is not None
    plain = [layers.attention.query, layers.attention.key, layers.attention.value, layers.mlp.up]
    for part in (*plain, model.token_embedding, positions, head):
        assert np.std(part.weight) == pytest.approx(0.02, rel=0.03)
    for part in (layers.attention.out, layers.mlp.down):
        assert np.std(part.weight) == pytest.approx(0.02 / 4, rel=0.03)
    for part in (*plain, layers.attention.out, layers.mlp.down, layers.attention_norm, layers.mlp_norm):
        assert np.all(np.asarray(part.bias) == 0)
    assert np.all(np.asarray(layers.attention_norm.scale) == 1)
    firsts = [np.asarray(part.weight[layer]).ravel()[:8] for part in plain for layer in range(8)]
    assert len({first.tobytes() for first in firsts}) == len(firsts), "two arrays were drawn from one key"

    again, other = (create(jax.random.key(seed), shape) for seed in (0, 1))
    assert jax.tree.all(jax.tree.map(np.array_equal, model, again))
    assert not np.any(np.asarray(model.layers.mlp.up.weight) == np.asarray(other.layers.mlp.up.weight))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_elementwise_parts_keep_only_their_inputs(family: str, make_shape: Callable[..., DecoderShape]) -> None:
    shape = make_shape(family=family)
    specs = jax.eval_shape(lambda key: Block.create(key, shape), jax.random.key(0))
    block = jax.tree.map(lambda spec: jnp.ones(spec.shape, spec.dtype), specs)
    x = jnp.ones((2, 11, 24))
    _, pull = jax.vjp(lambda mlp, x: mlp(x), block.mlp, x)
    activations = [leaf for leaf in jax.tree.leaves(pull) if leaf.size == 2 * 11 * shape.hidden]
    # The input of GELU, or gate and up of SwiGLU; and the input of the last linear layer.
    assert len(activations) == (3 if shape.gated else 2)
    _, pull = jax.vjp(lambda norm, x: norm(x), block.mlp_norm, x)
    assert [leaf.shape for leaf in jax.tree.leaves(pull) if leaf.shape[:2] == (2, 11)] == [(2, 11, 24)]
