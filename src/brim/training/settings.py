"""Settings of a run: how long, how much per update, how often to look and to save."""

from __future__ import annotations

from dataclasses import dataclass

from brim.settings import require


@dataclass(frozen=True)
class TrainSettings:
    """The TOML table `[train]`.

    Attributes:
        updates: optimizer updates in the run.
        global_batch: rows per update. Fitting a budget never changes it.
        micro_batch: rows per forward and backward pass; left out, the planner chooses.
        seed: of parameters, dropout and data order.
        log_every: updates between plain log lines; metrics are kept for every update.
        evaluate_every: updates between evaluations on held-out data; 0: at the end only.
        evaluation_rows: most held-out rows per evaluation; 0: all of them.
        checkpoint_every: updates between checkpoints; 0: at the end only. The end and a signal always save one.
        keep_last: newest checkpoints that are kept.
        keep_best: checkpoints with the lowest held-out loss that are kept besides.
        stop_after_skips: updates skipped in a row, because a number was not finite, after which the run stops.
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
