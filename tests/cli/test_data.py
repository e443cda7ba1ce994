"""`brim data`: what it prepares and shows, and what it says about a wrong number or place."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.cli import main

RUN = """
[model]
layers = 1
width = 8
heads = 1
context = 7

[data]
paths = ["a.txt"]
separator = "|"
held_out = 0.2
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("|".join(f"text {n}" for n in range(10)))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


def test_rows_are_shown_up_to_those_there_are(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["data", str(run), "--show", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("vocabulary  257\n")
    assert shown.count("row ") == 2
    assert main(["data", str(run), "--show", "8"]) == 0
    every = capsys.readouterr().out
    assert every.startswith(shown)
    assert sum(f"text {n}" in every for n in range(10)) == 8
    assert main(["data", str(run), "--show", "1000"]) == 2
    said = capsys.readouterr().err
    assert "`--show` is 1000; expected at most 8, the rows of the training split" in said
    assert "hint: --show 8" in said
    assert "global_batch" not in said
    assert main(["data", str(run), "--show", "9", "--data.sampling", "random", "--data.pack", "false"]) == 0
    assert capsys.readouterr().out.count("row ") == 9


def test_the_model_is_needed_for_rows_only(run: Path, capsys: pytest.CaptureFixture) -> None:
    run.write_text(RUN.replace("context = 7", ""))
    assert main(["data", str(run)]) == 0
    capsys.readouterr()
    assert main(["data", str(run), "--show", "1", "--out", "other"]) == 2
    assert "the model has no `context`" in capsys.readouterr().err
    assert not (run.parent / "other").exists()


def test_a_negative_number_of_rows_is_refused_before_anything_is_made(run: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["data", str(run), "--show", "-1"]) == 2
    assert "`--show` is -1" in capsys.readouterr().err
    assert not (run.parent / "runs").exists()


def test_a_place_that_is_a_file_is_an_error_with_a_next_step(run: Path, capsys: pytest.CaptureFixture) -> None:
    for place in ("a.txt", "a.txt/run"):
        assert main(["data", str(run), "--out", place]) == 2
        said = capsys.readouterr().err
        assert f"cannot make the run folder {place}" in said
        assert "hint: choose another --out" in said
