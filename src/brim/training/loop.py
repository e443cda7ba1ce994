"""The training loop: it hands the device one window after another and reads results one window late.

JAX returns from a step before the step is done. The loop keeps that lead: while window n runs, it fetches the metrics
of window n - 1, prepares the data of n + 1 and hands it over. So the device never waits for Python, and Python waits
for the device only where somebody wants to see a number. Evaluations, checkpoints and the end settle what is in flight.

A skipped window (not finite, or without a target) takes its data and its place in the run; the schedule counts only
updates that were made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax

from brim.errors import DivergenceError
from brim.techniques.loss_scaling import LEAST
from brim.training.environment import memory_in_use_bytes
from brim.training.settings import TrainSettings
from brim.training.state import State, StepMetrics
from brim.training.step import Step
from brim.training.timing import Throughput
from brim.training.tracking import Record, Tracker
from brim.tree import PyTree


class Save(Protocol):
    """Saves a state after a window, with its held-out loss if it was evaluated; may return before it is on disk."""

    def __call__(self, window: int, state: State, held_out_loss: float | None, /) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        state: the last state.
        window: windows consumed.
        held_out_loss: the newest one, or None.
        stopped: whether it was asked to stop before its end.
    """

    state: State
    window: int
    held_out_loss: float | None
    stopped: bool


@dataclass(frozen=True)
class Loop:
    """What a run is made of; `run` goes through it.

    Attributes:
        step: the compiled step.
        settings: how long, how often.
        trackers: are told of every window, in order, one window late.
        evaluate: held-out loss of a state, or None when nothing is held out.
        save: see `Save`.
        stop: asked before every window; True ends the run after what is in flight.
        elapsed_seconds: training time before this process, of a resumed run.
        clock: seconds; replaced in tests.
    """

    step: Step
    settings: TrainSettings
    trackers: Sequence[Tracker]
    evaluate: Callable[[State], float] | None
    save: Save
    stop: Callable[[], bool]
    elapsed_seconds: float = 0.0
    clock: Callable[[], float] = time.perf_counter

    def run(self, state: State, batches: Iterator[PyTree]) -> Outcome:
        """Train from a state to the last window, or until asked to stop; the state passed in is donated.

        Raises:
            DivergenceError: after `stop_after_skips` windows in a row that made no update.
        """
        window, held_out = int(state.window), None
        saved = window or None  # a run goes on from a save; a new one has none, even if it is stopped at once
        reader = _Reader(self)
        while window < self.settings.updates and not self.stop():
            with reader.throughput.waiting():
                batch = next(batches)
            state, metrics = self.step(state, batch)
            window += 1
            reader.push(metrics)
            fresh = None
            if self._evaluates(window):
                held_out = fresh = reader.settle(state)
            if self._saves(window):
                reader.settle()
                self.save(window, state, fresh)
                saved = window
                reader.throughput.restart()
        reader.settle()
        if window != saved:
            self.save(window, state, None)
        return Outcome(state, window, held_out, stopped=window < self.settings.updates)

    def _evaluates(self, window: int) -> bool:
        return self.evaluate is not None and self._is_due(window, self.settings.evaluate_every)

    def _saves(self, window: int) -> bool:
        return self._is_due(window, self.settings.checkpoint_every)

    def _is_due(self, window: int, every: int) -> bool:
        return window == self.settings.updates or (every > 0 and window % every == 0)


class _Reader:
    """Reads the metrics of each window after the next one was handed over, and tells the trackers."""

    def __init__(self, loop: Loop) -> None:
        self.throughput = Throughput(loop.clock)
        self._loop = loop
        self._began = loop.clock() - loop.elapsed_seconds
        self._pending: StepMetrics | None = None
        self._last_finite: Record | None = None

    def push(self, metrics: StepMetrics) -> None:
        """Take the metrics of a window just handed over; report those of the one before."""
        previous, self._pending = self._pending, metrics
        if previous is not None:
            self._report(*self._read(previous))

    def settle(self, state: State | None = None) -> float | None:
        """Report what is in flight, with its held-out loss if a state to evaluate is given; returns that loss."""
        if self._pending is None:
            return None
        record, metrics = self._read(self._pending)
        self._pending = None
        if state is not None and self._loop.evaluate is not None:
            record = replace(record, held_out_loss=self._loop.evaluate(state))
            self.throughput.restart()
        self._report(record, metrics)
        return record.held_out_loss

    def _read(self, metrics: StepMetrics) -> tuple[Record, StepMetrics]:
        host: Any = jax.device_get(metrics)
        targets = int(host.count)
        interval = self.throughput.finish(targets)
        record = Record(
            window=int(host.window),
            update=int(host.update),
            loss=float(host.loss) if targets else math.nan,  # a mean of nothing is no 0
            learning_rate=float(host.learning_rate),
            gradient_norm=float(host.gradient_norm),
            targets=targets,
            skipped=not bool(host.updated),
            seconds=interval.seconds,
            tokens_per_second=interval.tokens_per_second,
            waiting_share=interval.waiting_share,
            memory_bytes=memory_in_use_bytes(),
            elapsed_seconds=self._loop.clock() - self._began,
            loss_scale=None if host.loss_scale is None else float(host.loss_scale),
        )
        return record, host

    def _report(self, record: Record, metrics: StepMetrics) -> None:
        for tracker in self._loop.trackers:
            tracker.log(record)
        if not record.skipped:
            self._last_finite = record
        elif int(metrics.skipped_in_a_row) >= self._loop.settings.stop_after_skips:
            raise self._divergence(record, metrics)

    def _divergence(self, record: Record, metrics: StepMetrics) -> DivergenceError:
        skipped_in_a_row = int(metrics.skipped_in_a_row)
        last = self._last_finite
        before = f"; the last update made was {last.update}, with loss {last.loss:.4g}" if last else ""
        if bool(metrics.finite):
            return DivergenceError(
                f"{skipped_in_a_row} windows in a row had no target to learn from{before}",
                hint="look at the targets of the data: padding, prompts and document ends have none",
            )
        return DivergenceError(
            f"{skipped_in_a_row} windows in a row were not finite (window {record.window}: loss {record.loss:.4g}, "
            f"gradient norm {record.gradient_norm:.4g}, learning rate {record.learning_rate:.3g}"
            f"{_scale_words(record.loss_scale)}){before}",
            hint=_remedy(record.loss_scale),
        )


def _scale_words(scale: float | None) -> str:
    if scale is None:
        return ""
    return f", loss scale {scale:,.0f}{', the least there is' if scale <= LEAST else ''}"


def _remedy(scale: float | None) -> str:
    before = "parameters are as they were before"
    if scale is not None and scale <= LEAST:
        return f"{before}; an activation or the loss itself overflows fp16: compute in bfloat16 or float32 instead"
    if scale is not None:
        return (
            f"{before}; lower techniques.precision.initial_scale, or raise train.stop_after_skips to give the scale "
            "time to fall"
        )
    return (
        f"{before}; lower schedule.learning_rate, lengthen schedule.warmup, or set optimizer.clip_norm, "
        "and resume from the last checkpoint"
    )
