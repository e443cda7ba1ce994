"""Making a token store: survey the text, choose what is held out, make the tokenizer, tokenise, put in place.

The text is read two or three times (BPE reads it once more to learn) and never held in memory as a whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from brim.data.counter import permutation
from brim.data.documents import Piece
from brim.data.manifest import FORMAT, relevant_settings, sync_folder, write_manifest
from brim.data.settings import DataSettings
from brim.data.sources import SourceFile
from brim.data.store import TOKEN_FILES, TokenWriter
from brim.data.survey import Progress, Survey, read_corpus, survey_corpus
from brim.data.tokenizer import (
    BPE_FILE,
    VOCABULARY_FILE,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    learn_bpe,
    save_tokenizer,
)
from brim.errors import DataError

_BATCH_CHARACTERS = 1 << 20
_HELD_OUT_STREAM = 1
_ABANDONED_SECONDS = 3600.0
_TOKENS_FOLDER = re.compile("tokens-[0-9a-f]{12}")
_BUILDING = re.compile("building-[a-z0-9_]{8}")  # as mkdtemp makes them
_OWN_FILES = frozenset((VOCABULARY_FILE, BPE_FILE, *TOKEN_FILES))


def build_store(files: Sequence[SourceFile], settings: DataSettings, folder: Path, report: Progress) -> None:
    """Make a store from sources and put it in place of the one that is there, if any.

    Raises:
        DataError: if the sources cannot be read, hold no text, cannot be split, or change while they are read.
        OSError: if the store cannot be written; nothing half-written is left.
    """
    survey = survey_corpus(files, settings, report)
    sources = _Sources(files, settings, survey, choose_held_out(survey.documents, settings), report)
    tokenizer = _make_tokenizer(sources)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix="building-", dir=folder))
    try:
        save_tokenizer(tokenizer, temporary)
        manifest = _describe(sources, tokenizer, _write_splits(sources, tokenizer, temporary))
        sync_folder(temporary)
        temporary.rename(folder / manifest["tokens_folder"])
        write_manifest(folder, manifest)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _clean_up(folder, keep=manifest["tokens_folder"])


def choose_held_out(documents: int, settings: DataSettings) -> Bool[np.ndarray, "documents"]:
    """For each document, whether it is held out: at least one is and one is not, unless nothing is to be.

    Raises:
        DataError: if there is one document only.
    """
    chosen = np.zeros(documents, dtype=bool)
    if settings.split == "tail" or not settings.held_out:
        return chosen
    if documents < 2:
        raise DataError(
            f"{documents} document cannot be split into training and held-out documents",
            hint='set data.split = "tail" to hold out its end, data.held_out = 0, or a data.separator',
        )
    count = min(max(1, round(settings.held_out * documents)), documents - 1)
    chosen[permutation(0, _HELD_OUT_STREAM, documents)[:count]] = True
    return chosen


@dataclass(frozen=True, eq=False)
class _Sources:
    files: Sequence[SourceFile]
    settings: DataSettings
    survey: Survey
    held_out: Bool[np.ndarray, "documents"]
    report: Progress

    def read(self, what: str, survey: Survey) -> Iterator[Piece]:
        return read_corpus(self.files, self.settings, survey, lambda share: self.report(what, share))

    def training_texts(self) -> Iterator[str]:
        """What a vocabulary is learnt from. Of a plain stream it is the first share of the characters."""
        pieces = self.read("learning the vocabulary", Survey())
        if self.settings.split == "tail":
            yield from _first_characters(pieces, int((1 - self.settings.held_out) * self.survey.characters))
            return
        document = 0
        for piece in pieces:
            if not self.held_out[document]:
                yield piece.text
            document += piece.last


def _first_characters(pieces: Iterator[Piece], count: int) -> Iterator[str]:
    for piece in pieces:
        yield piece.text[:count]
        count -= len(piece.text)
        if count <= 0:
            return


def _make_tokenizer(sources: _Sources) -> Tokenizer:
    settings = sources.settings
    ends_documents = settings.split == "documents"
    if settings.tokenizer == "bytes":
        return ByteTokenizer(ends_documents)
    if settings.tokenizer == "characters":
        return CharacterTokenizer("".join(sorted(sources.survey.character_set)), ends_documents)
    return learn_bpe(sources.training_texts(), settings.vocabulary, ends_documents=ends_documents)


def _write_splits(sources: _Sources, tokenizer: Tokenizer, folder: Path) -> dict[str, Any]:
    size, end = tokenizer.vocabulary_size, tokenizer.end_of_document
    seen = Survey()
    with (
        TokenWriter(folder, "train", vocabulary_size=size, end_of_document=end) as train,
        TokenWriter(folder, "held_out", vocabulary_size=size, end_of_document=end) as held_out,
    ):
        document = 0
        for batch in _batches(sources.read("tokenising", seen)):
            if seen.documents > sources.survey.documents:
                break
            encoded = tokenizer.encode_many([piece.text for piece in batch])
            last = np.array([piece.last for piece in batch])
            in_held_out = sources.held_out[document + np.cumsum(last) - last]
            document += int(last.sum())
            for writer, mine in ((train, np.flatnonzero(~in_held_out)), (held_out, np.flatnonzero(in_held_out))):
                writer.write([encoded[i] for i in mine], last[mine])
        _require_unchanged(sources.survey, seen)
        if sources.settings.split == "tail":
            train.cut(held_out, int((1 - sources.settings.held_out) * train.tokens))
        return {"train": train.finish(), "held_out": held_out.finish()}


def _batches(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        # A piece weighs something beside its text, so that many tiny ones do not pile up.
        characters += len(piece.text) + 16
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _require_unchanged(before: Survey, after: Survey) -> None:
    hashes_before, hashes_after = ({entry["path"]: entry["sha256"] for entry in s.sources} for s in (before, after))
    changed = [path for path, value in hashes_before.items() if hashes_after.get(path) != value]
    if changed:
        raise DataError(f"{changed[0]} changed while it was read", hint="run again when nothing writes to it")


def _describe(sources: _Sources, tokenizer: Tokenizer, splits: dict[str, Any]) -> dict[str, Any]:
    survey, settings = sources.survey, sources.settings
    warnings = survey.warnings()
    if settings.tokenizer == "bpe" and tokenizer.vocabulary_size < settings.vocabulary:
        warnings.append(
            f"the text is too small for {settings.vocabulary} BPE ids; {tokenizer.vocabulary_size} were learnt"
        )
    content = {
        "format": FORMAT,
        "settings": relevant_settings(settings),
        "tokenizer": {
            "kind": tokenizer.kind,
            "vocabulary_size": tokenizer.vocabulary_size,
            "end_of_document": tokenizer.end_of_document,
        },
        "splits": splits,
        "documents": survey.documents,
        "empty_documents": survey.empty_documents,
        "blank_documents": survey.blank_documents,
        "characters": survey.characters,
        "replaced_bytes": survey.replaced_bytes,
        "warnings": warnings,
        "sources": survey.sources,
    }
    # The time of reading is part of the content, so two builds never share a folder.
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return {"tokens_folder": f"tokens-{digest[:12]}", **content}


def _clean_up(folder: Path, *, keep: str) -> None:
    """Remove older stores, and what a killed process left; a build that another process still writes to is left.

    The folder may be one of the user's: only a folder with a name that brim makes, and nothing in it that brim does not
    write, is removed.
    """
    for path in folder.iterdir():
        if path.name == keep or path.is_symlink() or not path.is_dir():
            continue
        with contextlib.suppress(OSError):  # another process may be cleaning up too
            files = list(path.iterdir())
            newest = max((file.stat().st_mtime for file in files), default=path.stat().st_mtime)
            older = _TOKENS_FOLDER.fullmatch(path.name) is not None
            abandoned = _BUILDING.fullmatch(path.name) is not None and time.time() - newest > _ABANDONED_SECONDS
            if (older or abandoned) and all(file.name in _OWN_FILES and file.is_file() for file in files):
                shutil.rmtree(path, ignore_errors=True)
