"""The kernel list, against FLOPs counted on the jaxpr and against bytes worked out by hand."""

from __future__ import annotations

import json
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from brim.compiled import KernelList, audit_compile
from brim.hardware.flops import count_flops
from compiled.small import BATCH, LAYERS, QUICK, audited, loss, params_of


def matmul_flops(policy: str) -> int:
    """FLOPs of matrix products of the step, on its jaxpr."""
    settings = {"policy": policy, "chunks": 1, "compute": jnp.float32, "head_dtype": jnp.float32}
    gradient = jax.value_and_grad(lambda params, batch: loss(params, batch, **settings))
    return count_flops(jax.make_jaxpr(gradient)(params_of(), BATCH)).matmul


@pytest.mark.parametrize("policy", ["none", "full"])
def test_flops_are_those_of_the_jaxpr_with_loops_and_recomputation(policy: str) -> None:
    assert sum(audited(policy).kernels().flops.values()) == matmul_flops(policy)


def test_recomputation_is_in_the_list() -> None:
    assert matmul_flops("full") > 1.1 * matmul_flops("none")
    again = [kernel for kernel in audited("full").kernels().kernels if kernel.phase == "recompute" and kernel.flops]
    assert again
    assert all(kernel.runs == LAYERS for kernel in again)
    assert not [kernel for kernel in audited("none").kernels().kernels if kernel.phase == "recompute" and kernel.flops]


def test_a_fp32_head_in_a_16_bit_step_is_flagged_and_nothing_else() -> None:
    fault = audited("none", compute=jnp.bfloat16, head_dtype=jnp.float32).kernels().wide()
    assert [kernel.path for kernel in fault] == ["loss/dot_general"] * 3  # forward, and two backward
    assert audited("none", compute=jnp.bfloat16).kernels().wide() == ()


def test_in_a_fp32_step_every_product_is_wide() -> None:
    kernels = audited("none").kernels()
    assert {kernel.name for kernel in kernels.wide()} == {each.name for each in kernels.kernels if each.flops}


def test_a_loop_touches_one_layer_in_each_turn_and_not_its_stacks() -> None:
    layer = 64 * 64 * 4

    def through(stack: Any, x: Any) -> Any:
        return jax.lax.scan(lambda x, w: (jnp.sin(x) * w[0], x), x, stack)

    specs = jax.ShapeDtypeStruct((50, 64, 64), jnp.float32), jax.ShapeDtypeStruct((64,), jnp.float32)
    kernels = audit_compile(jax.jit(through).lower(*specs), QUICK).kernels()
    inside = [kernel for kernel in kernels.kernels if kernel.runs == 50]
    assert inside
    assert layer <= max(kernel.bytes for kernel in inside) < 2 * layer


def test_bytes_of_single_kernels() -> None:
    a, b = jax.ShapeDtypeStruct((64, 32), jnp.float32), jax.ShapeDtypeStruct((32, 128), jnp.float32)
    kernels = audit_compile(jax.jit(jnp.matmul).lower(a, b), QUICK).kernels()
    (product,) = (kernel for kernel in kernels.kernels if kernel.flops)
    assert product.flops == 2 * 64 * 32 * 128
    assert product.read_bytes == 4 * (64 * 32 + 32 * 128)
    assert product.written_bytes == 4 * 64 * 128
    assert kernels.host_bytes == 0


def test_flops_of_convolutions() -> None:
    def convolve(x: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    specs = jax.ShapeDtypeStruct((2, 10, 10, 3), jnp.float32), jax.ShapeDtypeStruct((3, 3, 3, 5), jnp.float32)
    kernels = audit_compile(jax.jit(convolve).lower(*specs), QUICK).kernels()
    assert sum(kernels.flops.values()) == 2 * (2 * 8 * 8 * 5) * (3 * 3 * 3)


def test_a_list_survives_a_file() -> None:
    kernels = audited("dots").kernels()
    assert KernelList.from_json(json.loads(json.dumps(kernels.to_json()))) == kernels
    assert kernels.runs == sum(runs for runs, _, _ in kernels.by_kind().values())
