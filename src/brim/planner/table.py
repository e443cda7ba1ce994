"""A plan for people: what was compared side by side, and why the rest was rejected.

Attributes stand in rows and plans in columns, so that it fits a narrow terminal; long settings and reasons wrap and are
never cut.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from brim.planner.candidate import Candidate
from brim.planner.memory import OWNERS
from brim.planner.space import family_of, settings_of, words_of
from brim.quantities import format_bytes, format_count, format_seconds
from brim.techniques import Technique


def shared_settings(candidates: Sequence[Candidate]) -> tuple[Technique, ...]:
    """The settings that all candidates have in common, which need saying once only; none where nothing differs."""
    first, *others = (settings_of(candidate.recipe) for candidate in candidates)
    shared = tuple(technique for technique in first if all(technique in settings for settings in others))
    return shared if len(shared) < len(first) else ()


def compared(candidates: Sequence[Candidate], shared: Sequence[Technique], budget_bytes: int, unit: str) -> Table:
    """Compiled candidates side by side: settings, bytes by owner, peak against the budget, predicted speed.

    Args:
        candidates: what to show, the chosen one first.
        shared: settings that are said elsewhere.
        budget_bytes: what the peak is measured against.
        unit: what throughput counts.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("", no_wrap=True)
    titles = ("chosen", "second", "third", *("further" for _ in candidates))
    for title, candidate in zip(titles, candidates, strict=False):
        name = title if candidate.fits else "smallest found"
        table.add_column(name, overflow="fold", style="bold" if title == "chosen" else "")
    for label, cells in _rows(candidates, shared, budget_bytes, unit):
        table.add_row(label, *map(Text, cells), end_section=label in ("settings", "of the budget"))
    return table


def rejected(candidates: Sequence[Candidate], shared: Sequence[Technique], budget_bytes: int) -> Table:
    """Every candidate that does not fit or was not compiled, by its place in the order of speed, with its reason.

    Candidates that were not compiled and differ in micro-batch only share a line, with the range of their reasons.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("speed", justify="right", overflow="fold")
    table.add_column("rejected", overflow="fold")
    table.add_column("why", overflow="fold")
    for places, group in _grouped(candidates):
        name = f"{_splits(group)}: {words_of(group[0].recipe, shared)}"
        table.add_row(_places(places), Text(name), Text(_why(group, candidates, budget_bytes)))
    return table


def _rows(
    candidates: Sequence[Candidate], shared: Sequence[Technique], budget_bytes: int, unit: str
) -> Iterator[tuple[str, list[str]]]:
    yield "rows x steps", [_split(candidate) for candidate in candidates]
    yield "settings", [words_of(candidate.recipe, shared) for candidate in candidates]
    owned = [candidate.memory.owners if candidate.memory else {} for candidate in candidates]
    for owner in OWNERS:
        if any(owners.get(owner) for owners in owned):
            yield owner, [format_bytes(owners.get(owner, 0)) for owners in owned]
    peaks = [candidate.peak_bytes or 0 for candidate in candidates]
    yield "peak", [format_bytes(peak) for peak in peaks]
    yield "of the budget", [f"{peak / budget_bytes:.1%}" for peak in peaks]
    yield "recompute share", [f"{candidate.cost.recompute_share:.1%}" for candidate in candidates]
    costs = [candidate.cost for candidate in candidates]
    yield "predicted step", [format_seconds(cost.seconds) for cost in costs]
    for term in dict.fromkeys(term for cost in costs for term, seconds in cost.terms.items() if seconds):
        yield f"  {term.replace('_', ' ')}", [format_seconds(cost.terms.get(term, 0.0)) for cost in costs]
    if any(cost.mfu for cost in costs):
        yield "predicted MFU", [f"{cost.mfu:.1%}" for cost in costs]
    yield f"predicted {unit}/s", [format_count(round(c.predicted_tokens_per_second)) for c in candidates]
    yield "why", [candidate.reason for candidate in candidates]


def _grouped(candidates: Sequence[Candidate]) -> list[tuple[list[int], list[Candidate]]]:
    """Rejected candidates with their places in the order of speed; those alike together, at the first one's place."""
    groups: dict[Hashable, list[int]] = {}
    for place, candidate in enumerate(candidates, start=1):
        reason = "" if candidate.outcome in ("pruned", "slower") else candidate.reason  # ranges stand for those two
        alike = candidate.recipe.micro_batch if candidate.outcome in ("over", "failed") else reason
        if not candidate.fits:
            groups.setdefault((family_of(candidate.recipe), candidate.outcome, alike), []).append(place)
    return [(places, [candidates[place - 1] for place in places]) for places in groups.values()]


def _why(group: Sequence[Candidate], candidates: Sequence[Candidate], budget_bytes: int) -> str:
    if group[0].outcome not in ("pruned", "slower") or len(group) == 1:
        return group[0].reason
    if group[0].outcome == "pruned":
        least = min(candidate.least_bytes for candidate in group)
        most = max(candidate.least_bytes for candidate in group)
        over = _range(format_bytes(least - budget_bytes), format_bytes(most - budget_bytes))
        return f"by formula: need at least {_range(format_bytes(least), format_bytes(most))}, over by {over}"
    chosen = next(candidate.cost.seconds for candidate in candidates if candidate.outcome == "chosen")
    slower = [candidate.cost.seconds / chosen - 1 for candidate in group]
    share = _range(f"{min(slower):.1%}", f"{max(slower):.1%}")
    return f"not compiled: predicted {share} slower than the chosen one"


def _range(least: str, most: str) -> str:
    return least if least == most else f"{least} to {most}"


def _places(places: Sequence[int]) -> str:
    return f"{places[0]}" if len(places) == 1 else f"{places[0]} to {places[-1]}"


def _splits(group: Sequence[Candidate]) -> str:
    splits = [_split(candidate) for candidate in group]
    return ", ".join(splits) if len(splits) <= 3 else f"{splits[0]} to {splits[-1]} ({len(splits)})"


def _split(candidate: Candidate) -> str:
    return f"{candidate.recipe.micro_batch} x {candidate.recipe.accumulation}"
