"""brim trains the largest model that one GPU can hold, as fast as its memory allows.

The public names are loaded when they are first used, so that `import brim` costs nothing and does not start JAX.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name: the module that defines it.
_PUBLIC = {
    "BrimError": "brim.errors",
    "Device": "brim.hardware.facts",
    "count_flops": "brim.hardware.flops",
    "detect": "brim.hardware.device",
}

__all__ = sorted(_PUBLIC)  # noqa: PLE0605 - one table, not two lists to keep alike


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module `brim` has no attribute `{name}`")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
