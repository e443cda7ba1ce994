"""The folder of a run by itself: where its parts are, and what is said when it cannot be made."""

from __future__ import annotations

from pathlib import Path

from brim.runfile import RunFile
from brim.supervisor.folder import RunFolder


def test_the_store_is_where_the_run_says_else_in_the_folder(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.store_of(RunFile.from_tables({})) == tmp_path / "run" / "data"
    assert folder.store_of(RunFile.from_tables({"data": {"store": "/a/b"}})) == Path("/a/b")
