"""The ways out when nothing fits, against arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brim.hardware.device import named, names
from brim.hardware.facts import Device
from brim.planner.advice import no_plan_fits
from brim.planner.candidate import Candidate
from brim.planner.cost import Cost
from brim.planner.memory import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, Memory
from brim.techniques import Accumulation, Recipe
from planner.stacked import CPU

GIB = 2**30
CARD = named("rtx-4090")


def candidate(*, parameters: int, optimizer: int, gradients: int, activations: int, context: int = 1024) -> Candidate:
    owners = {PARAMETERS: parameters, OPTIMIZER: optimizer, GRADIENTS: gradients, ACTIVATIONS: activations}
    memory = Memory(parameters + optimizer, 0, 0, gradients + activations, owners)
    recipe = Recipe.of(1, Accumulation(8))
    return Candidate(recipe, "over", "compiled", Cost({"products": 1.0}), 8 * context, 0, memory)


def hint(one: Candidate, budget: int, *, device: Device = CARD, unit: str = "tokens") -> str:
    error = no_plan_fits([one], device, budget, fixed=(), unit=unit)
    assert error.exit_code == 3
    assert error.hint.startswith("what would help: a budget of at least ")
    return error.hint


def test_the_context_is_shortened_by_the_share_that_activations_are_over() -> None:
    one = candidate(parameters=2 * GIB, optimizer=4 * GIB, gradients=2 * GIB, activations=16 * GIB)
    # Over by 4 of 16 GiB: three quarters of 1024 tokens are left, and 700 of them in steps of 64 would be 640.
    assert "a context of about 768 tokens instead of 1024" in hint(one, 20 * GIB)
    assert "about 640 tokens instead of 1024" in hint(one, 18 * GIB + GIB // 2)
    assert "about 12 tokens instead of 16" in hint(replace(one, tokens=8 * 16), 20 * GIB)
    assert "smaller rows: activations" in hint(one, 20 * GIB, unit="rows")


def test_no_context_helps_where_the_state_is_too_large() -> None:
    one = candidate(parameters=8 * GIB, optimizer=16 * GIB, gradients=8 * GIB, activations=GIB)
    text = hint(one, 20 * GIB)
    assert "context" not in text
    assert "parameters, gradients and optimizer state alone are 32.00 GiB" in text


def test_the_optimizers_state_on_the_host_is_offered_where_it_would_do() -> None:
    one = candidate(parameters=6 * GIB, optimizer=12 * GIB, gradients=6 * GIB, activations=GIB)
    assert "12.00 GiB of host memory for the optimizer's state" in hint(one, 20 * GIB)
    assert "host memory" not in hint(one, 12 * GIB)


def test_the_next_device_up_is_the_smallest_that_holds_it() -> None:
    one = candidate(parameters=8 * GIB, optimizer=16 * GIB, gradients=4 * GIB, activations=GIB)
    text = hint(one, CARD.usable_bytes)
    usable = {name: named(name).usable_bytes for name in names() if named(name).platform == "gpu"}
    holding = {name: size for name, size in usable.items() if size >= 29 * GIB}
    best = min(holding, key=lambda name: (holding[name], name))
    assert f"the next device up that holds it, {best}, with" in text
    assert all(size < 29 * GIB or size >= holding[best] for size in usable.values())


@pytest.mark.parametrize(
    ("here", "peak_gib", "next_up"),
    [
        ("rtx-3060-12gb", 12.0, "rtx-5080"),  # the T4 holds it, and computes no bf16
        ("rtx-3060-12gb", 13.4, "rtx-5080"),
        ("rtx-4090", 30.2, "a100-40-pcie"),  # the V100 holds it, and has no cuDNN attention
        ("rtx-5090", 30.2, "a100-40-pcie"),
        ("rtx-2080-ti", 12.0, "t4"),  # neither does the 2080 Ti
        ("t4", 30.2, "v100-32-pcie"),
        ("tpu-v5e", 30.2, "tpu-v6e"),
    ],
)
def test_the_next_device_up_can_run_what_the_peak_belongs_to(here: str, peak_gib: float, next_up: str) -> None:
    device = named(here)
    one = candidate(parameters=int(peak_gib * GIB), optimizer=0, gradients=0, activations=0)
    assert f"the next device up that holds it, {next_up}, with" in hint(one, device.usable_bytes, device=device)


@pytest.mark.parametrize("here", names())
def test_no_next_device_up_lacks_a_feature_that_a_recipe_uses(here: str) -> None:
    device = named(here)
    for gib in range(1, 64):
        one = candidate(parameters=gib * GIB, optimizer=0, gradients=0, activations=0)
        _, found, words = hint(one, min(device.usable_bytes, (gib - 1) * GIB), device=device).partition("holds it, ")
        if not found or words.startswith("the largest has"):
            continue
        larger = named(words.split(",")[0])
        assert larger.platform == device.platform
        for feature in ("bfloat16", "float16", "cudnn_attention"):
            assert larger.can(feature) or not device.can(feature), (here, gib, larger.name)


def test_no_device_is_named_where_a_larger_budget_would_do_or_none_is_large_enough() -> None:
    one = candidate(parameters=GIB, optimizer=2 * GIB, gradients=GIB, activations=GIB)
    assert "device up" not in hint(one, 4 * GIB)
    assert "device up" not in hint(one, GIB, device=CPU)
    huge = candidate(parameters=GIB * 400, optimizer=2 * GIB, gradients=GIB, activations=GIB)
    assert "no single device that brim knows holds it" in hint(huge, CARD.usable_bytes)


def test_a_host_that_is_full_is_said_to_be() -> None:
    one = candidate(parameters=GIB, optimizer=0, gradients=0, activations=GIB)
    assert one.memory is not None
    full = replace(one, memory=replace(one.memory, host=5 * GIB), reason="compiled: 5.00 GiB of host memory, over by")
    error = no_plan_fits([full], CARD, 10 * GIB, fixed=(), unit="tokens")
    assert "the host's memory" in error.message and "5.00 GiB of host memory" in error.message
    assert "a host budget of at least 5.00 GiB" in error.hint


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_the_context_that_is_said_would_fit_if_activations_are_in_proportion(share: float) -> None:
    activations = 10 * GIB
    one = candidate(parameters=GIB, optimizer=2 * GIB, gradients=GIB, activations=activations)
    budget = 4 * GIB + int(share * activations)
    words = hint(one, budget).split("about ")[1].split()
    assert 4 * GIB + activations * int(words[0]) / 1024 <= budget
