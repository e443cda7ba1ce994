"""`brim resume RUN`: go on with a run, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from brim.cli.arguments import read_with_overrides
from brim.supervisor.folder import RunFolder
from brim.supervisor.training import resume


@dataclass(frozen=True)
class Arguments:
    """Go on with a run from its newest complete checkpoint, bit for bit.

    Keys that leave the meaning of the saved state alone can be overridden: --train.log_every 50.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """The folder that `brim train` wrote."""


def run(arguments: list[str]) -> int:
    """Resume; exit codes as for train."""
    options, overrides = read_with_overrides(Arguments, arguments, "resume")
    return resume(RunFolder(options.folder), overrides)
