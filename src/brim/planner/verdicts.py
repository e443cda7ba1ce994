"""What became of every candidate of a search, in words: each decision is a record with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.planner.candidate import Candidate, Outcome
from brim.planner.compile import Compiled
from brim.planner.cost import Cost
from brim.planner.selection import Option, Selection
from brim.quantities import format_bytes
from brim.techniques import Recipe


@dataclass(frozen=True)
class Prospect:
    """A recipe before anything is compiled: its prediction, what the selection knows of it, the tokens of an update."""

    recipe: Recipe
    cost: Cost
    option: Option
    tokens: int


def verdicts(
    prospects: Sequence[Prospect],
    selection: Selection,
    compiled: Mapping[int, Compiled],
    failed: Mapping[int, str],
    budget_bytes: int,
    host_budget_bytes: int | None = None,
) -> tuple[Candidate, ...]:
    """All candidates, in the order of the prospects.

    Args:
        prospects: fastest predicted first.
        selection: after it has run on them.
        compiled, failed: number of a prospect -> what the compiler told, or why it refused.
        budget_bytes: the most that fits.
        host_budget_bytes: the most that fits into the host's memory; None: not limited.
    """
    judge = _Judge(prospects, selection, compiled, failed, budget_bytes, host_budget_bytes)
    return tuple(map(judge.candidate, range(len(prospects))))


def against(size: int, budget_bytes: int) -> str:
    """A size beside the budget, such as `over by 112.0 MiB`."""
    gap = budget_bytes - size
    return f"{format_bytes(gap)} to spare" if gap >= 0 else f"over by {format_bytes(-gap)}"


def exceeds(host_bytes: int, host_budget_bytes: int | None) -> bool:
    """Whether a step needs more of the host's memory than it may."""
    return host_budget_bytes is not None and host_bytes > host_budget_bytes


@dataclass(frozen=True)
class _Judge:
    prospects: Sequence[Prospect]
    selection: Selection
    compiled: Mapping[int, Compiled]
    failed: Mapping[int, str]
    budget_bytes: int
    host_budget_bytes: int | None

    def candidate(self, number: int) -> Candidate:
        outcome, reason = self._with_compiling(number) or self._without_compiling(number)
        prospect, compiled = self.prospects[number], self.compiled.get(number)
        return Candidate(
            recipe=prospect.recipe,
            outcome=outcome,
            reason=reason,
            cost=prospect.cost,
            tokens=prospect.tokens,
            least_bytes=self.selection.least_bytes(number),
            memory=compiled.memory if compiled else None,
            notes=compiled.notes if compiled else (),
        )

    def _with_compiling(self, number: int) -> tuple[Outcome, str] | None:
        if number in self.failed:
            return "failed", f"the compiler refused it: {self.failed[number]}"
        if number not in self.compiled:
            return None
        peak, host = self.compiled[number].memory.peak_bytes, self.compiled[number].memory.host
        if exceeds(host, self.host_budget_bytes):
            return (
                "over",
                f"compiled: {format_bytes(host)} of host memory, {against(host, self.host_budget_bytes or 0)}",
            )
        if peak > self.budget_bytes:
            return "over", f"compiled: {format_bytes(peak)}, {against(peak, self.budget_bytes)}"
        if number == self.selection.fitting()[0]:
            return "chosen", self._why_chosen(number, peak)
        return "fits", f"fits, predicted {self._slower(number):.1%} slower"

    def _without_compiling(self, number: int) -> tuple[Outcome, str]:
        if self.selection.pruned(number):
            least = self.selection.least_bytes(number)
            return "pruned", f"by formula: needs at least {format_bytes(least)}, {against(least, self.budget_bytes)}"
        if (smaller := self.selection.ruled_out_by(number)) is not None:
            return "ruled out", f"not compiled: {self._already(smaller, number)}"
        fitting = self.selection.fitting()
        if fitting and number > fitting[0]:
            return "slower", f"not compiled: predicted {self._slower(number):.1%} slower than the chosen one"
        return "unknown", f"not compiled: the limit of {len(self.selection.peaks)} compiles was reached"

    def _already(self, smaller: int, number: int) -> str:
        recipe, peak = self.prospects[smaller].recipe, self.compiled[smaller].memory.peak_bytes
        same = f"{recipe.micro_batch} x {recipe.accumulation} with these settings"
        if peak > self.budget_bytes:
            return f"{same} is {against(peak, self.budget_bytes)} already"
        more = format_bytes(self.selection.growth_bytes(smaller, number))
        return f"{same} needs {format_bytes(peak)} already, and by formula more rows add at least {more}"

    def _why_chosen(self, number: int, peak: int) -> str:
        reason = f"the fastest predicted that fits, {against(peak, self.budget_bytes)}"
        faster = self.selection.undecided_before(number)
        return f"{reason}; {faster} predicted faster were not compiled" if faster else reason

    def _slower(self, number: int) -> float:
        return self.prospects[number].cost.seconds / self.prospects[self.selection.fitting()[0]].cost.seconds - 1
