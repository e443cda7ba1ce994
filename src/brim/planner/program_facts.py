"""What tells one program from another."""

from __future__ import annotations

import re
from typing import Any

import jax

from brim.planner.question import Question
from brim.program import Program
from brim.techniques import Accumulation, Recipe
from brim.training.assemble import assemble
from brim.tree import path_names

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def program_facts(program: Program, question: Question) -> dict[str, Any]:
    """A program's plain step as a jaxpr, and what else the planner reads of it, as plain values.

    A jaxpr says all that a compiler sees of loss, gradient, optimizer and schedule. Takes as long as tracing the step
    once. The step has one row where rows are independent, else the whole batch.
    """
    rows = 1 if program.rows_independent else question.global_batch
    assembly = assemble(program, Recipe.of(rows, Accumulation(1)), question.device, say=lambda note: None)
    jaxpr = jax.make_jaxpr(assembly.window)(assembly.state, assembly.batch)
    return {
        "step": _ADDRESS.sub("", str(jaxpr)),
        "state": str(jax.tree.structure(assembly.state)),
        "row": str(program.row),
        "rows_independent": program.rows_independent,
        "stacked": [name for name in path_names(assembly.state.trainable) if program.stacked(name)],
        "calls": sorted(program.calls),
        "sizes": str(program.sizes),
        "tokens_per_row": program.tokens_per_row,
    }
