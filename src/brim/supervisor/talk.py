"""What the supervisor says while a run is prepared. Talk goes to stderr; stdout is for data."""

from __future__ import annotations

import sys
from collections.abc import Callable

_STEP_PERCENT = 25


def say(text: str) -> None:
    """One line to a person."""
    print(text, file=sys.stderr, flush=True)


def data_progress() -> Callable[[str, float], None]:
    """Says how far preparing the data has come, a line for each quarter of each task."""
    said: dict[str, int] = {}

    def progress(what: str, share: float) -> None:
        quarter = int(share * 100) // _STEP_PERCENT * _STEP_PERCENT
        if quarter > said.get(what, 0):
            said[what] = quarter
            say(f"data: {what} {quarter}%")

    return progress
