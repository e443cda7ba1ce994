from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.data import TokenStore
from brim.data.store import TokenWriter, token_dtype
from brim.errors import DataError


def written(folder: Path, ids: list[int], vocabulary_size: int, end: int | None = None) -> dict[str, Any]:
    with TokenWriter(folder, "train", vocabulary_size=vocabulary_size, end_of_document=end) as writer:
        writer.write([np.array(ids)], np.array([True]))
        return writer.finish()


def test_da_s7_ids_above_16_bits_come_back_equal(tmp_path: Path) -> None:
    facts = written(tmp_path, [70000, 128_000 - 1, 0], 128_000)
    store = TokenStore.open(tmp_path, "train", facts, vocabulary_size=128_000)
    assert store.ids.tolist() == [70000, 127_999, 0]
    assert (store.ids.dtype, facts["dtype"]) == (np.dtype("<u4"), "<u4")
    raw = (tmp_path / "train.tokens").read_bytes()
    assert raw[:4] == (70000).to_bytes(4, "little")


def test_da_s7_the_width_follows_the_vocabulary(tmp_path: Path) -> None:
    assert token_dtype(65_536) == np.dtype("<u2")
    assert token_dtype(65_537) == np.dtype("<u4")
    facts = written(tmp_path, [65_535, 1], 65_536)
    assert TokenStore.open(tmp_path, "train", facts, vocabulary_size=65_536).ids.tolist() == [65_535, 1]
    assert (tmp_path / "train.tokens").read_bytes() == b"\xff\xff\x01\x00"


def test_da_s7_another_vocabulary_size_is_an_error(tmp_path: Path) -> None:
    facts = written(tmp_path, [1, 2], 100)
    with pytest.raises(DataError, match=r"100 ids.*101"):
        TokenStore.open(tmp_path, "train", facts, vocabulary_size=101)


def test_da_s7_ids_are_checked_when_written_and_when_opened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"128000.*0 to 127999"):
        written(tmp_path, [128_000], 128_000)
    facts = written(tmp_path, [5, 6], 100)
    (tmp_path / "train.tokens").write_bytes(np.array([5, 100], "<u2").tobytes())
    with pytest.raises(DataError, match=r"token id 100.*0 to 99"):
        TokenStore.open(tmp_path, "train", facts, vocabulary_size=100)


@pytest.mark.parametrize(("ids", "named"), [([100, 101, 102], "102"), ([1, -1], "-1"), ([0, 32], "32")])
def test_da_s11_ids_outside_the_vocabulary_are_refused(ids: list[int], named: str) -> None:
    with pytest.raises(DataError, match=rf"{named}; a vocabulary of 32"):
        TokenStore.from_documents([ids], vocabulary_size=32)


def test_da_s11_ids_must_be_whole_numbers() -> None:
    for wrong in (np.array([1.0, 2.0], np.float32), np.array([True, False])):
        with pytest.raises(DataError, match=f"{wrong.dtype}"):
            TokenStore.from_documents([wrong], vocabulary_size=32)


def test_da_s11_a_model_with_fewer_ids_is_refused() -> None:
    store = TokenStore.from_documents([[1, 2]], vocabulary_size=32)
    store.require_vocabulary(32)
    store.require_vocabulary(64)
    with pytest.raises(DataError, match=r"32 ids.*model has 31"):
        store.require_vocabulary(31)


def test_documents_in_pieces_end_where_they_end(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", vocabulary_size=10, end_of_document=9) as writer:
        writer.write([np.array([1, 2]), np.array([3]), np.array([4])], np.array([True, False, False]))
        writer.write([np.array([5]), np.array([6])], np.array([True, True]))
        writer.write([], np.array([], dtype=bool))
        facts = writer.finish()
    store = TokenStore.open(tmp_path, "train", facts, vocabulary_size=10)
    assert store.ids.tolist() == [1, 2, 9, 3, 4, 5, 9, 6, 9]
    assert store.document_ends.tolist() == [3, 7, 9]
    assert (store.tokens, store.documents, store.end_of_document) == (9, 3, 9)
    same = TokenStore.from_documents([[1, 2, 9], [3, 4, 5, 9], [6, 9]], vocabulary_size=10)
    assert same.sha256 == store.sha256
    other = TokenStore.from_documents([[1, 2, 9, 3], [4, 5, 9], [6, 9]], vocabulary_size=10)
    assert other.sha256 != store.sha256


@pytest.mark.parametrize(
    ("at", "kept", "moved"),
    [
        (3, ([0, 1, 2], [3]), ([3, 4, 5, 6], [2, 4])),
        (4, ([0, 1, 2, 3], [3, 4]), ([4, 5, 6], [1, 3])),
        (7, ([0, 1, 2, 3, 4, 5, 6], [3, 5, 7]), ([], [])),
        (0, ([], []), ([0, 1, 2, 3, 4, 5, 6], [3, 5, 7])),
    ],
)
def test_a_stream_is_cut_in_two(
    tmp_path: Path, at: int, kept: tuple[list[int], list[int]], moved: tuple[list[int], list[int]]
) -> None:
    with (
        TokenWriter(tmp_path, "train", vocabulary_size=10, end_of_document=None) as train,
        TokenWriter(tmp_path, "held_out", vocabulary_size=10, end_of_document=None) as held_out,
    ):
        train.write([np.array([0, 1, 2]), np.array([3, 4]), np.array([5, 6])], np.array([True, True, True]))
        train.cut(held_out, at)
        facts = {"train": train.finish(), "held_out": held_out.finish()}
    for name, (ids, ends) in (("train", kept), ("held_out", moved)):
        store = TokenStore.open(tmp_path, name, facts[name], vocabulary_size=10)
        assert (store.ids.tolist(), store.document_ends.tolist()) == (ids, ends)


def test_damaged_files_are_noticed(tmp_path: Path) -> None:
    facts = written(tmp_path, [1, 2, 3], 10)
    path = tmp_path / "train.tokens"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"5 bytes; 3 entries of 2 bytes"):
        TokenStore.open(tmp_path, "train", facts, vocabulary_size=10)
    facts = written(tmp_path, [1, 2, 3], 10)
    (tmp_path / "train.documents").write_bytes(np.array([2], "<i8").tobytes())
    with pytest.raises(DataError, match="do not fit 3 tokens"):
        TokenStore.open(tmp_path, "train", facts, vocabulary_size=10)
    path.unlink()
    with pytest.raises(DataError, match=r"train\.tokens"):
        TokenStore.open(tmp_path, "train", facts, vocabulary_size=10)


def test_an_empty_document_is_refused() -> None:
    with pytest.raises(DataError, match="must end after"):
        TokenStore.from_documents([[1], [], [2]], vocabulary_size=10)
