"""Blockwise attention against an oracle in float64, and what it promises about memory and work."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brim.hardware.flops import count_flops
from brim.ops import AttentionMask, reference_attention, residual
from brim.techniques.blockwise_attention import blockwise_attention, chosen_block
from techniques.attention_oracle import attention_and_gradients, difference, visible_pairs

ROWS, LENGTH, BLOCK = 2, 21, 8  # the last block holds 5 queries
FP32 = 1e-5  # sums of at most 21 fp32 terms: float noise is a few 1e-7
BF16 = 2e-2  # 8 bits of mantissa in weights and in the change of scores


def documents() -> np.ndarray:
    """Row 0: two documents, then padding. Row 1: padding, a document that spans blocks, a document."""
    return np.array([[1] * 5 + [2] * 12 + [0] * 4, [0] * 3 + [1] * 15 + [2] * 3], np.int32)


def inputs(heads: int = 4, kv_heads: int = 2, width: int = 8, length: int = LENGTH, dtype=jnp.float32):
    """Query, key, value and the gradient of the result."""
    random = np.random.default_rng(0)
    return [
        jnp.asarray(random.normal(size=(ROWS, length, n, width)), dtype) for n in (heads, kv_heads, kv_heads, heads)
    ]


def with_gradients(attention, mask: AttentionMask, query, key, value, gradient):
    result, pull_back = jax.vjp(lambda *arrays: attention(*arrays, mask), query, key, value)
    return result, *pull_back(gradient)


def in_blocks(mask: AttentionMask, arrays, block: int = BLOCK):
    """Results and gradients, compiled: of all rows at once, and row by row."""
    both = [partial(blockwise_attention, block=block, row_by_row=row_by_row) for row_by_row in (False, True)]
    return jax.jit(lambda mask, *arrays: [with_gradients(attention, mask, *arrays) for attention in both])(
        mask, *arrays
    )


@pytest.mark.parametrize(
    ("kv_heads", "causal", "packed"), [(2, True, True), (2, False, True), (1, True, False), (4, False, False)]
)
def test_result_and_gradients_equal_the_oracle(kv_heads: int, causal: bool, packed: bool) -> None:
    mask = AttentionMask(jnp.asarray(documents()) if packed else None, causal)
    arrays = inputs(kv_heads=kv_heads)
    blocks = partial(blockwise_attention, block=BLOCK)
    jaxprs = [
        jax.make_jaxpr(partial(with_gradients, kernel, mask))(*arrays) for kernel in (blocks, reference_attention)
    ]
    assert str(jaxprs[0]) != str(jaxprs[1])
    wanted = attention_and_gradients(
        *arrays, visible_pairs(ROWS, LENGTH, documents() if packed else None, causal=causal)
    )
    for found in in_blocks(mask, arrays):
        assert difference(found, wanted) < FP32


@pytest.mark.parametrize("block", [0, 5, 20])
def test_any_block_length_gives_the_same(block: int) -> None:
    arrays = inputs()
    wanted = attention_and_gradients(*arrays, visible_pairs(ROWS, LENGTH, documents(), causal=True))
    for found in in_blocks(AttentionMask(jnp.asarray(documents())), arrays, block):
        assert difference(found, wanted) < FP32


def test_bf16_keeps_its_statistics_in_fp32() -> None:
    arrays = inputs(dtype=jnp.bfloat16)
    wanted = attention_and_gradients(*arrays, visible_pairs(ROWS, LENGTH, documents(), causal=True))
    for found in in_blocks(AttentionMask(jnp.asarray(documents())), arrays):
        assert {x.dtype for x in found} == {jnp.dtype(jnp.bfloat16)}
        assert difference(found, wanted) < BF16


def test_a_thousand_equal_keys_do_not_stall_the_sum() -> None:
    """With equal scores, 1024 weights of 1 sum to 1024; a sum in bf16 would stop at 256, and give 4."""
    query = jnp.zeros((1, 1024, 1, 8), jnp.bfloat16)
    result = blockwise_attention(query, query, jnp.ones_like(query), AttentionMask(causal=False), block=1024)
    np.testing.assert_array_equal(np.asarray(result, np.float32), 1.0)


def test_large_scores_do_not_overflow() -> None:
    query, key, value, gradient = inputs()
    arrays = 100 * query, 100 * key, value, gradient
    both = in_blocks(AttentionMask(), arrays)
    assert all(np.isfinite(x).all() for found in both for x in found)
    wanted = attention_and_gradients(*arrays, visible_pairs(ROWS, LENGTH, None, causal=True))
    assert difference(both[0][:1], wanted[:1]) < 1e-3  # scores near 1e4 have fp32 steps near 1e-3


@pytest.mark.parametrize("causal", [False, True])
def test_at_s1_padding_gives_zeros_and_reaches_nothing(causal: bool) -> None:
    random = np.random.default_rng(1)
    arrays = [jnp.asarray(random.normal(size=(1, 8, 1, 8)), jnp.float32) for _ in range(4)]
    for real in (slice(0, 4), slice(4, 8)):  # padded on the right, padded on the left
        documents = np.zeros((1, 8), np.int32)
        documents[:, real] = 1
        alone = attention_and_gradients(*(x[:, real] for x in arrays), visible_pairs(1, 4, None, causal=causal))
        for found in in_blocks(AttentionMask(jnp.asarray(documents), causal), arrays, block=3):
            assert difference([x[:, real] for x in found], alone) < FP32
            for whole in found:
                np.testing.assert_array_equal(np.delete(whole, np.r_[real], axis=1), 0.0)


def test_kept_for_the_backward_pass_are_inputs_result_and_one_number_per_query() -> None:
    arrays = inputs(heads=4, kv_heads=2, width=8, length=512)
    mask = AttentionMask()

    def kept_elements(attention) -> int:
        _, pull_back = jax.vjp(lambda *arrays: attention(*arrays, mask), *arrays[:3])
        return sum(x.size for x in jax.tree.leaves(pull_back) if x.ndim)

    expected = sum(x.size for x in (*arrays[:3], arrays[0])) + ROWS * 4 * 512
    assert kept_elements(blockwise_attention) == expected
    assert kept_elements(reference_attention) > ROWS * 4 * 512 * 512


@pytest.mark.parametrize(("causal", "share"), [(True, 5 / 8), (False, 1)])
def test_products_are_seven_for_six_and_the_upper_triangle_is_skipped(causal: bool, share: float) -> None:
    arrays = inputs(length=512)
    mask = AttentionMask(causal=causal)
    product = 2 * ROWS * 4 * 512 * 512 * 8
    plain = count_flops(partial(with_gradients, reference_attention, mask), *arrays)
    assert plain.matmul == 6 * product
    blocks = count_flops(partial(with_gradients, partial(blockwise_attention, block=128), mask), *arrays)
    assert blocks.matmul == 7 * product * share


def test_compiled_without_the_probabilities() -> None:
    arrays = inputs(heads=8, kv_heads=8, width=8, length=512)
    mask = AttentionMask()

    def temporaries(attention) -> int:
        compiled = jax.jit(partial(with_gradients, attention, mask)).lower(*arrays).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    one_row = 8 * 512 * 512 * 4
    assert temporaries(reference_attention) > 2 * ROWS * one_row
    assert temporaries(partial(blockwise_attention, row_by_row=True)) < 2 * one_row


def test_keeping_attention_by_name_spares_its_second_forward_pass() -> None:
    arrays = inputs(length=256)[:3]
    mask = AttentionMask(causal=False)

    def gradient_flops(*names: str) -> int:
        policy = jax.checkpoint_policies.save_only_these_names(*names)

        def loss(query, key, value):
            query, key, value = (residual(x, "inputs") for x in (query, key, value))
            return (blockwise_attention(query, key, value, mask) ** 2).sum()

        return count_flops(jax.grad(jax.checkpoint(loss, policy=policy)), *arrays).matmul

    product = 2 * ROWS * 4 * 256 * 256 * 8
    assert gradient_flops("inputs", "attention") == 7 * product
    assert gradient_flops("inputs") == 9 * product


def test_strict_promotion_changes_nothing() -> None:
    arrays = inputs(dtype=jnp.bfloat16)
    mask = AttentionMask(jnp.asarray(documents()))
    run = partial(with_gradients, partial(blockwise_attention, block=BLOCK), mask)
    relaxed = str(jax.make_jaxpr(run)(*arrays))
    with jax.numpy_dtype_promotion("strict"):
        assert str(jax.make_jaxpr(run)(*arrays)) == relaxed


def test_chosen_block_is_an_eighth_of_the_row_within_limits() -> None:
    assert [chosen_block(n) for n in (8, 256, 1000, 1024, 2048, 65536)] == [64, 64, 125, 128, 256, 512]
