"""Programs that are dangerous to compile at some rows; built by compile processes, so they live in a module."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from brim.program import Program, rows_of
from planner.stacked import stacked_program


def aborting_program(rows: int) -> Program:
    """The stacked program, whose loss ends the process when a micro-batch has some number of rows."""

    def abort() -> None:
        os.write(2, b"noise\nF0000 Check failed: bytes >= 0\n")
        os.abort()

    return _hazardous(rows, abort)


def dying_once_program(rows: int, deaths: Path) -> Program:
    """The stacked program, whose loss ends the process at some rows, but only the first time."""

    def die() -> None:
        if not deaths.exists():
            deaths.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return _hazardous(rows, die)


def waiting_program(rows: int, mark: Path) -> Program:
    """The stacked program, whose loss writes its process id into a file and then takes for ever, at some rows."""

    def wait() -> None:
        mark.with_suffix(".part").write_text(str(os.getpid()), encoding="utf-8")
        mark.with_suffix(".part").replace(mark)
        time.sleep(600)

    return _hazardous(rows, wait)


def broken_program() -> Program:
    """Cannot be built."""
    raise LookupError("no such model")


def talking_program() -> Program:
    """Prints while it is built and while it is traced."""
    print("built", flush=True)
    return _hazardous(None, lambda: print("traced", flush=True))


def _hazardous(rows: int | None, hazard: Callable[[], None]) -> Program:
    program = stacked_program()

    def loss(trainable: Any, frozen: Any, variables: Any, batch: Any, keys: Any, ops: Any) -> Any:
        if rows is None or rows_of(batch) == rows:
            hazard()
        return program.loss(trainable, frozen, variables, batch, keys, ops)

    return replace(program, loss=loss)
