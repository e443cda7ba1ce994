from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.data import NO_TARGET, TokenStore
from brim.data.rows import Batch, Order, RowLayout
from brim.errors import DataError, SettingsError

Numbered = Callable[..., TokenStore]
ANY_LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=25)


def epoch_of(layout: RowLayout, epoch: int = 0, rows: int = 4) -> list[Batch]:
    return [layout.batch(epoch, first, rows) for first in range(0, layout.rows_per_epoch, rows)]


def check_row(row: dict[str, np.ndarray], ends: set[int], pack: bool) -> None:
    """The contract of one row, for ids that count up through the stored documents; `ends` are the last ids of each."""
    size = int(np.count_nonzero(row["documents"]))
    assert (row["documents"][size:] == 0).all()
    assert (row["tokens"][size:] == 0).all()
    assert (row["positions"][size:] == 0).all()
    assert (row["targets"][size:] == NO_TARGET).all()
    document, position, previous = 0, -1, None
    for i in range(size):
        token = int(row["tokens"][i])
        follows = previous is not None and token == previous + 1 and previous not in ends
        document, position = (document, position + 1) if follows else (document + 1, 0)
        assert row["documents"][i] == document
        assert row["positions"][i] == position
        assert row["targets"][i] == (NO_TARGET if token in ends else token + 1)
        previous = token
    if not pack:
        assert document <= 1


def check_epoch(layout: RowLayout, batches: list[Batch], ends: set[int]) -> np.ndarray:
    """All rows of an epoch keep the contract; returns the tokens in the order in which they are met."""
    for batch in batches:
        assert {name: (array.shape, array.dtype) for name, array in batch.items()} == {
            name: ((4, layout.length), np.dtype(np.int32)) for name in ("tokens", "targets", "documents", "positions")
        }
        for i in range(4):
            check_row({name: array[i] for name, array in batch.items()}, ends, layout.pack)
    return np.concatenate([batch["tokens"][batch["documents"] > 0] for batch in batches])


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=ANY_LENGTHS,
    length=st.integers(2, 12),
    seed=st.integers(0, 2**64),
    epoch=st.integers(0, 5),
    pack=st.booleans(),
    order=st.sampled_from(["stored", "shuffled"]),
)
def test_every_token_stands_in_one_row_of_each_epoch(
    numbered: Numbered, lengths: list[int], length: int, seed: int, epoch: int, pack: bool, order: Order
) -> None:
    split = numbered(*lengths)
    layout = RowLayout(split, length, pack, order, seed)
    ends = set((split.document_ends - 1).tolist()) if pack else {split.tokens - 1}
    tokens = check_epoch(layout, epoch_of(layout, epoch), ends)
    assert sorted(tokens.tolist()) == list(range(split.tokens))
    # Full rows but the last: padding is less than one row, beside the one token that the last row may take along.
    assert layout.rows_per_epoch == -(-split.tokens // length)
    if order == "stored":
        assert tokens.tolist() == list(range(split.tokens))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(2, 9), min_size=1, max_size=20), length=st.integers(3, 9), seed=st.integers(0, 99))
def test_da_s12_every_row_has_a_target(numbered: Numbered, lengths: list[int], length: int, seed: int) -> None:
    split = numbered(*lengths)
    layout = RowLayout(split, length, True, "shuffled", seed)
    for batch in epoch_of(layout, rows=1):
        assert (batch["targets"] != NO_TARGET).any()


def test_a_worked_example(numbered: Numbered) -> None:
    layout = RowLayout(numbered(3, 1, 6), 4, True)
    batch = layout.batch(0, 0, 3)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert batch["targets"].tolist() == [[1, 2, -100, -100], [5, 6, 7, 8], [9, -100, -100, -100]]
    assert batch["documents"].tolist() == [[1, 1, 1, 2], [1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["positions"].tolist() == [[0, 1, 2, 0], [0, 1, 2, 3], [0, 1, 0, 0]]
    plain = RowLayout(numbered(3, 1, 6), 4, False).batch(0, 0, 3)
    assert plain["targets"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, -100, -100, -100]]
    assert plain["documents"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0]]


def test_a_lone_last_token_takes_its_neighbour_along(numbered: Numbered) -> None:
    batch = RowLayout(numbered(9), 4, True).batch(0, 0, 3)
    assert batch["tokens"].tolist() == [[0, 1, 2, 3], [4, 5, 6, 0], [7, 8, 0, 0]]
    assert batch["targets"].tolist() == [[1, 2, 3, 4], [5, 6, 7, -100], [8, -100, -100, -100]]


def test_rows_beyond_the_epoch_are_empty(numbered: Numbered) -> None:
    batch = RowLayout(numbered(8), 4, True).batch(0, 0, 4)
    assert (batch["documents"][2:] == 0).all()
    assert (batch["targets"][2:] == NO_TARGET).all()


def test_epochs_and_seeds_give_other_orders_of_documents_and_rows(numbered: Numbered) -> None:
    split = numbered(*[7] * 200)
    orders = [
        np.concatenate([b["tokens"].ravel() for b in epoch_of(RowLayout(split, 10, True, "shuffled", seed), epoch)])
        for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))
    ]
    for i, order in enumerate(orders):
        assert sorted(order.tolist()) == list(range(1400))
        for other in orders[:i]:
            # Two unrelated orders of 1400 tokens share a place now and then; 100 is far beyond chance.
            assert np.count_nonzero(order == other) < 100


def test_each_epoch_and_seed_packs_other_documents_together(numbered: Numbered) -> None:
    def rows_as_sets(seed: int, epoch: int) -> set[tuple[int, ...]]:
        layout = RowLayout(numbered(*[3] * 200), 6, True, "shuffled", seed)
        return {tuple(row) for batch in epoch_of(layout, epoch) for row in batch["tokens"].tolist()}

    reference = rows_as_sets(0, 0)
    assert rows_as_sets(0, 0) == reference
    # 100 rows of two documents each; two unrelated packings share less than one row on average.
    for other in (rows_as_sets(0, 1), rows_as_sets(1, 0)):
        assert len(reference & other) < 8


def test_each_epoch_and_seed_shuffles_the_rows_of_one_document(numbered: Numbered) -> None:
    def firsts(seed: int, epoch: int) -> list[int]:
        layout = RowLayout(numbered(1000), 10, False, "shuffled", seed)
        return np.concatenate([batch["tokens"][:, 0] for batch in epoch_of(layout, epoch)]).tolist()

    reference = firsts(0, 0)
    assert firsts(0, 0) == reference
    for other in (firsts(0, 1), firsts(1, 0)):
        assert sorted(other) == sorted(reference)
        assert sum(a == b for a, b in zip(reference, other, strict=True)) < 10


def test_pieces_of_a_long_document_are_spread_over_the_epoch(numbered: Numbered) -> None:
    layout = RowLayout(numbered(1000), 10, True, "shuffled", 3)
    firsts = np.concatenate([b["tokens"][:, 0] for b in epoch_of(layout)])
    assert sorted(firsts.tolist()) == list(range(0, 1000, 10))
    assert np.count_nonzero(np.diff(firsts) == 10) < 10


def test_random_rows_are_windows_drawn_uniformly(numbered: Numbered) -> None:
    split = numbered(30)
    layout = RowLayout(split, 10, False, "random", 5)
    starts = []
    for epoch in range(2000):
        for batch in epoch_of(layout, epoch, rows=3):
            start = batch["tokens"][:, 0]
            starts.append(start)
            assert (batch["tokens"] == start[:, None] + np.arange(10)).all()
            assert (batch["targets"] == batch["tokens"] + 1).all()
            assert (batch["documents"] == 1).all()
    counts = np.bincount(np.concatenate(starts), minlength=20)
    # As in nanoGPT, a row may start anywhere from 0 to tokens - length - 1: 20 places, 300 expected, deviation 17.
    assert len(counts) == 20
    assert np.abs(counts - 300).max() < 85


def test_random_rows_do_not_depend_on_the_size_of_the_batch(numbered: Numbered) -> None:
    layout = RowLayout(numbered(240), 10, False, "random", 5)
    by_one = np.concatenate([layout.batch(1, i, 1)["tokens"] for i in range(24)])
    by_six = np.concatenate([layout.batch(1, i, 6)["tokens"] for i in range(0, 24, 6)])
    assert (by_one == by_six).all()


def test_random_rows_keep_documents_apart_when_packed(numbered: Numbered) -> None:
    split = numbered(7, 13, 4, 26)
    layout = RowLayout(split, 10, True, "random", 1)
    ends = set((split.document_ends - 1).tolist())
    for batch in epoch_of(layout):
        for i in range(4):
            check_row({name: array[i] for name, array in batch.items()}, ends, True)
    assert max(batch["documents"].max() for batch in epoch_of(layout)) > 1


def test_fewer_tokens_than_one_row_is_an_error_with_both_numbers(numbered: Numbered) -> None:
    RowLayout(numbered(10), 10, True).require_one_row()
    with pytest.raises(DataError, match=r"training split has 9 tokens; one row needs 10"):
        RowLayout(numbered(9), 10, True).require_one_row()
    with pytest.raises(DataError, match=r"has 10 tokens; one row needs 11"):
        RowLayout(numbered(10), 10, False, "random").require_one_row()
    with pytest.raises(SettingsError, match="length"):
        RowLayout(numbered(10), 1, True)
