"""Bytes of compiled steps, against counts by hand and against XLA's own figures."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from brim.ops import Loss
from brim.planner import Memory, compile_window
from brim.planner.compile import CompileFunction
from brim.program import Program
from brim.techniques import Accumulation, Recipe
from brim.training.assemble import assemble
from planner.conftest import QUICK
from planner.stacked import CPU, HIDDEN, LENGTH, PARAMETERS, WIDTH, stacked_program
from programs import batch_norm_program

ROWS = 8


def test_owners_of_arguments_are_exact(compile_recipe: CompileFunction) -> None:
    owners = compile_recipe(stacked_program(), Recipe.of(ROWS // 2, Accumulation(2)), CPU).memory.owners
    assert owners["parameters"] == 4 * PARAMETERS
    assert owners["optimizer"] == 2 * 4 * PARAMETERS + 4  # two moments and one int32 count
    assert owners["gradients"] == 4 * PARAMETERS
    assert owners["batch"] == 4 * ROWS * LENGTH * WIDTH
    # The key (8 bytes), three counters, what is logged, and the table of outputs.
    assert 0 < owners["counters and metrics"] < 512


@pytest.mark.parametrize("steps", [1, 2, 8])
def test_owners_sum_to_the_peak_exactly(steps: int, compile_recipe: CompileFunction) -> None:
    memory = compile_recipe(stacked_program(), Recipe.of(ROWS // steps, Accumulation(steps)), CPU).memory
    assert sum(memory.owners.values()) == memory.peak_bytes
    assert memory.peak_bytes == memory.arguments + memory.outputs - memory.aliased + memory.temporaries
    assert memory.aliased > 12 * PARAMETERS  # the state is donated
    assert memory.host == 0


def test_xla_peak_field_is_not_the_peak() -> None:
    """The figure that brim does not use leaves out what a scan works with; here most of the step."""
    assembly = assemble(stacked_program(), Recipe.of(ROWS), CPU)
    lowered = jax.jit(assembly.window, donate_argnums=0).lower(assembly.state, assembly.batch)
    compiled = lowered.compile(compiler_options=QUICK)
    memory = Memory.of(compiled, assembly, accumulating=False)
    field = compiled.memory_analysis().peak_memory_in_bytes
    residuals = 4 * 4 * ROWS * LENGTH * HIDDEN  # at least one [rows, length, hidden] array of each of 4 layers
    assert memory.temporaries > residuals
    assert memory.peak_bytes - field > residuals


def test_variables_have_an_owner() -> None:
    memory = compile_window(batch_norm_program(), Recipe.of(4, compiler_options=QUICK), CPU).memory
    assert memory.owners["variables"] == 2 * 3 * 4
    assert sum(memory.owners.values()) == memory.peak_bytes


def test_unused_arrays_count_because_they_are_on_the_device() -> None:
    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Any) -> tuple[Loss, Any]:
        return Loss((trainable * batch["x"]).sum(), jnp.float32(batch["x"].shape[0])), variables

    row = {"x": jax.ShapeDtypeStruct((), jnp.float32), "unused": jax.ShapeDtypeStruct((1000,), jnp.float32)}
    program = Program(lambda key: (jnp.ones(()), jnp.ones(500), ()), loss, optax.sgd(0.1), row)
    memory = compile_window(program, Recipe.of(4, compiler_options=QUICK), CPU).memory
    batch, parameters = 4 * 4 * 1001, 4 + 4 * 500  # frozen ones too
    assert (memory.owners["batch"], memory.owners["parameters"]) == (batch, parameters)
    assert memory.arguments > batch + parameters  # as compiled; with the key and counters
    assert memory.owners["counters and metrics"] > 0
