from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.data.documents import split_documents
from brim.data.text import TextReader
from brim.data.tokenizer import BpeTokenizer, learn_bpe

Write = Callable[[str, bytes | str], Path]


def whole(blocks: list[str], separator: str = "", **options: int) -> list[str]:
    """Documents put together again from their pieces."""
    documents, text = [], ""
    for piece in split_documents(blocks, separator, **options):
        text += piece.text
        if piece.last:
            documents.append(text)
            text = ""
    assert text == ""
    return documents


def expected(text: str, separator: str) -> list[str]:
    if not separator:
        return [text]
    parts = text.split(separator)
    return parts if parts[-1] else parts[:-1]


@pytest.mark.parametrize("character", ["\u2029", "\u2028", "\x85", "\x0b", "\x0c", "\x1c"])
@pytest.mark.parametrize("block_bytes", [1, 2, 3, 4, 1 << 20])
def test_da_s1_only_newlines_end_a_line(write: Write, character: str, block_bytes: int) -> None:
    path = write("lines.txt", f"a{character}b\nc\n")
    assert whole(list(TextReader(path, block_bytes=block_bytes)), "\n") == [f"a{character}b", "c"]


def test_da_s1_the_bytes_of_the_report(write: Write) -> None:
    path = write("lines.txt", bytes.fromhex("61 E2 80 A9 62 0A 63 0A"))
    assert whole(list(TextReader(path)), "\n") == ["a\u2029b", "c"]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_da_s1_all_three_line_ends_count(write: Write, ending: str) -> None:
    path = write("lines.txt", f"a{ending}b{ending}")
    for block_bytes in (1, 2, 1 << 20):
        assert whole(list(TextReader(path, block_bytes=block_bytes)), "\n") == ["a", "b"]


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from(["a", "b", " ", "\n", "-", "a\nb", "\n-", "a--"]), max_size=40).map("".join),
    separator=st.sampled_from(["", "\n", "--", "a--", "\n\n", "a\nb", "a\nba"]),
    cuts=st.lists(st.integers(0, 80), max_size=6),
    piece=st.integers(1, 12),
)
def test_documents_do_not_depend_on_blocks_or_pieces(text: str, separator: str, cuts: list[int], piece: int) -> None:
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    blocks = [text[a:b] for a, b in itertools.pairwise(places)]
    assert whole(blocks, separator, piece_characters=piece) == expected(text, separator)


def test_a_separator_that_is_only_half_read_is_not_cut() -> None:
    assert whole(["xx a\nb", "a yy"], "a\nba", piece_characters=2) == ["xx ", " yy"]


def test_long_documents_come_in_pieces_that_begin_with_text() -> None:
    line = "word word\n    indented\nnext\n"
    pieces = list(split_documents([line * 100], piece_characters=50))
    assert len(pieces) > 20
    assert all(len(piece.text) <= 50 for piece in pieces[:-1])
    blank = list(split_documents([" \n" * 500, "x\ny" * 50], piece_characters=50))
    assert not blank[0].text.isspace()


def test_text_without_line_ends_is_cut_in_the_end() -> None:
    pieces = list(split_documents(["x" * 100] * 100, piece_characters=50))
    assert len(pieces) > 2
    assert "".join(piece.text for piece in pieces) == "x" * 10_000


@pytest.fixture(scope="module")
def bpe() -> BpeTokenizer:
    return learn_bpe(["the cat\nsat  on\n\n    the mat\n" * 50, "\tit's 123 's\n" * 20], 300)


@settings(deadline=None, max_examples=200)
@given(
    text=st.text(st.sampled_from("the cat\n\t 's1é\u2029\x1c"), max_size=120),
    piece=st.integers(1, 20),
)
def test_encoding_pieces_equals_encoding_the_document(bpe: BpeTokenizer, text: str, piece: int) -> None:
    # No piece here is long enough to be cut at a bad place, so every cut is one that promises this.
    pieces = [part.text for part in split_documents([text], piece_characters=piece) if len(text) <= 64 * piece]
    if pieces:
        assert [token for part in pieces for token in bpe.encode(part)] == bpe.encode(text)
