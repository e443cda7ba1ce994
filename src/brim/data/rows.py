"""Which tokens stand in which row: a pure function of (split, length, seed, epoch, row number).

Packing is "concatenate, then split": the documents of an epoch are put in a new random order, joined, and cut every
`length` tokens. Every row is full but the last, every token stands in exactly one row of an epoch, and any row can be
made alone, so a run resumes from a number and nothing has to be replayed.

A document that does not end with its row goes on in another one. There it counts as a document of its own: attention
does not see the earlier piece and its positions start at 0 again. Only the target of the row's last token looks across:
it is the first token of the piece that follows.

Without packing the rows are windows of the stream in the order of the store, and attention crosses documents.

Random sampling draws the start of each row uniformly from the places where a row and its last target fit, which is what
nanoGPT does; row number n has its own random number, so its order too is known without being replayed.

Legend: the `stream` of an epoch is its documents joined in their order. `bounds` are the places in the stream where
documents begin, and its end; `origins` are the places in the store where the same documents begin.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int32, Int64

from brim.data.counter import permutation, random_bits
from brim.data.settings import SHORTEST_ROW
from brim.data.store import TokenStore
from brim.errors import DataError
from brim.settings import require

NO_TARGET = -100
_DOCUMENTS, _ROWS, _STARTS = 2, 3, 4

Order = Literal["stored", "shuffled", "random"]
Batch = dict[str, Int32[np.ndarray, "rows length"]]


class _Stream(NamedTuple):
    bounds: Int64[np.ndarray, "documents+1"]
    origins: Int64[np.ndarray, "documents"]


class RowLayout:
    """The rows of a split.

    Args:
        split: the tokens.
        length: tokens in a row, at least 2.
        pack: keep documents apart in a row; if false, each row is one window of the stream.
        order: documents as `stored`, `shuffled` anew each epoch, or rows at `random` places.
        seed: of the order.
        most_rows: rows after this many, in stored order, are left out; None: no row is.

    Raises:
        SettingsError: if a row is too short to have a target.
    """

    def __init__(
        self,
        split: TokenStore,
        length: int,
        pack: bool,
        order: Order = "stored",
        seed: int = 0,
        most_rows: int | None = None,
    ) -> None:
        require(length >= SHORTEST_ROW, "length", length, f"rows of at least {SHORTEST_ROW} tokens, one to predict")
        self.split = split
        self.length = length
        self.pack = pack
        self.order = order
        self.seed = seed
        self.most_rows = most_rows
        # The last batches of one epoch and the first of the next may be asked for in turn: two of each are kept.
        self._stream = lru_cache(maxsize=2)(self._make_stream)
        self._row_order = lru_cache(maxsize=2)(self._make_row_order)

    @property
    def rows_per_epoch(self) -> int:
        """Rows that hold every token once; for random places, as many as hold that many tokens."""
        if self.order == "random":
            return max(1, self.split.tokens // self.length)
        rows = -(-self.split.tokens // self.length)
        return rows if self.most_rows is None else min(self.most_rows, rows)

    def require_one_row(self) -> None:
        """Check that the split fills at least one row.

        Raises:
            DataError: naming both numbers.
        """
        needed = self.length + (self.order == "random")
        if self.split.tokens < needed:
            what = "the training split" if self.split.name == "train" else f"the {self.split.name} split"
            raise DataError(
                f"{what} has {self.split.tokens} tokens; one row needs {needed}",
                hint="add text, or shorten the rows (the model's context)",
            )

    def batch(self, epoch: int, first: int, rows: int) -> Batch:
        """Rows of an epoch, in its order, followed by empty rows where the epoch has no more.

        Args:
            epoch: from 0.
            first: place of the first row in the order of the epoch, below `rows_per_epoch` (rows at random places
                never run out: there it may be any number).
            rows: rows of the batch.

        Returns:
            int32 arrays of shape [rows, length]: `tokens`; `targets` (the next token; -100 where there is none);
            `documents` (1, 2, ... in each row; 0 for padding); `positions` (from 0 in each document of a row).
        """
        if self.order == "random":
            starts, ends = self._random_extents(np.arange(first, first + rows) + epoch * self.rows_per_epoch)
        else:
            place = np.arange(first, min(first + rows, self.rows_per_epoch))
            starts, ends = self._extents(self._row_order(epoch)[place] if self.order == "shuffled" else place)
        return _assemble(self.split.ids, self._stream_of(epoch), starts, ends, rows, self.length)

    def _extents(self, row: Int64[np.ndarray, "n"]) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
        """Where rows begin and end in the stream."""
        tokens = self.split.tokens
        starts, ends = row * self.length, np.minimum((row + 1) * self.length, tokens)
        if tokens % self.length == 1 and tokens > self.length:
            # One token alone in the last row would have no target there: it takes its neighbour with it.
            lone = tokens - 1
            starts, ends = starts - (starts == lone), ends - (ends == lone)
        return starts, ends

    def _random_extents(self, number: Int64[np.ndarray, "n"]) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "n"]]:
        places = np.uint64(self.split.tokens - self.length)
        starts = (random_bits(self.seed, _stream_number(_STARTS), number) % places).astype(np.int64)
        return starts, starts + self.length

    def _stream_of(self, epoch: int) -> _Stream:
        # Only a shuffle of documents makes the streams of two epochs differ.
        return self._stream(epoch if self.order == "shuffled" and self.pack else 0)

    def _make_row_order(self, epoch: int) -> Int64[np.ndarray, "rows"]:
        return permutation(self.seed, _stream_number(_ROWS, epoch), self.rows_per_epoch)

    def _make_stream(self, epoch: int) -> _Stream:
        zero = np.zeros(1, dtype=np.int64)
        if not self.pack:
            return _Stream(np.array([0, self.split.tokens]), zero)
        bounds = np.concatenate([zero, self.split.document_ends])
        if self.order != "shuffled":
            return _Stream(bounds, bounds[:-1])
        chosen = permutation(self.seed, _stream_number(_DOCUMENTS, epoch), self.split.documents)
        lengths = np.diff(bounds)[chosen]
        return _Stream(np.concatenate([zero, np.cumsum(lengths)]), bounds[:-1][chosen])


def _stream_number(use: int, epoch: int = 0) -> int:
    """Which stream of random numbers: no use and no epoch shares one with another."""
    return use + (epoch << 8)


def _assemble(
    ids: np.ndarray,
    stream: _Stream,
    starts: Int64[np.ndarray, "n"],
    ends: Int64[np.ndarray, "n"],
    rows: int,
    length: int,
) -> Batch:
    """Gather rows from the store, all documents of all rows at once."""
    bounds, origins = stream
    first = np.searchsorted(bounds, starts, side="right") - 1
    counts = np.searchsorted(bounds, ends, side="left") - first
    # One entry for each document of each row: a segment.
    row = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(len(row)) - (np.cumsum(counts) - counts)[row]
    document = first[row] + within
    begin = np.maximum(bounds[document], starts[row])
    end = np.minimum(bounds[document + 1], ends[row])
    sizes = end - begin
    stops = np.cumsum(sizes)
    origin = origins[document] + begin - bounds[document]
    # One entry for each token.
    count = np.arange(stops[-1], dtype=np.int32)
    positions = count - np.repeat((stops - sizes).astype(np.int32), sizes)
    tokens = ids[np.repeat(origin, sizes) + positions].astype(np.int32)
    targets = np.append(tokens[1:], np.int32(NO_TARGET))
    following = ids[np.minimum(origin + sizes, len(ids) - 1)].astype(np.int32)
    targets[stops - 1] = np.where(end < bounds[document + 1], following, np.int32(NO_TARGET))
    documents = np.repeat((within + 1).astype(np.int32), sizes)
    batch = {"tokens": tokens, "targets": targets, "documents": documents, "positions": positions}
    if len(tokens) == rows * length:
        return {name: values.reshape(rows, length) for name, values in batch.items()}
    cells = np.repeat(row * length + begin - starts[row], sizes) + positions
    return {name: _filled(values, cells, rows, length, name) for name, values in batch.items()}


def _filled(
    values: Int32[np.ndarray, "total"], cells: Int64[np.ndarray, "total"], rows: int, length: int, name: str
) -> Int32[np.ndarray, "rows length"]:
    """Put values into their cells, and padding into the others."""
    filled = np.full(rows * length, NO_TARGET if name == "targets" else 0, dtype=np.int32)
    filled[cells] = values
    return filled.reshape(rows, length)
