"""Memory traffic counted on jaxprs, against counts by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from brim.planner.traffic import FUSED, Traffic, count_traffic

X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
W = jax.ShapeDtypeStruct((16, 4), jnp.float32)
STACK = jax.ShapeDtypeStruct((5, 16, 16), jnp.float32)


def traffic(function: Any, *specs: Any) -> Traffic:
    return count_traffic(jax.make_jaxpr(function)(*specs))


def test_a_product_reads_its_operands_and_writes_its_result() -> None:
    assert traffic(jnp.matmul, X, W) == Traffic(products=4 * (8 * 16 + 16 * 4 + 8 * 4), kernels=1)


def test_half_the_bytes_in_bf16() -> None:
    half = [jax.ShapeDtypeStruct(spec.shape, jnp.bfloat16) for spec in (X, W)]
    assert traffic(jnp.matmul, *half).products == traffic(jnp.matmul, X, W).products / 2


def test_elementwise_operations_are_written_and_read_once_in_so_many() -> None:
    assert traffic(lambda x: jnp.exp(jnp.tanh(x)), X) == Traffic(
        elementwise=2 * 2 * 4 * 8 * 16 / FUSED, kernels=2 / FUSED
    )


@pytest.mark.parametrize(("unroll", "copied"), [(1, True), (2, True), (5, False), (0, False)])
def test_a_loop_copies_what_is_stacked_unless_it_is_written_out(unroll: int, copied: bool) -> None:
    def stack(x: Any, layers: Any) -> Any:
        return jax.lax.scan(lambda x, layer: (x @ layer, x), x, layers, unroll=unroll)

    found = traffic(stack, X, STACK)
    assert found.products == 5 * 4 * (8 * 16 + 16 * 16 + 8 * 16)
    assert found.kernels == 5
    assert found.loops == copied * 4 * (5 * 16 * 16 + 5 * 8 * 16)  # layers sliced, inputs stacked


def test_the_dearer_branch_counts_and_calls_are_looked_into() -> None:
    def branches(x: Any, w: Any) -> Any:
        return jax.lax.cond(True, lambda: jax.jit(jnp.matmul)(x, w), lambda: jnp.zeros((8, 4)))

    assert traffic(branches, X, W).products == traffic(jnp.matmul, X, W).products


def test_what_crosses_the_link_to_the_host_is_counted_both_ways() -> None:
    def there_and_back(x: jax.Array) -> jax.Array:
        kept = jax.device_put(x, jax.memory.Space.Host)
        return jax.device_put(kept, jax.memory.Space.Device) * 2

    traffic = count_traffic(jax.make_jaxpr(there_and_back)(jnp.ones((16, 4))))
    assert traffic.host == 2 * 16 * 4 * 4
    assert (traffic * 3).host == (traffic + traffic + traffic).host == 6 * 16 * 4 * 4
    assert count_traffic(jax.make_jaxpr(lambda x: jax.device_put(x) * 2)(jnp.ones(4))).host == 0
