"""Compile the real train step for a device, here or elsewhere, without allocating anything.

Where it is compiled for, and how JAX is told so, stands in target.py; nothing else sees whether the device is here.

JAX's persistent compilation cache may be on: on a CPU the memory analysis of a program that comes from the cache is
that of the program that went in (tested). For a target that is not here, JAX 0.10 cannot read it back and would compile
it again; brim's own cache (cache.py) keeps the figures and not the program, for any target.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from brim.compiled import Audit, audit_compile
from brim.hardware.chatter import without_chatter
from brim.hardware.facts import Device
from brim.planner.cache import Cache, key_of
from brim.planner.memory import Memory
from brim.planner.target import Target
from brim.planner.versions import settings_in_force
from brim.program import Program
from brim.techniques import Recipe
from brim.training.assemble import Assembly, assemble


@dataclass(frozen=True)
class Compiled:
    """What compiling one recipe told.

    Attributes:
        memory: bytes by kind and owner.
        seconds: of tracing, lowering and XLA.
        notes: what techniques had to decide, such as a kernel that fell back.
        cached: whether the memory was known from an earlier compile of the same program.
    """

    memory: Memory
    seconds: float
    notes: tuple[str, ...] = ()
    cached: bool = False


CompileFunction = Callable[[Program, Recipe, Device], Compiled]
AuditFunction = Callable[[Program, Recipe, Device], Audit]


def compile_window(
    program: Program, recipe: Recipe, device: Device, target: Target | None = None, cache: Cache | None = None
) -> Compiled:
    """Compile one window of training, with the state donated, and read what it will allocate.

    Args:
        target: where to compile, if it is at hand already; else that of the device.
        cache: where earlier compiles are looked up and this one is kept; None: nowhere.

    Raises:
        TechniqueError: if a technique of the recipe cannot work on this program or device.
        DeviceError: if the device cannot be compiled for from here.
        jax.errors.JaxRuntimeError: if XLA refuses the program.
    """
    notes: list[str] = []
    start = time.perf_counter()
    assembly = assemble(program, recipe, device, notes.append)
    target = target or Target.of(device)
    lowered = target.lower(assembly)
    options = target.options(recipe.compiler_options)
    key = "" if cache is None else _key(lowered, assembly, recipe, target, options)
    known = None if cache is None else cache.read(key)
    if known is not None:
        memory = Memory(**known)
    else:
        with without_chatter():
            compiled = lowered.compile(compiler_options=options or None)
        memory = Memory.of(compiled, assembly, accumulating=recipe.accumulation > 1)
        if cache is not None:
            cache.write(key, dataclasses.asdict(memory))
    seconds = time.perf_counter() - start
    return Compiled(memory, seconds, tuple(dict.fromkeys(notes)), cached=known is not None)


def audit_window(program: Program, recipe: Recipe, device: Device, target: Target | None = None) -> Audit:
    """Compile one window as `compile_window` does, and keep XLA's own description of it.

    Raises:
        TechniqueError, DeviceError, jax.errors.JaxRuntimeError: as `compile_window` and `audit_compile`.
    """
    assembly = assemble(program, recipe, device, lambda note: None)
    target = target or Target.of(device)
    lowered = target.lower(assembly)
    with without_chatter():
        return audit_compile(lowered, target.options(recipe.compiler_options))


def _key(lowered: Any, assembly: Assembly, recipe: Recipe, target: Target, options: Mapping[str, str]) -> str:
    """The key of a compile in the cache. The text has no source lines; owners come from the trees of the arguments."""
    facts = {
        "program": lowered.as_text(),
        "arguments": str(jax.tree.structure((assembly.state, assembly.batch))),
        "accumulating": recipe.accumulation > 1,
        "options": options,
        "settings": settings_in_force(),
        "target": [target.platform, target.description],
    }
    return key_of("compile", facts)
