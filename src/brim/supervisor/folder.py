"""The folder of a run: everything that is needed to resume it, sample from it, or repeat it.

run.toml          the resolved run file
plan.json         the plan it runs under, with its reasons
memory.json       peak device memory, predicted by the plan and measured in the run
data/             prepared tokens and the tokenizer
checkpoints/      see brim.training.checkpoint
metrics.jsonl     one record per update
tensorboard/      the same for TensorBoard
curves.png        the loss curves
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from brim.errors import CheckpointError, SettingsError
from brim.runfile import RunFile
from brim.settings import load_toml
from brim.training.checkpoint_files import complete

_ANOTHER = "choose another --out: a folder, or a name that is not taken, where you may write"


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run's files."""

    path: Path

    @property
    def settings(self) -> Path:
        """The resolved run file."""
        return self.path / "run.toml"

    @property
    def plan(self) -> Path:
        """The plan, as JSON."""
        return self.path / "plan.json"

    @property
    def memory(self) -> Path:
        """Predicted and measured peak, as JSON."""
        return self.path / "memory.json"

    @property
    def data(self) -> Path:
        """Prepared tokens, unless `data.store` names another place; see `store_of`."""
        return self.path / "data"

    @property
    def checkpoints(self) -> Path:
        """All checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON record per update."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard events."""
        return self.path / "tensorboard"

    @property
    def curves(self) -> Path:
        """Picture of the loss curves."""
        return self.path / "curves.png"

    def store_of(self, run: RunFile) -> Path:
        """Where the prepared tokens of this folder's run are: at `data.store`, or in the folder itself."""
        store = run.settings.data.store
        return Path(store) if store else self.data

    def create(self) -> None:
        """Make the folder for a new run.

        Raises:
            SettingsError: if there is a run in it that can be resumed, or something of another program's that the run
                would write over, or it cannot be made or looked into.
        """
        self.make()
        try:
            taken = self.settings.exists() and bool(complete(self.checkpoints))
            foreign = self.metrics.exists() and not self.settings.exists()
        except OSError as error:
            raise SettingsError(f"cannot look into {self.path}: {error.strerror}", hint=_ANOTHER) from None
        if taken:
            raise SettingsError(
                f"{self.path} holds a run with checkpoints", hint=f"brim resume {self.path}, or choose another --out"
            )
        if foreign:
            raise SettingsError(f"{self.metrics} is there already, and is of no run of brim", hint=_ANOTHER)

    def make(self) -> None:
        """Make the folder if it is not there.

        Raises:
            SettingsError: if it cannot be made.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingsError(f"cannot make the run folder {self.path}: {error.strerror}", hint=_ANOTHER) from None

    def load_settings(self) -> RunFile:
        """The run that this folder holds.

        Raises:
            CheckpointError: if there is none.
        """
        try:
            there = self.settings.exists()
        except OSError:  # a name that is too long, or a folder that may not be looked into
            there = False
        if not there:
            raise CheckpointError(
                f"no run in {self.path}: it has no run.toml", hint="give the folder that `brim train` wrote"
            )
        return RunFile.from_tables(load_toml(self.settings), source=str(self.settings))


def write_whole(path: Path, text: str) -> None:
    """Write a file so that a reader, or a kill at any instant, finds the old text or the new one, never a part."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as staged:
        staged.write(text)
        staged.flush()
        os.fsync(staged.fileno())
    Path(staged.name).replace(path)
