"""Lower bounds must never be above what the compiler needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from brim.planner import compile_window
from brim.planner.bounds import SAFETY, Bound, Bounds
from brim.planner.compile import CompileFunction
from brim.techniques import Accumulation, Recipe, Rematerialization
from planner.conftest import QUICK
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
    assert bound.least == bound.arguments + int(SAFETY * bound.formula)
    split = Bounds(program, CPU).of(Recipe.of(ROWS // 4, Accumulation(4)))
    assert split.least == split.arguments + int(SAFETY * (4 * PARAMETERS + split.formula))


@pytest.mark.parametrize("policy", ["none", "dots_without_batch", "full"])
@pytest.mark.parametrize("steps", [1, 4])
def test_compiled_peak_is_never_below_the_bound(policy: str, steps: int, compile_recipe: CompileFunction) -> None:
    program = stacked_program(sizes=True)
    recipe = Recipe.of(ROWS // steps, Accumulation(steps), Rematerialization(policy))  # type: ignore[arg-type]
    bound = Bounds(program, CPU).of(recipe)
    memory = compile_recipe(program, recipe, CPU).memory
    assert bound.least <= memory.peak_bytes
    assert bound.arguments == memory.arguments


def test_parameters_that_the_loss_does_not_use_are_not_held_against_a_recipe() -> None:
    used = stacked_program()

    def init(key: Any) -> Any:
        trainable, *others = used.init(key)
        return {**trainable, "unused": jnp.zeros(PARAMETERS // 2)}, *others

    def loss(trainable: Any, *others: Any) -> Any:
        return used.loss({name: trainable[name] for name in ("up", "down")}, *others)

    program, recipe = replace(used, init=init, loss=loss), Recipe.of(1, Accumulation(8), Rematerialization("full"))
    memory = compile_window(program, replace(recipe, compiler_options=QUICK), CPU).memory
    assert Bounds(program, CPU).of(recipe).least <= memory.peak_bytes


def test_programs_without_sizes_have_the_exact_part_only() -> None:
    assert Bounds(batch_norm_program(), CPU).of(Recipe.of(4)).formula == 0
