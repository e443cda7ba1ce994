"""`brim plan --device`: names, families and files reach the planner as devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim import cli
from brim.errors import NoPlanFits
from brim.hardware.device import Device, named
from brim.planner.question import Question
from brim.supervisor import searching, setup

RUN = Path(__file__).parents[2] / "configs" / "gpt2-124m.toml"
ENTRY = """
kind = "Mine"
platform = "tpu"
topology = "v9:1"
memory_bytes = 8_000_000_000
bandwidth_bytes_per_second = 1e11
peak_flops = { float32 = 1e13 }
"""


@pytest.fixture
def planned(monkeypatch):
    """Runs the command without a search; what the planner was asked."""
    asked: list[Question] = []

    def survey(program: object, question: Question, **how: object) -> None:
        asked.append(question)
        raise NoPlanFits("no search in this test")

    monkeypatch.setattr(searching, "survey", survey)
    monkeypatch.setattr(setup, "build_program", lambda run: None)
    monkeypatch.setattr(setup, "enable_compilation_cache", lambda: None)

    def run(device: str) -> tuple[int, list[Question]]:
        asked.clear()
        return cli.main(["plan", str(RUN), "--device", device, "--workers", "0", "--no-cache"]), asked

    return run


def test_a_family_name_is_planned_for_and_said(planned, capsys):
    code, asked = planned("h100")
    assert (code, asked[0].device) == (3, named("h100-sxm"))
    assert asked[0].budget_bytes == named("h100-sxm").usable_bytes
    assert capsys.readouterr().err.startswith("device: h100 read as h100-sxm (NVIDIA H100 80GB HBM3, 80 GB)\n")


def test_an_exact_name_needs_no_saying(planned, capsys):
    assert planned("4090")[1][0].device == named("rtx-4090")
    assert "read as" not in capsys.readouterr().err


def test_a_file_of_ones_own_is_planned_for(planned, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(ENTRY, encoding="utf-8")
    device = planned(str(path))[1][0].device
    assert isinstance(device, Device)
    assert (device.name, device.kind, device.memory_bytes) == ("mine", "Mine", 8_000_000_000)


def test_a_wrong_name_or_file_stops_before_any_work(planned, tmp_path, capsys):
    code, asked = planned("rtx-4O90")
    assert (code, asked) == (1, [])
    assert "hint: did you mean `rtx-4090`?" in capsys.readouterr().err
    code, asked = planned(str(tmp_path / "none.toml"))
    assert (code, asked) == (2, [])
