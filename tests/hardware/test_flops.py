from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from brim.hardware.flops import Flops, count_flops


def spec(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_a_matrix_product_is_2mnk():
    flops = count_flops(lambda a, b: a @ b, spec(3, 5), spec(5, 7))
    assert flops == Flops({"float32": 2 * 3 * 5 * 7})


def test_batch_dimensions_multiply():
    flops = count_flops(lambda a, b: jnp.einsum("xbik,xbkj->xbij", a, b), spec(2, 4, 3, 5), spec(2, 4, 5, 7))
    assert flops.matmul == 2 * 4 * (2 * 3 * 5 * 7)


def test_several_contracted_dimensions_multiply():
    flops = count_flops(lambda a, b: jnp.einsum("ikl,klj->ij", a, b), spec(3, 5, 11), spec(5, 11, 7))
    assert flops.matmul == 2 * 3 * 7 * (5 * 11)


def test_products_are_counted_by_the_wider_dtype():
    def both(a, b):
        return a @ a, lax.dot_general(a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)

    flops = count_flops(both, spec(8, 8, dtype=jnp.bfloat16), spec(8, 8))
    assert flops.by_dtype == {"bfloat16": 2 * 8**3, "float32": 2 * 8**3}


def test_elements_are_counted_apart_and_moving_data_is_free():
    flops = count_flops(lambda x: jnp.sum(jnp.tanh(x) * 2.0), spec(3, 4))
    assert flops == Flops(other=12 + 12 + 12)  # tanh, times, what the sum reads
    assert count_flops(lambda x: jnp.concatenate([x.T.reshape(3, 4), x[::-1]]), spec(3, 4)).total == 0
    assert count_flops(lambda i: i * 2 + 1, spec(9, dtype=jnp.int32)).total == 0


def test_adding_into_rows_counts_the_rows_only():
    flops = count_flops(lambda x, i, u: x.at[i].add(u), spec(1000, 4), spec(2, dtype=jnp.int32), spec(2, 4))
    assert flops == Flops(other=8)


def body(x, w):
    return jnp.tanh(x @ w), None


def test_a_scan_counts_its_length_times():
    once = count_flops(body, spec(4, 8), spec(8, 8))
    assert once == Flops({"float32": 2 * 4 * 8 * 8}, other=4 * 8)
    assert count_flops(lambda x, w: lax.scan(body, x, w), spec(4, 8), spec(12, 8, 8)) == once * 12


def test_nested_scans_multiply():
    def outer(x, w):
        return lax.scan(body, x, w)[0], None

    flops = count_flops(lambda x, w: lax.scan(outer, x, w), spec(4, 8), spec(3, 5, 8, 8))
    assert flops == count_flops(body, spec(4, 8), spec(8, 8)) * 15


def test_an_unrolled_and_a_scanned_stack_have_the_same_products():
    def unrolled(x, w):
        for layer in range(6):
            x, _ = body(x, w[layer])
        return x

    scanned = count_flops(lambda x, w: lax.scan(body, x, w), spec(4, 8), spec(6, 8, 8))
    assert count_flops(unrolled, spec(4, 8), spec(6, 8, 8)).by_dtype == scanned.by_dtype


@pytest.mark.parametrize("wrap", [jax.jit, jax.vmap, lambda f: jax.jit(jax.jit(f))])
def test_calls_are_counted_inside(wrap):
    flops = count_flops(wrap(lambda x, w: x @ w), spec(3, 4, 5), spec(3, 5, 6))
    assert flops.matmul == 3 * 2 * 4 * 5 * 6


def test_a_closed_jaxpr_is_counted_as_it_is():
    closed = jax.make_jaxpr(lambda a: a @ a)(jnp.ones((4, 4)))
    assert count_flops(closed).matmul == 2 * 4**3


def stack(x, w, layer):
    return jnp.sum(lax.scan(lambda x, w: (layer(x, w), None), x, w)[0])


def test_a_gradient_is_two_more_products_and_remat_recomputes_the_forward():
    def layer(x, w):
        return jnp.tanh(x @ w)

    specs = spec(4, 8), spec(6, 8, 8)
    forward = count_flops(lambda x, w: stack(x, w, layer), *specs).matmul
    plain = count_flops(jax.grad(lambda x, w: stack(x, w, layer), argnums=(0, 1)), *specs).matmul
    remat = count_flops(jax.grad(lambda x, w: stack(x, w, jax.checkpoint(layer)), argnums=(0, 1)), *specs).matmul
    assert (plain, remat) == (3 * forward, 4 * forward)


def test_remat_that_keeps_the_products_recomputes_none():
    policy = jax.checkpoint_policies.dots_saveable
    layer = jax.checkpoint(lambda x, w: jnp.tanh(x @ w), policy=policy)
    specs = spec(4, 8), spec(6, 8, 8)
    forward = count_flops(lambda x, w: stack(x, w, layer), *specs).matmul
    assert count_flops(jax.grad(lambda x, w: stack(x, w, layer), argnums=(0, 1)), *specs).matmul == 3 * forward


def test_custom_derivatives_are_counted_as_they_are_used():
    @jax.custom_vjp
    def square(x, w):
        return x @ w

    square.defvjp(lambda x, w: (x @ w, (x, w)), lambda saved, g: (g @ saved[1].T @ saved[1].T, saved[0].T @ g))
    specs = spec(4, 4), spec(4, 4)
    assert count_flops(square, *specs).matmul == 2 * 4**3
    gradient = jax.grad(lambda x, w: jnp.sum(square(x, w)), argnums=(0, 1))
    assert count_flops(gradient, *specs).matmul == (1 + 3) * 2 * 4**3  # one product forward, three backward

    @jax.custom_jvp
    def double(x):
        return x @ x

    double.defjvp(lambda primals, tangents: (double(*primals), primals[0] @ tangents[0]))
    assert count_flops(double, spec(4, 4)).matmul == 2 * 4**3


def test_a_condition_counts_its_dearest_branch():
    flops = count_flops(lambda p, x: lax.cond(p, lambda x: x @ x, lambda x: x @ x @ x, x), spec(dtype=bool), spec(4, 4))
    assert flops.matmul == 2 * 2 * 4**3


def test_a_while_loop_is_counted_once_and_said():
    flops = count_flops(lambda x: lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ x, x), spec(4, 4))
    assert flops.matmul == 2 * 4**3
    assert flops.notes == ("a while loop is counted once: how often it runs is not known",)


CONVOLUTIONS = {
    "same": {"x": (2, 3, 9, 8), "w": (5, 3, 3, 3), "padding": "SAME"},
    "strided": {"x": (2, 3, 9, 8), "w": (5, 3, 3, 2), "strides": (2, 3), "padding": "VALID"},
    "dilated kernel": {"x": (2, 3, 9, 8), "w": (5, 3, 3, 2), "padding": [(1, 2), (0, 1)], "rhs_dilation": (2, 1)},
    "transposed": {"x": (2, 3, 5, 4), "w": (5, 3, 3, 2), "padding": [(2, 2), (1, 1)], "lhs_dilation": (2, 3)},
    "grouped": {"x": (2, 6, 9, 8), "w": (4, 3, 3, 3), "padding": "SAME", "feature_group_count": 2},
    "one dimension": {"x": (2, 3, 9), "w": (5, 3, 4), "padding": "VALID"},
}


def convolution(case):
    options = {key: value for key, value in case.items() if key not in "xw"}
    strides = options.pop("strides", (1,) * (len(case["x"]) - 2))
    return lambda x, w: lax.conv_general_dilated(x, w, strides, **options)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_counts_its_real_taps(name):
    """The oracle: with ones for input and kernel, the sum of the output is the number of multiply-adds."""
    case = CONVOLUTIONS[name]
    function = convolution(case)
    multiply_adds = np.sum(function(jnp.ones(case["x"]), jnp.ones(case["w"])))
    assert count_flops(function, spec(*case["x"]), spec(*case["w"])) == Flops({"float32": 2 * int(multiply_adds)})


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_costs_as_much_again_for_each_of_its_gradients(name):
    case = CONVOLUTIONS[name]
    function, specs = convolution(case), (spec(*case["x"]), spec(*case["w"]))
    forward = count_flops(function, *specs).matmul
    gradient = count_flops(lambda x, w, g: jax.vjp(function, x, w)[1](g), *specs, jax.eval_shape(function, *specs))
    assert gradient.matmul == 3 * forward


def test_grouped_products_count_each_row_once():
    flops = count_flops(lax.ragged_dot, spec(10, 8), spec(3, 8, 5), spec(3, dtype=jnp.int32))
    assert flops.matmul == 2 * 10 * 8 * 5


def attention_flops(monkeypatch, *, causal: bool):
    """Counts of cuDNN's attention and its gradient, traced as if cuDNN were here."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    monkeypatch.setattr(cudnn, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(cudnn, "check_compute_capability", lambda capability: True)

    def attend(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")

    query, key = spec(2, 128, 8, 64, dtype=jnp.bfloat16), spec(2, 256, 4, 64, dtype=jnp.bfloat16)
    forward = count_flops(attend, query, key, key)
    both = count_flops(lambda q, k, v, g: jax.vjp(attend, q, k, v)[1](g), query, key, key, query)
    return forward, both


def test_fused_attention_is_two_products_forward_and_five_backward(monkeypatch):
    forward, both = attention_flops(monkeypatch, causal=False)
    one = 2 * 2 * 8 * 128 * 256 * 64  # batch 2, 8 query heads, 128 queries, 256 keys, 64 features
    assert forward.by_dtype == {"bfloat16": 2 * one}
    assert both.by_dtype == {"bfloat16": (2 + 5) * one}


def test_causal_fused_attention_is_half(monkeypatch):
    causal, full = (attention_flops(monkeypatch, causal=causal) for causal in (True, False))
    assert [2 * flops.matmul for flops in causal] == [flops.matmul for flops in full]


def test_a_kernel_counts_its_body_times_its_grid():
    from jax.experimental import pallas as pl

    def kernel(x, y, out):
        out[...] = x[...] @ y[...]

    def product(x, y):
        return pl.pallas_call(
            kernel,
            out_shape=spec(32, 24),
            grid=(4, 3),
            in_specs=[pl.BlockSpec((8, 16), lambda i, j: (i, 0)), pl.BlockSpec((16, 8), lambda i, j: (0, j))],
            out_specs=pl.BlockSpec((8, 8), lambda i, j: (i, j)),
        )(x, y)

    assert count_flops(product, spec(32, 16), spec(16, 24)).matmul == 2 * 32 * 16 * 24


def test_the_count_agrees_with_xla_where_xla_counts_right():
    """An unrolled network without loops: XLA's own analysis is the oracle for the products."""

    def network(x, w):
        for layer in range(3):
            x = x @ w[layer]
        return x

    x, w = spec(16, 32), spec(3, 32, 32)
    analysis = jax.jit(network).lower(x, w).compile().cost_analysis()
    assert count_flops(network, x, w).matmul == analysis["flops"]
