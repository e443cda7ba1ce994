"""One compile per recipe for the whole folder: what XLA says of a recipe does not depend on who asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim.compiled import Audit
from brim.hardware.facts import Device
from brim.planner import Compiled, Plan, compile_window
from brim.planner.compile import CompileFunction, audit_window
from brim.planner.question import Question
from brim.planner.search import survey
from brim.program import Program
from brim.techniques import Recipe
from planner.stacked import CPU, stacked_program

# Code generation takes half of a compile's time and none of its buffer assignment.
QUICK = {"xla_backend_optimization_level": "0"}


@pytest.fixture(autouse=True)
def empty_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier run of the tests planned must not answer for this one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def compile_recipe() -> CompileFunction:
    """`compile_window` for `stacked_program`, remembered by recipe."""
    known: dict[Any, Compiled] = {}

    def compiled(program: Program, recipe: Recipe, device: Device) -> Compiled:
        key = (recipe.techniques, recipe.micro_batch)
        if key not in known:
            known[key] = compile_window(program, replace(recipe, compiler_options=QUICK), device)
        return known[key]

    return compiled


def audit_recipe(program: Program, recipe: Recipe, device: Device) -> Audit:
    """`audit_window` without generating code, as `compile_recipe` compiles."""
    return audit_window(program, replace(recipe, compiler_options=QUICK), device)


@pytest.fixture(scope="session")
def reported(compile_recipe: CompileFunction) -> Plan:
    """A plan for `stacked_program` with a report: some candidates fit, some are over the budget."""
    return survey(
        stacked_program(sizes=True),
        Question(CPU, 1200 * 2**10, 8),
        compile_recipe=compile_recipe,
        audit_recipe=audit_recipe,
    )
