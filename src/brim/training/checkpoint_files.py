"""Checkpoint folders on disk: complete or not there at all.

    RUN/checkpoints/120/state/          the arrays, written by Orbax
    RUN/checkpoints/120/records.json    loss, names of the arrays, and whatever the run wants to know again
    RUN/checkpoints/120/files.json      every other file with its size: written last
    RUN/checkpoints/saving.140/         being written; swept away by the next writer if it was left behind
    RUN/checkpoints/removing.100/       being deleted; likewise

A folder gets its number by one rename after everything in it has reached the disk. So a kill at any instant leaves the
earlier checkpoints whole, and a numbered folder whose files no longer have their sizes was damaged later.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STATE, RECORDS, FILES = "state", "records.json", "files.json"
_SAVING, _REMOVING = "saving.", "removing."


def staging(folder: Path, step: int) -> Path:
    """Where checkpoint `step` is written before it is complete."""
    return folder / f"{_SAVING}{step}"


def commit(folder: Path, step: int) -> None:
    """Turn the staged checkpoint `step` into a complete one, replacing one of the same number.

    Raises:
        OSError: if the disk does not take it.
    """
    staged, final = staging(folder, step), folder / str(step)
    if not (staged / STATE).is_dir():
        raise FileNotFoundError(f"no arrays were written to {staged / STATE}")
    sizes = {}
    for path in _files(staged):
        _sync(path)
        sizes[str(path.relative_to(staged))] = path.stat().st_size
    (staged / FILES).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
    _sync(staged / FILES)
    for path in (staged, *(path for path in staged.rglob("*") if path.is_dir())):
        _sync(path)
    remove(folder, step)
    staged.rename(final)
    _sync(folder)


def remove(folder: Path, step: int) -> None:
    """Delete checkpoint `step` if it is there. The rename comes first, so that it is never there by half."""
    final, doomed = folder / str(step), folder / f"{_REMOVING}{step}"
    if final.exists():
        shutil.rmtree(doomed, ignore_errors=True)
        final.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Delete what an interrupted save or removal left behind. Only for the one process that writes here."""
    for path in folder.iterdir():
        if path.name.startswith((_SAVING, _REMOVING)):
            shutil.rmtree(path, ignore_errors=True)


def numbered(folder: Path) -> list[int]:
    """Numbers of all checkpoint folders, ascending, complete or not."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isascii() and path.name.isdigit())


def complete(folder: Path) -> list[int]:
    """Numbers of the complete checkpoints, ascending."""
    return [step for step in numbered(folder) if damage(folder, step) is None]


def damage(folder: Path, step: int) -> str | None:
    """What is wrong with checkpoint `step`, or None when every file is there with the size it had when written."""
    final = folder / str(step)
    try:
        sizes = json.loads((final / FILES).read_text(encoding="utf-8"))
        for name, size in sizes.items():
            found = (final / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes instead of {size}"
    except FileNotFoundError as error:
        return f"{Path(error.filename).relative_to(final)} is missing"
    except (OSError, ValueError) as error:
        return f"{FILES} cannot be read ({error})"
    return None


def read_records(folder: Path, step: int) -> dict[str, Any]:
    """The contents of `records.json` of a complete checkpoint."""
    return json.loads((folder / str(step) / RECORDS).read_text(encoding="utf-8"))


def ranked(losses: Mapping[int, float | None]) -> list[int]:
    """Checkpoints with a loss, best first; of equal losses the newer comes first."""
    return sorted((step for step, loss in losses.items() if loss is not None), key=lambda step: (losses[step], -step))


def kept(losses: Mapping[int, float | None], newest: int, *, keep_last: int, keep_best: int) -> set[int]:
    """Which checkpoints stay: the last `keep_last`, the best `keep_best`, and always the one just written.

    Args:
        losses: loss by checkpoint; None where there is none, or it was not finite: never a best one.
        newest: the one just written, which need not have the largest number after a run went back.
    """
    return {newest, *sorted(losses)[-keep_last:], *ranked(losses)[:keep_best]}


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
