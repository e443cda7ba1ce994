"""Searches along an axis: borders against brute force, and with real compiles."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import brim
from brim.errors import NoPlanFits, SettingsError
from brim.hardware.facts import Device
from brim.planner import Compiled, Memory, compile_window
from brim.planner.goals import Border, Probe, border_of, largest
from brim.program import Program, from_mean_loss
from brim.techniques import Recipe
from planner.conftest import QUICK
from planner.stacked import CPU, stacked_program


def brute_force(overs: list[int]) -> int:
    return max(place for place, over in enumerate(overs) if over <= 0)


@pytest.mark.parametrize("seed", range(60))
def test_the_border_is_that_of_brute_force_wherever_it_starts(seed: int) -> None:
    numbers = random.Random(seed)
    overs = sorted(numbers.randrange(-(10**6), 10**6) for _ in range(numbers.randrange(1, 200)))
    overs[0] = min(overs[0], 0)
    looked: list[int] = []

    def over(place: int) -> int:
        looked.append(place)
        return overs[place]

    found = border_of(range(len(overs)), over, what="n", start=numbers.randrange(-3, 250))
    best = brute_force(overs)
    assert found.value == best
    assert found.above == (best + 1 if best + 1 < len(overs) else None)
    assert found.over_bytes == (overs[best + 1] if best + 1 < len(overs) else 0)
    assert len(looked) == len(set(looked)) == found.probes
    assert found.probes <= 4 + 3 * len(overs).bit_length()


def test_on_a_line_few_looks_are_enough() -> None:
    found = border_of(range(1, 10_001), lambda n: 1000 * n - 7_654_321, what="layers", start=6000)
    assert (found.value, found.over_bytes) == (7654, 1000 * 7655 - 7_654_321)
    assert found.probes < 17
    assert found.line == "largest layers that fits: 7654 (7655 needs over by 679 B)"


def test_the_end_of_the_axis_is_said() -> None:
    assert border_of([3], lambda n: -1, what="n").line == "largest n that fits: 3 (the last that was to be tried)"


def test_nothing_that_fits_is_an_error_that_ends_with_3() -> None:
    lines: list[str] = []
    with pytest.raises(NoPlanFits, match="no context fits: the smallest that was tried, 8, is over by 12 B") as error:
        border_of([8, 9, 10], lambda n: n + 4, what="context", start=2, progress=lines.append)
    assert error.value.exit_code == 3
    assert lines[0] == "probe 1: context 10: over by 14 B"
    with pytest.raises(SettingsError, match="at least one value"):
        border_of([], float, what="n")  # type: ignore[arg-type]


def mlp(width: int) -> Program:
    """A plain-JAX program whose state is 3 * 4 * 2 * 32 * width bytes."""

    def init(key: Any) -> Any:
        return {"in": jax.random.normal(key, (32, width)), "out": jnp.ones((width, 32))}, (), ()

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.square(jnp.tanh(batch @ params["in"]) @ params["out"]).mean()

    return Program(init, from_mean_loss(loss), optax.adam(1e-3), jax.ShapeDtypeStruct((32,), jnp.float32))


def quick(program: Program, recipe: Recipe, device: Device) -> Compiled:
    return compile_window(program, replace(recipe, compiler_options=QUICK), device)


def test_the_largest_of_a_foreign_program_fits_and_the_next_does_not() -> None:
    budget = 1_500_000
    lines: list[str] = []
    found = largest(
        lambda n: mlp(64 * n),
        range(1, 65),
        what="width / 64",
        device=CPU,
        budget=budget,
        global_batch=4,
        progress=lines.append,
        compile_recipe=quick,
    )
    assert found.plan.fits and found.plan.chosen.peak_bytes <= budget  # type: ignore[operator]
    above = found.border.above
    assert above == found.number + 1
    smallest = min(quick(mlp(64 * above), Recipe.of(4), CPU).memory.peak_bytes, budget + found.border.over_bytes)
    assert smallest == budget + found.border.over_bytes > budget
    assert sum(line.startswith("probe") for line in lines) == found.border.probes <= 12
    assert found.line.startswith(f"largest width / 64 that fits: {found.number} ({above} needs over by ")


def test_state_alone_over_the_budget_costs_no_compile() -> None:
    def refuse(*_: Any) -> Compiled:
        raise AssertionError("compiled")

    state = 3 * 4 * 2 * 32 * 6400
    over = Probe(CPU, 10**6, 4, compile_recipe=refuse).over_bytes(mlp(6400))
    assert state - 10**6 <= over <= state - 10**6 + 4 * 4 * 32 + 100


def test_a_probe_compiles_what_may_be_smallest_and_stops_when_it_fits() -> None:
    asked: list[Recipe] = []

    def compiled(program: Program, recipe: Recipe, device: Device) -> Compiled:
        asked.append(recipe)
        return Compiled(Memory(10**9 * recipe.micro_batch, 0, 0, 0, {}), 0.0)

    def probed(budget: int, program: Program, **settings: Any) -> int:
        asked.clear()
        return Probe(CPU, budget, 8, compile_recipe=compiled, **settings).over_bytes(program)

    # Few parameters, so many rows: formulas expect gradient sums to weigh more, and one row is looked at besides.
    assert probed(10**9 - 1, stacked_program(sizes=True)) == 1
    assert [recipe.micro_batch for recipe in asked] == [8, 1]
    assert {recipe["rematerialization"].policy for recipe in asked} == {"full"}  # type: ignore[attr-defined]
    assert probed(8 * 10**9, stacked_program(sizes=True)) == 0
    assert [recipe.micro_batch for recipe in asked] == [8]
    assert probed(10**9, stacked_program(), micro_batch=4) == 3 * 10**9
    assert {recipe.micro_batch for recipe in asked} == {4} and len(asked) <= 2


def test_it_is_public() -> None:
    assert brim.largest is largest
    assert Border("n", 1, 2, 3, 4).line == "largest n that fits: 1 (2 needs over by 3 B)"
