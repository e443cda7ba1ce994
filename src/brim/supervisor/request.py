"""What is asked about the plan of a run file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.hardware.device import Device
from brim.planner.budget import default_budget, require_budget
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
        search_compiler_options: whether XLA's options are searched too.
        price_per_hour: of the device, to say what the run costs.
        workers: how many processes compile; 0: this one; None: as is best for the device and program.
        cache: where compiles and finished searches are kept; None: nowhere.
        progress: is told a line at a time.
    """

    device: Device
    budget_bytes: int | None = None
    host_budget_bytes: int | None = None
    allow_lossy: bool = False
    search_compiler_options: bool = False
    price_per_hour: float | None = None
    workers: int | None = None
    cache: Cache | None = None
    progress: Callable[[str], None] = print


def budget_of(run: RunFile, request: Request) -> int:
    """The most device memory a step of a run may use.

    Raises:
        SettingsError: if that is more than the device has. DeviceError: if nothing is said, and nothing is free.
    """
    said = request.budget_bytes or run.settings.plan.budget_bytes
    return default_budget(request.device) if said is None else require_budget(said, request.device)


def question_of(run: RunFile, request: Request) -> Question:
    """What a search for a run is asked.

    Raises:
        SettingsError: if batch, micro-batch and fixed techniques do not go together.
    """
    train = run.settings.train
    return Question(
        device=request.device,
        budget_bytes=budget_of(run, request),
        global_batch=train.global_batch,
        fixed=run.techniques,
        micro_batch=train.micro_batch,
        host_budget_bytes=request.host_budget_bytes,
        allow_lossy=request.allow_lossy,
        search_compiler_options=request.search_compiler_options,
    )
