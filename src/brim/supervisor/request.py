"""What is asked about the plan of a run file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.hardware.device import Device
from brim.planner import default_budget
from brim.planner.cache import Cache
from brim.planner.question import Question
from brim.runfile import RunFile


@dataclass(frozen=True)
class Request:
    """What is asked about the plan of a run file, beside the run file.

    Attributes:
        device: what to plan for.
        budget_bytes: most device memory a step may use; None: as the run file says, else what is free.
        host_budget_bytes: most host memory a step may use; None: not limited.
        allow_lossy: whether techniques are searched that may change the results.
        price_per_hour: of the device, to say what the run costs.
        workers: how many processes compile; 0: this one; None: as is best for the device and program.
        cache: where compiles and finished searches are kept; None: nowhere.
        progress: is told a line at a time.
    """

    device: Device
    budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    allow_lossy: bool = False
    price_per_hour: float | None = None
    workers: int | None = None
    cache: Cache | None = None
    progress: Callable[[str], None] = print


def budget_of(run: RunFile, request: Request) -> int:
    """The most device memory a step of a run may use."""
    return request.budget_bytes or run.settings.plan.budget_bytes or default_budget(request.device)


def question_of(run: RunFile, request: Request) -> Question:
    """What a search for a run is asked.

    Raises:
        SettingsError: if batch, micro-batch and fixed techniques do not go together.
    """
    train, budget_bytes = run.settings.train, budget_of(run, request)
    host, lossy = request.host_budget_bytes, request.allow_lossy
    return Question(request.device, budget_bytes, train.global_batch, run.techniques, train.micro_batch, host, lossy)
