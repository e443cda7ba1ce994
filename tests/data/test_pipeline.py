from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.data import NO_TARGET, BatchIterator, TokenStore, batches, evaluation_batches
from brim.data.rows import Batch, RowLayout
from brim.errors import DataError, SettingsError

Numbered = Callable[..., TokenStore]


def tokens_of(iterator: Iterator[Batch]) -> list[list[int]]:
    """The real tokens of each batch."""
    return [batch["tokens"][batch["documents"] > 0].tolist() for batch in iterator]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return len(one) == len(other) and all(
        a.keys() == b.keys() and all((a[name] == b[name]).all() for name in a) for a, b in zip(one, other, strict=True)
    )


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20).filter(lambda lengths: sum(lengths) >= 24),
    rows=st.integers(1, 4),
    pack=st.booleans(),
    seed=st.integers(0, 5),
)
def test_every_training_token_comes_once_per_epoch(
    numbered: Numbered, lengths: list[int], rows: int, pack: bool, seed: int
) -> None:
    split = numbered(*lengths)
    made = batches(split, rows=rows, length=6, seed=seed, epochs=2, pack=pack, prefetch=1)
    met = tokens_of(made)
    assert len(met) == made.total_steps == 2 * made.steps_per_epoch
    for epoch in (met[: made.steps_per_epoch], met[made.steps_per_epoch :]):
        assert sorted(itertools.chain(*epoch)) == list(range(split.tokens))


def test_da_s3_fewer_rows_than_a_batch_is_an_error_with_both_numbers(numbered: Numbered) -> None:
    split = numbered(100)
    for last in ("drop", "pad"):
        with pytest.raises(DataError, match=r"10 rows .* 32 rows") as caught:
            batches(split, rows=32, length=10, seed=0, epochs=1, pack=True, last=last)  # type: ignore[arg-type]
        assert "train.global_batch" in caught.value.hint
    # Micro-batches of 4, four of them accumulated: what an update needs is 16.
    with pytest.raises(DataError, match=r"10 rows .* 16 rows"):
        batches(split, rows=16, length=10, seed=0, epochs=1, pack=True)
    with pytest.raises(DataError, match=r"has 9 tokens; one row needs 10"):
        batches(numbered(9), rows=1, length=10, seed=0, epochs=1, pack=True)


def test_da_s3_evaluation_is_never_empty(numbered: Numbered) -> None:
    (batch,) = evaluation_batches(numbered(5), rows=32, length=10, pack=True)
    assert np.count_nonzero(batch["targets"] != NO_TARGET) == 4
    empty = TokenStore.from_documents([], vocabulary_size=10, name="held_out")
    for split in (empty, numbered(1, 1, name="held_out")):
        with pytest.raises(DataError, match="held_out split has"):
            evaluation_batches(split, rows=4, length=10, pack=True)


def test_da_s4_the_last_batch_has_the_shape_of_all_others(numbered: Numbered) -> None:
    split = numbered(40_000)
    for last, steps in (("drop", 39), ("pad", 40)):
        made = batches(split, rows=256, length=4, seed=0, epochs=2, pack=True, last=last)  # type: ignore[arg-type]
        found = list(made)
        assert (made.rows_per_epoch, made.steps_per_epoch, len(found)) == (10_000, steps, 2 * steps)
        shapes = {tuple((name, array.shape, array.dtype.str) for name, array in batch.items()) for batch in found}
        assert len(shapes) == 1
        real = [int((batch["documents"] > 0).any(axis=1).sum()) for batch in found]
        assert sum(real) == 2 * (10_000 if last == "pad" else 39 * 256)
        if last == "pad":
            assert real[39] == real[79] == 16
            assert (found[39]["targets"][16:] == NO_TARGET).all()


@pytest.mark.parametrize("prefetch", [0, 1, 4, 16])
def test_da_s5_order_does_not_depend_on_prefetching(numbered: Numbered, prefetch: int) -> None:
    split = numbered(*[2] * 10)
    options: dict[str, Any] = {"rows": 2, "length": 2, "seed": 3, "epochs": 3, "pack": True}
    reference = list(batches(split, prefetch=0, **options))
    found = list(batches(split, prefetch=prefetch, **options))
    assert len(found) == 15
    assert same(found, reference)
    for epoch in range(3):
        assert sorted(itertools.chain(*tokens_of(iter(found[5 * epoch : 5 * epoch + 5])))) == list(range(20))


RESUME = """
import json, sys
from brim.data import TokenStore, batches
import numpy as np
split = TokenStore.from_documents(np.arange(200).reshape(100, 2), vocabulary_size=200)
for line in sys.stdin:
    made = batches(split, rows=1, length=2, seed=42, epochs=1, pack=True)
    made.restore(json.loads(line))
    print(json.dumps([int(batch["tokens"][0, 0]) for batch in made]))
"""


def test_da_s6_another_process_goes_on_exactly_there(numbered: Numbered) -> None:
    split = numbered(*[2] * 100)
    options: dict[str, Any] = {"rows": 1, "length": 2, "seed": 42, "epochs": 1, "pack": True}
    straight = [int(batch["tokens"][0, 0]) for batch in batches(split, **options)]
    assert sorted(straight) == list(range(0, 200, 2))
    assert straight != sorted(straight)
    places, states = (0, 1, 2, 3, 11, 50, 99, 100), []
    for place in places:
        made = batches(split, **options)
        assert [int(next(made)["tokens"][0, 0]) for _ in range(place)] == straight[:place]
        states.append(json.dumps(made.state()))
    done = subprocess.run(
        [sys.executable, "-c", RESUME], input="\n".join(states), capture_output=True, text=True, timeout=120, check=True
    )
    rests = [json.loads(line) for line in done.stdout.splitlines()]
    assert rests == [straight[place:] for place in places]


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(2, 30), min_size=2, max_size=12).filter(lambda lengths: sum(lengths) >= 20),
    pack=st.booleans(),
    sampling=st.sampled_from(["epochs", "random"]),
    last=st.sampled_from(["pad", "drop"]),
    prefetch=st.sampled_from([0, 1, 3]),
)
def test_resuming_at_every_batch_equals_the_straight_run(
    numbered: Numbered, lengths: list[int], pack: bool, sampling: Any, last: Any, prefetch: int
) -> None:
    split = numbered(*lengths)
    options: dict[str, Any] = {"rows": 2, "length": 5, "seed": 9, "epochs": 3, "pack": pack}
    options |= {"sampling": sampling, "last": last}
    straight = batches(split, prefetch=0, **options)
    expected, states = [], [json.loads(json.dumps(straight.state()))]
    for batch in straight:
        expected.append(batch)
        states.append(json.loads(json.dumps(straight.state())))
    for place, state in enumerate(states):
        again = batches(split, prefetch=prefetch, **options)
        again.restore(state)
        assert again.state() == state
        assert again.epoch == place // again.steps_per_epoch
        assert same(list(again), expected[place:])


def test_batches_of_random_rows_are_always_full_and_cut_one_sequence(numbered: Numbered) -> None:
    rows = {}
    for size in (2, 3, 20):
        made = batches(
            numbered(50, 53), rows=size, length=10, seed=0, epochs=None, pack=False, sampling="random", last="drop"
        )
        found = [next(made) for _ in range(60 // size)]
        assert all((batch["documents"] == 1).all() for batch in found)
        rows[size] = np.concatenate([batch["tokens"] for batch in found])
    assert (rows[2] == rows[3]).all()
    assert (rows[2] == rows[20]).all()
    # 60 rows from 93 places with replacement: about 44 different ones.
    assert 30 < len({tuple(row) for row in rows[2].tolist()}) < 58


def test_an_iterator_can_go_back_and_forth(numbered: Numbered) -> None:
    made = batches(numbered(*[5] * 40), rows=2, length=5, seed=0, epochs=None, pack=True)
    assert made.total_steps is None
    begin = made.state()
    first = [next(made) for _ in range(50)]
    later = made.state()
    second = [next(made) for _ in range(5)]
    made.restore(begin)
    assert same([next(made) for _ in range(50)], first)
    made.restore(later)
    assert same([next(made) for _ in range(5)], second)
    assert (made.step, made.epoch) == (55, 2)


def test_the_position_is_what_was_handed_out_not_what_was_made(numbered: Numbered) -> None:
    layout = Recording(numbered(400), 10, True)
    made = BatchIterator(layout, rows=2, epochs=1, prefetch=8)
    next(made)
    wait_for(lambda: len(layout.made) >= 9)
    assert made.state()["batches"] == 1
    made.close()


def test_a_position_of_other_data_or_settings_is_refused(numbered: Numbered) -> None:
    options: dict[str, Any] = {"rows": 2, "length": 5, "seed": 0, "epochs": 2, "pack": True}
    state = batches(numbered(100), **options).state()
    for change in ({"rows": 4}, {"length": 6}, {"seed": 1}, {"pack": False}, {"sampling": "random"}, {"last": "drop"}):
        with pytest.raises(DataError, match=next(iter(change)).replace("sampling", "order")):
            batches(numbered(100), **{**options, **change}).restore(state)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="data"):
        batches(numbered(101), **options).restore(state)
    # More epochs are the same order, only longer.
    batches(numbered(100), **{**options, "epochs": 5}).restore(state)
    with pytest.raises(DataError, match="99"):
        batches(numbered(100), **options).restore({**state, "batches": 99})


class Recording(RowLayout):
    """A layout that notes which batches were made, and raises at a chosen token, as a broken disk would."""

    def __init__(self, split: TokenStore, length: int, pack: bool, bad: int | None = None) -> None:
        super().__init__(split, length, pack)
        self.made: list[int] = []
        self._bad = bad

    def batch(self, epoch: int, first: int, rows: int) -> Batch:
        batch = super().batch(epoch, first, rows)
        if self._bad is not None and (batch["tokens"][batch["documents"] > 0] == self._bad).any():
            raise ValueError(f"bad {self._bad}")
        self.made.append(first // rows)
        return batch


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.005)
    raise AssertionError("did not happen within 5 s")


def prefetch_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "prefetch" in thread.name]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 8])
@pytest.mark.parametrize(("bad", "good_batches"), [(10, 2), (0, 0), (19, 4)])
def test_da_s9_an_error_in_the_thread_is_raised_at_its_batch(
    numbered: Numbered, prefetch: int, bad: int, good_batches: int
) -> None:
    made = BatchIterator(Recording(numbered(20), 2, True, bad), rows=2, epochs=1, prefetch=prefetch)
    begin = time.monotonic()
    met = [next(made)["tokens"].ravel().tolist() for _ in range(good_batches)]
    assert met == [[4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3] for i in range(good_batches)]
    for _ in range(2):
        with pytest.raises(ValueError, match=f"bad {bad}") as caught:
            next(made)
    assert caught.value.__notes__[-1] == f"while making batch {good_batches} (epoch 0)"
    assert made.step == good_batches
    assert time.monotonic() - begin < 10
    wait_for(lambda: not prefetch_threads())


def test_threads_end_when_the_iterator_is_closed_dropped_or_done(numbered: Numbered) -> None:
    wait_for(lambda: not prefetch_threads())
    made = batches(numbered(100), rows=1, length=5, seed=0, epochs=None, pack=True)
    next(made)
    assert len(prefetch_threads()) == 1
    made.close()
    made.close()
    assert not prefetch_threads()
    with pytest.raises(DataError, match="closed"):
        next(made)
    with pytest.raises(DataError, match="closed"):
        made.restore(made.state())
    made = batches(numbered(100), rows=1, length=5, seed=0, epochs=None, pack=True)
    next(made)
    del made
    wait_for(lambda: not prefetch_threads())
    made = batches(numbered(100), rows=1, length=5, seed=0, epochs=1, pack=True)
    assert len(list(made)) == 20
    assert list(made) == []
    assert not prefetch_threads()
    limited = evaluation_batches(numbered(100), rows=1, length=5, pack=True, most_rows=2)
    assert len(list(limited)) == 2
    assert not prefetch_threads()


def test_a_program_that_stops_in_the_middle_says_nothing() -> None:
    program = """
import numpy as np
from brim.data import TokenStore, batches
split = TokenStore.from_documents([range(500)], vocabulary_size=500)
made = batches(split, rows=1, length=5, seed=0, epochs=None, pack=True)
next(made)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_evaluation_goes_through_once_in_stored_order(numbered: Numbered) -> None:
    split = numbered(10, 13, name="held_out")
    made = evaluation_batches(split, rows=2, length=5, pack=True)
    found = list(made)
    assert list(itertools.chain(*tokens_of(iter(found)))) == list(range(23))
    assert {batch["tokens"].shape for batch in found} == {(2, 5)}
    assert (found[2]["documents"][1] == 0).all()
    limited = list(evaluation_batches(split, rows=2, length=5, pack=True, most_rows=4))
    assert same(limited, found[:2])
    assert len(list(evaluation_batches(split, rows=2, length=5, pack=True, most_rows=9))) == 3


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
def test_lg_s3_as_many_rows_are_evaluated_whatever_the_batch(numbered: Numbered, rows: int) -> None:
    split = numbered(40, name="held_out")
    found = evaluation_batches(split, rows=rows, length=5, pack=True, most_rows=3)
    assert list(itertools.chain(*tokens_of(found))) == list(range(15))


def test_no_rows_to_evaluate_are_refused(numbered: Numbered) -> None:
    with pytest.raises(SettingsError, match="most_rows"):
        evaluation_batches(numbered(40), rows=1, length=5, pack=True, most_rows=0)


def test_figures_of_an_epoch(numbered: Numbered) -> None:
    made = batches(numbered(103), rows=2, length=10, seed=0, epochs=3, pack=True)
    assert (made.rows_per_epoch, made.steps_per_epoch, made.tokens_per_epoch, made.total_steps) == (11, 6, 103, 18)
    dropped = batches(numbered(103), rows=2, length=10, seed=0, epochs=3, pack=True, last="drop")
    assert (dropped.steps_per_epoch, dropped.tokens_per_epoch) == (5, 100)
    drawn = batches(numbered(103), rows=20, length=10, seed=0, epochs=3, pack=True, sampling="random")
    assert (drawn.steps_per_epoch, drawn.total_steps) == (1, 3)


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"epochs": 0}, {"prefetch": -1}, {"length": 1}])
def test_numbers_out_of_range_are_named(numbered: Numbered, wrong: dict[str, int]) -> None:
    options: dict[str, Any] = {"rows": 2, "length": 5, "seed": 0, "epochs": 2, "pack": True}
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        batches(numbered(100), **{**options, **wrong})
