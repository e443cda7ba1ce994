"""Settings of a run: how long, how much per update, how often to look and to save, and how parameters are updated.

This file imports only what needs no JAX and no Optax, so that a run file can be read at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from brim.settings import require


@dataclass(frozen=True)
class TrainSettings:
    """The TOML table `[train]`.

    Attributes:
        updates: windows (global batches) in the run: an optimizer update each, unless one is skipped.
        global_batch: rows per update. Fitting a budget never changes it.
        micro_batch: rows per forward and backward pass; left out, the planner chooses.
        seed: of parameters, dropout and data order.
        log_every: updates between plain log lines; metrics are kept for every update.
        evaluate_every: updates between evaluations on held-out data; 0: at the end only.
        evaluation_rows: held-out rows per evaluation, whatever the micro-batch; 0, or more than there are: all of them.
        checkpoint_every: updates between checkpoints; 0: at the end only. The end and a signal always save one.
        keep_last: newest checkpoints that are kept.
        keep_best: checkpoints with the lowest held-out loss that are kept besides, of those whose window was evaluated.
        stop_after_skips: windows skipped in a row, not finite or without a target, after which the run stops.
        horizon: updates that the learning-rate schedule is laid out for; left out, `updates`.
    """

    updates: int = 1000
    global_batch: int = 32
    micro_batch: int | None = None
    seed: int = 0
    log_every: int = 10
    evaluate_every: int = 100
    evaluation_rows: int = 0
    checkpoint_every: int = 500
    keep_last: int = 2
    keep_best: int = 1
    stop_after_skips: int = 10
    horizon: int | None = None

    def __post_init__(self) -> None:
        for key in ("updates", "global_batch", "log_every", "keep_last", "stop_after_skips"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "at least 1")
        for key in ("seed", "evaluate_every", "evaluation_rows", "checkpoint_every", "keep_best"):
            require(getattr(self, key) >= 0, key, getattr(self, key), "0 or more")
        require(self.horizon is None or self.horizon >= 1, "horizon", self.horizon, "at least 1 update")
        if self.micro_batch is not None:
            divides = self.micro_batch >= 1 and self.global_batch % self.micro_batch == 0
            divisors = [n for n in range(1, self.global_batch + 1) if self.global_batch % n == 0]
            require(
                divides,
                "micro_batch",
                self.micro_batch,
                f"a divisor of global_batch {self.global_batch}",
                hint=f"one of {', '.join(map(str, divisors))}; or leave it out and it is planned",
            )

    @property
    def schedule_updates(self) -> int:
        """Updates that the learning-rate schedule is laid out for."""
        return self.horizon or self.updates


@dataclass(frozen=True)
class OptimizerSettings:
    """How parameters are updated; the learning rate is the schedule's.

    Attributes:
        kind: `adamw`.
        betas: decay rates of the first and second moment.
        epsilon: added to the root of the second moment.
        weight_decay: decoupled: every update also subtracts learning rate x weight_decay x parameter. Matrices only.
        clip_norm: largest global norm of an update's gradient; None for no clipping.

    Raises:
        SettingsError: on a value out of range.
    """

    kind: Literal["adamw"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float | None = 1.0

    def __post_init__(self) -> None:
        require(all(0 <= beta < 1 for beta in self.betas), "betas", self.betas, "two numbers from 0 to below 1")
        require(self.epsilon > 0, "epsilon", self.epsilon, "a number above 0")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "0 or a number above it")
        require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", self.clip_norm, "a number above 0, or none")


@dataclass(frozen=True)
class ScheduleSettings:
    """How the learning rate moves over a run.

    Attributes:
        kind: what follows the warmup. `constant`: the peak. `linear` and `cosine`: down to `minimum` at the end.
            `warmup-stable-decay`: the peak, then linearly down to `minimum` over the last `decay` updates.
        learning_rate: the peak.
        warmup: updates before the peak; 0 for none.
        minimum: the final learning rate itself, not a share of the peak.
        decay: updates of the final phase of `warmup-stable-decay`; None for a fifth of the run, or what the warmup
            leaves of it.

    Raises:
        SettingsError: on a value out of range, or one that the kind would ignore.
    """

    kind: Literal["constant", "linear", "cosine", "warmup-stable-decay"] = "cosine"
    learning_rate: float = 3e-4
    warmup: int = 0
    minimum: float = 0.0
    decay: int | None = None

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "a number above 0")
        require(self.warmup >= 0, "warmup", self.warmup, "0 or more updates")
        require(0 <= self.minimum <= self.learning_rate, "minimum", self.minimum, "0 up to `learning_rate`")
        require(
            self.kind != "constant" or self.minimum == 0,
            "minimum",
            self.minimum,
            "0 for a constant schedule, which has no end value",
        )
        wsd = self.kind == "warmup-stable-decay"
        require(self.decay is None or wsd, "decay", self.decay, f"none for kind `{self.kind}`")
        require(self.decay is None or self.decay > 0, "decay", self.decay, "1 or more updates, or none")
