"""What to say when nothing fits: how small it got, what is in the way, and what would help."""

from __future__ import annotations

from collections.abc import Sequence

from brim.errors import NoPlanFits
from brim.hardware.facts import Device
from brim.planner.candidate import Candidate
from brim.planner.memory import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, VARIABLES, Memory
from brim.quantities import format_bytes

STANDING = (PARAMETERS, VARIABLES, OPTIMIZER, GRADIENTS)
"""Owners that no micro-batch and no rematerialization makes smaller."""


def no_plan_fits(
    candidates: Sequence[Candidate], device: Device, budget_bytes: int, *, fixed: Sequence[str], unit: str
) -> NoPlanFits:
    """The error for a search without a result: the smallest that was found, and the ways out.

    Args:
        candidates: all that were considered.
        fixed: names of techniques that were not searched.
        unit: `tokens` where rows are sequences, else `rows`.
    """
    smallest = smallest_of(candidates)
    if smallest is None or smallest.memory is None:
        reasons = sorted({candidate.reason for candidate in candidates})
        return NoPlanFits(
            "no plan: " + ("; ".join(reasons) or "no setting of the techniques works on this program and device"),
            hint="fix less in [techniques], so that more can be tried",
        )
    memory = smallest.memory
    owners = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.owners.items())
    ways = [
        f"a budget of at least {format_bytes(memory.peak_bytes)}",
        *_smaller_program(memory, budget_bytes, unit),
        *_smaller_micro_batch(candidates, smallest),
        *([f"searching {', '.join(fixed)} too, which is fixed now"] if fixed else []),
    ]
    return NoPlanFits(
        f"no plan fits {format_bytes(budget_bytes)} on {device.name}: the smallest that was found is "
        f"{smallest.recipe.describe()} with {format_bytes(memory.peak_bytes)} ({owners}), "
        f"over by {format_bytes(memory.peak_bytes - budget_bytes)}",
        hint="what would help: " + "; ".join(ways),
    )


def smallest_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The compiled candidate with the lowest peak; the faster one of two alike; None if nothing was compiled."""
    compiled = [(candidate.memory.peak_bytes, i) for i, candidate in enumerate(candidates) if candidate.memory]
    return candidates[min(compiled)[1]] if compiled else None


def _smaller_program(memory: Memory, budget_bytes: int, unit: str) -> list[str]:
    over, activations = memory.peak_bytes - budget_bytes, memory.owners.get(ACTIVATIONS, 0)
    standing = sum(memory.owners.get(name, 0) for name in STANDING)
    if standing > budget_bytes:
        return [f"a smaller model: parameters, gradients and optimizer state alone are {format_bytes(standing)}"]
    if over < activations:
        ways = "a shorter context or a smaller vocabulary" if unit == "tokens" else "smaller rows"
        return [f"{ways}: activations and temporaries would have to shrink by {over / activations:.0%}"]
    return ["a smaller model"]


def _smaller_micro_batch(candidates: Sequence[Candidate], smallest: Candidate) -> list[str]:
    micro_batch = smallest.recipe.micro_batch
    if micro_batch == 1:
        return ["(a smaller micro-batch is impossible: it is 1 row)"]
    if len({candidate.recipe.micro_batch for candidate in candidates}) == 1:
        return [f"a smaller micro-batch, if it may change: only {micro_batch} was tried"]
    return []
