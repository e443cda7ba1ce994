"""Batches for training and evaluation: a Grain pipeline over batch numbers.

    batch numbers -> gather whole batches (rows.py) -> repeat -> prefetch on a thread

Any batch can be made from its number alone, which is what makes the position one number. Order and packing are computed
for whole batches, since Grain's own shuffle and batch take longer for a row than gathering it does.
There are no reading threads either: for rows of a memory-mapped file they are three times slower than none.

Every batch has the same shapes. The last one of an epoch is filled with empty rows (`last = "pad"`: no token is lost)
or left out (`last = "drop"`: at most rows - 1 rows of each epoch, others in each).

The position of an iterator is the number of batches it has handed out. What was prefetched beyond that does not count.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any, Literal

import grain

from brim.data.rows import Batch, RowLayout
from brim.data.store import TokenStore
from brim.errors import DataError
from brim.settings import require


def batches(
    split: TokenStore,
    *,
    rows: int,
    length: int,
    seed: int,
    epochs: int | None,
    pack: bool,
    sampling: Literal["epochs", "random"] = "epochs",
    last: Literal["pad", "drop"] = "pad",
    prefetch: int = 2,
) -> BatchIterator:
    """Training batches.

    Args:
        split: the tokens, usually `corpus.train`.
        rows: rows of a batch.
        length: tokens of a row.
        seed: of the order of documents and rows; equal seeds give equal batches.
        epochs: how often to go through the split; None goes on for ever.
        pack: keep documents apart in a row (see rows.py).
        sampling: `epochs`, every token once per epoch; `random`, rows at places drawn with replacement.
        last: what happens to the short last batch of an epoch.
        prefetch: batches made ahead on a thread; 0 makes each when it is asked for.

    Raises:
        DataError: if the split has fewer tokens than one row, or fewer rows than one batch.
        SettingsError: if a number is out of range.
    """
    order: Literal["shuffled", "random"] = "random" if sampling == "random" else "shuffled"
    layout = RowLayout(split, length, pack, order, seed)
    layout.require_one_row()
    if sampling == "epochs" and layout.rows_per_epoch < rows:
        raise DataError(
            f"the training split makes {layout.rows_per_epoch} rows of {length} tokens; one batch needs {rows} rows",
            hint=f"set train.global_batch to at most {layout.rows_per_epoch}, shorten the rows, or add text",
        )
    return BatchIterator(layout, rows=rows, epochs=epochs, last=last, prefetch=prefetch)


def evaluation_batches(
    split: TokenStore, *, rows: int, length: int, pack: bool, most_rows: int | None = None, prefetch: int = 2
) -> BatchIterator:
    """The rows of a split in stored order, once; the last batch is filled with empty rows.

    Args:
        split: the tokens, usually `corpus.held_out`. A split that is shorter than a row makes one padded row.
        rows, length, pack, prefetch: as for `batches`.
        most_rows: at most this many rows, from the start, whatever the rows of a batch; None: all of them.

    Raises:
        DataError: if the split has no token to predict.
        SettingsError: if a number is out of range.
    """
    require(most_rows is None or most_rows >= 1, "most_rows", most_rows, "at least 1, or none for all")
    layout = RowLayout(split, length, pack, most_rows=most_rows)
    if split.tokens - (split.documents if pack else 1) < 1:
        raise DataError(
            f"the {split.name} split has {split.tokens} tokens in {split.documents} documents: nothing to evaluate",
            hint="set data.held_out above 0, or turn evaluation off",
        )
    return BatchIterator(layout, rows=rows, epochs=1, last="pad", prefetch=prefetch)


class BatchIterator:
    """Yields batches, knows where it is, and can be put there again.

    Args:
        layout: makes the rows.
        rows: rows of a batch.
        epochs: passes over the layout; None for endless.
        last: `pad` or `drop` the short last batch of an epoch.
        prefetch: batches made ahead on a thread.

    An exception while a batch is made is raised by the `next` that would have returned it, and by every later one.
    """

    def __init__(
        self,
        layout: RowLayout,
        *,
        rows: int,
        epochs: int | None,
        last: Literal["pad", "drop"] = "pad",
        prefetch: int = 2,
    ) -> None:
        require(rows >= 1, "rows", rows, "at least 1")
        require(epochs is None or epochs >= 1, "epochs", epochs, "at least 1, or none for endless")
        require(prefetch >= 0, "prefetch", prefetch, "at least 0")
        self.rows_per_epoch = layout.rows_per_epoch
        self.steps_per_epoch = _steps_per_epoch(layout, rows, last)
        self.tokens_per_epoch = min(layout.split.tokens, self.steps_per_epoch * rows * layout.length)
        self.total_steps = None if epochs is None else epochs * self.steps_per_epoch
        self._identity = _identity(layout, rows, last)
        self._handed_out = 0
        self._failure: Exception | None = None
        every_batch = _Batches(layout, rows, self.steps_per_epoch).repeat(epochs)
        made = every_batch.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
        if prefetch:
            made = grain.experimental.ThreadPrefetchIterDataset(made, prefetch_buffer_size=prefetch)
        # Grain's iterators complain when they go away after its modules at exit. This one goes before: the finalizer
        # stops the thread and lets it go when it is closed, when this object is dropped, or when the program ends.
        self._iterators = [iter(made)]
        self._finalizer = weakref.finalize(self, _let_go, self._iterators)

    def __iter__(self) -> BatchIterator:
        return self

    def __next__(self) -> Batch:
        """The next batch.

        Raises:
            StopIteration: after the last one.
            DataError: if the iterator is closed.
            Exception: whatever went wrong while the batch was made.
        """
        if self._failure is not None:
            raise self._failure
        if self._handed_out == self.total_steps:
            self._move_to(self._handed_out)
            raise StopIteration
        if not self._iterators:
            raise _closed()
        try:
            batch = next(self._iterators[0])
        except Exception as error:
            error.add_note(f"while making batch {self._handed_out} (epoch {self.epoch})")
            self._failure = error
            self.close()
            raise
        self._handed_out += 1
        return batch

    @property
    def step(self) -> int:
        """Batches handed out so far."""
        return self._handed_out

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._handed_out // self.steps_per_epoch

    def state(self) -> dict[str, Any]:
        """The position, as plain JSON: the batches handed out, and what order they are counted in."""
        return {"batches": self._handed_out, **self._identity}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a position saved by `state`, of this iterator or of an equal one in another process.

        Raises:
            DataError: if the position was saved with other data or settings, and would mean another place here.
        """
        changed = [key for key, value in self._identity.items() if state.get(key) != value]
        if changed:
            shown = ", ".join(f"{key} {state.get(key)} (now {self._identity[key]})" for key in changed)
            raise DataError(
                f"the saved data position belongs to other data or settings: {shown}",
                hint="resume with the settings and the token store of the run, or start a new run",
            )
        step = int(state["batches"])
        if step < 0 or (self.total_steps is not None and step > self.total_steps):
            raise DataError(f"the saved data position is batch {step}; there are {self.total_steps} batches")
        if not self._iterators:
            raise _closed()
        self._move_to(step)

    def _move_to(self, step: int) -> None:
        """Also ends the thread, until it is needed again, and lets go of what it has made."""
        for iterator in self._iterators:
            grain.experimental.set_next_index(iterator, step)
        self._handed_out = step

    def close(self) -> None:
        """Stop the thread. Closing twice does no harm."""
        self._finalizer()


class _Batches(grain.MapDataset[Batch]):  # type: ignore[misc]  # Grain has no types
    """All batches of an epoch; numbers beyond it lie in later epochs."""

    def __init__(self, layout: RowLayout, rows: int, count: int) -> None:
        super().__init__()
        self._layout = layout
        self._rows = rows
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        epoch, place = (0, index) if self._layout.order == "random" else divmod(index, self._count)
        return self._layout.batch(epoch, place * self._rows, self._rows)


def _steps_per_epoch(layout: RowLayout, rows: int, last: str) -> int:
    if layout.order == "random":
        # Rows never run out, so every batch is full and an epoch is only a measure.
        return max(1, layout.rows_per_epoch // rows)
    return layout.rows_per_epoch // rows if last == "drop" else -(-layout.rows_per_epoch // rows)


def _let_go(iterators: list[Any]) -> None:
    while iterators:
        iterators.pop().close()


def _closed() -> DataError:
    return DataError("this batch iterator is closed", hint="make a new one and restore its state")


def _identity(layout: RowLayout, rows: int, last: str) -> dict[str, Any]:
    return {
        "data": layout.split.sha256,
        "rows": rows,
        "length": layout.length,
        "seed": layout.seed,
        "pack": layout.pack,
        "order": layout.order,
        "last": last,
    }
