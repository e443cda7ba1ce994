"""The peak a plan predicted beside the one that the device measured, when a run is under way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from brim.quantities import format_bytes
from brim.supervisor.folder import write_whole
from brim.training.environment import peak_memory_bytes
from brim.training.tracking import Record

SETTLED_RECORDS = 3
"""Updates after which the peak of a step has been reached: all are alike, and the first ones also compile."""


class PeakMemory:
    """A tracker that reads the device's peak once, after the first updates, and stores it beside the plan.

    Args:
        path: of the JSON file: `predicted_bytes`, `measured_bytes` (null where the device does not count), `updates`.
        predicted_bytes: compiled peak of the step.
        measure: most bytes the device held so far, or None.
    """

    def __init__(self, path: Path, predicted_bytes: int, measure: Callable[[], int | None] = peak_memory_bytes) -> None:
        self._path, self._predicted, self._measure = path, predicted_bytes, measure
        self._records = 0
        self._measured: int | None = None

    def log(self, record: Record) -> None:
        """Count an update; at the last of the first ones, measure and store."""
        del record
        self._records += 1
        if self._records <= SETTLED_RECORDS:
            self._measured = self._measure()
        if self._records == SETTLED_RECORDS:
            self._store()

    def close(self) -> None:
        """Store what was measured in a run that was shorter."""
        if 0 < self._records < SETTLED_RECORDS:
            self._store()

    def describe(self) -> str:
        """Both peaks in a line."""
        predicted = f"peak memory: predicted {format_bytes(self._predicted)}"
        if self._measured is None:
            return f"{predicted}; not measured, as a CPU does not count the bytes of a step apart from its process"
        return f"{predicted}, measured {format_bytes(self._measured)} ({self._measured / self._predicted:.1%})"

    def _store(self) -> None:
        values = {"predicted_bytes": self._predicted, "measured_bytes": self._measured, "updates": self._records}
        write_whole(self._path, json.dumps(values) + "\n")
