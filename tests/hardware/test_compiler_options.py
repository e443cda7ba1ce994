from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from brim.hardware.compiler_options import OPTIONS, default_options
from brim.hardware.device import Device, PeakFlops, named

CPU = Device("cpu", "cpu", "Some CPU", 10, 9, None, 1.0, PeakFlops(1.0), "measured")


def test_a_cpu_gets_none_and_a_gpu_gets_its_own():
    assert default_options(CPU) == {}
    assert default_options(named("h100")) == {
        "xla_gpu_triton_gemm_any": "True",
        "xla_gpu_enable_latency_hiding_scheduler": "True",
    }


def test_every_option_says_why():
    assert all(len(option.reason) > 40 for option in OPTIONS)


def test_this_xla_knows_every_option_and_a_wrong_name_is_an_error_that_can_be_caught():
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    for option in OPTIONS:
        lowered.compile(compiler_options={option.name: option.value})
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={"xla_gpu_no_such_option": "True"})
