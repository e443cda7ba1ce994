from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.data.sources import find_files
from brim.errors import DataError

Write = Callable[[str, bytes | str], Path]


def names(paths: list[str], root: Path, pattern: str = "**/*") -> list[str]:
    return [file.path.relative_to(root).as_posix() for file in find_files(paths, pattern)]


def test_folders_are_recursive_and_sorted(write: Write, tmp_path: Path) -> None:
    for name in ("t/b.txt", "t/a.txt", "t/sub/deep/c.txt", "t/sub/d.md", "t/Z ä/e.txt"):
        write(name, "x")
    assert names([str(tmp_path / "t")], tmp_path) == [
        "t/Z ä/e.txt",
        "t/a.txt",
        "t/b.txt",
        "t/sub/d.md",
        "t/sub/deep/c.txt",
    ]
    assert names([str(tmp_path / "t")], tmp_path, "*.txt") == ["t/a.txt", "t/b.txt"]
    assert names([str(tmp_path / "t")], tmp_path, "**/*.md") == ["t/sub/d.md"]


def test_entries_keep_their_order_and_no_file_comes_twice(write: Write, tmp_path: Path) -> None:
    write("t/a.txt", "x")
    write("t/b.txt", "x")
    (tmp_path / "t/link.txt").symlink_to(tmp_path / "t/a.txt")
    given = [str(tmp_path / "t/b.txt"), str(tmp_path / "t"), str(tmp_path / "t/*.txt")]
    assert names(given, tmp_path) == ["t/b.txt", "t/a.txt"]


def test_globs_match_files_and_folders(write: Write, tmp_path: Path) -> None:
    for name in ("one/a.txt", "one/b.py", "two/c.txt", "three.txt"):
        write(name, "x")
    assert names([str(tmp_path / "**/*.txt")], tmp_path) == ["one/a.txt", "three.txt", "two/c.txt"]
    assert names([str(tmp_path / "t*")], tmp_path) == ["three.txt", "two/c.txt"]


def test_a_name_that_exists_is_not_a_glob(write: Write, tmp_path: Path) -> None:
    write("a[1].txt", "x")
    write("a1.txt", "x")
    assert names([str(tmp_path / "a[1].txt")], tmp_path) == ["a[1].txt"]


def test_hidden_files_are_left_out_unless_named(write: Write, tmp_path: Path) -> None:
    write("t/.git/objects", b"\0")
    write("t/.notes.txt", "x")
    write("t/a.txt", "x")
    assert names([str(tmp_path / "t")], tmp_path) == ["t/a.txt"]
    assert names([str(tmp_path / "t")], tmp_path, ".*.txt") == ["t/.notes.txt"]


def test_a_loop_of_links_ends(write: Write, tmp_path: Path) -> None:
    write("t/a.txt", "x")
    (tmp_path / "t/again").symlink_to(tmp_path / "t")
    assert names([str(tmp_path / "t")], tmp_path) == ["t/a.txt"]


def test_each_path_must_match_something(write: Write, tmp_path: Path) -> None:
    present = str(write("texts/a.txt", "x"))
    with pytest.raises(DataError, match="textz") as caught:
        find_files([present, str(tmp_path / "textz")])
    assert "texts" in caught.value.hint
    with pytest.raises(DataError, match=r"\*\*/\*\.md") as caught:
        find_files([str(tmp_path / "texts")], "**/*.md")
    assert "data.pattern" in caught.value.hint
    with pytest.raises(DataError, match="no file matches"):
        find_files([str(tmp_path / "*.csv")])
    with pytest.raises(DataError, match=r"data\.paths"):
        find_files([])


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"cannot read .*: File name too long") as caught:
        find_files([str(tmp_path / ("x" * 300))])
    assert "ls -ld" in caught.value.hint
    with pytest.raises(DataError, match="no file matches ~no-such-user/x"):
        find_files(["~no-such-user/x"])

    def refused(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(DataError, match=rf"cannot read {tmp_path}: Permission denied"):
        find_files([str(tmp_path / "gone")])


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="neither a file nor a folder"):
        find_files([str(tmp_path / "pipe")])
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(DataError, match="broken"):
        find_files([str(tmp_path / "broken")])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_not_passed_over(write: Write, tmp_path: Path) -> None:
    write("t/a.txt", "x")
    write("t/closed/b.txt", "x")
    (tmp_path / "t/closed").chmod(0)
    with pytest.raises(DataError, match="closed"):
        find_files([str(tmp_path / "t")])
    (tmp_path / "t/closed").chmod(0o700)


def test_a_folder_that_cannot_be_listed_is_not_passed_over(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("t/a.txt", "x")
    write("t/closed/b.txt", "x")
    list_folder = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    for name in ("t", "t/**/*.txt"):
        with pytest.raises(DataError, match="closed"):
            find_files([str(tmp_path / name)])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.sets(
        st.lists(st.sampled_from(["a", "ab", "b.txt", ".h"]), min_size=1, max_size=3).map("/".join), max_size=8
    ),
    pattern=st.lists(st.sampled_from(["**", "*", "a*", "*.txt", ".*", "ab"]), min_size=1, max_size=3).map("/".join),
)
def test_patterns_match_what_the_shell_would(
    tmp_path_factory: pytest.TempPathFactory, files: set[str], pattern: str
) -> None:
    root = tmp_path_factory.mktemp("glob")
    for name in files:
        # A name that is a folder for another one ends in `.d`, since it cannot be both.
        path = root / "/".join(part + ".d" for part in name.split("/")[:-1]) / name.split("/")[-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    found = glob.glob(  # noqa: PTH207  (the oracle)
        pattern if not pattern.endswith("**") else f"{pattern}/*", root_dir=root, recursive=True
    )
    expected = {name for name in found if not (root / name).is_dir()}
    try:
        assert set(names([str(root)], root, pattern)) == expected
    except DataError:
        assert not expected
