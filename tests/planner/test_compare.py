"""Devices side by side."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brim.errors import DeviceError, SettingsError
from brim.hardware.device import named
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
    assert asked_devices("3060,4090@0.35", 0.1) == (Asked("3060", 0.1), Asked("4090", 0.35))
    for wrong in ("", " , ", "4090@cheap", "4090@-1", "4090@inf"):
        with pytest.raises(SettingsError):
            asked_devices(wrong)
