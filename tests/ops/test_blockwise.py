"""Codes and scales against levels written down independently, in float64, and a search among all of them."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from brim.ops.blockwise import dequantize, levels, quantize

TINY = float(np.finfo(np.float32).tiny)
SIGNS = pytest.mark.parametrize("signed", [True, False], ids=["signed", "unsigned"])


def oracle_levels(signed: bool) -> list[float]:
    """Decade d above 1e-7 has 2**d (signed) or 2**(d + 1) equal intervals, with a level in the middle of each."""
    found = [0.0]
    for decade in range(7):
        count = 2**decade if signed else 2 ** (decade + 1)
        low, high = 10.0 ** (decade - 7), 10.0 ** (decade - 6)
        found += [low + (high - low) * (place + 0.5) / count for place in range(count)]
    if signed:
        found.pop()
    return [*found, 1.0]


def oracle(row: np.ndarray, block: int, signed: bool) -> np.ndarray:
    """The nearest representable value of each element, by trying all of them in float64."""
    table = np.asarray(oracle_levels(signed))
    table = np.concatenate([-table[:0:-1], table]) if signed else table
    found = []
    for start in range(0, len(row), block):
        part = row[start : start + block].astype(np.float64)
        scale = max(np.abs(part).max(), TINY)
        shares = part / scale if signed else np.maximum(part / scale, 0)
        chosen = table[np.abs(shares[:, None] - table[None]).argmin(axis=1)]
        if not signed:
            chosen = np.where((shares > 0) & (chosen == 0), table[1], chosen)
        found.append(chosen * scale)
    return np.concatenate(found)


def wide(size: tuple[int, ...], signed: bool) -> np.ndarray:
    """Values over nine decades."""
    random = np.random.default_rng(0)
    values = random.normal(size=size) * 10 ** random.uniform(-9, 0, size)
    return (values if signed else np.abs(values)).astype(np.float32)


def kept(rows: np.ndarray, block: int, signed: bool) -> np.ndarray:
    codes, scales = quantize(jnp.asarray(rows), block, signed=signed)
    return np.asarray(dequantize(codes, scales, block, signed=signed))


@SIGNS
def test_the_levels_are_those_of_the_published_map(signed: bool) -> None:
    found = levels(signed=signed)
    assert found.dtype == np.float32 and len(found) == (128 if signed else 256)
    np.testing.assert_allclose(found, oracle_levels(signed), rtol=1e-6)
    smallest = [5.5e-7, 3.25e-6, 7.75e-6] if signed else [3.25e-7, 7.75e-7, 2.125e-6]
    np.testing.assert_allclose(found[1:4], smallest, rtol=1e-6)


@SIGNS
@pytest.mark.parametrize("block", [1, 64, 256])
def test_each_element_becomes_the_nearest_level(signed: bool, block: int) -> None:
    rows = wide((2, 1000), signed)
    wanted = np.stack([oracle(row, block, signed) for row in rows])
    np.testing.assert_allclose(kept(rows, block, signed), wanted, rtol=1e-6)


@SIGNS
def test_at_every_border_between_levels_the_code_changes_by_one(signed: bool) -> None:
    table = levels(signed=signed)
    borders = ((table[:-1] + table[1:]) / 2)[0 if signed else 1 :]
    first = 0 if signed else 1
    below, above = (np.nextafter(borders, np.float32(end)) for end in (0, 2))
    for values, wanted in ((below, 0), (above, 1)):
        codes, _ = quantize(jnp.asarray(np.append(values, np.float32(1))[None]), 256, signed=signed)
        np.testing.assert_array_equal(codes[0, :-1], np.arange(len(borders)) + first + wanted)


@SIGNS
def test_the_error_is_at_most_half_a_gap(signed: bool) -> None:
    values = np.linspace(-1 if signed else 0, 1, 20001, dtype=np.float32)[None]
    error = np.abs(kept(values, 20001, signed) - values)
    top, next_one, third = levels(signed=signed)[-1:-4:-1]
    assert error.max() == pytest.approx((top - next_one if signed else next_one - third) / 2, rel=0.02)
    assert error.max() < (0.0106 if signed else 0.0036)


def test_zero_stays_zero_and_no_scale_is_zero() -> None:
    for signed in (True, False):
        codes, scales = quantize(jnp.zeros((2, 300)), 256, signed=signed)
        assert not codes.any() and float(scales.min()) == TINY
        assert not dequantize(codes, scales, 256, signed=signed).any()
    mixed = np.array([[0.0, -3.0, 0.0, 5.0]], np.float32)
    assert kept(mixed, 4, True)[0, [0, 2]].tolist() == [0, 0]


def test_the_largest_of_a_block_is_kept_exactly_whatever_its_sign() -> None:
    rows = np.array([[0.1, -0.7, 0.3, 0.2, 0.7, 0.1]], np.float32)
    for sign in (1, -1):
        found = kept(sign * rows, 3, True)
        assert found[0, 1] == sign * rows[0, 1] and found[0, 4] == sign * rows[0, 4]


def test_signed_codes_are_symmetric() -> None:
    rows = wide((1, 777), True)
    np.testing.assert_array_equal(kept(-rows, 256, True), -kept(rows, 256, True))


@SIGNS
def test_what_was_kept_once_is_kept_again_bit_for_bit(signed: bool) -> None:
    codes, scales = quantize(jnp.asarray(wide((3, 700), signed)), 256, signed=signed)
    again = quantize(dequantize(codes, scales, 256, signed=signed), 256, signed=signed)
    np.testing.assert_array_equal(again[0], codes)
    np.testing.assert_array_equal(again[1], scales)


def test_a_positive_second_moment_never_becomes_zero() -> None:
    rows = np.array([[1.0, 1e-12, 1e-30, 0.0]], np.float32)
    assert kept(rows, 4, False)[0].tolist() == pytest.approx([1.0, 3.25e-7, 3.25e-7, 0.0])


def test_eb_s2_the_ragged_last_block_has_its_own_scale() -> None:
    """5000 = 19 x 256 + 136; the tail is a millionth of the rest, and as accurate."""
    row = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    row[19 * 256 :] *= 1e-6
    codes, scales = quantize(jnp.asarray(row[None]), 256, signed=True)
    assert codes.shape == (1, 5000) and scales.shape == (1, 20)
    tail = row[19 * 256 :]
    assert float(scales[0, -1]) == np.abs(tail).max()
    error = np.abs(kept(row[None], 256, True)[0, 19 * 256 :] - tail).max()
    assert 0 < error < 0.0106 * np.abs(tail).max()


def test_rows_begin_blocks_of_their_own() -> None:
    rows = wide((3, 300), True)
    codes, scales = quantize(jnp.asarray(rows), 256, signed=True)
    for number in range(3):
        alone = quantize(jnp.asarray(rows[number : number + 1]), 256, signed=True)
        np.testing.assert_array_equal(codes[number], alone[0][0])
        np.testing.assert_array_equal(scales[number], alone[1][0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_seen(bad: float) -> None:
    rows = np.ones((1, 512), np.float32)
    rows[0, 3] = bad
    for signed in (True, False):
        found = kept(rows, 256, signed)[0]
        assert not np.isfinite(found[3]) and np.isfinite(found[256:]).all()


@settings(max_examples=30, deadline=None)
@given(
    arrays(
        np.float32,
        st.sampled_from([(1, 1), (1, 5), (2, 16), (2, 37)]),
        elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False),
    ),
    st.sampled_from([4, 16]),
)
def test_whatever_the_values_the_error_is_small_beside_the_largest_of_the_block(rows: np.ndarray, block: int) -> None:
    for signed in (True, False):
        values = rows if signed else np.abs(rows)
        found = kept(values, block, signed).astype(np.float64)
        for start in range(0, rows.shape[1], block):
            part, of_part = values[:, start : start + block], found[:, start : start + block]
            largest = np.maximum(np.abs(part).max(axis=1, keepdims=True).astype(np.float64), TINY)
            assert (np.abs(of_part - part) <= (0.0106 if signed else 0.0036) * largest).all()
            assert ((part == 0) <= (of_part == 0)).all() and (np.sign(of_part) * np.sign(part) >= 0).all()
