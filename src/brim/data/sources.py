"""Which files a corpus is made of: files, folders and globs, in an order that does not depend on the machine."""

from __future__ import annotations

import difflib
import fnmatch
import glob
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brim.errors import DataError
from brim.settings import user_path


@dataclass(frozen=True)
class SourceFile:
    """One file, with what the file system says about it.

    `modified_ns` and `changed_ns` are nanoseconds since 1970. Nobody can set the second one, so a file with the same
    three figures as before has the same content.
    """

    path: Path
    size_bytes: int
    modified_ns: int
    changed_ns: int


def find_files(paths: Sequence[str], pattern: str = "**/*") -> list[SourceFile]:
    """All files that the paths name: entries in the order given, sorted inside each, no file twice.

    Args:
        paths: files, folders and globs; `~` is the home folder. A path that exists is never read as a glob.
        pattern: glob applied inside folders; as in a shell, it leaves hidden files out unless it names them.

    Raises:
        DataError: if a path matches nothing, cannot be read, or is neither a file nor a folder.
    """
    if not paths:
        raise DataError(
            "no text to read: `data.paths` is empty", hint='name files, folders or globs: paths = ["texts"]'
        )
    found: dict[str, SourceFile] = {}
    for given in paths:
        names = _names_of(given, pattern)
        for name in names:
            # The resolved path is the key, so a link or a second glob cannot train on one file twice.
            found.setdefault(os.path.realpath(name), _look_at(name.absolute()))
    return list(found.values())


def _names_of(given: str, pattern: str) -> list[Path]:
    try:
        if names := list(_expand(given, pattern)):
            return names
        raise DataError(f"no file matches {_described(given, pattern)}", hint=_hint(given))
    except OSError as error:
        path = error.filename or given
        hint = f"check its name and permissions: ls -ld {str(path)!r}"
        raise DataError(f"cannot read {path}: {error.strerror}", hint=hint) from None


def _expand(given: str, pattern: str) -> Iterator[Path]:
    path = user_path(given)
    if path.is_dir():
        yield from _inside(path, pattern)
    elif os.path.lexists(path):
        yield path
    elif glob.has_magic(str(path)):
        for found in sorted(_matches(Path(path.anchor), path.relative_to(path.anchor).parts)):
            if found.is_dir():
                yield from _inside(found, pattern)
            else:
                yield found


def _inside(folder: Path, pattern: str) -> Iterator[Path]:
    found = _matches(folder, tuple(pattern.split("/")))
    yield from sorted(
        (path for path in found if not path.is_dir()), key=lambda path: path.relative_to(folder).as_posix()
    )


def _matches(folder: Path, pattern: tuple[str, ...], above: frozenset[str] = frozenset()) -> Iterator[Path]:
    """What a glob matches below a folder.

    Unlike the `glob` module, which passes over a folder that it may not read and runs round a loop of links: a corpus
    must neither lose a part of itself nor go on for ever. `above` holds the real paths of the folders gone through.
    """
    first, rest = pattern[0], pattern[1:]
    if first == "**":
        real = os.path.realpath(folder)
        if real in above:
            return
        yield from _matches(folder, rest or ("*",))
        for entry in _listed(folder):
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _matches(entry, pattern, above | {real})
    elif glob.has_magic(first):
        for entry in _listed(folder):
            hidden = entry.name.startswith(".") and not first.startswith(".")
            if not hidden and fnmatch.fnmatchcase(entry.name, first):
                yield from _below(entry, rest)
    else:
        yield from _below(folder / first, rest)


def _below(path: Path, rest: tuple[str, ...]) -> Iterator[Path]:
    if not rest:
        if os.path.lexists(path):
            yield path
    elif path.is_dir():
        yield from _matches(path, rest)


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise DataError(
            f"cannot read the folder {folder}: {error.strerror}", hint=f"check its permissions: ls -ld {str(folder)!r}"
        ) from None


def _look_at(path: Path) -> SourceFile:
    try:
        facts = path.stat()
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}", hint="is it a broken link, or on a lost disk?"
        ) from None
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(f"{path} is neither a file nor a folder", hint="write its content to a file first")
    return SourceFile(path, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)


def _described(given: str, pattern: str) -> str:
    folder = user_path(given)
    return f"`{pattern}` inside {folder}" if folder.is_dir() else f"{given}"


def _hint(given: str) -> str:
    path = user_path(given)
    if path.is_dir():
        return "set `data.pattern` to a glob that matches the files there, such as **/*.txt"
    parent = path.parent
    if not parent.is_dir():
        return f"there is no folder {parent} (seen from {Path.cwd()})"
    close = difflib.get_close_matches(path.name, sorted(os.listdir(parent)), n=1)  # noqa: PTH208
    return f"did you mean {parent / close[0]}?" if close else f"the folder {parent} exists; look what is in it"
