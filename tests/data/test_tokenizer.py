from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.data import load_tokenizer, save_tokenizer
from brim.data.tokenizer import (
    BPE_FILE,
    VOCABULARY_FILE,
    BpeTokenizer,
    ByteTokenizer,
    CharacterTokenizer,
    Tokenizer,
    learn_bpe,
)
from brim.errors import DataError

TEXTS = ["the cat sat on the mat. " * 20, "Ünïcödé 😀\n\tindented  twice\n" * 5]


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return learn_bpe(TEXTS, 290)


def all_tokenizers(bpe: BpeTokenizer) -> list[Tokenizer]:
    return [ByteTokenizer(), CharacterTokenizer("".join(sorted(set("".join(TEXTS))))), bpe]


def test_bytes_are_their_own_ids() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aé") == [0x61, 0xC3, 0xA9]
    assert (tokenizer.vocabulary_size, tokenizer.end_of_document) == (257, 256)
    assert (ByteTokenizer(False).vocabulary_size, ByteTokenizer(False).end_of_document) == (256, None)
    assert tokenizer.decode([0x61, 0xC3, 256]) == "a\ufffd"


def test_characters_are_numbered_in_sorted_order() -> None:
    tokenizer = CharacterTokenizer("\n ab😀", ends_documents=False)
    assert tokenizer.encode("ba\n😀") == [3, 2, 0, 4]
    assert (tokenizer.vocabulary_size, tokenizer.end_of_document) == (5, None)
    assert CharacterTokenizer("ab").end_of_document == 2


@pytest.mark.parametrize("unknown", ["c", "é", "\U0010ffff", "`"])
def test_an_unknown_character_is_named(unknown: str) -> None:
    with pytest.raises(DataError, match=f"U\\+{ord(unknown):04X}"):
        CharacterTokenizer("abz").encode(f"ab{unknown}a")


def test_bpe_learns_merges_and_the_same_ones_each_time(bpe: BpeTokenizer) -> None:
    assert bpe.vocabulary_size == 290
    assert bpe.end_of_document == 289
    assert len(bpe.encode("the cat sat on the mat.")) < 15
    again = learn_bpe(TEXTS, 290)
    assert again.library_tokenizer.to_str() == bpe.library_tokenizer.to_str()


@settings(deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_bytes_and_bpe_write_any_text(bpe: BpeTokenizer, text: str) -> None:
    for tokenizer in (ByteTokenizer(), bpe):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_encoding_many_equals_encoding_each(bpe: BpeTokenizer) -> None:
    for tokenizer in all_tokenizers(bpe):
        for text, ids in zip(TEXTS, tokenizer.encode_many(TEXTS), strict=True):
            assert ids.tolist() == tokenizer.encode(text)
            assert ids.dtype.kind in "iu"


def test_da_s8_text_that_looks_like_a_marker_is_ordinary_text() -> None:
    marker = "<|endoftext|>"
    tokenizer = learn_bpe([f"a {marker} b <s> </s> [INST]\n" * 30, "plain words\n" * 10], 300)
    for text in (marker, f"x{marker}y", "<s></s>", "<|im_start|>"):
        ids = tokenizer.encode(text)
        assert tokenizer.end_of_document not in ids
        assert tokenizer.decode(ids) == text
    # The marker is not one id of its own, whatever was merged: it is made of ids that spell it.
    pieces = [tokenizer.library_tokenizer.id_to_token(i) for i in tokenizer.encode(marker)]
    assert len(pieces) > 1
    assert "".join(pieces) == marker


def test_tokenizers_are_saved_and_read_back(bpe: BpeTokenizer, tmp_path: Path) -> None:
    for number, tokenizer in enumerate(all_tokenizers(bpe)):
        folder = tmp_path / f"é {number}"
        folder.mkdir()
        save_tokenizer(tokenizer, folder)
        again = load_tokenizer(folder)
        assert (again.kind, again.vocabulary_size, again.end_of_document) == (
            tokenizer.kind,
            tokenizer.vocabulary_size,
            tokenizer.end_of_document,
        )
        assert again.encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])
        for path in folder.iterdir():
            json.loads(path.read_text(encoding="utf-8"))


def test_a_missing_or_damaged_tokenizer_is_an_error(bpe: BpeTokenizer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no prepared data"):
        load_tokenizer(tmp_path)
    save_tokenizer(bpe, tmp_path)
    facts = json.loads((tmp_path / VOCABULARY_FILE).read_text())
    for change in ({"format": 99}, {"kind": "words"}, {"vocabulary_size": 5}):
        (tmp_path / VOCABULARY_FILE).write_text(json.dumps({**facts, **change}))
        with pytest.raises(DataError, match="tokenizer in"):
            load_tokenizer(tmp_path)
    (tmp_path / VOCABULARY_FILE).write_text("[1, 2")
    with pytest.raises(DataError, match="damaged"):
        load_tokenizer(tmp_path)
    (tmp_path / VOCABULARY_FILE).write_text(json.dumps(facts))
    (tmp_path / BPE_FILE).write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        load_tokenizer(tmp_path)
    (tmp_path / BPE_FILE).unlink()
    with pytest.raises(DataError, match=f"no tokenizer in .*{BPE_FILE} is missing\n\nhint: delete the folder"):
        load_tokenizer(tmp_path)


def test_ids_outside_the_vocabulary_are_not_decoded(bpe: BpeTokenizer) -> None:
    for tokenizer in all_tokenizers(bpe):
        assert tokenizer.decode([tokenizer.end_of_document or 0]) == ""
        for bad in (-1, tokenizer.vocabulary_size):
            with pytest.raises(DataError, match=str(bad)):
                tokenizer.decode(np.array([0, bad]))
