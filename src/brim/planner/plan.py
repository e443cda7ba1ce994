"""A plan: the recipe a search chose, with everything it knows about why.

A plan is a record. It can be printed, stored beside a run as JSON, read back, and built into a step; it searches
nothing.
Candidates stand in the order of predicted speed, fastest first, and every one has a reason.
"""

from __future__ import annotations

import dataclasses
import io
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group, RenderableType
from rich.text import Text

from brim.compiled import KernelList, MemoryReport
from brim.errors import CheckpointError
from brim.hardware.facts import Device, PeakFlops, Target
from brim.planner import report, table
from brim.planner.advice import no_plan_fits, smallest_of
from brim.planner.candidate import Candidate
from brim.planner.space import settings_words
from brim.program import Program
from brim.quantities import format_bytes, format_seconds
from brim.techniques import Recipe

if TYPE_CHECKING:
    from brim.training.step import Step


@dataclass(frozen=True)
class Plan:
    """What a search found for one program, device and budget.

    Attributes:
        device: what it was compiled for.
        budget_bytes: most device memory a step may use.
        global_batch: rows per update; the same for every candidate.
        candidates: every recipe that was considered, fastest predicted first.
        versions: of brim, jax, jaxlib and the platform that compiled.
        seconds: what the search took.
        compiles: how many programs it compiled.
        compile_seconds: what those compiles took, added up; several may have run at a time.
        updates: length of the run in updates, if it was told.
        price_per_hour: of the device, in the reader's currency, if it was told.
        fixed: names of the techniques that were given and not searched.
        unit: what throughput counts, `tokens` or `rows`.
        host_budget_bytes: most host memory a step may use; None: not limited.
        memory_report: whose every byte of the chosen candidate is (of the smallest one found, if none fits); None if it
            was not audited.
        kernels: what its compiled step runs; None likewise.
    """

    device: Device
    budget_bytes: int
    global_batch: int
    candidates: tuple[Candidate, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    compiles: int = 0
    compile_seconds: float = 0.0
    updates: int | None = None
    price_per_hour: float | None = None
    fixed: tuple[str, ...] = ()
    unit: str = "tokens"
    host_budget_bytes: int | None = None
    memory_report: MemoryReport | None = None
    kernels: KernelList | None = None

    @property
    def fits(self) -> bool:
        """Whether any candidate is within the budget."""
        return any(candidate.outcome == "chosen" for candidate in self.candidates)

    @property
    def chosen(self) -> Candidate:
        """The fastest predicted candidate that fits.

        Raises:
            NoPlanFits: if there is none; says the smallest that was found and what would help.
        """
        for candidate in self.candidates:
            if candidate.outcome == "chosen":
                return candidate
        raise no_plan_fits(self.candidates, self.device, self.budget_bytes, fixed=self.fixed, unit=self.unit)

    @property
    def shown(self) -> Candidate | None:
        """What a report is about: the chosen candidate, else the smallest that was found; None if there is none."""
        return self.chosen if self.fits else smallest_of(self.candidates)

    @property
    def runners_up(self) -> tuple[Candidate, ...]:
        """What else was compiled and fits, fastest predicted first."""
        return tuple(candidate for candidate in self.candidates if candidate.outcome == "fits")

    @property
    def recipe(self) -> Recipe:
        """The recipe of the chosen candidate.

        Raises:
            NoPlanFits: if there is none.
        """
        return self.chosen.recipe

    @property
    def run_seconds(self) -> float | None:
        """Predicted seconds of the whole run, without compiling and evaluating; None without a length."""
        return None if self.updates is None else self.updates * self.chosen.cost.seconds

    @property
    def price(self) -> float | None:
        """Predicted price of the whole run; None without a length or a price per hour."""
        if self.run_seconds is None or self.price_per_hour is None:
            return None
        return self.run_seconds / 3600 * self.price_per_hour

    def build(self, program: Program) -> Step:
        """The step of the chosen recipe, for the device of the plan; compiled at its first use.

        Raises:
            NoPlanFits: if nothing fits.
        """
        from brim.training.step import Step  # loads Optax, which printing a plan does without

        return Step(program, self.recipe, self.device)

    def table(self) -> RenderableType:
        """Chosen plan, runners-up and the rejected with their reasons, for a rich console."""
        smallest = smallest_of(self.candidates)
        fitting = [candidate for candidate in self.candidates if candidate.fits]
        shown = fitting or ([smallest] if smallest else [])
        shared = table.shared_settings(self.candidates)
        return Group(
            Text(self._headline()),
            table.compared(shown, shared, self.budget_bytes, self.unit),
            *(Text(f"note: {note}") for candidate in shown[:1] for note in candidate.notes),
            *self._report(),
            table.rejected(self.candidates, shared, self.budget_bytes),
        )

    def _headline(self) -> str:
        device = f"{self.device.name} ({self.device.kind}, {format_bytes(self.device.memory_bytes)})"
        counts = f"{len(self.candidates)} candidates, {self.compiles} compiled in {format_seconds(self.seconds)}"
        lines = [
            f"Plan for {device}: budget {format_bytes(self.budget_bytes)}, global batch {self.global_batch} rows",
            f"{counts}; {', '.join(f'{name} {version}' for name, version in self.versions.items())}",
        ]
        shared = [technique for technique in table.shared_settings(self.candidates) if not technique.is_plain]
        lines += [f"in every candidate: {settings_words(shared)}"] if shared else []
        lines += [f"fixed and not searched: {', '.join(self.fixed)}"] if self.fixed else []
        return "\n".join([*lines, *self._length()])

    def _length(self) -> list[str]:
        """The length of the run and its price, as far as they are known; predictions, and said to be."""
        if self.updates is None or not self.fits:
            return []
        price = "" if self.price is None else f", price {self.price:,.2f} at {self.price_per_hour:g} per hour"
        return [f"{self.updates} updates take about {format_seconds(self.run_seconds or 0)}{price} (predicted)"]

    def _report(self) -> list[RenderableType]:
        if self.memory_report is None or self.shown is None:
            return []
        found = report.of_memory(self.memory_report, report.chunks_loss(self.shown.recipe))
        return [found, *map(Text, report.wide_products(self.kernels))]

    def __rich__(self) -> RenderableType:
        return self.table()

    def __str__(self) -> str:
        width = max(60, shutil.get_terminal_size((100, 24)).columns)
        console = Console(
            file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False
        )
        console.print(self.table())
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())  # type: ignore[attr-defined]

    def to_json(self) -> dict[str, Any]:
        """Plain values for JSON; the first eight keys are a contract with other programs."""
        return {
            "fits": self.fits,
            "device": self.device.name,
            "budget_bytes": self.budget_bytes,
            "host_budget_bytes": self.host_budget_bytes,
            "versions": dict(self.versions),
            "seconds": self.seconds,
            "chosen": self.chosen.to_json() if self.fits else None,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "global_batch": self.global_batch,
            "compiles": self.compiles,
            "compile_seconds": self.compile_seconds,
            "updates": self.updates,
            "run_seconds": self.run_seconds if self.fits else None,
            "price_per_hour": self.price_per_hour,
            "price": self.price if self.fits else None,
            "fixed": list(self.fixed),
            "unit": self.unit,
            "device_facts": dataclasses.asdict(self.device),
            "report": None if self.memory_report is None else self.memory_report.to_json(),
            "kernels": None if self.kernels is None else self.kernels.to_json(),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        """The plan that `to_json` wrote.

        Raises:
            CheckpointError: if the record is not one of a plan.
        """
        try:
            return cls(
                device=_device(record["device_facts"]),
                candidates=tuple(map(Candidate.from_json, record["candidates"])),
                fixed=tuple(record["fixed"]),
                compile_seconds=record.get("compile_seconds", 0.0),  # plans of earlier versions do not say
                memory_report=None if record["report"] is None else MemoryReport.from_json(record["report"]),
                kernels=None if record["kernels"] is None else KernelList.from_json(record["kernels"]),
                **{name: record[name] for name in _PLAIN_FIELDS},
            )
        except (KeyError, TypeError) as error:
            raise CheckpointError(
                f"this is not the record of a plan: {error}", hint="plan again; brim plan RUN.toml --json writes one"
            ) from None


_PLAIN_FIELDS = (
    *("budget_bytes", "global_batch", "versions", "seconds", "compiles"),
    *("updates", "price_per_hour", "unit", "host_budget_bytes"),
)


def _device(facts: Mapping[str, Any]) -> Device:
    capability, target = facts["compute_capability"], facts["target"]
    changed = {
        "compute_capability": None if capability is None else (capability[0], capability[1]),
        "peak_flops": PeakFlops(**facts["peak_flops"]),
        "target": None if target is None else Target(**target),
    }
    return Device(**{**facts, **changed})
