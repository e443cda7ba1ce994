"""Progress for people: one live line on a terminal, plain lines elsewhere. Everything goes to stderr."""

from __future__ import annotations

import math
import sys
import time
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from brim.quantities import format_bytes, format_count, format_seconds
from brim.training.tracking import Record

_REDRAW_SECONDS = 0.1
_BAR_WIDTH = 20
_LABEL_STYLE, _BAD_STYLE = "dim", "bold red"


class Progress:
    """A tracker that shows how training goes.

    On a terminal: a bar and the newest figures, redrawn in place at most ten times a second. Elsewhere: a plain line,
    without colour or carriage returns, for the first update, every `every` updates, every evaluation and the last one.

    Args:
        total_updates: updates in the whole run.
        every: updates between two plain lines.
        held_out_loss: the last one known, when a run resumes.
        stream: where it goes; stderr when left out.
    """

    def __init__(
        self, total_updates: int, *, every: int = 10, held_out_loss: float | None = None, stream: TextIO | None = None
    ) -> None:
        stream = stream or sys.stderr
        self._total, self._every = total_updates, every
        self._held_out_loss = held_out_loss
        self._first: Record | None = None
        self._last: Record | None = None
        self._shown: Record | None = None
        self._skipped = 0
        self._told: set[str] = set()
        self._drawn = -math.inf
        terminal = stream.isatty()
        self._console = Console(file=stream, force_terminal=terminal, soft_wrap=not terminal, highlight=False)
        self._live: Live | None = None
        if terminal:
            # stdout is for data and stays what it is.
            self._live = Live(console=self._console, auto_refresh=False, redirect_stdout=False)
            self._live.start()

    def log(self, record: Record) -> None:
        """Show a window."""
        self._first = self._first or record
        self._last = record
        self._skipped += record.skipped
        if record.skipped:
            self._tell_of_skip(record)
        if record.held_out_loss is not None:
            self._held_out_loss = record.held_out_loss
        if self._live is not None:
            if time.monotonic() - self._drawn >= _REDRAW_SECONDS:
                self._draw()
        elif record is self._first or record.held_out_loss is not None or record.window % self._every == 0:
            self._print()

    def note(self, text: str) -> None:
        """Say something: above the live line, or as a line of its own."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Show the last window and leave the line standing."""
        if self._live is not None:
            self._draw()
            self._live.stop()
        elif self._last is not self._shown:
            self._print()

    def _tell_of_skip(self, record: Record) -> None:
        """Once for each of the two reasons: the line counts how often it happens."""
        reason = "a loss or gradient that is not finite" if record.targets else "no target to learn from"
        if reason not in self._told:
            self._told.add(reason)
            scaled = record.targets and record.loss_scale is not None
            scale = f" at loss scale {record.loss_scale:,.0f}" if scaled else ""
            self.note(f"window {record.window:,} had {reason}{scale}: it made no update (said once)")

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._live is None or self._last is None:
            return
        grid = Table.grid(padding=(0, 1), expand=True)
        grid.add_column(width=_BAR_WIDTH)
        grid.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        grid.add_row(
            ProgressBar(total=self._total, completed=min(self._last.update, self._total), width=_BAR_WIDTH),
            self._line(self._last),
        )
        self._live.update(grid, refresh=True)

    def _print(self) -> None:
        if self._last is not None:
            self._console.print(self._line(self._last))
            self._shown = self._last

    def _line(self, record: Record) -> Text:
        speed = record.tokens_per_second
        parts = [
            ("update", f"{record.update:,}/{self._total:,}"),
            ("loss", f"{record.loss:.4f}"),
            ("val", "" if self._held_out_loss is None else f"{self._held_out_loss:.4f}"),
            ("lr", f"{record.learning_rate:.2e}"),
            ("tok/s", "compiling" if speed is None else format_count(speed)),
            ("data", f"{record.waiting_share:.0%}"),
            ("memory", format_bytes(record.memory_bytes)),
            ("left", self._time_left(record)),
            ("scale", "" if record.loss_scale is None else f"{record.loss_scale:,.0f}"),
            ("skipped", f"{self._skipped}" if self._skipped else ""),
        ]
        line = Text(no_wrap=True, overflow="ellipsis", end="")
        for label, value in parts:
            if value:
                bad = label == "skipped" or value in ("nan", "inf", "-inf")
                line.append("  " if line else "").append(f"{label} ", _LABEL_STYLE)
                line.append(value, _BAD_STYLE if bad else "")
        return line

    def _time_left(self, record: Record) -> str:
        """From the mean pace of this process: evaluations and saves count, its first update (compilation) does not."""
        remaining = self._total - record.update
        if remaining <= 0:
            return ""
        if self._first is None or record.update <= self._first.update:
            return "unknown"
        pace = (record.elapsed_seconds - self._first.elapsed_seconds) / (record.update - self._first.update)
        return format_seconds(pace * remaining)
