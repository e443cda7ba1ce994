"""Plans of one program for several devices side by side: which of them hold it, how fast, at what price.

Each device is planned for by itself, with its own memory, numbers and settings; what is compared are whole plans. A
device that cannot be planned for (a technique it cannot run, a compiler that is not installed) keeps its place, with
the reason.
"""

from __future__ import annotations

import io
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from brim.errors import DeviceError, SettingsError, TechniqueError
from brim.hardware.facts import Device
from brim.hardware.names import find, is_path
from brim.planner.advice import smallest_of
from brim.planner.plan import Plan
from brim.planner.space import words_of
from brim.quantities import format_bytes, format_count, format_seconds


@dataclass(frozen=True)
class Asked:
    """One device to compare.

    Attributes:
        name: as it was typed.
        price_per_hour: None if none was said.
        own_price: whether the price was said of this device, and not of all that have none of their own.
    """

    name: str
    price_per_hour: float | None = None
    own_price: bool = False


@dataclass(frozen=True)
class Comparison:
    """Plans by device, in the order in which they were asked for.

    Attributes:
        plans: label of a device -> its plan, which may not fit. The label is the device's short name; where several
            that differ have one, that of a file is its path as it was typed.
        failures: label -> why no plan could be made.
    """

    plans: Mapping[str, Plan]
    failures: Mapping[str, str] = field(default_factory=dict)

    @property
    def fits(self) -> bool:
        """Whether any of the devices holds the program."""
        return any(plan.fits for plan in self.plans.values())

    def table(self) -> Table:
        """One row for each device; columns of length and price only where they are known."""
        length = any(plan.updates is not None for plan in self.plans.values())
        priced = any(plan.price_per_hour is not None for plan in self.plans.values())
        unit = next((plan.unit for plan in self.plans.values()), "tokens")
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        table.add_column("device", no_wrap=not any(map(is_path, (*self.plans, *self.failures))), overflow="fold")
        for name in ("fits", "rows x steps", "settings", "peak of the budget", "predicted step", f"{unit}/s"):
            table.add_column(name, overflow="fold")
        for name in [*(["run"] if length else []), *(["price"] if priced else [])]:
            table.add_column(name, overflow="fold")
        for device, plan in self.plans.items():
            table.add_row(Text(device), *map(Text, _cells(plan, length=length, priced=priced)))
        for device, reason in self.failures.items():
            table.add_row(Text(device), "no plan", "", Text(reason))
        return table

    def to_json(self) -> dict[str, Any]:
        """Device -> its plan as `Plan.to_json` gives it; for one that has none, `fits` and `reason` only."""
        plans = {name: plan.to_json() for name, plan in self.plans.items()}
        return plans | {name: {"fits": False, "reason": reason} for name, reason in self.failures.items()}

    def __rich__(self) -> RenderableType:
        return self.table()

    def __str__(self) -> str:
        width = max(60, shutil.get_terminal_size((100, 24)).columns)
        text = io.StringIO()
        Console(file=text, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def compare(
    devices: Sequence[Asked], plan_for: Callable[[Asked], Plan], progress: Callable[[str], None] | None = None
) -> Comparison:
    """Plan for each device in turn.

    Args:
        devices: what to compare; two names of one device, by all that is known of it, count once.
        plan_for: makes the plan of one; it may not fit (`brim.planner.survey`).
        progress: is told a line before each.

    Raises:
        DeviceError: before any work, if a name is not known.
        SettingsError: before any work, if a file is missing or wrong, or one device has two prices.
    """
    known = _labelled(devices)
    plans: dict[str, Plan] = {}
    failures: dict[str, str] = {}
    for place, (name, asked) in enumerate(known.items(), start=1):
        if progress is not None:
            progress(f"device {place} of {len(known)}: {name}")
        try:
            plans[name] = plan_for(asked)
        except (DeviceError, TechniqueError) as error:
            failures[name] = error.message
    return Comparison(plans, failures)


def _labelled(devices: Sequence[Asked]) -> dict[str, Asked]:
    """What was asked for by labels that differ, each device once."""
    alike: dict[Device, list[Asked]] = {}
    for asked in devices:
        alike.setdefault(find(asked.name), []).append(asked)
    shared = Counter(device.name for device in alike)
    return {
        asked[0].name if shared[device.name] > 1 and is_path(asked[0].name) else device.name: _once(device, asked)
        for device, asked in alike.items()
    }


def _once(device: Device, asked: Sequence[Asked]) -> Asked:
    """Several names of one device as the first of them, with the price that was said of it."""
    priced = {one.price_per_hour: one for one in asked if one.own_price}
    if len(priced) > 1:
        prices = " and ".join(f"{price:g} (as {one.name})" for price, one in priced.items())
        raise SettingsError(
            f"found the prices {prices} for one device, {device.name}; expected one", hint="name it once"
        )
    return replace(asked[0], price_per_hour=next(iter(priced), asked[0].price_per_hour), own_price=bool(priced))


def asked_devices(text: str, price_per_hour: float | None = None) -> tuple[Asked, ...]:
    """Devices from text such as `3060,4090@0.35,card.toml@1.2`: names, each with its price per hour if that is known.

    What follows an `@` is no price where it is part of a path: `a@b/card.toml`, `card@2.toml`.

    Args:
        price_per_hour: of devices without a price of their own.

    Raises:
        SettingsError: if there is no name, or a price is not a number of 0 or more.
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise SettingsError(f"found {text!r} where devices are expected", hint="such as 3060,4090,a100-80")
    return tuple(_asked(word, price_per_hour) for word in words)


def _asked(word: str, price_per_hour: float | None) -> Asked:
    name, at, price = word.rpartition("@")
    if not at or is_path(price):
        return Asked(word, price_per_hour)
    try:
        number = float(price)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise SettingsError(f"found the price {price!r} of {name}; expected a number per hour", hint=f"{name}@0.35")
    return Asked(name, number, own_price=True)


def _cells(plan: Plan, *, length: bool, priced: bool) -> list[str]:
    if not plan.fits:
        return ["no", *_misfit(plan)]
    chosen = plan.chosen
    cells = [
        "yes",
        f"{chosen.recipe.micro_batch} x {chosen.recipe.accumulation}",
        words_of(chosen.recipe),
        _share(chosen.peak_bytes or 0, plan.budget_bytes),
        format_seconds(chosen.cost.seconds),
        format_count(round(chosen.predicted_tokens_per_second)),
    ]
    run, price = plan.run_seconds, plan.price
    cells += [format_seconds(run) if run is not None else ""] if length else []
    return cells + ([f"{price:,.2f}" if price is not None else ""] if priced else [])


def _misfit(plan: Plan) -> list[str]:
    """The smallest that was found and by how much it is over; or why there is none."""
    smallest = smallest_of(plan.candidates)
    if smallest is None or smallest.peak_bytes is None:
        return ["", "; ".join(sorted({candidate.reason for candidate in plan.candidates}))]
    over = format_bytes(smallest.peak_bytes - plan.budget_bytes)
    settings = words_of(smallest.recipe)
    return [
        f"{smallest.recipe.micro_batch} x {smallest.recipe.accumulation}",
        f"the smallest found, {settings}, is over by {over}",
        _share(smallest.peak_bytes, plan.budget_bytes),
    ]


def _share(peak_bytes: int, budget_bytes: int) -> str:
    return f"{format_bytes(peak_bytes)} of {format_bytes(budget_bytes)} ({peak_bytes / budget_bytes:.0%})"
