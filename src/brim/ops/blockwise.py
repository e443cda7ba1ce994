"""Arrays in 8 bits, block by block: codes of a dynamic map, and one fp32 scale for each block.

A block is `block` neighbours in row-major order; the last one of an array may be short. Its scale is its largest
absolute value. Each element over the scale lies in [-1, 1], and is kept as the number of the nearest level of a map
that spends its bits like a tree: seven decades from 1 down to 1e-7, with half as many levels in each smaller one. So
large elements are near (within 1% of the block's largest), and small ones do not vanish.

    unsigned    256 levels: 0, 1, and 254 between. What is above 0 never becomes 0: a second moment of 0 would divide
                a first moment by epsilon alone
    signed      128 levels with a sign bit: 0, 1, and 126 between. The published map has 1 but no -1, so that a block
                whose largest element is negative shrinks by 0.7% each time it is kept; here both ends are there

Whatever was kept once is kept again bit for bit. A block of zeros has the smallest normal fp32 number for its scale,
so that a scale is never 0. What is not finite makes its whole block so: it is seen, not hidden.

Sources: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, 2022 (arXiv:2110.02861). Why a second moment
must not be 0: Li et al., Memory Efficient Optimizers with 4-bit States, 2023 (arXiv:2309.01507).

Letters: R rows that have blocks of their own, N elements of a row, K blocks of a row, L levels.
"""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, UInt8

_DECADES = 7
_SIGN = 128
_TOP_CELL = 0x3F80
"""Upper 16 bits of 1.0 in fp32."""
_BOTTOM_CELL = _TOP_CELL - 22 * 128
"""Upper 16 bits of 2**-22, below every level but 0: 22 octaves of 128 cells."""


@cache
def levels(*, signed: bool) -> np.ndarray:
    """The levels that codes stand for, fp32, ascending: 128 magnitudes for a signed map, 256 for an unsigned one."""
    means = []
    for decade in range(_DECADES):
        edges = np.linspace(0.1, 1, 2 ** (decade + (not signed)) + 1)
        means += list(10.0 ** (decade + 1 - _DECADES) * (edges[:-1] + edges[1:]) / 2)
    return np.asarray([0.0, *means[:-1], 1.0] if signed else [0.0, *means, 1.0], np.float32)


def quantize(
    rows: Float[Array, "R N"], block: int, *, signed: bool
) -> tuple[UInt8[Array, "R N"], Float32[Array, "R K"]]:
    """Codes and scales of rows, each of which begins a new block.

    Args:
        rows: of any floating dtype. Below 0 counts as 0 unless signed.
        block: elements that share a scale.
    """
    values = rows.astype(jnp.float32)
    blocks = _in_blocks(values, block)
    scales = jnp.maximum(jnp.abs(blocks).max(axis=-1), jnp.finfo(jnp.float32).tiny)
    shares = values / _spread(scales, values.shape[1], block)
    codes = _nearest(jnp.abs(shares) if signed else jnp.maximum(shares, 0), signed=signed)
    if signed:
        codes = jnp.where((shares < 0) & (codes > 0), codes | jnp.uint8(_SIGN), codes)
    return codes, scales


def dequantize(
    codes: UInt8[Array, "R N"], scales: Float32[Array, "R K"], block: int, *, signed: bool
) -> Float32[Array, "R N"]:
    """The elements that codes and scales stand for."""
    table = levels(signed=signed)
    if signed:
        table = np.concatenate([table, -table])
    return _look_up(table, codes) * _spread(scales, codes.shape[1], block)


def _in_blocks(rows: Float[Array, "R N"], block: int) -> Float[Array, "R K block"]:
    missing = -rows.shape[1] % block
    return jnp.pad(rows, ((0, 0), (0, missing))).reshape(rows.shape[0], -1, block)


def _spread(scales: Float[Array, "R K"], elements: int, block: int) -> Float[Array, "R N"]:
    """The scale of each element."""
    every = jnp.broadcast_to(scales[:, :, None], (*scales.shape, block))
    return every.reshape(scales.shape[0], -1)[:, :elements]


def _nearest(shares: Float32[Array, "R N"], *, signed: bool) -> UInt8[Array, "R N"]:
    """Numbers of the levels nearest to shares of 0 up to 1; of two equally near ones the lower.

    The upper 16 bits of a float tell its cell, and no cell holds more than one border between levels: two look-ups
    and a comparison instead of a binary search.
    """
    first, borders = _cells(signed=signed)
    bits = jax.lax.bitcast_convert_type(shares, jnp.int32) >> 16
    lowest = _look_up(first, jnp.clip(bits, _BOTTOM_CELL, _TOP_CELL) - _BOTTOM_CELL)
    return lowest + (shares > _look_up(borders, lowest)).astype(jnp.uint8)


@cache
def _cells(*, signed: bool) -> tuple[np.ndarray, np.ndarray]:
    """The level at the beginning of each cell, and the border above each level."""
    table = levels(signed=signed)
    borders = np.append((table[:-1] + table[1:]) / 2, np.float32(np.inf))
    if not signed:
        borders[0] = 0.0
    begins = (np.arange(_BOTTOM_CELL, _TOP_CELL + 1, dtype=np.int32) << 16).view(np.float32).copy()
    begins[0] = 0.0
    return np.searchsorted(borders, begins).astype(np.uint8), borders


def _look_up(table: np.ndarray, numbers: Array) -> Array:
    return jnp.asarray(table).at[numbers.astype(jnp.int32)].get(mode="promise_in_bounds")
