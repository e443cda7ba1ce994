"""The folder of a run by itself: where its parts are, and what is said when it cannot be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.errors import CheckpointError, SettingsError
from brim.runfile import RunFile
from brim.supervisor.folder import RunFolder


def test_the_store_is_where_the_run_says_else_in_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.store_of(RunFile.from_tables({})) == tmp_path / "run" / "data"
    assert folder.store_of(RunFile.from_tables({"data": {"store": "/a/b"}})) == Path("/a/b")


def test_a_folder_that_cannot_be_made_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for place in (tmp_path / "taken", tmp_path / "taken" / "run", tmp_path / ("x" * 300)):
        for make in (RunFolder(place).create, RunFolder(place).make):
            with pytest.raises(SettingsError, match="cannot make the run folder") as error:
                make()
            assert "--out" in error.value.hint


def test_a_folder_that_cannot_be_looked_into_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="no run in"):
        RunFolder(tmp_path / ("x" * 300)).load_settings()

    def refused(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(SettingsError, match=r"cannot look into .*Permission denied") as error:
        RunFolder(tmp_path).create()
    assert "--out" in error.value.hint


def test_only_a_complete_checkpoint_keeps_a_folder_from_a_new_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.settings.write_text("")
    folder.checkpoints.write_text("no folder")
    folder.create()
    folder.checkpoints.unlink()
    (folder.checkpoints / "saving.4").mkdir(parents=True)
    (folder.checkpoints / "8").mkdir()  # damaged: it can be resumed as little as one that is half written
    folder.create()
    (folder.checkpoints / "8" / "records.json").write_text("{}")
    (folder.checkpoints / "8" / "files.json").write_text('{"records.json": 2}')
    with pytest.raises(SettingsError, match="holds a run with checkpoints"):
        folder.create()


def test_metrics_of_another_program_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("of somebody else")
    with pytest.raises(SettingsError, match="is of no run of brim"):
        RunFolder(tmp_path).create()
    assert (tmp_path / "metrics.jsonl").read_text() == "of somebody else"
