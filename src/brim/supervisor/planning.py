"""The plan of a run file, and planning in a process of its own.

The search compiles a dozen programs; in the training process their memory would stay for the whole run. And on a GPU
the share of memory that the runtime may take must be set from the plan before the runtime starts.

A search that is finished is kept under the settings that its program is made from, so asking again takes as long as
reading it. What the program is built with is loaded only when something must be searched.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from brim.errors import BrimError
from brim.hardware.device import Device
from brim.planner import Plan, default_budget, memory_fraction, survey
from brim.planner.cache import Cache
from brim.planner.remembered import remembered, search_key, searched
from brim.planner.workers import Workers, worth_workers
from brim.program import Program
from brim.runfile import RunFile
from brim.settings import to_tables
from brim.supervisor.folder import RunFolder, write_whole
from brim.supervisor.vocabulary import with_known_vocabulary


class PlanningFailed(BrimError):
    """The planning process ended with an error, which it has already told."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


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


def plan_of(run: RunFile, request: Request) -> Plan:
    """The plan of a run, from the last time that it was asked for or searched now. It need not fit.

    Raises:
        BrimError: as `brim.planner.survey` does.
    """
    run = with_known_vocabulary(run)
    device, settings = request.device, run.settings
    budget_bytes = request.budget_bytes or settings.plan.budget_bytes or default_budget(device)
    about = {**_about(run), "host_budget_bytes": request.host_budget_bytes, "allow_lossy": request.allow_lossy}
    key = search_key(about, device, budget_bytes, fixed=run.techniques)
    updates, price = settings.train.updates, request.price_per_hour
    if plan := remembered(request.cache, key, device, updates=updates, price_per_hour=price):
        request.progress("this search was finished before, and its plan kept; --no-cache searches again")
        return plan
    return searched(request.cache, key, partial(_search, run, request, budget_bytes))


def _search(run: RunFile, request: Request, budget_bytes: int) -> Plan:
    from brim.supervisor import setup  # loads data pipeline and checkpoints, which a kept plan does without

    setup.enable_compilation_cache()
    program, train = setup.build_program(run), run.settings.train
    with _processes(run, program, request) as workers:
        return survey(
            program,
            device=request.device,
            budget_bytes=budget_bytes,
            global_batch=train.global_batch,
            fixed=run.techniques,
            micro_batch=train.micro_batch,
            updates=train.updates,
            price_per_hour=request.price_per_hour,
            host_budget_bytes=request.host_budget_bytes,
            allow_lossy=request.allow_lossy,
            progress=request.progress,
            workers=workers,
            cache=request.cache,
        )


def _processes(run: RunFile, program: Program, request: Request) -> contextlib.AbstractContextManager[Workers | None]:
    from brim.supervisor import setup

    count = request.workers
    if count is None and not worth_workers(program, request.device):
        count = 0
    if count == 0:
        return contextlib.nullcontext()
    return Workers(partial(setup.build_program, run), request.device, count=count, cache=request.cache)


def _about(run: RunFile) -> dict[str, Any]:
    """What a run's program is made from, with its vocabulary known; of the data only how rows are packed."""
    tables = {name: to_tables(getattr(run.settings, name)) for name in ("model", "optimizer", "schedule", "train")}
    return {**tables, "pack": run.settings.data.pack}


def plan_run(folder: RunFolder, *, price_per_hour: float | None = None) -> Plan:
    """Plan the run in a folder for the device that is here, and store the plan beside it.

    Raises:
        PlanningFailed: with the exit code of the planning process; 3 when no plan fits.
    """
    command = [sys.executable, "-m", "brim", "plan", str(folder.settings), "--json"]
    if price_per_hour is not None:
        command += ["--price-per-hour", str(price_per_hour)]
    finished = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if finished.returncode:
        raise PlanningFailed(finished.returncode)
    write_whole(folder.plan, finished.stdout)
    return load_plan(folder)


def load_plan(folder: RunFolder) -> Plan:
    """The stored plan of a run.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    return Plan.from_json(json.loads(folder.plan.read_text(encoding="utf-8")))


def reserve_device_memory(plan: Plan) -> float | None:
    """Let the GPU runtime take as much memory as the plan counts on; must run before JAX starts its backend.

    Returns: the fraction that was set, or None on a CPU or when the user has set one.
    """
    if plan.device.platform != "gpu" or "XLA_CLIENT_MEM_FRACTION" in os.environ:
        return None
    fraction = memory_fraction(plan, plan.device)
    os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{fraction:.3f}"
    return fraction
