"""A recipe: everything a plan or a run file decides about HOW a step is run, and nothing about what it computes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from brim.errors import TechniqueError, did_you_mean
from brim.hardware.compiler_options import departures_in
from brim.hardware.facts import Device
from brim.program import Program
from brim.settings import build, require, to_tables
from brim.techniques.base import Context, Points, Technique
from brim.techniques.registry import REGISTRY


@dataclass(frozen=True)
class Recipe:
    """Micro-batch, one setting of every technique in canonical order, assembler and compiler options.

    Attributes:
        micro_batch: rows per forward and backward pass.
        techniques: one of each in the registry, in its order; made complete by `Recipe.of`.
        assembler: how the step is put together; `plain` is one jitted, donated step.
        compiler_options: XLA options for this compile only, by name.
    """

    micro_batch: int
    techniques: tuple[Technique, ...]
    assembler: str = "plain"
    compiler_options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(self.micro_batch >= 1, "micro_batch", self.micro_batch, "at least 1 row")

    @classmethod
    def of(cls, micro_batch: int, *techniques: Technique, compiler_options: Mapping[str, str] | None = None) -> Recipe:
        """A complete recipe: techniques that are not given stand at their plain settings.

        Raises:
            TechniqueError: if one is given twice or two conflict.
        """
        given = {technique.name: technique for technique in techniques}
        if len(given) != len(techniques):
            raise TechniqueError(f"a technique is given twice among {[t.name for t in techniques]}")
        complete = tuple(given.get(kind.name, kind()) for kind in REGISTRY)
        _refuse_conflicts(complete)
        return cls(micro_batch, complete, compiler_options=dict(compiler_options or {}))

    @property
    def accumulation(self) -> int:
        """Micro-batches per update."""
        return self["accumulation"].steps  # type: ignore[attr-defined]

    @property
    def global_batch(self) -> int:
        """Rows per update."""
        return self.micro_batch * self.accumulation

    def __getitem__(self, name: str) -> Technique:
        for technique in self.techniques:
            if technique.name == name:
                return technique
        raise TechniqueError(f"no technique `{name}`", hint=did_you_mean(name, (kind.name for kind in REGISTRY)))

    def points(self, context: Context) -> Points:
        """What stands at each point of the step, filled in canonical order.

        Raises:
            TechniqueError: if a technique cannot work on this program or device.
        """
        points = Points()
        for technique in self.techniques:
            if reason := technique.needs(context.program, context.device):
                raise TechniqueError(f"{technique.name} ({technique.describe()}) cannot be used: {reason}")
            points = technique.apply(points, context)
        return points

    def obstacle(self, program: Program, device: Device) -> str | None:
        """Why this recipe cannot be used on a program and device, or None."""
        reasons = (technique.needs(program, device) for technique in self.techniques)
        return next((reason for reason in reasons if reason), None)

    def describe(self) -> str:
        """Micro-batch, accumulation, every technique that is not plain and unusual compiler options, in a few words."""
        words = [t.describe() for t in self.techniques if not t.is_plain and t.name != "accumulation"]
        options = departures_in(self.compiler_options)
        return ", ".join([f"{self.micro_batch} x {self.accumulation}", *words, *([options] if options else [])])

    def to_tables(self) -> dict[str, Any]:
        """Nested tables for TOML or JSON."""
        return {
            "micro_batch": self.micro_batch,
            "assembler": self.assembler,
            "techniques": {technique.name: to_tables(technique) for technique in self.techniques},
            "compiler_options": dict(self.compiler_options),
        }

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any]) -> Recipe:
        """The recipe that `to_tables` wrote."""
        techniques = techniques_from(tables["techniques"])
        return cls.of(tables["micro_batch"], *techniques, compiler_options=tables.get("compiler_options"))


def techniques_from(tables: Mapping[str, Any], *, source: str = "recipe") -> tuple[Technique, ...]:
    """The techniques named in a `[techniques]` table, and only those, in canonical order.

    Raises:
        SettingsError: on a wrong setting. TechniqueError: on an unknown technique.
    """
    kinds = {kind.name: kind for kind in REGISTRY}
    for name in tables:
        if name not in kinds:
            raise TechniqueError(f"{source}: no technique `{name}`", hint=did_you_mean(name, kinds))
    return tuple(
        build(kind, tables[name], source=f"{source}: {name}") for name, kind in kinds.items() if name in tables
    )


def _refuse_conflicts(techniques: Iterable[Technique]) -> None:
    active = {technique.name: technique for technique in techniques if not technique.is_plain}
    for technique in active.values():
        for other, reason in technique.conflicts.items():
            if other in active:
                raise TechniqueError(f"{technique.name} cannot stand beside {other}: {reason}")
