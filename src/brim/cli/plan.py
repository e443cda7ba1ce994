"""`brim plan RUN.toml`: choose how to fit a run into memory, and show why."""

from __future__ import annotations

import json as json_format
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console, RenderableType

from brim.cli.arguments import read_with_overrides, require_price
from brim.cli.plan_goals import Found, Goal, run_devices, run_goal, tell
from brim.errors import EXIT_DONE, EXIT_NO_PLAN, BrimError, NoPlanFits, SettingsError
from brim.hardware.device import Device, detect, find, reading_of
from brim.planner import Plan, report
from brim.planner.cache import Cache
from brim.planner.shares import basis, is_calibrated, known
from brim.quantities import parse_bytes
from brim.runfile import RunFile
from brim.settings import require
from brim.supervisor.planning import plan_of
from brim.supervisor.request import Request
from brim.supervisor.vocabulary import with_known_vocabulary


@dataclass(frozen=True)
class Arguments:
    """Choose how to fit a run into memory, and show why.

    Compiles the real train step for candidates of micro-batch, accumulation, rematerialization and chunked loss, reads
    what each will allocate, and picks the fastest that fits. Any key of the run file can be overridden:
    --model.layers 8. Exit code 0 when a plan fits, 3 when none does.
    """

    run_file: Annotated[Path, tyro.conf.Positional]
    """The run, as a TOML file."""
    budget: str | None = None
    """Most device memory a step may use, such as 22GiB; otherwise plan.budget of the run file, or what is free."""
    host_budget: str | None = None
    """Most host memory a step may use, such as 64GiB; left out, it is not limited."""
    allow_lossy: bool = False
    """Search techniques too that may change the results; what changes the model never is."""
    search_compiler_options: bool = False
    """Search options of XLA too, each at another value than brim's own. Takes several times as many compiles, and what
    they do to the time is not predicted."""
    device: str | None = None
    """A device that need not be here, such as rtx-4090 (`brim devices` lists them), or a TOML file that describes one;
    otherwise the one that is here."""
    devices: str | None = None
    """Several devices to compare in one table, such as 3060,4090,a100-80; 4090@0.35 says the price per hour of one."""
    goal: Goal | None = None
    """Search for the largest model of the run's family, the largest micro-batch of its global batch, or the longest
    context that fits, and plan for that one."""
    price_per_hour: float | None = None
    """Price of the device, to say what the run costs."""
    workers: int | None = None
    """How many processes compile at a time; 0: this one alone. Otherwise this one for a small program and the device
    that is here, and else one per processor, up to 4, as far as memory allows."""
    cache: bool = True
    """Whether to look up compiles and finished searches of earlier times, and to keep those of this time."""
    json: bool = False
    """Print the plan as one JSON object."""
    report: bool = False
    """Print also every array at the peak of the chosen step: whose it is, its phase and its source line."""
    kernels: bool = False
    """Print also what the chosen step runs: kernels by kind, FLOPs by dtype, and each kernel with its bytes."""
    pictures: Path | None = None
    """A folder for pictures: compiled candidates against the budget, bytes over the step, bytes against time."""


def run(arguments: list[str]) -> int:
    """Plan, print, and say by the exit code whether a plan fits."""
    options, overrides = read_with_overrides(Arguments, arguments, "plan")
    require_price(options.price_per_hour)
    run_file = RunFile.load(options.run_file, overrides)
    if options.devices is not None or options.goal is not None:
        return _run_many(options, run_file)
    return _show(options, make_plan(options, run_file))


def _show(options: Arguments, plan: Plan, found: Found | None = None) -> int:
    """Print a plan, and what a goal found; draw; say by the exit code whether it fits."""
    if options.json:
        goal = {} if found is None else {"goal": found.record}
        print(json_format.dumps({**plan.to_json(), **goal}, indent=2))
    else:
        Console().print(plan, *_asked_tables(options, plan))
        print(*() if found is None else found.lines, f"predicted times are {basis(plan.device)}", sep="\n")
    _draw(options, plan)
    if plan.fits:
        return EXIT_DONE
    try:
        _ = plan.chosen
    except BrimError as error:
        print(f"brim: {error}", file=sys.stderr)
    return EXIT_NO_PLAN


def make_plan(options: Arguments, run_file: RunFile) -> Plan:
    """The plan of a run for the device and budget that the options name."""
    return plan_of(run_file, _request(options))


def _request(options: Arguments) -> Request:
    if options.workers is not None:
        require(options.workers >= 0, "--workers", options.workers, "0 or more processes", hint="0: this one alone")
    return Request(
        device=_device(options),
        budget_bytes=None if options.budget is None else parse_bytes(options.budget),
        price_per_hour=options.price_per_hour,
        host_budget_bytes=None if options.host_budget is None else parse_bytes(options.host_budget),
        allow_lossy=options.allow_lossy,
        search_compiler_options=options.search_compiler_options,
        workers=options.workers,
        cache=Cache.of_user() if options.cache else None,
        progress=tell,
    )


def _asked_tables(options: Arguments, plan: Plan) -> list[RenderableType]:
    tables = []
    if options.report and plan.memory_report is not None:
        tables.append(report.of_rows(plan.memory_report))
    if options.kernels and plan.kernels is not None:
        tables.append(report.of_kernels(plan.kernels))
    return tables


def _draw(options: Arguments, plan: Plan) -> None:
    if options.pictures is None:
        return
    from brim.planner.pictures import draw_plan  # Matplotlib takes a second to load

    try:
        for path in draw_plan(plan, options.pictures, options.run_file.stem):
            print(f"picture: {path}", file=sys.stderr)
    except OSError as error:
        hint = "choose another --pictures: a folder, or a name that is not taken, where you may write"
        raise SettingsError(f"cannot write pictures to {options.pictures}: {error.strerror}", hint=hint) from None


def _run_many(options: Arguments, run_file: RunFile) -> int:
    together = options.goal is None or options.devices is None
    require(together, "--goal", options.goal, "left out beside --devices", hint="one device: --device 4090")
    if options.devices is not None:
        require(options.device is None, "--device", options.device, "left out beside --devices")
        for flag in ("report", "kernels", "pictures"):
            hint = "they are about one plan: --device NAME"
            require(not getattr(options, flag), f"--{flag}", "given", "left out beside --devices", hint=hint)

        def plan_on(name: str, price_per_hour: float | None) -> Plan:
            return make_plan(replace(options, device=name, price_per_hour=price_per_hour), run_file)

        return run_devices(options.devices, options.price_per_hour, plan_on, as_json=options.json)
    assert options.goal is not None
    try:
        found = run_goal(options.goal, with_known_vocabulary(run_file), _request(options))
    except NoPlanFits as error:
        if options.json:
            print(json_format.dumps({"fits": False, "reason": error.message, "goal": {"name": options.goal}}, indent=2))
        raise
    return _show(options, found.plan, found)


def _device(options: Arguments) -> Device:
    if options.device is not None:
        return known(_asked(options.device))
    device = known(detect())
    if is_calibrated(device):
        return device
    from brim.planner.calibration import calibrated  # loads Optax and models, which a kept plan does without

    return calibrated(device, progress=tell)


def _asked(name: str) -> Device:
    device = find(name)
    if note := reading_of(name):
        print(f"device: {note}", file=sys.stderr)
    return device
