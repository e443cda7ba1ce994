"""A run is ONE TOML file: model, data, optimizer, schedule, training, plan, and techniques that are not to be planned.

[model]     preset = "gpt2"
[data]      paths = ["~/texts"]
[train]     updates = 1000
            global_batch = 32
[plan]      budget = "10GiB"
[techniques.rematerialization]      # optional: what stands here is not searched
            policy = "full"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brim.data.settings import SHORTEST_ROW, DataSettings
from brim.errors import SettingsError, TechniqueError
from brim.models.settings import DecoderSettings
from brim.quantities import parse_bytes
from brim.settings import (
    Override,
    build,
    differences,
    listed,
    load_toml,
    merge,
    parse_overrides,
    require,
    to_tables,
    to_toml,
    user_path,
)
from brim.techniques import Technique, techniques_from
from brim.training.settings import OptimizerSettings, ScheduleSettings, TrainSettings

KEEPS_THE_STATE = frozenset(
    f"train.{key}"
    for key in (
        "log_every",
        "evaluate_every",
        "evaluation_rows",
        "checkpoint_every",
        "keep_last",
        "keep_best",
        "stop_after_skips",
        "updates",
        "horizon",
    )
) | {"plan.budget"}
"""Keys that may change on resume: none of them changes what the saved state means."""


@dataclass(frozen=True)
class PlanSettings:
    """The TOML table `[plan]`.

    Attributes:
        budget: most device memory a step may use, such as `22GiB`; left out, what is free on the device that is here.
    """

    budget: str | None = None

    def __post_init__(self) -> None:
        if self.budget is not None:
            parse_bytes(self.budget, "budget")

    @property
    def budget_bytes(self) -> int | None:
        """The budget in bytes, or None for what is free."""
        return None if self.budget is None else parse_bytes(self.budget)


@dataclass(frozen=True)
class RunSettings:
    """All typed tables of a run file, `[techniques]` apart."""

    model: DecoderSettings = field(default_factory=DecoderSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    plan: PlanSettings = field(default_factory=PlanSettings)

    def __post_init__(self) -> None:
        warmup, horizon = self.schedule.warmup, self.train.schedule_updates
        if warmup > horizon:
            raise SettingsError(
                f"`schedule.warmup` is {warmup} updates, longer than the {horizon} updates of the run",
                hint=f"--schedule.warmup {horizon // 10}, or more train.updates",
            )
        left, decay = horizon - warmup, self.schedule.decay
        if decay is not None and 0 < left < decay:
            raise SettingsError(
                f"`schedule.decay` is {decay} updates, longer than the {left} that a warmup of {warmup} leaves of "
                f"{horizon}",
                hint=f"--schedule.decay {left} or less, or more train.updates",
            )

    def require_model(self) -> None:
        """Check what can be known of the model before any text is read.

        Raises:
            SettingsError: if sizes are missing, rows have no token to predict, or there are fewer ids than bytes.
        """
        self.model.require_complete()
        fewest_ids = 1 if self.data.tokenizer == "characters" else self.data.byte_ids
        shape = self.model.resolved(tokenizer_vocabulary=fewest_ids)
        expected = f"at least {SHORTEST_ROW} tokens, one of them to predict"
        require(shape.context >= SHORTEST_ROW, "model.context", shape.context, expected)


@dataclass(frozen=True)
class RunFile:
    """A run as it was asked for.

    Attributes:
        settings: the typed tables.
        techniques: techniques the file fixes; the planner chooses the others.
    """

    settings: RunSettings
    techniques: tuple[Technique, ...] = ()

    @classmethod
    def load(cls, path: Path, overrides: Sequence[str] = (), *, needs_model: bool = True) -> RunFile:
        """Read a run file and lay `--key value` overrides over it.

        Args:
            needs_model: whether a model that is not described, or cannot read the data, is an error.

        Raises:
            SettingsError: naming the file, the full key and the nearest right one.
        """
        tables = _anchor(load_toml(path), path.parent)
        changes = _anchor(parse_overrides(overrides), Path())
        run = cls.from_tables(merge(tables, changes), source=path.name)
        if needs_model:
            run.settings.require_model()
        return run

    @classmethod
    def from_tables(cls, tables: Mapping[str, Any], *, source: str = "settings") -> RunFile:
        """Build a run from nested tables.

        Raises:
            SettingsError: as for `load`.
        """
        tables = dict(tables)
        techniques = tables.pop("techniques", {})
        if not isinstance(techniques, Mapping):
            raise SettingsError(f"{source}: `techniques` must be tables such as [techniques.precision]")
        try:
            fixed = techniques_from(techniques, source=source)
        except TechniqueError as error:
            raise SettingsError(error.message, hint=error.hint) from None
        return cls(build(RunSettings, tables, source=source), fixed)

    def to_toml(self) -> str:
        """The resolved run as TOML text that `from_tables` reads back."""
        text = to_toml(self.settings)
        for technique in self.techniques:
            body = to_toml(technique).strip()
            text += f"\n[techniques.{technique.name}]\n{body}\n" if body else f"\n[techniques.{technique.name}]\n"
        return text

    def with_vocabulary(self, tokenizer_vocabulary: int | None) -> RunFile:
        """The run with the vocabulary filled in: what the file says, else the tokenizer's.

        Raises:
            SettingsError: if the file has room for fewer ids than the tokenizer makes, or neither is known.
        """
        shape = self.settings.model.resolved(tokenizer_vocabulary=tokenizer_vocabulary)
        model = replace(self.settings.model, vocabulary=shape.vocabulary)
        return replace(self, settings=replace(self.settings, model=model))

    def changes(self, other: RunFile) -> dict[str, tuple[Any, Any]]:
        """Key -> (this, other) wherever two runs differ."""
        found = differences(self.settings, other.settings)
        mine, theirs = (_technique_tables(run) for run in (self, other))
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                found[f"techniques.{name}"] = (mine.get(name), theirs.get(name))
        return found


def _technique_tables(run: RunFile) -> dict[str, Any]:
    return {technique.name: to_tables(technique) for technique in run.techniques}


def _anchor(tables: dict[str, Any], base: Path) -> dict[str, Any]:
    """Relative paths of `[data]` taken from `base`: a file's from its folder, an override's from where it was typed.

    They are made absolute, so that a run can be resumed from anywhere.
    """
    data = tables.get("data")
    if not isinstance(data, Mapping):
        return tables
    anchored: dict[str, Any] = {}
    paths, store = data.get("paths"), data.get("store")
    if isinstance(paths, Override):
        paths = listed(paths)
    if isinstance(paths, list) and all(isinstance(path, str) for path in paths):
        anchored["paths"] = [_absolute(base, path) for path in paths]
    if isinstance(store, str):
        anchored["store"] = _absolute(base, store)
    return merge(tables, {"data": anchored})


def _absolute(base: Path, path: str) -> str:
    return str((base / user_path(path)).absolute()) if path else path  # no path stays none
