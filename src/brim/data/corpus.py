"""Preparing a corpus: read the sources, learn or build the tokenizer, tokenise once into a memory-mapped store.

    folder/manifest.json              what the store was made of; names the subfolder
    folder/tokens-XXXXXXXXXXXX/       train.* and held_out.* (see store.py) and the tokenizer

A store is used again as long as no source and no setting behind it changed; otherwise it is made anew in a temporary
folder, written through to the disk, and put in place by renaming. A crash leaves the old store or the new one.

Text is streamed: apart from the ids being written, only a few MiB of it are in memory at a time.

Which documents are held out follows from their number and their order alone, so the same sources are always split
in the same way. With `split = "tail"` the stream of all tokens is cut at `int((1 - held_out) * tokens)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.data.build import build_store
from brim.data.manifest import read_manifest, why_stale
from brim.data.settings import DataSettings
from brim.data.sources import SourceFile, find_files
from brim.data.store import TokenStore
from brim.data.tokenizer import VOCABULARY_FILE, Tokenizer, read_tokenizer
from brim.errors import DataError


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus.

    Attributes:
        train, held_out: the two splits; `held_out` may have no token.
        tokenizer: what turned the text into ids.
        manifest: sources, counts, settings and hashes, as stored.
        warnings: what a reader should know about the text, in sentences.
        rebuilt: why the store was made by this call; empty if one that was there is used.
    """

    train: TokenStore
    held_out: TokenStore
    tokenizer: Tokenizer
    manifest: dict[str, Any]
    rebuilt: str = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(self.manifest["warnings"])


def prepare(settings: DataSettings, folder: Path, *, progress: Callable[[str, float], None] | None = None) -> Corpus:
    """The corpus that the settings describe, made now or used again.

    Args:
        settings: the `[data]` table.
        folder: where the store is kept; made if missing.
        progress: called with what is being done and the share of it that is done, 0 to 1.

    Raises:
        DataError: if the sources cannot be read, hold no text or cannot be split, or the store cannot be written.
    """
    files = find_files(settings.paths, settings.pattern)
    reason, corpus = _use_again(settings, folder, files)
    if corpus:
        return corpus
    try:
        build_store(files, settings, folder, progress or (lambda what, share: None))
    except OSError as error:
        raise DataError(
            f"could not write the tokens to {folder}: {error.strerror or error}",
            hint="check free space and permissions, or set data.store to another folder",
        ) from error
    return _open(folder, rebuilt=reason)


def open_corpus(folder: Path) -> Corpus:
    """The corpus in a store's folder as it is, without a look at the sources: what a resumed run goes on with.

    Raises:
        DataError: if there is none, or it is damaged.
    """
    return _open(folder)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder: that of a prepared store, or one written by `save_tokenizer`.

    Raises:
        DataError: if there is none, or it is damaged.
    """
    if (folder / VOCABULARY_FILE).exists():
        return read_tokenizer(folder)
    return read_tokenizer(folder / read_manifest(folder)["tokens_folder"])


def _use_again(settings: DataSettings, folder: Path, files: Sequence[SourceFile]) -> tuple[str, Corpus | None]:
    try:
        reason = why_stale(read_manifest(folder), settings, files)
        return (reason, None) if reason else ("", _open(folder))
    except DataError as error:
        return error.message, None


def _open(folder: Path, *, rebuilt: str = "") -> Corpus:
    manifest = read_manifest(folder)
    try:
        inside = folder / manifest["tokens_folder"]
        tokenizer = read_tokenizer(inside)
        train, held_out = (
            TokenStore.open(inside, name, manifest["splits"][name], vocabulary_size=tokenizer.vocabulary_size)
            for name in ("train", "held_out")
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"the manifest in {folder} is damaged: {error}", hint="delete it and prepare again") from None
    return Corpus(train, held_out, tokenizer, manifest, rebuilt)
