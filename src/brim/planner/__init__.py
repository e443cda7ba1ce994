"""The planner: the fastest recipe whose COMPILED step fits a memory budget, and why.

    question = Question(detect(), budget_bytes=parse_bytes("1.5GiB"), global_batch=32)
    plan = search(program, question)    # from search.py
    print(plan)
    step = plan.build(program)

Names load on first use: a plan that was found before is read and printed without what searches and builds programs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from brim.planner.budget import default_budget, memory_fraction, reserve_bytes
    from brim.planner.candidate import Candidate
    from brim.planner.compile import Compiled, compile_window
    from brim.planner.memory import Memory
    from brim.planner.plan import Plan
    from brim.planner.question import Question
    from brim.planner.target import Target

__all__ = [
    "Candidate",
    "Compiled",
    "Memory",
    "Plan",
    "Question",
    "Target",
    "compile_window",
    "default_budget",
    "memory_fraction",
    "reserve_bytes",
]

_HOMES = {
    "Candidate": "candidate",
    "Compiled": "compile",
    "Memory": "memory",
    "Plan": "plan",
    "Question": "question",
    "Target": "target",
    "compile_window": "compile",
    "default_budget": "budget",
    "memory_fraction": "budget",
    "reserve_bytes": "budget",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
