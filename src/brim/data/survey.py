"""Reading a whole corpus as a stream of documents, and the first look at it: what is there, and is it sound?

Every pass over the text (the survey, learning a vocabulary, tokenising) goes through `read_corpus`, so all of them see
the same documents in the same order. Documents that are empty or only white space are passed over and counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from brim.data.documents import Piece, split_documents
from brim.data.manifest import source_entry
from brim.data.settings import DataSettings
from brim.data.sources import SourceFile
from brim.data.text import TextReader
from brim.errors import DataError

Progress = Callable[[str, float], None]


@dataclass
class Survey:
    """What one pass over the sources has met so far.

    Attributes:
        sources: for each file read, its entry for the manifest.
        documents: documents with text.
        empty_documents: documents of length 0, passed over.
        blank_documents: documents of white space only, passed over.
        characters: characters in the documents with text, after decoding.
        character_set: the different characters, when asked for.
        empty_files: files of 0 bytes.
    """

    sources: list[dict[str, Any]] = field(default_factory=list)
    documents: int = 0
    empty_documents: int = 0
    blank_documents: int = 0
    characters: int = 0
    character_set: set[str] = field(default_factory=set)
    empty_files: list[str] = field(default_factory=list)

    @property
    def replaced_bytes(self) -> int:
        return sum(entry["replaced_bytes"] for entry in self.sources)

    def warnings(self) -> list[str]:
        """What a reader should know, in sentences."""
        found = []
        if self.empty_files:
            found.append(f"{len(self.empty_files)} files are empty (0 bytes), such as {self.empty_files[0]}")
        if self.empty_documents or self.blank_documents:
            found.append(
                f"passed over {self.empty_documents} empty documents and {self.blank_documents} of only white space"
            )
        if self.replaced_bytes:
            files = [entry["path"] for entry in self.sources if entry["replaced_bytes"]]
            found.append(
                f"replaced {self.replaced_bytes} bytes that are not UTF-8 in {len(files)} files, such as {files[0]}"
            )
        return found


def read_corpus(
    files: Sequence[SourceFile], settings: DataSettings, survey: Survey, progress: Callable[[float], None]
) -> Iterator[Piece]:
    """The pieces of all documents with text, in order; fills the survey on the way.

    Raises:
        DataError: on a file that cannot be read or is not UTF-8 text.
    """
    total_bytes = max(1, sum(file.size_bytes for file in files))
    done_bytes = 0
    for file in files:
        read_at_ns = time.time_ns()
        reader = TextReader(file.path, bad_bytes=settings.bad_bytes)
        reported_bytes = 0
        for piece in _documents_with_text(split_documents(reader, settings.separator), survey):
            yield piece
            if reader.size_bytes > reported_bytes:
                reported_bytes = reader.size_bytes
                progress(min(1.0, (done_bytes + reported_bytes) / total_bytes))
        done_bytes += reader.size_bytes
        survey.sources.append(source_entry(file, reader, read_at_ns))
        if not reader.size_bytes:
            survey.empty_files.append(str(file.path))
    progress(1.0)


def _documents_with_text(pieces: Iterator[Piece], survey: Survey) -> Iterator[Piece]:
    begun = False
    for piece in pieces:
        # The first piece of a document with text has some text: `split_documents` promises it.
        if not begun and (not piece.text or piece.text.isspace()):
            survey.empty_documents += not piece.text
            survey.blank_documents += bool(piece.text)
            continue
        begun = not piece.last
        survey.documents += piece.last
        survey.characters += len(piece.text)
        yield piece


def survey_corpus(files: Sequence[SourceFile], settings: DataSettings, progress: Progress) -> Survey:
    """Read everything once: every byte is checked before anything is trained or written.

    Raises:
        DataError: on a file that cannot be read or is not UTF-8 text, or if there is no text at all.
    """
    survey = Survey()
    collect = settings.tokenizer == "characters"
    for piece in read_corpus(files, settings, survey, lambda share: progress("reading the text", share)):
        if collect:
            survey.character_set.update(piece.text)
    if not survey.documents:
        names = ", ".join(str(file.path) for file in files[:3]) + (", ..." if len(files) > 3 else "")
        raise DataError(
            f"no text in {len(files)} file{'s' if len(files) != 1 else ''} ({names}): {len(survey.empty_files)} have "
            f"0 bytes, {survey.empty_documents + survey.blank_documents} documents are empty or only white space",
            hint="check `data.paths` and `data.pattern`",
        )
    return survey
