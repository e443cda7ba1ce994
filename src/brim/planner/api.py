"""`brim.plan`: the planner for a program of one's own, in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from brim.hardware.device import Device, detect, find
from brim.planner.budget import default_budget
from brim.planner.cache import Cache
from brim.planner.plan import Plan
from brim.planner.remembered import program_facts, remembered, search_key, searched
from brim.planner.search import survey
from brim.planner.target import is_here
from brim.planner.workers import Workers, cannot_travel
from brim.program import Program
from brim.quantities import parse_bytes
from brim.techniques import Technique


def plan(
    program: Program | Callable[[], Program],
    *,
    global_batch: int,
    device: Device | str | None = None,
    budget: int | str | None = None,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    updates: int | None = None,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
    cache: bool = True,
) -> Plan:
    """The fastest predicted recipe whose compiled step fits.

    Args:
        program: what is trained; or a function without arguments that builds it. A function of a module that can be
            imported (or a `functools.partial` of one) lets several processes compile at a time, unless the device is a
            GPU that is here. A program itself cannot be sent to other processes and is compiled in this one.
        global_batch: rows per update; never changed.
        device: a `Device`, a name such as `rtx-4090` (which need not be here), or the path of a TOML file that
            describes one; None: the one that is here.
        budget: most device bytes a step may use, as a number or text such as `22GiB`; None: what is free.
        fixed: techniques that are given and not searched.
        micro_batch: rows per forward and backward pass, when it is given.
        updates: length of the run, to say how long it takes.
        progress: is told a line after each compile.
        workers: how many processes compile; 0: this one; None: as many as processors and memory allow, up to 4.
        cache: whether compiles and finished searches are kept in the user's cache folder, and looked up there.

    Raises:
        NoPlanFits: if nothing fits; says the smallest that was found and what would help.
        BrimError: as `brim.planner.search` does.
    """
    if not isinstance(device, Device):
        device = detect() if device is None else find(device)
    budget_bytes = default_budget(device) if budget is None else parse_bytes(budget)
    built = program if isinstance(program, Program) else program()
    kept = Cache.of_user() if cache else None
    about = {} if kept is None else program_facts(built, device, global_batch)
    key = search_key(about, device, budget_bytes, global_batch=global_batch, micro_batch=micro_batch, fixed=fixed)

    asked = {"global_batch": global_batch, "micro_batch": micro_batch, "fixed": fixed, "updates": updates}

    def search() -> Plan:
        with _processes(program, device, workers, kept, progress) as processes:
            where = {"device": device, "budget_bytes": budget_bytes, "workers": processes, "cache": kept}
            return survey(built, **where, **asked, progress=progress)  # type: ignore[arg-type]

    found = remembered(kept, key, device, updates=updates) or searched(kept, key, search)
    _ = found.chosen
    return found


def _processes(
    program: Program | Callable[[], Program],
    device: Device,
    count: int | None,
    cache: Cache | None,
    progress: Callable[[str], None] | None,
) -> contextlib.AbstractContextManager[Workers | None]:
    """The compile processes, or none, with the reason told where it is not plain."""
    if isinstance(program, Program) or count == 0 or (device.platform != "cpu" and is_here(device)):
        return contextlib.nullcontext()
    if (reason := cannot_travel(program)) is not None:
        if progress is not None:
            progress(f"compiling in this process: other processes cannot build the program, because {reason}")
        return contextlib.nullcontext()
    return Workers(program, device, count=count, cache=cache)
