"""Token ids on disk, memory-mapped: two plain little-endian arrays for each split.

    NAME.tokens       ids of the split, one after another; uint16 for a vocabulary of up to 65,536 ids, else uint32
    NAME.documents    int64, for each document the place just after its last token

Width, counts and vocabulary size stand in the manifest. Ids are checked against the vocabulary when they are written
and again when the files are opened, because an id outside it would be clamped or turned to NaN by JAX without a word.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt

from brim.errors import DataError

_SCAN_TOKENS = 1 << 24
_DOCUMENT_END = np.dtype("<i8")
_LARGEST_16_BIT_VOCABULARY = 1 << 16

TOKEN_FILES = tuple(f"{split}.{kind}" for split in ("train", "held_out") for kind in ("tokens", "documents"))
"""Names of the files of both splits."""


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The narrowest of uint16 and uint32, little-endian, that holds all ids of a vocabulary."""
    return np.dtype("<u2" if vocabulary_size <= _LARGEST_16_BIT_VOCABULARY else "<u4")


@dataclass(frozen=True, eq=False)
class TokenStore:
    """One split of a corpus.

    Attributes:
        name: `train` or `held_out`, for messages.
        ids: token ids, uint16 or uint32; mapped from disk or in memory.
        document_ends: for each document the place just after its last token, rising to the number of tokens.
        vocabulary_size: ids are below it.
        end_of_document: the id that ends each document, or None.
        sha256: hash of ids and document ends: equal hashes mean equal data.
    """

    name: str
    ids: UInt[np.ndarray, "tokens"]
    document_ends: Int64[np.ndarray, "documents"]
    vocabulary_size: int
    end_of_document: int | None
    sha256: str

    @property
    def tokens(self) -> int:
        """Number of tokens, end-of-document ids included."""
        return len(self.ids)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.document_ends)

    def require_vocabulary(self, vocabulary_size: int) -> None:
        """Check that a model with this many ids can read the split.

        Raises:
            DataError: naming both numbers, if the tokenizer has more ids than the model.
        """
        if self.vocabulary_size > vocabulary_size:
            raise DataError(
                f"the {self.name} tokens come from a vocabulary of {self.vocabulary_size} ids; "
                f"the model has {vocabulary_size}",
                hint=f"give the model a vocabulary of at least {self.vocabulary_size}",
            )

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[np.ndarray | Sequence[int]],
        *,
        vocabulary_size: int,
        end_of_document: int | None = None,
        name: str = "train",
    ) -> TokenStore:
        """A split in memory. The documents are taken as they are: no end-of-document id is added.

        Raises:
            DataError: if an id is no whole number or outside the vocabulary, or a document is empty.
        """
        dtype = token_dtype(vocabulary_size)
        parts = [_checked(np.asarray(document), vocabulary_size, dtype) for document in documents]
        ids = np.concatenate([*parts, np.empty(0, dtype)])
        ends = np.cumsum([len(part) for part in parts], dtype=_DOCUMENT_END)
        _require_rising(ends, len(ids), f"the {name} documents")
        digest = hashlib.sha256(ids.tobytes() + ends.tobytes()).hexdigest()
        return cls(name, ids, ends, vocabulary_size, end_of_document, digest)

    @classmethod
    def open(cls, folder: Path, name: str, facts: dict[str, Any], *, vocabulary_size: int) -> TokenStore:
        """Map a split from disk.

        Args:
            folder: where the files are.
            name: `train` or `held_out`.
            facts: what `TokenWriter.finish` returned, from the manifest.
            vocabulary_size: that of the tokenizer the ids are to be read with.

        Raises:
            DataError: if the files are missing or damaged, an id is outside the vocabulary, or the split was written
                for another vocabulary size.
        """
        written_for = facts["vocabulary_size"]
        if written_for != vocabulary_size:
            raise DataError(
                f"the {name} tokens in {folder} were written for a vocabulary of {written_for} ids; "
                f"it was opened for {vocabulary_size}",
                hint="use the tokenizer that is stored beside them, or prepare the data again",
            )
        dtype = np.dtype(facts["dtype"])
        if dtype != token_dtype(vocabulary_size):
            raise DataError(f"the {name} tokens in {folder} are {dtype}; {vocabulary_size} ids need another width")
        ids = _mapped(folder / f"{name}.tokens", dtype, facts["tokens"])
        ends = _mapped(folder / f"{name}.documents", _DOCUMENT_END, facts["documents"])
        for start in range(0, len(ids), _SCAN_TOKENS):
            _require_range(ids[start : start + _SCAN_TOKENS], vocabulary_size)
        _require_rising(ends, len(ids), f"{folder / name}.documents")
        return cls(name, ids, ends, vocabulary_size, facts["end_of_document"], facts["sha256"])


class TokenWriter:
    """Writes one split, piece by piece; a context manager. `finish` returns the facts for the manifest.

    Args:
        folder: an existing folder.
        name: `train` or `held_out`.
        vocabulary_size: ids must be below it.
        end_of_document: the id that `end_document` appends, or None.
    """

    def __init__(self, folder: Path, name: str, *, vocabulary_size: int, end_of_document: int | None) -> None:
        self._vocabulary_size = vocabulary_size
        self._end_of_document = end_of_document
        self._dtype = token_dtype(vocabulary_size)
        self._tokens_path = folder / f"{name}.tokens"
        self._documents_path = folder / f"{name}.documents"
        self._tokens_file = self._tokens_path.open("wb")
        self._documents_file = self._documents_path.open("wb")
        self.tokens = 0
        self.documents = 0

    def __enter__(self) -> TokenWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._tokens_file.close()
        self._documents_file.close()

    def write(self, pieces: Sequence[Integer[np.ndarray, "_"]], lasts: Bool[np.ndarray, "pieces"]) -> None:
        """Add pieces of documents; after each that is the last of its document comes the end-of-document id, if any.

        Raises:
            DataError: if an id is no whole number or outside the vocabulary.
        """
        lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
        if self._end_of_document is not None:
            end = np.array([self._end_of_document])
            pieces = [
                part for piece, ends in zip(pieces, lasts, strict=True) for part in ((piece, end) if ends else (piece,))
            ]
            lengths += lasts
        ends = self.tokens + np.cumsum(lengths)[lasts]
        self._append(np.concatenate([*pieces, np.empty(0, self._dtype)]))
        self._documents_file.write(ends.astype(_DOCUMENT_END).tobytes())
        self.documents += len(ends)

    def _append(self, ids: Integer[np.ndarray, "tokens"]) -> None:
        self._tokens_file.write(_checked(ids, self._vocabulary_size, self._dtype).tobytes())
        self.tokens += len(ids)

    def cut(self, other: TokenWriter, at_token: int) -> None:
        """Move all tokens from a place on to another writer, which must be empty; a document there becomes two."""
        self._flush()
        ids = _mapped(self._tokens_path, self._dtype, self.tokens)
        for start in range(at_token, self.tokens, _SCAN_TOKENS):
            other._append(ids[start : start + _SCAN_TOKENS])
        ends = np.array(_mapped(self._documents_path, _DOCUMENT_END, self.documents))
        kept, moved = ends[ends < at_token], ends[ends > at_token] - at_token
        self._rewrite(np.append(kept, at_token) if at_token else kept, at_token)
        other._rewrite(moved, other.tokens)

    def finish(self) -> dict[str, Any]:
        """Write what is still in memory to the files and return the facts for the manifest."""
        self._flush()
        digest = hashlib.sha256()
        for path in (self._tokens_path, self._documents_path):
            with path.open("rb") as file:
                while block := file.read(_SCAN_TOKENS):
                    digest.update(block)
        return {
            "tokens": self.tokens,
            "documents": self.documents,
            "dtype": self._dtype.str,
            "vocabulary_size": self._vocabulary_size,
            "end_of_document": self._end_of_document,
            "sha256": digest.hexdigest(),
        }

    def _rewrite(self, ends: Int64[np.ndarray, "documents"], tokens: int) -> None:
        self._tokens_file.truncate(tokens * self._dtype.itemsize)
        self._documents_file.seek(0)
        self._documents_file.truncate()
        self._documents_file.write(ends.astype(_DOCUMENT_END).tobytes())
        self.tokens, self.documents = tokens, len(ends)

    def _flush(self) -> None:
        self._tokens_file.flush()
        self._documents_file.flush()


def _checked(ids: np.ndarray, vocabulary_size: int, dtype: np.dtype[Any]) -> np.ndarray:
    if ids.size and ids.dtype.kind not in "iu":
        raise DataError(f"token ids are {ids.dtype}; expected whole numbers")
    _require_range(ids, vocabulary_size)
    return ids.astype(dtype)


def _require_range(ids: np.ndarray, vocabulary_size: int) -> None:
    if not ids.size:
        return
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest < 0 or largest >= vocabulary_size:
        raise DataError(
            f"found the token id {largest if largest >= vocabulary_size else smallest}; "
            f"a vocabulary of {vocabulary_size} has ids 0 to {vocabulary_size - 1}",
            hint="the tokens belong to another tokenizer, or the file is damaged: prepare the data again",
        )


def _require_rising(ends: np.ndarray, tokens: int, what: str) -> None:
    last = int(ends[-1]) if len(ends) else 0
    if last != tokens or (len(ends) and int(ends[0]) <= 0) or bool(np.any(np.diff(ends) <= 0)):
        raise DataError(f"{what} do not fit {tokens} tokens: each must end after the one before, the last at the end")


def _mapped(path: Path, dtype: np.dtype[Any], count: int) -> np.ndarray:
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot open {path}: {error.strerror}", hint="prepare the data again") from None
    if size_bytes != count * dtype.itemsize:
        raise DataError(
            f"{path} has {size_bytes} bytes; {count} entries of {dtype.itemsize} bytes were written",
            hint="it is damaged: prepare the data again",
        )
    if not count:
        return np.empty(0, dtype)
    # A plain array over the map: indexing np.memmap itself costs several times as much.
    return np.asarray(np.memmap(path, dtype=dtype, mode="r", shape=(count,)))
