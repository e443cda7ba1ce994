"""What to say when nothing fits: how small it got, what is in the way, and what would help.

The ways out are computed from the smallest candidate that was compiled, and stand from the cheapest to the dearest:

    a shorter context     activations shrink with the context at least in proportion, attention's scores faster; what
                          else is among them (casts of weights) does not shrink. So the length is said with "about"
    host memory           moments of the optimizer that would lie there instead
    the next GPU up       of those that run all that this one can, the one with the least usable memory that holds the
                          peak: on another, the recipe that the peak belongs to may be impossible
"""

from __future__ import annotations

from collections.abc import Sequence

from brim.errors import NoPlanFits
from brim.hardware.facts import Device
from brim.hardware.names import named, names
from brim.planner.candidate import Candidate
from brim.planner.memory import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, VARIABLES, Memory
from brim.quantities import format_bytes

STANDING = (PARAMETERS, VARIABLES, OPTIMIZER, GRADIENTS)
"""Owners that no micro-batch and no rematerialization makes smaller."""


FEATURES = ("float16", "bfloat16", "tensorfloat32", "cudnn_attention")
"""What a recipe may ask of a device. No technique computes in float8, so an A100 is a way up from a card that can."""

CONTEXT_GRAIN = 64
LEAST_CONTEXT_SHARE = 0.05
"""Of the context: below it, a context is no way out any more."""


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
    if memory.peak_bytes <= budget_bytes:
        return _host_is_full(smallest, memory, device)
    owners = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.owners.items())
    ways = [
        f"a budget of at least {format_bytes(memory.peak_bytes)}",
        *_smaller_program(smallest, memory, budget_bytes, unit),
        *_host_memory(memory, budget_bytes),
        *_larger_device(device, memory.peak_bytes),
        *_smaller_micro_batch(candidates, smallest),
        *([f"searching {', '.join(fixed)} too, which is fixed now"] if fixed else []),
    ]
    return NoPlanFits(
        f"no plan fits {format_bytes(budget_bytes)} on {device.name}: the smallest that was found is "
        f"{smallest.recipe.describe()} with {format_bytes(memory.peak_bytes)} ({owners}), "
        f"over by {format_bytes(memory.peak_bytes - budget_bytes)}",
        hint="what would help: " + "; ".join(ways),
    )


def _host_is_full(smallest: Candidate, memory: Memory, device: Device) -> NoPlanFits:
    return NoPlanFits(
        f"no plan fits the host's memory beside {device.name}: the smallest on the device is "
        f"{smallest.recipe.describe()}: {smallest.reason}",
        hint=f"what would help: a host budget of at least {format_bytes(memory.host)}; techniques that keep less there",
    )


def smallest_of(candidates: Sequence[Candidate]) -> Candidate | None:
    """The compiled candidate with the lowest peak; the faster one of two alike; None if nothing was compiled."""
    compiled = [(candidate.memory.peak_bytes, i) for i, candidate in enumerate(candidates) if candidate.memory]
    return candidates[min(compiled)[1]] if compiled else None


def _smaller_program(smallest: Candidate, memory: Memory, budget_bytes: int, unit: str) -> list[str]:
    over, activations = memory.peak_bytes - budget_bytes, memory.owners.get(ACTIVATIONS, 0)
    standing = sum(memory.owners.get(name, 0) for name in STANDING)
    if standing > budget_bytes:
        return [f"a smaller model: parameters, gradients and optimizer state alone are {format_bytes(standing)}"]
    if over < activations:
        ways = "smaller rows"
        if unit == "tokens":
            shorter = _shorter_context(smallest, 1 - over / activations) or "a shorter context"
            ways = f"{shorter} or a smaller vocabulary"
        return [f"{ways}: activations and temporaries would have to shrink by {over / activations:.0%}"]
    return ["a smaller model"]


def _shorter_context(smallest: Candidate, share: float) -> str | None:
    """The context at which activations would be a share of what they are; None where too little would be left."""
    context = smallest.tokens // smallest.recipe.global_batch
    grain = CONTEXT_GRAIN if context >= 8 * CONTEXT_GRAIN else 1
    shorter = int(share * context) // grain * grain
    if shorter < 1 or share < LEAST_CONTEXT_SHARE:
        return None
    return f"a context of about {shorter} tokens instead of {context},"


def _host_memory(memory: Memory, budget_bytes: int) -> list[str]:
    moments = memory.owners.get(OPTIMIZER, 0)
    if not moments or memory.peak_bytes - moments > budget_bytes:
        return []
    return [f"{format_bytes(moments)} of host memory for the optimizer's state (brim cannot place it there yet)"]


def _larger_device(device: Device, peak_bytes: int) -> list[str]:
    """The next device up; none where this one would hold it with a larger budget, and none for a CPU."""
    if device.platform == "cpu" or peak_bytes <= device.usable_bytes:
        return []
    known = [found for found in map(named, names()) if _runs_all_of(device, found)]
    larger = [found for found in known if found.usable_bytes >= peak_bytes]
    if not larger:
        most = max((found.usable_bytes for found in known), default=0)
        return [f"(no single device that brim knows holds it: the largest has {format_bytes(most)} of use)"]
    next_up = min(larger, key=lambda found: (found.usable_bytes, found.name))
    return [f"the next device up that holds it, {next_up.name}, with {format_bytes(next_up.usable_bytes)} of use"]


def _runs_all_of(device: Device, other: Device) -> bool:
    """Whether another device of the same platform can run whatever a recipe asks of this one."""
    return other.platform == device.platform and all(other.can(word) for word in FEATURES if device.can(word))


def _smaller_micro_batch(candidates: Sequence[Candidate], smallest: Candidate) -> list[str]:
    micro_batch = smallest.recipe.micro_batch
    if micro_batch == 1:
        return ["(a smaller micro-batch is impossible: it is 1 row)"]
    if len({candidate.recipe.micro_batch for candidate in candidates}) == 1:
        return [f"a smaller micro-batch, if it may change: only {micro_batch} was tried"]
    return []
