"""Finished searches that are kept: the same question to the same planner has the same answer.

A search is asked a question about a program. A program is known by the run file that it is made from, or by its plain
step (program_facts.py). This file loads nothing that builds programs, so that a plan that is kept is there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from brim.hardware.facts import Device
from brim.planner.cache import Cache, device_facts, key_of
from brim.planner.candidate import NO_REPORT
from brim.planner.plan import Plan
from brim.planner.question import Question
from brim.planner.versions import settings_in_force
from brim.settings import to_tables
from brim.techniques import REGISTRY


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
        "search_compiler_options": question.search_compiler_options,
        "registry": [f"{kind.__module__}.{kind.__qualname__}" for kind in REGISTRY],
        "settings": settings_in_force(),
    }
    return key_of("search", facts)


def remembered(cache: Cache | None, key: str, device: Device) -> Plan | None:
    """The plan that is kept under a key, with the device as it is now; None if there is none."""
    record = None if cache is None else cache.read(key)
    return None if record is None else replace(Plan.from_json(record), device=device)


def searched(cache: Cache | None, key: str, search: Callable[[], Plan]) -> Plan:
    """Search, and keep the plan.

    A plan with a compile that failed is not kept, nor one whose report could not be made: the machine may have been out
    of memory just then.
    """
    plan = search()
    failed = any(candidate.outcome == "failed" for candidate in plan.candidates)
    failed |= any(note.startswith(NO_REPORT) for candidate in plan.candidates for note in candidate.notes)
    if cache is not None and not failed:
        cache.write(key, plan.to_json())
    return plan
