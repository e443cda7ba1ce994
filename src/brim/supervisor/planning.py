"""The plan of a run file, and planning in a process of its own.

The search compiles a dozen programs; in the training process their memory would stay for the whole run. And on a GPU
the share of memory that the runtime may take must be set from the plan before the runtime starts.

A search that is finished is kept under the settings that its program is made from, so asking again takes as long as
reading it. What the program is built with is loaded only when something must be searched.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from brim.errors import BrimError, CheckpointError
from brim.planner import Plan, memory_fraction
from brim.planner.question import Question
from brim.planner.remembered import remembered, search_key, searched
from brim.runfile import RunFile
from brim.settings import to_tables
from brim.supervisor.folder import RunFolder, write_whole
from brim.supervisor.request import Request, question_of
from brim.supervisor.vocabulary import with_known_vocabulary

_GRACE_SECONDS = 10


class PlanningFailed(BrimError):
    """The planning process ended with an error, which it has already told."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


def plan_of(run: RunFile, request: Request) -> Plan:
    """The plan of a run, from the last time that it was asked for or searched now. It need not fit.

    Raises:
        BrimError: as `brim.planner.survey` does.
    """
    run = with_known_vocabulary(run)
    question = question_of(run, request)
    key = search_key(_about(run), question)
    plan = remembered(request.cache, key, request.device)
    if plan is None:
        plan = searched(request.cache, key, partial(_search, run, question, request))
    else:
        request.progress("this search was finished before, and its plan kept; --no-cache searches again")
    return replace(plan, updates=run.settings.train.updates, price_per_hour=request.price_per_hour)


def _search(run: RunFile, question: Question, request: Request) -> Plan:
    from brim.supervisor import searching  # loads the data pipeline and Optax, which a kept plan does without

    return searching.search(run, question, request)


def _about(run: RunFile) -> dict[str, Any]:
    """What a run's program is made from, with its vocabulary known; of the data only how rows are packed."""
    tables = {name: to_tables(getattr(run.settings, name)) for name in ("model", "optimizer", "schedule")}
    return {**tables, "schedule_updates": run.settings.train.schedule_updates, "pack": run.settings.data.pack}


def plan_run(folder: RunFolder, *, price_per_hour: float | None = None) -> Plan:
    """Plan the run in a folder for the device that is here, and store the plan beside it.

    Raises:
        PlanningFailed: with the exit code of the planning process; 3 when no plan fits.
    """
    command = [sys.executable, "-m", "brim", "plan", str(folder.settings), "--json"]
    if price_per_hour is not None:
        command += ["--price-per-hour", str(price_per_hour)]
    write_whole(folder.plan, printed_by(command))
    return load_plan(folder)


def printed_by(command: Sequence[str]) -> str:
    """What a planning process prints to stdout; it is ended with this one.

    Raises:
        PlanningFailed: with its exit code, unless that is 0.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as planner:
        try:
            printed, _ = planner.communicate()
        except BaseException:
            _end(planner)
            raise
    if planner.returncode:
        raise PlanningFailed(planner.returncode)
    return printed


def _end(planner: subprocess.Popen[str]) -> None:
    """Ask it to end, so that it can end the processes that compile for it; they would go on without it."""
    planner.terminate()
    try:
        planner.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        planner.kill()


def load_plan(folder: RunFolder) -> Plan:
    """The stored plan of a run.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    hint = f"plan again: brim plan {folder.settings} --json > {folder.plan}"
    try:
        return Plan.from_json(json.loads(folder.plan.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise CheckpointError(f"{folder.path} has no plan.json: it ended before its plan was made", hint=hint) from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder.plan} cannot be read: {error}", hint=hint) from None


def reserve_device_memory(plan: Plan) -> float | None:
    """Let the GPU runtime take as much memory as the plan counts on; must run before JAX starts its backend.

    Returns: the fraction that was set, or None on a CPU or when the user has set one.
    """
    if plan.device.platform != "gpu" or "XLA_CLIENT_MEM_FRACTION" in os.environ:
        return None
    fraction = memory_fraction(plan, plan.device)
    os.environ["XLA_CLIENT_MEM_FRACTION"] = f"{fraction:.3f}"
    return fraction
