"""What planning remembers between processes: compiles and finished searches, as JSON files in the user's cache folder.

    compile-KEY.json   what compiling one program told. KEY covers the lowered program as text, the compiler's options,
                       the device it was compiled for, and what compiled it. A hit costs tracing and lowering only
    search-KEY.json    a whole plan. KEY covers what the search was asked for, and what searched

What compiled and what searched are the versions of JAX, of the CUDA plugin and cuDNN, of the libraries that programs
are made of, and brim's own source files: after any change of one of them nothing is found, which costs time only.

A record is written to a temporary name and renamed, so processes may share the folder. What cannot be read, or does not
have the digest that was written with it, counts as not there and is written again. The oldest records are removed when
the folder grows too large. Nothing in it executes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brim
from brim.hardware.facts import Device
from brim.hardware.probe import cache_folder

MOST_FILES = 2000
MOST_BYTES = 64 * 2**20

# Their versions can change what is compiled, or what it needs. Those that are not installed count too.
_PACKAGES = (
    *("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda12-pjrt", "jax-cuda13-plugin", "jax-cuda13-pjrt"),
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "libtpu", "equinox", "optax"),
)


@dataclass(frozen=True)
class Cache:
    """Records in a folder, by key. Neither reading nor writing ever fails: what does not work is as if not there.

    Attributes:
        folder: where they lie; made when the first is written.
        most_files, most_bytes: beyond these the oldest are removed.
    """

    folder: Path
    most_files: int = MOST_FILES
    most_bytes: int = MOST_BYTES

    @classmethod
    def of_user(cls) -> Cache:
        """The one below the user's cache folder, by the XDG rules."""
        return cls(cache_folder() / "plans")

    def read(self, key: str) -> Mapping[str, Any] | None:
        """The record under a key; None if there is none that can be read."""
        try:
            record = json.loads(self._path(key).read_text(encoding="utf-8"))
            value, whole = record["value"], record["digest"] == _digest(key, record["value"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        return value if whole else None

    def write(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep a record; a disk that is full or read-only means that nothing is kept."""
        text = json.dumps({"digest": _digest(key, value), "value": value})
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            _write_whole(self._path(key), text)
            self._remove_oldest()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _remove_oldest(self) -> None:
        files = sorted(_files(self.folder), reverse=True)
        size = 0
        for count, (_, file_bytes, path) in enumerate(files, start=1):
            size += file_bytes
            if count > self.most_files or (size > self.most_bytes and count > 1):
                path.unlink(missing_ok=True)


def key_of(kind: str, facts: Mapping[str, Any]) -> str:
    """The key of a record: its kind, and a hash of facts as plain values and of what compiles and searches here."""
    text = json.dumps({"facts": facts, "made by": made_by()}, sort_keys=True, default=_plain)
    return f"{kind}-{hashlib.sha256(text.encode()).hexdigest()}"


def device_facts(device: Device) -> dict[str, Any]:
    """A device as plain values, without what is free of it now."""
    facts = dataclasses.asdict(device)
    del facts["free_bytes"]
    return facts


@functools.cache
def made_by() -> Mapping[str, str | None]:
    """Versions of everything that a plan depends on, and a fingerprint of brim's own source files."""
    versions: dict[str, str | None] = {package: _version(package) for package in _PACKAGES}
    return {**versions, "brim": brim.__version__, "source": _source_fingerprint()}


def _digest(key: str, value: Mapping[str, Any]) -> str:
    return hashlib.sha256(f"{key} {json.dumps(value, sort_keys=True)}".encode()).hexdigest()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _source_fingerprint() -> str:
    root = Path(brim.__file__).parent
    fingerprint = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".toml")):
        content = path.read_bytes()
        fingerprint.update(f"{path.relative_to(root)} {len(content)}\n".encode())
        fingerprint.update(content)
    return fingerprint.hexdigest()


def _files(folder: Path) -> list[tuple[float, int, Path]]:
    """(time of writing, bytes, path) of everything in the folder, temporary files of killed processes included."""
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # removed by another process meanwhile
            status = path.stat()
            found.append((status.st_mtime, status.st_size, path))
    return found


def _write_whole(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.stem[:20]}-", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, set, frozenset)):
        return sorted(value) if not isinstance(value, tuple) else list(value)
    return str(value)
