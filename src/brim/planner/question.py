"""What a search is asked, beside the program: the same question to the same planner has the same plan."""

from __future__ import annotations

from dataclasses import dataclass

from brim.errors import SettingsError
from brim.hardware.facts import Device
from brim.settings import require
from brim.techniques import Recipe, Technique

STEPS = "accumulation"
"""The technique that follows from the micro-batch."""


@dataclass(frozen=True)
class Question:
    """For which device, budget and global batch a recipe is wanted, and what of it is settled already.

    How long the run is and what the device costs is no part of it: both are put on the plan afterwards.

    Attributes:
        device: where the step would run; it need not be here.
        budget_bytes: the most device memory the step may need.
        global_batch: rows per update; never changed.
        fixed: techniques that are given and not searched; they may be lossy.
        micro_batch: rows per forward and backward pass, when given; else every divisor of the global batch is tried,
            or only the whole of it where rows depend on each other.
        host_budget_bytes: the most host memory the step may need; None: not limited.
        allow_lossy: whether techniques are searched that may change the results. What changes the model never is.
        search_compiler_options: whether XLA's options are searched too; see hardware/compiler_options.py.

    Raises:
        SettingsError: if there is no budget, or the global batch, the micro-batch and what is fixed do not go together.
        TechniqueError: if a technique is given twice, or two conflict.
    """

    device: Device
    budget_bytes: int
    global_batch: int
    fixed: tuple[Technique, ...] = ()
    micro_batch: int | None = None
    host_budget_bytes: int | None = None
    allow_lossy: bool = False
    search_compiler_options: bool = False

    def __post_init__(self) -> None:
        require(self.budget_bytes > 0, "budget_bytes", self.budget_bytes, "more than 0 bytes")
        require(self.global_batch >= 1, "global_batch", self.global_batch, "at least 1 row")
        steps = self._fixed_steps
        if steps is not None:
            self._require_divisor(steps, "accumulation.steps")
            if self.micro_batch not in (None, self.global_batch // steps):
                raise SettingsError(
                    f"micro-batch {self.micro_batch} x accumulation {steps} is not the global batch "
                    f"{self.global_batch}",
                    hint="leave one of them out",
                )
        elif self.micro_batch is not None:
            self._require_divisor(self.micro_batch, "micro_batch")

    @property
    def settled_micro_batch(self) -> int | None:
        """The micro-batch that is given, or follows from a fixed accumulation; None if it is to be searched."""
        steps = self._fixed_steps
        return self.micro_batch if steps is None else self.global_batch // steps

    @property
    def _fixed_steps(self) -> int | None:
        given = any(technique.name == STEPS for technique in self.fixed)
        return Recipe.of(1, *self.fixed).accumulation if given else None

    def _require_divisor(self, number: int, key: str) -> None:
        divisors = divisors_of(self.global_batch)
        nearest = sorted(divisors, key=lambda divisor: abs(divisor - number))[:2]
        require(
            number in divisors,
            key,
            number,
            f"a divisor of the global batch, {self.global_batch}",
            hint=f"the nearest are {' and '.join(map(str, nearest))}",
        )


def divisors_of(number: int) -> tuple[int, ...]:
    """The divisors of a number, largest first."""
    return tuple(divisor for divisor in range(number, 0, -1) if number % divisor == 0)
