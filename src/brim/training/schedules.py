"""The learning rate as a function of optimizer updates.

Conventions, for every kind:
- A schedule counts OPTIMIZER UPDATES, never micro-batches: position p is the learning rate of the update that follows
  p finished ones, so the first update uses position 0 and the last one position total - 1.
- Warmup of w updates rises in equal steps: position p < w has peak x (p + 1) / (w + 1), and position w has the peak.
  So the first update is never 0, and without warmup the first update uses the peak.
- What follows takes the rest, total - w, once: the minimum is met at position total, not before. From there on the
  learning rate stays.
- Warmup as long as the run is allowed (the peak would be position total); a longer one is an error at the start.

Learning rates are fp32.

Sources: cosine, https://arxiv.org/abs/1608.03983; warmup-stable-decay, https://arxiv.org/abs/2404.06395.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from brim.errors import SettingsError
from brim.settings import require
from brim.training.settings import ScheduleSettings

WSD_DECAY_SHARE = 0.2

Schedule = Callable[[jax.typing.ArrayLike], Float[Array, ""]]
"""Finished updates -> fp32 learning rate of the next one. An `optax.Schedule`."""


def schedule(settings: ScheduleSettings, total_updates: int) -> Schedule:
    """The learning rate of every update of a run.

    Args:
        settings: kind, peak, warmup, minimum.
        total_updates: optimizer updates in the whole run.

    Returns:
        number of finished updates (int, or int32 scalar under jit) -> fp32 learning rate.

    Raises:
        SettingsError: if the run has no update, or the warmup (with the decay phase) is longer than the run.
    """
    require(total_updates > 0, "total_updates", total_updates, "1 or more updates")
    if settings.warmup > total_updates:
        raise SettingsError(
            f"the warmup takes {settings.warmup} updates but the whole run has {total_updates}",
            hint=f"set `warmup` to {total_updates} or less; 1 to 10% of the run is usual",
        )
    after = _after_warmup(settings, total_updates)
    if settings.warmup:
        first = settings.learning_rate / (settings.warmup + 1)
        rising = optax.linear_schedule(first, settings.learning_rate, settings.warmup)
        after = optax.join_schedules([rising, after], [settings.warmup])
    # fp32 counts are exact up to 16.7 million updates, and mix with no other dtype under strict promotion.
    return lambda updates: jnp.asarray(after(jnp.asarray(updates, jnp.float32)), jnp.float32)


@dataclass(frozen=True)
class Horizon:
    """A schedule together with the length of its run, as a checkpoint records them."""

    settings: ScheduleSettings
    total_updates: int


@dataclass(frozen=True)
class HorizonChange:
    """A jump of the learning rate at the update where a run resumes, since its schedule or length was changed.

    Attributes:
        at_update: finished updates at the resume.
        old_total, new_total: updates in the whole run.
        old_learning_rate, new_learning_rate: of the next update.
    """

    at_update: int
    old_total: int
    new_total: int
    old_learning_rate: float
    new_learning_rate: float

    @property
    def ratio(self) -> float:
        """New learning rate over old one; infinite when the old one is 0."""
        return self.new_learning_rate / self.old_learning_rate if self.old_learning_rate else float("inf")

    def __str__(self) -> str:
        return (
            f"at update {self.at_update} the learning rate would jump from {self.old_learning_rate:.4g} to "
            f"{self.new_learning_rate:.4g}, a factor of {self.ratio:.3g} "
            f"(run of {self.old_total} updates before, {self.new_total} now)"
        )


def horizon_change(old: Horizon, new: Horizon, at_update: int) -> HorizonChange | None:
    """The jump of the learning rate when a run saved at `at_update` goes on under another schedule or length.

    Returns:
        None when the next update has the learning rate it would have had: nothing changed, or (a longer
        warmup-stable-decay run) nothing that is due yet.

    Raises:
        SettingsError: if the new schedule is impossible.
    """
    before, after = (float(schedule(horizon.settings, horizon.total_updates)(at_update)) for horizon in (old, new))
    if before == after:
        return None
    return HorizonChange(at_update, old.total_updates, new.total_updates, before, after)


def _after_warmup(settings: ScheduleSettings, total_updates: int) -> optax.Schedule:
    peak, minimum = settings.learning_rate, settings.minimum
    updates = total_updates - settings.warmup
    if settings.kind == "constant" or updates == 0:
        return optax.constant_schedule(peak)
    if settings.kind == "linear":
        return optax.linear_schedule(peak, minimum, updates)
    if settings.kind == "cosine":
        return optax.cosine_decay_schedule(peak, updates, alpha=minimum / peak)
    decay = settings.decay or min(updates, max(1, round(WSD_DECAY_SHARE * total_updates)))
    if decay > updates:
        raise SettingsError(
            f"the warmup takes {settings.warmup} updates and the decay {decay}, but the whole run has {total_updates}",
            hint=f"set `decay` to {updates} or less",
        )
    return optax.linear_schedule(peak, minimum, decay, transition_begin=updates - decay)
