"""The size of a run's vocabulary before any run folder exists."""

from __future__ import annotations

import tempfile
from pathlib import Path

from brim.runfile import RunFile


def with_known_vocabulary(run: RunFile) -> RunFile:
    """The run with its vocabulary filled in.

    A byte or BPE tokenizer says its size in advance; the characters of a corpus must be read, and nothing is kept.

    Raises:
        SettingsError: if the model does not go together. DataError: if the corpus must be read and cannot be.
    """
    settings = run.settings
    if settings.model.vocabulary is not None or settings.model.preset:
        return run.with_vocabulary(None)
    if settings.data.tokenizer == "characters":
        return run.with_vocabulary(_characters_of(run))
    return run.with_vocabulary(settings.data.vocabulary if settings.data.tokenizer == "bpe" else settings.data.byte_ids)


def _characters_of(run: RunFile) -> int:
    from brim.data import prepare  # loads the data pipeline, which nobody else needs to know a size

    with tempfile.TemporaryDirectory() as folder:
        return prepare(run.settings.data, Path(folder)).tokenizer.vocabulary_size
