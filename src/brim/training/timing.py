"""How fast training goes, measured where the device is known to be done.

JAX returns before the work is done, so time around a call is no time of a step. An interval here ends when the loss of
its update has been FETCHED; the next begins at the same instant, so intervals add up to wall time and no extra waiting
for the device is needed. The first interval holds compilation and is left out of every speed.

    speed = Throughput()
    for batch in ...:
        with speed.waiting():
            batch = next(batches)
        state, metrics = step(state, batch)         # dispatched
        previous, metrics = metrics, previous       # fetch one update late
        loss = float(metrics.loss)                  # waits for the update before
        interval = speed.finish(targets)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """One update's share of wall time.

    Attributes:
        seconds: from the fetch of the loss before to the fetch of this one; of the first update, from the start.
        tokens_per_second: targets over seconds; None for the first update, which holds compilation.
        waiting_share: share of the seconds in which the loop waited for data, 0 to 1.
    """

    seconds: float
    tokens_per_second: float | None
    waiting_share: float


class Throughput:
    """A clock for a training loop; see the head of this file.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._waited = 0.0
        self._warm = False
        self._updates, self._targets, self._seconds = 0, 0, 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around the call that asks for the next batch."""
        start = self._clock()
        try:
            yield
        finally:
            self._waited += self._clock() - start

    def finish(self, targets: int) -> Interval:
        """End an update's interval; call right after its loss was fetched.

        Args:
            targets: what the update learned from; padding is not counted.
        """
        now = self._clock()
        seconds = now - self._began
        share = min(1.0, self._waited / seconds) if seconds > 0 else 0.0
        measured = self._warm and seconds > 0
        if measured:
            self._updates += 1
            self._targets += targets
            self._seconds += seconds
        self._began, self._waited, self._warm = now, 0.0, True
        return Interval(seconds, targets / seconds if measured else None, share)

    def restart(self) -> None:
        """Begin an interval now, leaving out what passed since the last one: an evaluation, a save.

        Call it with no update in flight, or its device time is left out too.
        """
        self._began, self._waited = self._clock(), 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Mean over all intervals but the first; None before there is one."""
        return self._targets / self._seconds if self._seconds else None

    @property
    def seconds_per_update(self) -> float | None:
        """Mean over all intervals but the first; None before there is one."""
        return self._seconds / self._updates if self._updates else None
