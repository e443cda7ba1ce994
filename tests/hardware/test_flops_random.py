"""Random products and convolutions: with ones everywhere, the sum of the result is the number of multiply-adds."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jax import lax

from brim.hardware.flops import count_flops

pytestmark = pytest.mark.slow
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much], derandomize=True)


def multiply_adds(function, *shapes):
    return int(np.asarray(function(*(jnp.ones(shape) for shape in shapes))).sum())


@MANY
@given(
    sizes=st.fixed_dictionaries({letter: st.integers(1, 5) for letter in "abijkl"}),
    left=st.permutations("abikl"),
    right=st.permutations("abjkl"),
)
def test_products(sizes, left, right):
    def product(x, y):
        return jnp.einsum(f"{''.join(left)},{''.join(right)}->abij", x, y)

    shapes = [tuple(sizes[letter] for letter in letters) for letters in (left, right)]
    specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    assert count_flops(product, *specs).matmul == 2 * multiply_adds(product, *shapes)


@st.composite
def convolutions(draw):
    axes, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 2]))

    def each(least, most):
        return tuple(draw(st.integers(least, most)) for _ in range(axes))

    features = draw(st.integers(1, 3))
    image = (draw(st.integers(1, 2)), groups * features, *each(1, 9))
    kernel = (groups * draw(st.integers(1, 3)), features, *each(1, 4))
    options = {
        "window_strides": each(1, 3),
        "padding": tuple((draw(st.integers(-1, 3)), draw(st.integers(0, 3))) for _ in range(axes)),
        "lhs_dilation": each(1, 3),
        "rhs_dilation": each(1, 3),
        "feature_group_count": groups,
    }
    return image, kernel, options


@MANY
@given(convolutions())
def test_convolutions(case):
    image, kernel, options = case

    def convolve(x, w):
        return lax.conv_general_dilated(x, w, **options)

    specs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (image, kernel)]
    assume(np.prod(jax.eval_shape(convolve, *specs).shape) > 0)
    assert count_flops(convolve, *specs).matmul == 2 * multiply_adds(convolve, image, kernel)
