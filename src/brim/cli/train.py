"""`brim train RUN.toml`: plan for the device that is here, then train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from brim.cli.arguments import read_with_overrides, require_price
from brim.runfile import RunFile
from brim.settings import require
from brim.supervisor.folder import RunFolder
from brim.supervisor.training import train


@dataclass(frozen=True)
class Arguments:
    """Plan for the device that is here, then train.

    Any key of the run file can be overridden: --model.layers 8 --data.paths my-texts. Ctrl-C or SIGTERM finishes the
    update, saves, and ends with exit code 75; `brim resume` goes on bit for bit.
    """

    run_file: Annotated[Path, tyro.conf.Positional]
    """The run, as a TOML file."""
    out: Path | None = None
    """Folder of the run; otherwise runs/NAME with the name of the run file."""
    price_per_hour: float | None = None
    """Price of the device, to say what the run costs."""


def run(arguments: list[str]) -> int:
    """Train; 0 when done, 75 when stopped by a signal and saved."""
    options, overrides = read_with_overrides(Arguments, arguments, "train")
    require_price(options.price_per_hour)
    run_file = RunFile.load(options.run_file, overrides)
    folder = RunFolder(options.out or Path("runs") / options.run_file.stem)
    own = folder.settings.exists() and folder.settings.samefile(options.run_file)
    require(not own, "--out", folder.path, "another folder: its run.toml is the run file itself, and would be replaced")
    return train(run_file, folder, price_per_hour=options.price_per_hour)
