"""`brim.plan`: the planner for a program of one's own, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from brim.hardware.device import Device, detect, find
from brim.planner.budget import default_budget
from brim.planner.plan import Plan
from brim.planner.search import search
from brim.program import Program
from brim.quantities import parse_bytes
from brim.techniques import Technique


def plan(
    program: Program,
    *,
    global_batch: int,
    device: Device | str | None = None,
    budget: int | str | None = None,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    updates: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The fastest predicted recipe whose compiled step fits.

    Args:
        program: what is trained.
        global_batch: rows per update; never changed.
        device: a `Device`, a name such as `rtx-4090` (which need not be here), or the path of a TOML file that
            describes one; None: the one that is here.
        budget: most device bytes a step may use, as a number or text such as `22GiB`; None: what is free.
        fixed: techniques that are given and not searched.
        micro_batch: rows per forward and backward pass, when it is given.
        updates: length of the run, to say how long it takes.
        progress: is told a line after each compile.

    Raises:
        NoPlanFits: if nothing fits; says the smallest that was found and what would help.
        BrimError: as `brim.planner.search` does.
    """
    if not isinstance(device, Device):
        device = detect() if device is None else find(device)
    return search(
        program,
        device=device,
        budget_bytes=default_budget(device) if budget is None else parse_bytes(budget),
        global_batch=global_batch,
        fixed=fixed,
        micro_batch=micro_batch,
        updates=updates,
        progress=progress,
    )
