"""The loss on held-out data: the sum over all targets divided by their number, whatever the batches."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

from brim.ops import Loss
from brim.training.state import State
from brim.training.step import Step
from brim.tree import PyTree

IN_FLIGHT = 2
"""Batches given to the device before the first result is read: enough to keep it busy, and flat memory."""


def evaluate(step: Step, state: State, batches: Iterable[PyTree]) -> float:
    """Mean loss per target over all batches, in nats; NaN when there is no target.

    Sums are kept on the host in float64 and only they are kept, so memory does not grow with the number of batches and
    the result does not depend on the batch size or order beyond float noise.
    """
    total, count = 0.0, 0.0
    pending: deque[Loss] = deque()
    for batch in batches:
        pending.append(step.evaluate(state, batch))
        if len(pending) > IN_FLIGHT:
            total, count = _add(total, count, pending.popleft())
    for loss in pending:
        total, count = _add(total, count, loss)
    return total / count if count else math.nan


def _add(total: float, count: float, loss: Loss) -> tuple[float, float]:
    return total + float(loss.total), count + float(loss.count)
