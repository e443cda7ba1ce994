"""Devices side by side."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brim.errors import DeviceError, SettingsError
from brim.hardware.device import named
from brim.hardware.names import find
from brim.planner import Plan
from brim.planner.compare import Asked, Comparison, asked_devices, compare
from brim.planner.compile import CompileFunction
from brim.planner.question import Question
from brim.planner.search import survey
from brim.quantities import format_bytes
from planner.stacked import CPU, stacked_program

BUDGET = 1200 * 2**10


@pytest.fixture(scope="module")
def plan(compile_recipe: CompileFunction) -> Plan:
    plan = survey(stacked_program(sizes=True), Question(CPU, BUDGET, 8), compile_recipe=compile_recipe)
    return replace(plan, updates=2000)


@pytest.fixture
def found(plan: Plan) -> Comparison:
    """The 4090 holds it, the 3060 does not, the T4 cannot run it."""

    def plan_for(asked: Asked) -> Plan:
        device = named(asked.name)
        if device.name == "t4":
            raise DeviceError("cannot compile for Tesla T4 here")
        fitting = replace(plan, device=device, price_per_hour=asked.price_per_hour)
        if device.name == "rtx-4090":
            return fitting
        over = tuple(
            replace(c, outcome="over", reason=f"compiled: {c.peak_bytes}") if c.fits else c for c in plan.candidates
        )
        return replace(fitting, candidates=over, budget_bytes=2**19)

    return compare(asked_devices("3060, RTX 4090@0.35,t4,4090"), plan_for)


def test_each_device_has_a_row_with_what_decides(
    found: Comparison, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    header, _, *rows = str(found).strip().splitlines()
    for column in ("device", "fits", "settings", "peak of the budget", "predicted step", "tokens/s", "run", "price"):
        assert column in header
    small, large, old = (row.strip() for row in rows if row.strip())
    assert large.startswith("rtx-4090") and " yes " in large
    assert f"{format_bytes(plan.chosen.peak_bytes or 0)} of 1.2 MiB" in large
    assert f"{plan.chosen.recipe.micro_batch} x {plan.chosen.recipe.accumulation}" in large
    assert small.startswith("rtx-3060-12gb") and " no " in small
    assert "the smallest found" in small and "over by" in small
    assert old.startswith("t4") and "cannot compile for Tesla T4 here" in old
    assert found.fits


def test_price_and_length_stand_there_only_where_they_are_known(plan: Plan) -> None:
    bare = Comparison({"rtx-4090": replace(plan, updates=None)})
    assert "price" not in str(bare) and "run" not in str(bare).split()


def test_narrow_terminals_cut_nothing(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    assert max(map(len, str(found).splitlines())) <= 70
    assert "…" not in str(found)


def test_json_is_device_to_plan(found: Comparison) -> None:
    record = json.loads(json.dumps(found.to_json()))
    assert list(record) == ["rtx-3060-12gb", "rtx-4090", "t4"]
    assert [record[name]["fits"] for name in record] == [False, True, False]
    assert Plan.from_json(record["rtx-4090"]).device == named("rtx-4090")
    assert record["rtx-4090"]["price_per_hour"] == 0.35
    assert record["t4"] == {"fits": False, "reason": "cannot compile for Tesla T4 here"}


def test_a_wrong_name_stops_before_any_work() -> None:
    with pytest.raises(DeviceError, match="no device called `rtx-4O90`"):
        compare(asked_devices("3060,rtx-4O90"), lambda asked: pytest.fail("planned"))


def test_names_with_prices() -> None:
    assert asked_devices("3060,4090@0.35", 0.1) == (Asked("3060", 0.1), Asked("4090", 0.35, own_price=True))
    for wrong in ("", " , ", "4090@cheap", "4090@-1", "4090@inf"):
        with pytest.raises(SettingsError):
            asked_devices(wrong)


CARD = """
kind = "Mine"
platform = "tpu"
topology = "v9:1"
memory_bytes = {}
bandwidth_bytes_per_second = 1e12
peak_flops = {{ float32 = 1e14 }}
"""


@pytest.fixture
def cards(tmp_path: Path) -> tuple[str, str, str]:
    """Paths of two different cards in files of one name, and of a third in a file that is named like a known device."""
    names = ("a/card.toml", "b/card.toml", "b/rtx-4090.toml")
    for number, name in enumerate(names, start=1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(CARD.format(number * 10 * 2**30), encoding="utf-8")
    first, second, third = (str(tmp_path / name) for name in names)
    return first, second, third


@pytest.fixture
def planned(plan: Plan) -> Callable[..., Comparison]:
    """Compares what is asked for, with plans that hold nothing but the device and its price."""

    def planned(text: str, price_per_hour: float | None = None) -> Comparison:
        def plan_for(asked: Asked) -> Plan:
            return replace(plan, device=find(asked.name), price_per_hour=asked.price_per_hour)

        return compare(asked_devices(text, price_per_hour), plan_for)

    return planned


def test_devices_of_one_name_are_all_compared(
    planned: Callable[..., Comparison], cards: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = cards
    found = planned(f"{first}@1,{second}@2,4090@3,{third}@4,rtx4090")
    assert list(found.plans) == [first, second, "rtx-4090", third]
    assert [plan.device for plan in found.plans.values()] == [find(name) for name in (first, second, "4090", third)]
    assert [plan.price_per_hour for plan in found.plans.values()] == [1, 2, 3, 4]
    assert list(found.to_json()) == list(found.plans)
    monkeypatch.setenv("COLUMNS", "120")
    assert max(map(len, str(found).splitlines())) <= 120 and "\u2026" not in str(found)
    assert list(planned(f"4090,{second}").plans) == ["rtx-4090", "card"]


def test_two_names_of_one_device_count_once(
    planned: Callable[..., Comparison], cards: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(cards[0])
    monkeypatch.chdir(first.parent)
    found = planned(f"h100,h100-sxm,card.toml,./card.toml,{first}")
    assert list(found.plans) == ["h100-sxm", "card"]


def test_a_device_has_one_price(planned: Callable[..., Comparison], cards: tuple[str, str, str]) -> None:
    for text in ("4090@0.3,rtx4090@0.5", f"{cards[0]}@0.3,{cards[0]}@0.5", "h100@0.3,3060,h100-sxm@0.5"):
        with pytest.raises(SettingsError, match=r"found the prices 0\.3 \(as .* and 0\.5 \(as .* for one device"):
            planned(text)
    for text in ("4090@0.3,rtx4090@0.3", "4090@0.3,rtx4090", "4090,rtx4090@0.3"):
        for usual in (None, 0.7):
            assert planned(text, usual).plans["rtx-4090"].price_per_hour == 0.3
    assert planned("4090,rtx4090", 0.7).plans["rtx-4090"].price_per_hour == 0.7


def test_a_path_with_an_at_sign_is_no_price() -> None:
    for path in ("/home/a@b/card.toml", "a@b/card", "card@2.toml", "a@0.5\\card.toml"):
        assert asked_devices(path) == (Asked(path),)
        assert asked_devices(f"{path}@0.5") == (Asked(path, 0.5, own_price=True),)


def test_a_path_is_shown_as_it_is(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    label = "a[bold]b/card.toml"
    assert label in str(Comparison({label: plan})) and label in str(Comparison({}, {label: "why"}))
