"""Finished searches that are kept: the same question to the same planner has the same answer.

A search is asked about a program, a device, a budget and what is fixed. A program is known by its plain step at one row
as a jaxpr, which says all that a compiler sees of loss, gradient, optimizer and schedule, or by the run file that it is
made from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax

from brim.hardware.facts import Device
from brim.planner.cache import Cache, device_facts, key_of
from brim.planner.plan import Plan
from brim.planner.question import Question
from brim.planner.workers import TRACED_SETTINGS
from brim.program import Program
from brim.settings import to_tables
from brim.techniques import REGISTRY, Accumulation, Recipe
from brim.training.assemble import assemble

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def search_key(about: Mapping[str, Any], question: Question) -> str:
    """The key of a finished search.

    Args:
        about: plain values that say which program it is.
    """
    facts = {
        "about": about,
        "device": device_facts(question.device),
        "budgets": [question.budget_bytes, question.host_budget_bytes],
        "batches": [question.global_batch, question.micro_batch],
        "fixed": {technique.name: to_tables(technique) for technique in question.fixed},
        "allow_lossy": question.allow_lossy,
        "registry": [f"{kind.__module__}.{kind.__qualname__}" for kind in REGISTRY],
        "settings": {name: getattr(jax.config, name) for name in TRACED_SETTINGS},
    }
    return key_of("search", facts)


def program_facts(program: Program, question: Question) -> dict[str, Any]:
    """What tells a program from others: its plain step as a jaxpr, and what else the planner reads of it.

    Takes as long as tracing the step once. The step has one row where rows are independent, else the whole batch.
    """
    rows = 1 if program.rows_independent else question.global_batch
    assembly = assemble(program, Recipe.of(rows, Accumulation(1)), question.device, say=lambda note: None)
    jaxpr = jax.make_jaxpr(assembly.window)(assembly.state, assembly.batch)
    return {
        "step": _ADDRESS.sub("", str(jaxpr)),
        "state": str(jax.tree.structure(assembly.state)),
        "row": str(program.row),
        "rows_independent": program.rows_independent,
        "calls": sorted(program.calls),
        "sizes": str(program.sizes),
        "tokens_per_row": program.tokens_per_row,
    }


def remembered(cache: Cache | None, key: str, device: Device) -> Plan | None:
    """The plan that is kept under a key, with the device as it is now; None if there is none."""
    record = None if cache is None else cache.read(key)
    return None if record is None else replace(Plan.from_json(record), device=device)


def searched(cache: Cache | None, key: str, search: Callable[[], Plan]) -> Plan:
    """Search, and keep the plan.

    A plan with a compile that failed is not kept: it may have failed because the machine was out of memory just then.
    """
    plan = search()
    failed = any(candidate.outcome == "failed" for candidate in plan.candidates)
    if cache is not None and not failed:
        cache.write(key, plan.to_json())
    return plan
