"""The planner: the fastest recipe whose COMPILED step fits a memory budget, and why.

plan = search(program, device=detect(), budget_bytes=parse_bytes("1.5GiB"), global_batch=32)
print(plan)
step = plan.build(program)
"""

from brim.planner.budget import default_budget, memory_fraction, reserve_bytes
from brim.planner.candidate import Candidate
from brim.planner.compile import Compiled, compile_window
from brim.planner.memory import Memory
from brim.planner.plan import Plan
from brim.planner.search import search, survey
from brim.planner.target import Target

__all__ = [
    "Candidate",
    "Compiled",
    "Memory",
    "Plan",
    "Target",
    "compile_window",
    "default_budget",
    "memory_fraction",
    "reserve_bytes",
    "search",
    "survey",
]
