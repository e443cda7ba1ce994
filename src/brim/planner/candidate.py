"""One recipe that a search looked at, what became of it, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from brim.planner.cost import Cost
from brim.planner.memory import Memory
from brim.techniques import Recipe

Outcome = Literal["chosen", "fits", "over", "failed", "pruned", "ruled out", "slower", "unknown"]


NO_REPORT = "no report by owner"
"""How the note begins that a candidate's compiled program could not be read."""


@dataclass(frozen=True)
class Candidate:
    """A recipe with its prediction, its compiled memory if it was compiled, and the reason it stands where it stands.

    Attributes:
        recipe: what would be run.
        outcome: `chosen`; `fits` (compiled, within the budget); `over` (compiled, above it); `failed` (the compiler
            refused it). Not compiled are: `pruned` (by formula, it cannot fit); `ruled out` (fewer rows of the same
            settings are over already); `slower` (than the chosen one and what was compiled after it); `unknown` (the
            compiles ran out).
        reason: the same for people, with bytes or seconds.
        cost: predicted seconds of one update, by term.
        tokens: tokens of one update; rows for programs whose rows are no sequences.
        least_bytes: lower bound of its peak, by formula.
        memory: from the compiler; None if it was not compiled.
        notes: what techniques had to decide, heard while compiling.
        ledger: whose the bytes at the peak are, name -> bytes, from where the compiled program puts every buffer; empty
            if it was not audited, as only the chosen candidate is.
    """

    recipe: Recipe
    outcome: Outcome
    reason: str
    cost: Cost
    tokens: int
    least_bytes: int
    memory: Memory | None = None
    notes: tuple[str, ...] = ()
    ledger: Mapping[str, int] = field(default_factory=dict)

    @property
    def compiled(self) -> bool:
        """Whether its bytes come from the compiler."""
        return self.memory is not None

    @property
    def fits(self) -> bool:
        """Whether it was compiled and is within the budget."""
        return self.outcome in ("chosen", "fits")

    @property
    def peak_bytes(self) -> int | None:
        """Device bytes of the compiled step; None if it was not compiled."""
        return None if self.memory is None else self.memory.peak_bytes

    @property
    def owners(self) -> Mapping[str, int]:
        """Name -> bytes, with the peak as their sum: of the ledger, else of the memory analysis; {} if not compiled."""
        return self.ledger or ({} if self.memory is None else self.memory.owners)

    @property
    def predicted_tokens_per_second(self) -> float:
        """Tokens (or rows) per second, as predicted."""
        return self.tokens / self.cost.seconds

    def to_json(self) -> dict[str, Any]:
        """Plain values; the first eleven keys are a contract with other programs."""
        tables = self.recipe.to_tables()
        return {
            "techniques": tables["techniques"],
            "micro_batch": self.recipe.micro_batch,
            "accumulation": self.recipe.accumulation,
            "peak_bytes": self.peak_bytes,
            "host_bytes": None if self.memory is None else self.memory.host,
            "owners": dict(self.owners),
            "predicted_step_seconds": self.cost.seconds,
            "predicted_tokens_per_second": self.predicted_tokens_per_second,
            "recompute_share": self.cost.recompute_share,
            "compiled": self.compiled,
            "reason": self.reason,
            "outcome": self.outcome,
            "least_bytes": self.least_bytes,
            "tokens": self.tokens,
            "assembler": tables["assembler"],
            "compiler_options": tables["compiler_options"],
            "seconds_by_term": dict(self.cost.terms),
            "predicted_mfu": self.cost.mfu,
            "memory": None if self.memory is None else dataclasses.asdict(self.memory),
            "notes": list(self.notes),
            "audited": bool(self.ledger),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The candidate that `to_json` wrote."""
        memory = record["memory"]
        return cls(
            recipe=Recipe.from_tables(record),
            outcome=record["outcome"],
            reason=record["reason"],
            cost=Cost(record["seconds_by_term"], record["recompute_share"], record.get("predicted_mfu", 0.0)),
            tokens=record["tokens"],
            least_bytes=record["least_bytes"],
            memory=None if memory is None else Memory(**memory),
            notes=tuple(record["notes"]),
            ledger=record["owners"] if record["audited"] else {},
        )
