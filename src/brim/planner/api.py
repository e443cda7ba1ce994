"""`brim.plan` and `brim.largest`: the planner for a program of one's own, in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from brim.hardware.device import Device, detect, find
from brim.planner.border import Border, border_of
from brim.planner.budget import default_budget, require_budget
from brim.planner.cache import Cache
from brim.planner.compile import CompileFunction
from brim.planner.plan import Plan
from brim.planner.probe import Probe
from brim.planner.program_facts import program_facts
from brim.planner.question import Question
from brim.planner.remembered import remembered, search_key, searched
from brim.planner.search import survey
from brim.planner.shares import is_calibrated, known
from brim.planner.target import is_here
from brim.planner.workers import Source, Workers, cannot_travel
from brim.program import Program
from brim.quantities import parse_bytes
from brim.settings import require
from brim.techniques import Technique


def plan(
    program: Program | Source,
    *,
    global_batch: int,
    device: Device | str | None = None,
    budget: int | str | None = None,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    host_budget: int | str | None = None,
    allow_lossy: bool = False,
    updates: int | None = None,
    price_per_hour: float | None = None,
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
            describes one; None: the one that is here. Times are predicted by what `brim plan` measured on such a
            device, if it did; nothing is measured here.
        budget: most device bytes a step may use, as a number or text such as `22GiB`; None: what is free.
        fixed: techniques that are given and not searched.
        micro_batch: rows per forward and backward pass, when it is given.
        host_budget: most host bytes a step may use, as `budget`; None: not limited.
        allow_lossy: whether techniques are searched that may change the results. What changes the model never is.
        updates, price_per_hour: length of the run and price of the device, to say how long it takes and what it costs.
        progress: is told a line after each compile.
        workers: how many processes compile; 0: this one; None: as many as processors and memory allow, up to 4.
        cache: whether compiles and finished searches are kept in the user's cache folder, and looked up there.

    Raises:
        NoPlanFits: if nothing fits; says the smallest that was found and what would help.
        BrimError: as `brim.planner.search` does.
    """
    question = _question(device, budget, host_budget, global_batch, fixed, micro_batch, allow_lossy=allow_lossy)
    kept = Cache.of_user() if cache else None
    processes = partial(_processes, program, question.device, workers, kept, progress)
    found = _answer(program if isinstance(program, Program) else program(), question, kept, processes, progress)
    _ = found.chosen
    return replace(found, updates=updates, price_per_hour=price_per_hour)


@dataclass(frozen=True)
class Largest:
    """The largest number that fits, with its plan.

    Attributes:
        border: what was found, and what is next to it.
        plan: an ordinary plan of the program with that number.
    """

    border: Border[int]
    plan: Plan

    @property
    def number(self) -> int:
        """The largest that fits."""
        return self.border.value

    @property
    def line(self) -> str:
        """What was found, in one line."""
        return self.border.line


def largest(
    make: Callable[[int], Program],
    numbers: Sequence[int],
    *,
    global_batch: int,
    what: str = "number",
    device: Device | str | None = None,
    budget: int | str | None = None,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    host_budget: int | str | None = None,
    allow_lossy: bool = False,
    updates: int | None = None,
    price_per_hour: float | None = None,
    progress: Callable[[str], None] | None = None,
    workers: int | None = None,
    cache: bool = True,
    compile_recipe: CompileFunction | None = None,
) -> Largest:
    """The largest of some numbers whose program fits a budget, with its plan; border.py says how it is found.

    Args:
        make: number -> program; must need more memory for a larger number. As for `brim.plan`, a function of a module
            that can be imported lets several processes compile.
        numbers: what may be tried, ascending, such as `range(1, 97)`.
        global_batch: rows per update, for every number.
        what: the name of the number, for messages.
        device, budget, fixed, micro_batch, host_budget, allow_lossy: as for `brim.plan`.
        updates, price_per_hour, workers, cache: as for `brim.plan`.
        progress: is told a line after each probe and compile.
        compile_recipe: reads the memory of one recipe for a probe; `brim.planner.compile_window` if left out.

    Raises:
        NoPlanFits: if the first number does not fit.
        SettingsError: if there are no numbers. BrimError: as `brim.planner.search` does.
    """
    question = _question(device, budget, host_budget, global_batch, fixed, micro_batch, allow_lossy=allow_lossy)
    kept = Cache.of_user() if cache else None
    with _processes(partial(make, *numbers[:1]), question.device, workers, kept, progress) as processes:
        probe = Probe(question, kept, processes, compile_recipe)
        border = border_of(
            numbers, lambda number: probe.over_bytes(partial(make, number)), what=what, progress=progress
        )
        source = partial(make, border.value)
        if processes is not None:
            processes.turn_to(source)
        found = _answer(source(), question, kept, lambda: contextlib.nullcontext(processes), progress)
    _ = found.chosen
    return Largest(border, replace(found, updates=updates, price_per_hour=price_per_hour))


def _question(
    device: Device | str | None,
    budget: int | str | None,
    host_budget: int | str | None,
    global_batch: int,
    fixed: Sequence[Technique],
    micro_batch: int | None,
    *,
    allow_lossy: bool,
) -> Question:
    """The question, about a device as far as its speed is known."""
    if not isinstance(device, Device):
        device = detect() if device is None else find(device)
    device = device if is_calibrated(device) else known(device)
    budget_bytes = default_budget(device) if budget is None else require_budget(parse_bytes(budget), device)
    host_budget_bytes = None if host_budget is None else parse_bytes(host_budget)
    return Question(device, budget_bytes, global_batch, tuple(fixed), micro_batch, host_budget_bytes, allow_lossy)


Processes = contextlib.AbstractContextManager[Workers | None]


def _answer(
    program: Program,
    question: Question,
    cache: Cache | None,
    processes: Callable[[], Processes],
    progress: Callable[[str], None] | None,
) -> Plan:
    """The plan from the last time that it was asked for, or searched now."""
    about = {} if cache is None else program_facts(program, question)
    key = search_key(about, question)

    def search() -> Plan:
        with processes() as workers:
            return survey(program, question, progress=progress, workers=workers, cache=cache)

    return remembered(cache, key, question.device) or searched(cache, key, search)


def _processes(
    program: Program | Source,
    device: Device,
    count: int | None,
    cache: Cache | None,
    progress: Callable[[str], None] | None,
) -> Processes:
    """The compile processes, or none, with the reason told where it is not plain."""
    require(count is None or count >= 0, "workers", count, "0 or more processes", hint="0: this process alone")
    if isinstance(program, Program) or count == 0 or (device.platform != "cpu" and is_here(device)):
        return contextlib.nullcontext()
    if (reason := cannot_travel(program)) is not None:
        if progress is not None:
            progress(f"compiling in this process: other processes cannot build the program, because {reason}")
        return contextlib.nullcontext()
    return Workers(program, device, count=count, cache=cache)
