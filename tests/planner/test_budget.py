"""How many bytes a plan may use when nobody says, and how the runtime is told."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from brim.errors import DeviceError, SettingsError
from brim.hardware.device import named
from brim.planner import Plan, default_budget, memory_fraction
from brim.planner.budget import require_budget
from planner.stacked import CPU

GIB = 2**30


def test_budget_starts_from_what_is_free_not_from_what_there_is() -> None:
    gpu = replace(named("rtx-4090"), free_bytes=20 * GIB)
    assert default_budget(gpu) == 20 * GIB - math.ceil(0.03 * 20 * GIB)
    assert default_budget(replace(gpu, free_bytes=8 * GIB)) == 8 * GIB - 512 * 2**20
    assert default_budget(CPU) == 6 * GIB - math.ceil(0.1 * 6 * GIB)


def test_nothing_free_is_an_error_that_says_how_much() -> None:
    with pytest.raises(DeviceError, match=r"only 400.0 MiB of .* are free on rtx-4090"):
        default_budget(replace(named("rtx-4090"), free_bytes=400 * 2**20))


def test_more_than_the_device_has_is_no_budget() -> None:
    device = named("rtx-3060-12gb")
    assert require_budget(device.memory_bytes, device) == device.memory_bytes
    with pytest.raises(SettingsError, match=r"the budget is 80.00 GiB, and rtx-3060-12gb has") as error:
        require_budget(80 * GIB, device)
    assert "at most" in error.value.hint


def test_the_runtime_takes_the_whole_budget_rounded_up_and_never_more_than_there_is() -> None:
    gpu = replace(named("rtx-4090"), memory_bytes=24 * GIB)
    plan = Plan(device=gpu, budget_bytes=22 * GIB, global_batch=1, candidates=())
    assert memory_fraction(plan, gpu) == 0.917
    assert memory_fraction(plan, gpu) * gpu.memory_bytes >= plan.budget_bytes
    assert float(f"{memory_fraction(plan, gpu):.3f}") == memory_fraction(plan, gpu)
    assert memory_fraction(replace(plan, budget_bytes=30 * GIB), gpu) == 1.0
