"""The record of a run: one line per window in `metrics.jsonl`, and the small protocol that all trackers speak.

A tracker gets one `Record` per window (global batch), in order. Windows are the axis everywhere: they number an update
or, when a number was not finite and the update was skipped, the attempt; so each has one record, also after a resume.
`metrics.jsonl` is strict JSON: a number that is not finite is null, and its name is in the list `nonfinite`.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """What one window produced.

    Attributes:
        window: windows consumed, this one included.
        update: optimizer updates made, this one included unless it was skipped.
        loss: mean over the window's targets, before the update; NaN when it had none.
        learning_rate: of this update.
        gradient_norm: global norm before clipping.
        targets: what the update learned from; padding is not counted.
        skipped: whether there was no update.
        seconds: wall time of the update; see `brim.training.timing`.
        tokens_per_second: targets over seconds; None for the first update of a process, which holds compilation.
        waiting_share: share of the seconds spent waiting for data, 0 to 1.
        memory_bytes: in use on the device, or by the process where the device does not say.
        elapsed_seconds: training time of the run so far, over all its resumes.
        held_out_loss: mean over the held-out targets when they were evaluated after this update.
        loss_scale: what the mean loss was multiplied by before it was differentiated; None without loss scaling.
    """

    window: int
    update: int
    loss: float
    learning_rate: float
    gradient_norm: float
    targets: int
    skipped: bool
    seconds: float
    tokens_per_second: float | None
    waiting_share: float
    memory_bytes: int
    elapsed_seconds: float
    held_out_loss: float | None = None
    loss_scale: float | None = None


class Tracker(Protocol):
    """Something that follows a run."""

    def log(self, record: Record) -> None:
        """Take the record of the next window."""
        ...

    def close(self) -> None:
        """Finish what is buffered."""
        ...


class MetricsFile:
    """A tracker that appends to `metrics.jsonl`.

    Args:
        path: the file; made when it is not there.
        after_window: the window a run resumes from, 0 for a new run. Records after it, left by the run's earlier end,
            are cut, and so is a last line that a kill has torn; the file is replaced in one rename.

    Attributes:
        last: the last record kept, or None. Its `elapsed_seconds` is where the clock goes on.
    """

    def __init__(self, path: Path, *, after_window: int = 0) -> None:
        kept = [(line, record) for line, record in _lines(path) if record.window <= after_window]
        self.last = kept[-1][1] if kept else None
        _replace(path, b"".join(line for line, _ in kept))
        self._file = path.open("ab")

    def log(self, record: Record) -> None:
        """Append one line, whole."""
        self._file.write(to_line(record))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[Record]:
    """All records of a `metrics.jsonl`, in order; a torn last line is left out. Nothing is written."""
    return [record for _, record in _lines(path)]


def to_line(record: Record) -> bytes:
    """A record as one line of strict JSON."""
    values = asdict(record)
    nonfinite = [name for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)]
    if nonfinite:
        values |= dict.fromkeys(nonfinite) | {"nonfinite": nonfinite}
    return json.dumps(values, allow_nan=False).encode() + b"\n"


def from_line(line: bytes) -> Record:
    """The record of a line; what was not finite becomes NaN.

    Raises:
        ValueError: if the line is no record.
    """
    values: dict[str, Any] = json.loads(line)
    values |= dict.fromkeys(values.pop("nonfinite", ()), math.nan)
    names = {field.name for field in fields(Record)}
    try:
        return Record(**{name: value for name, value in values.items() if name in names})
    except TypeError as error:
        raise ValueError(str(error)) from error


def _lines(path: Path) -> Iterator[tuple[bytes, Record]]:
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        try:
            if not line.endswith(b"\n"):
                raise ValueError("the line has no end")
            yield line, from_line(line)
        except (ValueError, AttributeError) as error:
            _log.warning("%s: line %d is no whole record and is left out (%s)", path, number, error)


def _replace(path: Path, content: bytes) -> None:
    if path.exists() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
