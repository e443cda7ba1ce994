"""Text to token ids and back: bytes, characters, or byte-level BPE.

Text is always ordinary text. A document that contains `<|endoftext|>` or any other marker gets the ids of its
characters; only brim itself puts the end-of-document id into a stream. That id is the last of the vocabulary and lies
outside what the text of a tokenizer can reach. It is None for a corpus that is one plain stream (`split = "tail"`).

A tokenizer is saved as `vocabulary.json`, with `tokenizer.json` in the format of the `tokenizers` library beside it for
BPE. Both are plain JSON: loading one runs no code from the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from jaxtyping import Integer

from brim.errors import DataError

if TYPE_CHECKING:
    import tokenizers

VOCABULARY_FILE = "vocabulary.json"
BPE_FILE = "tokenizer.json"
_FORMAT = 1
_UNKNOWN = -1


class Tokenizer(Protocol):
    """What every tokenizer offers.

    Attributes:
        kind: the word in `data.tokenizer`.
        vocabulary_size: number of ids, the end-of-document id included; ids are 0 .. vocabulary_size - 1.
        end_of_document: the id that ends a document, or None.
    """

    @property
    def kind(self) -> Literal["bytes", "characters", "bpe"]: ...
    @property
    def vocabulary_size(self) -> int: ...
    @property
    def end_of_document(self) -> int | None: ...

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without an end-of-document id."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "_"]]:
        """The ids of several texts, as arrays."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; the end-of-document id stands for no text. Raises DataError on an id that is none."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Each byte of the UTF-8 text is its own id, 0..255."""

    ends_documents: bool = True
    kind: Literal["bytes"] = field(default="bytes", init=False)

    @property
    def vocabulary_size(self) -> int:
        return 256 + self.ends_documents

    @property
    def end_of_document(self) -> int | None:
        return 256 if self.ends_documents else None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_many(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "_"]]:
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        # A model may break off inside a character, so what is not UTF-8 is shown as U+FFFD.
        return bytes(_text_ids(ids, self)).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class CharacterTokenizer:
    """Each character of the corpus is an id, in the order of their code points.

    Args:
        characters: all characters, sorted.
        ends_documents: whether one more id ends documents.
    """

    characters: str
    ends_documents: bool = True
    kind: Literal["characters"] = field(default="characters", init=False)

    @property
    def vocabulary_size(self) -> int:
        return len(self.characters) + self.ends_documents

    @property
    def end_of_document(self) -> int | None:
        return len(self.characters) if self.ends_documents else None

    def encode(self, text: str) -> list[int]:
        return self.encode_many([text])[0].tolist()

    def encode_many(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "_"]]:
        """The ids of several texts.

        Raises:
            DataError: naming the first character that the vocabulary does not have.
        """
        return [self._encode(text) for text in texts]

    def _encode(self, text: str) -> Integer[np.ndarray, "tokens"]:
        points = _code_points(text)
        ids = self._id_of_code_point[np.minimum(points, len(self._id_of_code_point) - 1)]
        if (unknown := np.flatnonzero(ids == _UNKNOWN)).size:
            character = text[unknown[0]]
            raise DataError(
                f"the character {character!r} (U+{ord(character):04X}) is not among the {len(self.characters)} of the "
                "vocabulary",
                hint="leave it out, or train with data.tokenizer = 'bytes' or 'bpe', which know every text",
            )
        return ids

    @cached_property
    def _id_of_code_point(self) -> Integer[np.ndarray, "points"]:
        points = _code_points(self.characters)
        table = np.full(int(points.max(initial=0)) + 2, _UNKNOWN, dtype=np.int32)
        table[points] = np.arange(len(points), dtype=np.int32)
        return table

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.characters[i] for i in _text_ids(ids, self))


@dataclass(frozen=True)
class BpeTokenizer:
    """Byte-level BPE of the `tokenizers` library, which can write any text.

    Args:
        library_tokenizer: the trained tokenizer, with no special token of its own.
        ends_documents: whether one more id, after those of the library, ends documents.
    """

    library_tokenizer: tokenizers.Tokenizer
    ends_documents: bool = True
    kind: Literal["bpe"] = field(default="bpe", init=False)

    @cached_property
    def _size(self) -> int:
        return self.library_tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary_size(self) -> int:
        return self._size + self.ends_documents

    @property
    def end_of_document(self) -> int | None:
        return self._size if self.ends_documents else None

    def encode(self, text: str) -> list[int]:
        return self.library_tokenizer.encode(text, add_special_tokens=False).ids

    def encode_many(self, texts: Sequence[str]) -> list[Integer[np.ndarray, "_"]]:
        encodings = self.library_tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]

    def decode(self, ids: Iterable[int]) -> str:
        return self.library_tokenizer.decode(list(_text_ids(ids, self)), skip_special_tokens=False)


def learn_bpe(texts: Iterable[str], vocabulary: int, *, ends_documents: bool = True) -> BpeTokenizer:
    """Learn a byte-level BPE vocabulary; the same texts give the same vocabulary.

    Args:
        texts: the training text, in any number of pieces, cut where words are.
        vocabulary: how many ids to learn, the end-of-document id included. A small text gives fewer.
        ends_documents: whether the last id ends documents.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - ends_documents,
        min_frequency=2,
        show_progress=False,
        # All 256 bytes, so that every text can be written, whatever the corpus holds.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[],
    )
    tokenizer.train_from_iterator(texts, trainer)
    return BpeTokenizer(tokenizer, ends_documents)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer into an existing folder, as `load_tokenizer` reads it."""
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "kind": tokenizer.kind,
        "vocabulary_size": tokenizer.vocabulary_size,
        "end_of_document": tokenizer.end_of_document,
    }
    if isinstance(tokenizer, CharacterTokenizer):
        facts["characters"] = tokenizer.characters
    if isinstance(tokenizer, BpeTokenizer):
        (folder / BPE_FILE).write_text(tokenizer.library_tokenizer.to_str(pretty=True), encoding="utf-8")
    (folder / VOCABULARY_FILE).write_text(json.dumps(facts, ensure_ascii=True, indent=1) + "\n", encoding="utf-8")


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer that `save_tokenizer` wrote into exactly this folder.

    Raises:
        DataError: if there is none, or it is damaged.
    """
    path = folder / VOCABULARY_FILE
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        tokenizer = _from_facts(facts, folder)
        complete = tokenizer.vocabulary_size == facts["vocabulary_size"]
    except FileNotFoundError as error:
        missing = Path(error.filename or path).name
        raise DataError(f"no tokenizer in {folder}: {missing} is missing", hint=_REBUILD) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"the tokenizer in {folder} is damaged ({error})", hint=_REBUILD) from None
    if not complete:
        raise DataError(
            f"the tokenizer in {folder} has {tokenizer.vocabulary_size} ids; {facts['vocabulary_size']} were saved",
            hint=_REBUILD,
        )
    return tokenizer


_REBUILD = "delete the folder to have it made again from the sources"


def _from_facts(facts: dict[str, Any], folder: Path) -> Tokenizer:
    if facts["format"] != _FORMAT:
        raise ValueError(f"format {facts['format']}, expected {_FORMAT}")
    ends_documents = facts["end_of_document"] is not None
    if facts["kind"] == "bytes":
        return ByteTokenizer(ends_documents)
    if facts["kind"] == "characters":
        return CharacterTokenizer(facts["characters"], ends_documents)
    if facts["kind"] == "bpe":
        import tokenizers

        text = (folder / BPE_FILE).read_text(encoding="utf-8")
        try:
            return BpeTokenizer(tokenizers.Tokenizer.from_str(text), ends_documents)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(str(error)) from None
    raise ValueError(f"unknown kind {facts['kind']!r}")


def _text_ids(ids: Iterable[int], tokenizer: Tokenizer) -> Iterator[int]:
    size, end = tokenizer.vocabulary_size, tokenizer.end_of_document
    for given in ids:
        token = int(given)
        if not 0 <= token < size:
            raise DataError(f"found the token id {token}; the vocabulary has ids 0 to {size - 1}")
        if token != end:
            yield token


def _code_points(text: str) -> Integer[np.ndarray, "characters"]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
