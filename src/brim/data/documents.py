"""Cutting text into documents, in pieces that are small enough to hold in memory.

A document of usual size is one piece. A longer one comes as several, cut where no tokenizer of this package would join
what stands left and right: after a line end between two characters that are not white space. Encoding the pieces one by
one and joining the ids equals encoding the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

PIECE_CHARACTERS = 1 << 16
# A text with no line end at all is cut somewhere in the end, or it would have to fit in memory.
_LONGEST_PIECE = 64


class Piece(NamedTuple):
    """Some text of a document; `last` ends the document."""

    text: str
    last: bool


def split_documents(
    blocks: Iterable[str], separator: str = "", *, piece_characters: int = PIECE_CHARACTERS
) -> Iterator[Piece]:
    """The documents of one file.

    Args:
        blocks: the file's text, cut anywhere.
        separator: ends a document and belongs to none. Empty: the file is one document. Text after the last separator
            is a document too, unless it is empty.
        piece_characters: a document longer than this may come in several pieces. Only a document of nothing but white
            space never does, so that the first piece tells whether there is any text.
    """
    waiting, begun = "", False
    for block in blocks:
        *complete, waiting = (waiting + block).split(separator) if separator else [waiting + block]
        for text in complete:
            yield Piece(text, last=True)
            begun = False
        # A separator may have begun in the last characters: they stay for the next block.
        while (cut := _place_to_cut(waiting, len(waiting) - max(1, len(separator)), piece_characters)) > 0:
            yield Piece(waiting[:cut], last=False)
            waiting, begun = waiting[cut:], True
    if waiting or begun or not separator:
        yield Piece(waiting, last=True)


def _place_to_cut(text: str, limit: int, piece_characters: int) -> int:
    """Where to cut a text that is too long, or 0: the last good place in the first piece, else the next one."""
    if len(text) <= piece_characters:
        return 0
    first = min(limit, piece_characters)
    place = text.rfind("\n", 0, first) + 1
    while place > 1:
        if _is_good_place(text, place):
            return place
        place = text.rfind("\n", 0, place - 1) + 1
    place = text.find("\n", first, limit) + 1
    while place > 0:
        if _is_good_place(text, place):
            return place
        place = text.find("\n", place, limit) + 1
    too_long = len(text) > _LONGEST_PIECE * piece_characters
    return first if too_long and not text[:first].isspace() else 0


def _is_good_place(text: str, place: int) -> bool:
    return not text[place - 2].isspace() and not text[place].isspace()
