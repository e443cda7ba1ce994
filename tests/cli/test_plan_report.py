"""`brim plan --report --kernels --pictures`: what is printed and drawn of a plan that was found before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim import cli
from brim.cli import plan as command
from brim.planner import Plan
from brim.planner.question import Question
from brim.planner.search import survey
from planner.conftest import audit_recipe
from planner.stacked import CPU, stacked_program

RUN = Path(__file__).parents[2] / "configs" / "gpt2-124m.toml"


@pytest.fixture(scope="module")
def found() -> Plan:
    return survey(
        stacked_program(), Question(CPU, 2**30, 2, micro_batch=2), max_compiles=1,
        audit_recipe=audit_recipe,
    )  # fmt: skip


@pytest.fixture
def run(found: Plan, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.setattr(command, "make_plan", lambda options, run_file: found)
    return lambda *words: cli.main(["plan", str(RUN), *words])


def test_flags_add_tables(run: Callable[..., int], found: Plan, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert run() == 0
    plain = capsys.readouterr().out
    assert "at the peak" in plain and "optimizer mu" in plain
    assert "state.trainable" not in plain and "FLOPs" not in plain
    assert run("--report") == 0
    assert "state.trainable['up']" in capsys.readouterr().out
    assert run("--kernels") == 0
    assert "matrix products f32 -> f32" in capsys.readouterr().out


def test_pictures_are_drawn_and_said_on_stderr(
    run: Callable[..., int], found: Plan, tmp_path: Path, capsys: Any
) -> None:
    assert run("--json", "--pictures", str(tmp_path / "plots")) == 0
    output = capsys.readouterr()
    assert Plan.from_json(json.loads(output.out)) == found
    names = ["plan-bars.png", "plan-timeline.png", "plan-choices.png"]
    assert output.err.splitlines() == [f"picture: {tmp_path / 'plots' / name}" for name in names]
    assert sorted(path.name for path in (tmp_path / "plots").iterdir()) == sorted(names)


def test_pictures_that_cannot_be_written_are_an_error_with_a_next_step(
    run: Callable[..., int], tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "taken").write_text("")
    assert run("--pictures", str(tmp_path / "taken")) == 2
    said = capsys.readouterr().err
    assert f"cannot write pictures to {tmp_path / 'taken'}" in said
    assert "hint: choose another --pictures" in said
