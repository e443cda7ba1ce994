from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from brim.hardware.compiler_options import DEPARTURES, OPTIONS, default_options, departures_in, option_sets
from brim.hardware.device import Device, PeakFlops, named

CPU = Device("cpu", "cpu", "Some CPU", 10, 9, None, 1.0, PeakFlops(1.0), "measured")


def test_a_cpu_gets_none_and_a_gpu_gets_its_own():
    assert default_options(CPU) == {}
    assert default_options(named("h100")) == {
        "xla_gpu_triton_gemm_any": "True",
        "xla_gpu_enable_latency_hiding_scheduler": "True",
    }


def test_every_option_says_why():
    assert all(len(option.reason) > 40 for option in (*OPTIONS, *DEPARTURES))


def test_a_device_has_its_usual_options_first_and_then_one_departure_each():
    usual, *others = option_sets(named("h100"))
    assert usual == default_options(named("h100"))
    assert len(others) == 3
    for options in others:
        (name,) = (name for name in options if options[name] != usual.get(name))
        assert departures_in(options) == f"{name}={options[name] or 'none'}"
    assert departures_in(usual) == departures_in({}) == ""
    assert option_sets(CPU) == ({}, {"xla_cpu_enable_concurrency_optimized_scheduler": "False"})


def test_this_xla_knows_every_option_and_a_wrong_name_is_an_error_that_can_be_caught():
    lowered = jax.jit(lambda x: x + 1).lower(jnp.ones(3))
    for option in (*OPTIONS, *DEPARTURES):
        lowered.compile(compiler_options={option.name: option.value})
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option"):
        lowered.compile(compiler_options={"xla_gpu_no_such_option": "True"})
