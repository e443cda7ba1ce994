"""TensorBoard events of a run, written by tensorboardX."""

from __future__ import annotations

import math
import time
from pathlib import Path

from tensorboardX import SummaryWriter

from brim.training.tracking import Record

_TAGS = {
    "loss/training": "loss",
    "loss/held_out": "held_out_loss",
    "optimizer/learning_rate": "learning_rate",
    "optimizer/gradient_norm": "gradient_norm",
    "speed/tokens_per_second": "tokens_per_second",
    "speed/waiting_share": "waiting_share",
    "memory/bytes": "memory_bytes",
    "optimizer/skipped": "skipped",
    "optimizer/loss_scale": "loss_scale",
}


class TensorBoard:
    """A tracker that writes TensorBoard events; the step axis counts windows. Numbers that are not finite are left out.

    Args:
        folder: for the event files.
        after_window: the window a run resumes from, 0 for a new run. Earlier events after it are marked as purged,
            and TensorBoard does not show them.
    """

    def __init__(self, folder: Path, *, after_window: int = 0) -> None:
        # tensorboardX names a file by the second: a resume within it would overwrite the events before.
        self._writer = SummaryWriter(
            str(folder),
            purge_step=after_window + 1 if after_window else None,
            filename_suffix=f".{time.time_ns()}",
        )

    def log(self, record: Record) -> None:
        """Add one point to every curve."""
        for tag, name in _TAGS.items():
            value = getattr(record, name)
            if value is not None and math.isfinite(value):
                self._writer.add_scalar(tag, value, global_step=record.window)

    def close(self) -> None:
        """Write what is buffered and close the event file."""
        self._writer.close()
