"""Shares from measured steps: found again when planted, kept, and without any say in what fits."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from brim.hardware.device import named
from brim.hardware.facts import Device
from brim.planner import calibration, shares
from brim.planner.calibration import CASES, Case, Timed, calibrated, fitted, measure
from brim.planner.compile import CompileFunction
from brim.planner.cost import BANDWIDTH_SHARE, PRODUCT_SHARE, Cost, Work
from brim.planner.question import Question
from brim.planner.search import consider, decide
from brim.planner.shares import Shares, basis, is_calibrated, known
from brim.planner.traffic import Traffic
from planner.stacked import CPU, stacked_program

MEASURED = Shares(0.4, 1.5)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Device]:
    """Replaces the measuring by a count of how often it was asked for, on a quiet machine."""
    calls: list[Device] = []

    def pretend(device: Device) -> Shares:
        calls.append(device)
        return MEASURED

    monkeypatch.setattr(calibration, "measure", pretend)
    monkeypatch.setattr(calibration.probe, "busy", lambda: False)
    return calls


@pytest.mark.parametrize("planted", [Shares(0.6, 0.8), Shares(0.1, 3.0), Shares(0.95, 0.3)])
def test_planted_shares_are_found_again(planted: Shares) -> None:
    cases = [Timed(0.1, 1e8, 3e8, 1e-3, 1.0), Timed(0.008, 2e8, 5e9, 2e-3, 1.0)]
    timed = [
        replace(one, measured_seconds=one.predicted_seconds(planted, CPU.bandwidth_bytes_per_second)) for one in cases
    ]
    found = fitted(timed, CPU)
    assert found.products == pytest.approx(planted.products, rel=0.05)
    assert found.bandwidth == pytest.approx(planted.bandwidth, rel=0.05)


def test_an_odd_time_leads_to_no_odd_share() -> None:
    found = fitted([Timed(0.1, 1e8, 3e8, 1e-3, 1e-9), Timed(0.1, 1e8, 3e8, 1e-3, 1e9)], CPU)
    assert 0.02 <= found.products <= 1.25 and 0.02 <= found.bandwidth <= 4


def test_predicted_as_the_cost_model_predicts() -> None:
    work = Work({"float32": 4e10}, Traffic(products=3e8, elementwise=5e8, loops=2e8, kernels=100))
    timed = Timed(0.4, 3e8, 7e8, Cost.of(work, CPU).terms["kernels"], 1.0)
    for device in (CPU, replace(CPU, product_share=0.3, bandwidth_share=1.7)):
        assumed = Shares(device.product_share or PRODUCT_SHARE, device.bandwidth_share or BANDWIDTH_SHARE)
        assert timed.predicted_seconds(assumed, 1e10) == pytest.approx(Cost.of(work, device).seconds)


def test_it_is_measured_once_and_used_by_later_plans(counted: list[Device], tmp_path: Path) -> None:
    said: list[str] = []
    assert not is_calibrated(known(CPU, tmp_path))
    first = calibrated(CPU, tmp_path, said.append)
    assert (first.product_share, first.bandwidth_share) == (0.4, 1.5)
    assert calibrated(CPU, tmp_path) == known(CPU, tmp_path) == first
    assert len(counted) == 1 and "once, to calibrate" in said[0]
    assert known(named("rtx-4090"), tmp_path) == named("rtx-4090")
    ((key, _),) = json.loads((tmp_path / "shares.json").read_text()).items()
    assert CPU.kind in key and "JAX" in key


def test_a_busy_machine_is_not_measured(counted: list[Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration.probe, "busy", lambda: True)
    assert calibrated(CPU, tmp_path) == CPU
    assert not counted and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "record", ["{}", "[]", "no json", '"x"', '{"products": 0.5}', '{"products": 9, "bandwidth": 1}']
)
def test_a_damaged_record_is_as_if_not_there(record: str, tmp_path: Path, counted: list[Device]) -> None:
    (tmp_path / "shares.json").write_text(f'{{"{shares._key(CPU)}": {record}}}')
    assert known(CPU, tmp_path) == CPU
    assert is_calibrated(calibrated(CPU, tmp_path)) and len(counted) == 1


def test_a_gpu_is_measured_in_another_process_and_does_without(
    counted: list[Device], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(text: str) -> None:
        done = subprocess.CompletedProcess([], 0, stdout=text)
        monkeypatch.setattr(calibration.subprocess, "run", lambda *words, **settings: done)

    card = named("rtx-4090")
    answers("no memory left")
    assert calibrated(card, tmp_path) == card
    answers('{"products": 0.5, "bandwidth": 0.7}')
    assert calibrated(card, tmp_path).product_share == 0.5
    assert not counted
    assert calibrated(named("tpu-v5e"), tmp_path) == named("tpu-v5e")


def test_the_words_say_what_times_rest_on() -> None:
    assert basis(CPU) == "uncalibrated: a prediction"
    found = replace(CPU, product_share=0.41, bandwidth_share=0.8)
    assert basis(found).startswith("calibrated on this device: 41% of its peak in products, 80% of its bandwidth")


def test_calibration_never_changes_which_candidates_fit(compile_recipe: CompileFunction) -> None:
    program = stacked_program(sizes=True)
    odd = replace(CPU, product_share=0.03, bandwidth_share=3.9)
    budgets = (300 * 2**10, 800 * 2**10, 2**21)
    outcomes = []
    for device in (CPU, odd):
        prospects = consider(program, Question(device, 2**30, 8))
        assert [p.cost.seconds for p in prospects] == sorted(p.cost.seconds for p in prospects)
        bounds = {(p.recipe.techniques, p.recipe.micro_batch): p.option.bound for p in prospects}
        plans = [
            decide(program, prospects, Question(device, budget, 8), compile_recipe=compile_recipe) for budget in budgets
        ]
        peaks = [
            {(c.recipe.techniques, c.recipe.micro_batch): c.peak_bytes for c in p.candidates if c.compiled}
            for p in plans
        ]
        outcomes.append((bounds, [p.fits for p in plans], peaks))
        assert all(c.fits == (c.peak_bytes <= p.budget_bytes) for p in plans for c in p.candidates if c.peak_bytes)
    (bounds, fits, peaks), (odd_bounds, odd_fits, odd_peaks) = outcomes
    assert (bounds, fits) == (odd_bounds, odd_fits)
    for one, other in zip(peaks, odd_peaks, strict=True):
        assert all(one[key] == other[key] for key in one.keys() & other.keys())


def test_a_small_step_is_really_timed() -> None:
    tiny = (Case(1, 16, 2, 16, 64, 2),)
    found = measure(CPU, tiny)
    assert 0.02 <= found.products <= 1.25 and 0.02 <= found.bandwidth <= 4
    assert set(CASES) == {"cpu", "gpu"}
