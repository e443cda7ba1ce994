"""brim trains the largest model that one GPU can hold, as fast as its memory allows.

The public names are loaded when they are first used, so that `import brim` costs nothing and does not start JAX.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name: the module that defines it.
_PUBLIC = {
    "Accumulation": "brim.techniques",
    "AttentionKernel": "brim.techniques",
    "AttentionMask": "brim.ops",
    "BrimError": "brim.errors",
    "ChunkedLoss": "brim.techniques",
    "Device": "brim.hardware.facts",
    "Loss": "brim.ops",
    "Ops": "brim.ops",
    "Plan": "brim.planner",
    "Precision": "brim.techniques",
    "Program": "brim.program",
    "Recipe": "brim.techniques",
    "Rematerialization": "brim.techniques",
    "State": "brim.training.state",
    "Step": "brim.training.step",
    "count_flops": "brim.hardware.flops",
    "detect": "brim.hardware.device",
    "from_example_loss": "brim.program",
    "from_mean_loss": "brim.program",
    "from_sum_loss": "brim.program",
    "largest": "brim.planner.api",
    "named": "brim.hardware.device",
    "plan": "brim.planner.api",
}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - one table, not two lists to keep alike


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module `brim` has no attribute `{name}`")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
