"""How many bytes a plan may use, and how a process is told to take them.

The default budget is what is FREE on the device now, less a reserve for what no plan can see: on a GPU the CUDA
context, loaded kernels, work space of the libraries and gaps between arrays; on a CPU the Python process itself and the
data pipeline, beside everything else that runs on the machine.
"""

from __future__ import annotations

import math

from brim.errors import DeviceError, SettingsError
from brim.hardware.facts import Device
from brim.planner.plan import Plan
from brim.quantities import format_bytes


def reserve_bytes(device: Device) -> int:
    """What is kept back of the memory that is free: a share of it, and 512 MiB at the least."""
    return device.reserve_bytes


def default_budget(device: Device) -> int:
    """Bytes that a step may use when nobody says: what is free now, less the reserve.

    Raises:
        DeviceError: if nothing is left.
    """
    budget = device.usable_bytes
    if budget <= 0:
        raise DeviceError(
            f"only {format_bytes(device.free_bytes)} of {format_bytes(device.memory_bytes)} are free on "
            f"{device.name}, and {format_bytes(reserve_bytes(device))} are kept in reserve",
            hint="stop what else uses the device, or state a budget",
        )
    return budget


def require_budget(budget_bytes: int, device: Device) -> int:
    """The budget, if the device has so much memory at all: nothing that needs more could run there.

    Raises:
        SettingsError: if it has not.
    """
    if budget_bytes > device.memory_bytes:
        found, there = format_bytes(budget_bytes), format_bytes(device.memory_bytes)
        raise SettingsError(
            f"the budget is {found}, and {device.name} has {there} of memory",
            hint=f"at most {there}; left out, a plan may use {format_bytes(device.usable_bytes)}",
        )
    return budget_bytes


def memory_fraction(plan: Plan, device: Device) -> float:
    """The share of the device's memory that the runtime must take for a plan (XLA_CLIENT_MEM_FRACTION).

    The runtime's own default is 0.75, with which a plan for 22 of 24 GiB would fail. Rounded up to three digits, so
    that writing it with three digits loses nothing.

    Args:
        plan: its whole budget is taken, because evaluation and gaps need room beside the step.
        device: where the process will run.
    """
    return min(math.ceil(1000 * plan.budget_bytes / device.memory_bytes) / 1000, 1.0)
