"""Planning in a process of its own.

The search compiles a dozen programs; in the training process their memory would stay for the whole run. And on a GPU
the share of memory that the runtime may take must be set from the plan before the runtime starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from brim.errors import BrimError
from brim.planner import Plan, memory_fraction
from brim.supervisor.folder import RunFolder, write_whole


class PlanningFailed(BrimError):
    """The planning process ended with an error, which it has already told."""

    def __init__(self, exit_code: int) -> None:
        super().__init__("")
        self.exit_code = exit_code


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
