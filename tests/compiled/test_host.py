"""State that is placed in host memory, for a GPU that is not here."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from brim.compiled import Roles, audit_compile
from brim.hardware.device import named
from brim.planner import Target

pytestmark = pytest.mark.plan

SIDE = 512


def test_moments_in_host_memory_stand_apart_and_cross_the_link() -> None:
    target = Target.of(named("h100"))
    device, host = target.sharding, target.host_sharding

    def step(params: Any, opt_state: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.tanh(batch @ w).sum())(params)
        moment = 0.9 * jax.device_put(opt_state, jax.memory.Space.Device) + gradient
        return params - 0.1 * moment, jax.device_put(moment, jax.memory.Space.Host)

    specs = [jax.ShapeDtypeStruct((SIDE, SIDE), jnp.float32, sharding=sharding) for sharding in (device, host, device)]
    jitted = jax.jit(step, donate_argnums=(0, 1), out_shardings=(device, host))
    audit = audit_compile(jitted.trace(*specs).lower(lowering_platforms=("cuda",)))
    report = audit.memory_report(Roles(parameters="params", optimizer="opt_state"))
    size = 4 * SIDE * SIDE
    assert report.host_owners == {"optimizer": size}
    assert "optimizer" not in report.owners
    assert report.owners["parameters"] == report.owners["batch"] == size
    # The old moment is read over the link, and the new one is sent back.
    assert audit.kernels().host_bytes == 2 * size
