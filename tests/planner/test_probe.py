"""Whether a program fits at all: what is compiled for that, where, and how often."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from brim.hardware.facts import Device
from brim.planner import Compiled, Memory, compile_window
from brim.planner.cache import Cache
from brim.planner.probe import Probe
from brim.planner.question import Question
from brim.planner.workers import Workers
from brim.program import Program, from_mean_loss
from brim.techniques import Recipe
from planner.stacked import CPU, stacked_program

BUDGET = 10**6


def mlp(width: int) -> Program:
    """A plain-JAX program whose state is 3 * 4 * 2 * 32 * width bytes."""

    def init(key: Any) -> Any:
        return {"in": jax.random.normal(key, (32, width)), "out": jnp.ones((width, 32))}, (), ()

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        return jnp.square(jnp.tanh(batch @ params["in"]) @ params["out"]).mean()

    return Program(init, from_mean_loss(loss), optax.adam(1e-3), jax.ShapeDtypeStruct((32,), jnp.float32))


def test_state_alone_over_the_budget_costs_no_compile() -> None:
    def refuse(*_: Any) -> Compiled:
        raise AssertionError("compiled")

    state = 3 * 4 * 2 * 32 * 6400
    over = Probe(Question(CPU, 10**6, 4), compile_recipe=refuse).over_bytes(partial(mlp, 6400))
    assert state - 10**6 <= over <= state - 10**6 + 4 * 4 * 32 + 100


@pytest.mark.parametrize("refused", [1, 2])
def test_what_the_compiler_refuses_does_not_fit_and_the_next_is_tried(refused: int) -> None:
    tried: list[Recipe] = []

    def compiled(program: Program, recipe: Recipe, device: Device) -> Compiled:
        tried.append(recipe)
        if len(tried) <= refused:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: larger than the device")
        return Compiled(Memory(10, 0, 0, 0, {}), 0.0)

    program = stacked_program(sizes=True)
    over = Probe(Question(CPU, BUDGET, 8), compile_recipe=compiled).over_bytes(lambda: program)
    assert len(tried) == 2 and (over <= 0) == (refused == 1)
    assert over == (10 - BUDGET if refused == 1 else CPU.memory_bytes + 1 - BUDGET)


def test_a_probe_compiles_what_may_be_smallest_and_stops_when_it_fits() -> None:
    asked: list[Recipe] = []

    def compiled(program: Program, recipe: Recipe, device: Device) -> Compiled:
        asked.append(recipe)
        return Compiled(Memory(10**9 * recipe.micro_batch, 0, 0, 0, {}), 0.0)

    def probed(budget: int, program: Program, **settings: Any) -> int:
        asked.clear()
        probe = Probe(Question(CPU, budget, 8, **settings), compile_recipe=compiled)
        return probe.over_bytes(lambda: program)

    # Few parameters, so many rows: formulas expect gradient sums to weigh more, and one row is looked at besides.
    assert probed(10**9 - 1, stacked_program(sizes=True)) == 1
    assert [recipe.micro_batch for recipe in asked] == [8, 1]
    assert {recipe["rematerialization"].policy for recipe in asked} == {"full"}  # type: ignore[attr-defined]
    assert probed(8 * 10**9, stacked_program(sizes=True)) == 0
    assert [recipe.micro_batch for recipe in asked] == [8]
    assert probed(10**9, stacked_program(), micro_batch=4) == 3 * 10**9
    assert {recipe.micro_batch for recipe in asked} == {4} and len(asked) <= 2


def test_what_is_on_the_host_counts_against_its_own_budget() -> None:
    def compiled(*_: Any) -> Compiled:
        return Compiled(Memory(10**6, 0, 0, 0, {}, host=5000), 0.0)

    def over(**settled: Any) -> int:
        probe = Probe(Question(CPU, 2 * 10**6, 8, **settled), compile_recipe=compiled)
        return probe.over_bytes(stacked_program)

    assert (over(), over(host_budget_bytes=5000)) == (-(10**6), 0)
    assert over(host_budget_bytes=4000) == 1000


def test_a_second_probe_of_the_same_program_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(Question(CPU, BUDGET, 8), Cache(tmp_path))
    first = probe.over_bytes(partial(mlp, 512))

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", refuse)
    assert probe.over_bytes(partial(mlp, 512)) == first
    with pytest.raises(AssertionError, match="compiled"):
        probe.over_bytes(partial(mlp, 544))


def test_processes_are_turned_from_program_to_program_and_find_the_same(tmp_path: Path) -> None:
    sources = [partial(stacked_program, sizes=True), stacked_program]
    here = Probe(Question(CPU, BUDGET, 8))
    with Workers(sources[0], CPU, count=1, cache=Cache(tmp_path)) as workers:
        there = replace(here, workers=workers)
        pids = {worker.pid for worker in workers._alive}
        assert [there.over_bytes(source) for source in sources] == [here.over_bytes(source) for source in sources]
        assert {worker.pid for worker in workers._alive} == pids
    kept = Probe(Question(CPU, BUDGET, 8), Cache(tmp_path), compile_recipe=_only_kept(tmp_path))
    assert kept.over_bytes(sources[0]) == here.over_bytes(sources[0])


def _only_kept(folder: Path) -> Any:
    def compiled(program: Program, recipe: Recipe, device: Device) -> Compiled:
        found = compile_window(program, recipe, device, cache=Cache(folder))
        assert found.cached
        return found

    return compiled
