"""Lower bounds must never be above what the compiler needs."""

from __future__ import annotations

import pytest

from brim.planner.bounds import SAFETY, Bound, Bounds
from brim.planner.compile import CompileFunction
from brim.techniques import Accumulation, Recipe, Rematerialization
from planner.stacked import CPU, LENGTH, PARAMETERS, WIDTH, stacked_program
from programs import batch_norm_program

ROWS = 8


def test_exact_part_by_hand() -> None:
    state = 3 * 4 * PARAMETERS + 4 + 8 + 3 * 4  # parameters, moments and their count, key, counters
    bounds = Bounds(stacked_program(), CPU)
    assert bounds.of(Recipe.of(ROWS)) == Bound(state + 4 * ROWS * LENGTH * WIDTH, 0, 0)
    split = bounds.of(Recipe.of(ROWS // 4, Accumulation(4)))
    assert split == Bound(state + 4 * ROWS * LENGTH * WIDTH, 4 * PARAMETERS, 0)


def test_formulas_count_with_a_margin() -> None:
    program = stacked_program(sizes=True)
    recipe = Recipe.of(ROWS)
    bound = Bounds(program, CPU).of(recipe)
    assert program.sizes is not None
    assert bound.formula == sum(t.predicted_bytes(program.sizes, ROWS, 4) for t in recipe.techniques) > 0
    assert bound.least == bound.exact + int(SAFETY * bound.formula)


@pytest.mark.parametrize("policy", ["none", "dots_without_batch", "full"])
@pytest.mark.parametrize("steps", [1, 4])
def test_compiled_peak_is_never_below_the_bound(policy: str, steps: int, compile_recipe: CompileFunction) -> None:
    program = stacked_program(sizes=True)
    recipe = Recipe.of(ROWS // steps, Accumulation(steps), Rematerialization(policy))  # type: ignore[arg-type]
    bound = Bounds(program, CPU).of(recipe)
    memory = compile_recipe(program, recipe, CPU).memory
    assert bound.least <= memory.peak_bytes
    assert bound.arguments == memory.arguments


def test_programs_without_sizes_have_the_exact_part_only() -> None:
    assert Bounds(batch_norm_program(), CPU).of(Recipe.of(4)).formula == 0
