"""The chosen candidate, compiled once more, with whose every byte is and what every kernel does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax

from brim.compiled import KernelList, MemoryReport, Timeline
from brim.errors import DeviceError
from brim.planner.candidate import NO_REPORT, Candidate
from brim.planner.compile import AuditFunction
from brim.planner.plan import Plan
from brim.program import Program
from brim.techniques import Recipe

MOST_INSTANTS = 400
"""Of a stored timeline: more than a picture can show, and few enough for a small file."""


def with_report(
    plan: Plan, program: Program, audit_recipe: AuditFunction, progress: Callable[[str], None] = lambda line: None
) -> Plan:
    """The plan with a report on what it chose, or on the smallest that was found if nothing fits.

    Where the compiled program cannot be read, the candidate keeps the owners of XLA's memory analysis, with a note.

    Args:
        program: what the plan was made for.
        audit_recipe: compiles a recipe for the plan's device and reads what came out.
        progress: is told a line before the compile.
    """
    candidate = plan.shown
    if candidate is None:
        return plan
    progress(f"compiling {candidate.recipe.describe()} once more, for whose each byte is")
    try:
        report, kernels = _read(candidate, plan, program, audit_recipe)
    except (DeviceError, jax.errors.JaxRuntimeError, LookupError, ValueError) as error:
        # A program of a kind that the ledger does not know must not cost what the search has found.
        kind = "" if isinstance(error, DeviceError) else f"{type(error).__name__}: "
        note = f"{NO_REPORT}: {kind}{(str(error).splitlines() or [''])[0]}"
        return _with(plan, candidate, replace(candidate, notes=(*candidate.notes, note)))
    found = _with(plan, candidate, replace(candidate, ledger=report.owners))
    return replace(found, memory_report=report, kernels=kernels)


def thinned(timeline: Timeline, most: int = MOST_INSTANTS) -> Timeline:
    """A timeline with fewer instants: of each stretch, the one with most bytes alive.

    Instants at which the bytes are most, also without any one kind, are all kept. So the peak and every "what if" can
    be read off the thinned timeline as well.

    Args:
        most: instants to keep beside those.
    """
    live, count = timeline.live_bytes(), len(timeline.instants)
    if count <= most:
        return timeline
    without = [timeline.live_bytes(without=kind) for kind in timeline.kinds]
    kept = {max(range(count), key=sizes.__getitem__) for sizes in (live, *without)}
    kept |= {0, count - 1}
    for stretch in range(most):
        first, after = (place * count // most for place in (stretch, stretch + 1))
        kept.add(max(range(first, after), key=live.__getitem__))
    places = sorted(kept)
    return replace(
        timeline,
        instants=tuple(timeline.instants[place] for place in places),
        phases=tuple(timeline.phases[place] for place in places),
        temporaries=_at(places, timeline.temporaries),
    )


def _at(places: list[int], columns: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {kind: tuple(sizes[place] for place in places) for kind, sizes in columns.items()}


def _read(
    candidate: Candidate, plan: Plan, program: Program, audit_recipe: AuditFunction
) -> tuple[MemoryReport, KernelList]:
    audit = audit_recipe(program, candidate.recipe, plan.device)
    report = audit.memory_report(vocabulary=_telling_vocabulary(program, candidate.recipe))
    if sum(report.owners.values()) != candidate.peak_bytes:
        raise DeviceError(
            f"the program compiled for the report has a peak of {report.peak_bytes} bytes, that of the search "
            f"{candidate.peak_bytes}"
        )
    return replace(report, timeline=thinned(report.timeline)), audit.kernels()


def _telling_vocabulary(program: Program, recipe: Recipe) -> int | None:
    """The size of the vocabulary, if an array with such a dimension can only be logits; else scopes must tell."""
    sizes = program.sizes
    if sizes is None:
        return None
    tokens = recipe.micro_batch * sizes.length
    others = {1, recipe.micro_batch, recipe.global_batch, tokens, sizes.length, sizes.width, sizes.hidden, sizes.layers}
    return None if sizes.vocabulary in others else sizes.vocabulary


def _with(plan: Plan, old: Candidate, new: Candidate) -> Plan:
    """The plan with one candidate in the place of another."""
    return replace(plan, candidates=tuple(new if each is old else each for each in plan.candidates))
