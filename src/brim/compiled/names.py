"""What JAX's names say: the phase of a step and the scopes that an operation belongs to.

JAX names each operation by the scopes it was traced in and by the transformations it went through, such as

    jit(step)/transpose(jvp(attention))/while/body/rematted_computation/dot_general

`jvp` marks the forward pass, `transpose` the backward pass, and `rematted_computation` what is computed again in it.
"""

from __future__ import annotations

import re
from typing import Literal

Phase = Literal["forward", "recompute", "backward", "update"]

_TRANSFORMATIONS = re.compile(r"\b(?:transpose|jvp|vmap)\(")
_NOT_SCOPES = frozenset(
    {
        "",
        "while",
        "body",
        "cond",
        "branch",
        "closed_call",
        "checkpoint",
        "eval_jaxpr",
        "remat",
        "rematted_computation",
        "shard_map",
    }
)
_NOT_A_SCOPE = re.compile(r"jit\(.*|pjit|core_call|custom_[jv][vj]p_call.*|branch_\d+_fun")


def is_named(op_name: str) -> bool:
    """Whether JAX named it; XLA keeps other words there for operations of its own."""
    return op_name.startswith("jit(") or "/jit(" in op_name


def phase_of(op_name: str) -> Phase | None:
    """The phase of a step that an operation belongs to; None if its name does not tell."""
    if "transpose(" in op_name:
        return "recompute" if "rematted_computation" in op_name else "backward"
    return "forward" if "jvp(" in op_name else None


def path_of(op_name: str) -> str:
    """Scopes and operation, without what transformations and loops add: `attention/dot_general`."""
    plain = _TRANSFORMATIONS.sub("", op_name)
    parts: list[str] = []
    for part in plain.split("/"):
        word = part if part.startswith("jit(") else part.rstrip(")")
        if word not in _NOT_SCOPES and not _NOT_A_SCOPE.fullmatch(word):
            parts = _without_repeat([*parts, word])
    return "/".join(parts)


def scopes_of(op_name: str) -> tuple[str, ...]:
    """The scopes alone, outermost first."""
    return tuple(path_of(op_name).split("/")[:-1])


def _without_repeat(parts: list[str]) -> list[str]:
    """Scopes without a second copy of the last ones, which differentiating a recomputed function leaves behind."""
    for size in range(1, len(parts) // 2 + 1):
        if parts[-size:] == parts[-2 * size : -size]:
            return parts[:-size]
    return parts
