"""The manifest of a prepared corpus: what it was made of, how, and where its files are.

`manifest.json` in the store's folder names the subfolder that holds the tokens. It is replaced in one rename after that
subfolder is complete on disk, so at any instant the folder holds a whole corpus or none.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.data.settings import DataSettings
from brim.data.sources import SourceFile
from brim.data.text import TextReader
from brim.errors import DataError

MANIFEST_FILE = "manifest.json"
FORMAT = 1
# File systems stamp files with a coarse clock: a file read this soon after it changed may have changed again unseen.
_SETTLED_NS = 2 * 10**9


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest in a store's folder.

    Raises:
        DataError: if there is none, it is damaged, or this version of brim cannot read it.
    """
    path = folder / MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        found = manifest["format"]
    except FileNotFoundError:
        raise DataError(f"no prepared data in {folder}", hint="prepare it: brim data RUN.toml") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({error})", hint="delete it to have the data prepared again") from None
    if found != FORMAT:
        raise DataError(f"{path} has format {found}; this version of brim reads format {FORMAT}")
    return manifest


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Put a manifest in place, whole or not at all."""
    temporary = folder / f"{MANIFEST_FILE}.{os.getpid()}"
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(manifest, file, ensure_ascii=True, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(folder / MANIFEST_FILE)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make files and renames inside a folder survive a power cut."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    # Not every system can open a folder; where it cannot, a rename is as safe as that system makes it.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def relevant_settings(settings: DataSettings) -> dict[str, Any]:
    """The settings that decide what the store holds; paths are compared file by file."""
    names = ["separator", "bad_bytes", "tokenizer", "split", "held_out"]
    if settings.tokenizer == "bpe":
        names.append("vocabulary")
    return {name: getattr(settings, name) for name in names}


def source_entry(file: SourceFile, reader: TextReader, read_at_ns: int) -> dict[str, Any]:
    """What the manifest keeps of a source; `read_at_ns` is when reading began."""
    return {
        "path": str(file.path),
        "size_bytes": reader.size_bytes,
        "modified_ns": file.modified_ns,
        "changed_ns": file.changed_ns,
        "read_at_ns": read_at_ns,
        "sha256": reader.sha256,
        "replaced_bytes": reader.replaced_bytes,
    }


def why_stale(manifest: Mapping[str, Any], settings: DataSettings, files: Sequence[SourceFile]) -> str:
    """Why a store must be made again, or the empty text if nothing changed.

    A file whose size and times are as before is not read. One with other times is read and compared by its hash.
    """
    wanted = relevant_settings(settings)
    changed = [name for name in wanted if manifest["settings"].get(name) != wanted[name]]
    if changed:
        return f"changed settings: {', '.join(f'data.{name}' for name in changed)}"
    before = {entry["path"]: entry for entry in manifest["sources"]}
    now = [str(file.path) for file in files]
    if now != list(before):
        return _changed_list(list(before), now)
    for file in files:
        if not _same_content(before[str(file.path)], file, settings):
            return f"changed: {file.path}"
    return ""


def _changed_list(before: list[str], now: list[str]) -> str:
    added, removed = sorted(set(now) - set(before)), sorted(set(before) - set(now))
    shown = [f"new: {path}" for path in added[:1]] + [f"gone: {path}" for path in removed[:1]]
    return f"{len(added)} files added, {len(removed)} gone ({', '.join(shown) or 'in another order'})"


def _same_content(entry: Mapping[str, Any], file: SourceFile, settings: DataSettings) -> bool:
    if entry["size_bytes"] != file.size_bytes:
        return False
    same_times = (entry["modified_ns"], entry["changed_ns"]) == (file.modified_ns, file.changed_ns)
    if same_times and entry["changed_ns"] + _SETTLED_NS < entry["read_at_ns"]:
        return True
    reader = TextReader(file.path, bad_bytes=settings.bad_bytes)
    for _ in reader:
        pass
    return reader.sha256 == entry["sha256"]
