"""Classes of owners that a picture can show at once, their colours, and the unit of its axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from brim.compiled.owners import (
    ATTENTION_WORKSPACE,
    COPIES,
    GRADIENTS,
    LOGITS,
    RESIDUALS,
    TEMPORARIES,
    UNEXPLAINED,
    WORKSPACE,
)
from brim.compiled.roles import FROZEN, OPTIMIZER, PARAMETERS, VARIABLES
from brim.quantities import GIB, KIB, MIB

OTHER = "batch and the rest"
COLOURS: Mapping[str, str] = {
    "parameters": "#0072B2",
    "optimizer state": "#56B4E9",
    "gradients": "#009E73",
    "saved residuals": "#E69F00",
    "logits and loss": "#D55E00",
    "temporaries": "#CC79A7",
    "copies and workspace": "#F0E442",
    OTHER: "#9CA3AF",
    "unexplained": "#111827",
}
"""Class -> colour, in the order in which they are stacked."""
BUDGET = "#111827"
_CLASSES = {
    **dict.fromkeys((PARAMETERS, FROZEN, VARIABLES), "parameters"),
    **dict.fromkeys(TEMPORARIES.values(), "temporaries"),
    **dict.fromkeys((COPIES, ATTENTION_WORKSPACE, WORKSPACE), "copies and workspace"),
    GRADIENTS: "gradients",
    RESIDUALS: "saved residuals",
    LOGITS: "logits and loss",
    UNEXPLAINED: "unexplained",
}


def class_of(kind: str) -> str:
    """The class of a kind of bytes of the ledger."""
    return _CLASSES.get(kind) or ("optimizer state" if kind.startswith(OPTIMIZER) else OTHER)


def by_class(owners: Mapping[str, int]) -> dict[str, int]:
    """Class -> bytes, in the order of `COLOURS`; the sum is that of the owners."""
    sizes: Counter[str] = Counter()
    for kind, size in owners.items():
        sizes[class_of(kind)] += size
    return {name: sizes[name] for name in COLOURS if sizes[name]}


def unit_of(size: float) -> tuple[int, str]:
    """Bytes and name of the unit in which to draw sizes up to this one."""
    return next(((unit, name) for unit, name in ((GIB, "GiB"), (MIB, "MiB")) if size >= unit), (KIB, "KiB"))
