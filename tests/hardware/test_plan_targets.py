"""Every GPU of devices/*.toml is a target that XLA compiles for, on a machine without any GPU."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import topologies
from jax.sharding import NamedSharding, PartitionSpec

from brim.hardware.compiler_options import default_options
from brim.hardware.device import Device, named, names

pytestmark = pytest.mark.plan

GPUS = [name for name in names() if named(name).platform == "gpu"]
WITH_CUDNN = [name for name in GPUS if named(name).can("cudnn_attention")]


def compiled_for(device: Device, function, *specs):
    topology = topologies.get_topology_desc(**device.topology())
    assert [found.device_kind for found in topology.devices] == [device.kind]
    sharding = NamedSharding(topologies.make_mesh(topology, (1,), ("device",)), PartitionSpec())
    placed = [jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding) for spec in specs]
    lowered = jax.jit(function).trace(*placed).lower(lowering_platforms=("cuda",))
    return lowered.compile(compiler_options=default_options(device))


def gradient_of_attention(implementation: str):
    def loss(q, k, v):
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=implementation)
        return jnp.sum(out.astype(jnp.float32))

    return jax.grad(loss, argnums=(0, 1, 2))


def marked(name: str) -> object:
    """Volta marked: CUDA 13 has taken it out of the assembler, and the one that JAX brings may be as new."""
    reason = "the assembler of these CUDA libraries may not know compute capability 7.0"
    volta = named(name).compute_capability == (7, 0)
    return pytest.param(name, marks=pytest.mark.xfail(volta, reason=reason, raises=jax.errors.JaxRuntimeError))


@pytest.mark.parametrize("name", [marked(name) for name in GPUS])
def test_a_product_and_a_softmax_compile_for_it(name):
    device = named(name)
    dtype = jnp.bfloat16 if device.can("bfloat16") else jnp.float16
    spec = jax.ShapeDtypeStruct((512, 512), dtype)
    compiled = compiled_for(device, lambda a, b: jax.nn.softmax(a @ b), spec, spec)
    assert compiled.memory_analysis().argument_size_in_bytes == 2 * 512 * 512 * 2
    assert compiled.memory_analysis().output_size_in_bytes == 512 * 512 * 2


@pytest.mark.parametrize("name", WITH_CUDNN)
def test_fused_attention_compiles_for_it_and_saves_the_scores(name):
    device = named(name)
    spec = jax.ShapeDtypeStruct((2, 1024, 8, 64), jnp.bfloat16)
    fused = compiled_for(device, gradient_of_attention("cudnn"), spec, spec, spec)
    plain = compiled_for(device, gradient_of_attention("xla"), spec, spec, spec)
    assert "__cudnn$fmha" in fused.as_text()
    assert "__cudnn$fmha" not in plain.as_text()
    array_bytes = 2 * 1024 * 8 * 64 * 2
    scores_bytes = 2 * 8 * 1024 * 1024 * 4
    assert fused.memory_analysis().argument_size_in_bytes == 3 * array_bytes
    assert plain.memory_analysis().temp_size_in_bytes >= scores_bytes
    assert fused.memory_analysis().temp_size_in_bytes < scores_bytes
