"""What a search may be asked."""

from __future__ import annotations

import pytest

from brim.errors import SettingsError, TechniqueError
from brim.planner.question import Question, divisors_of
from brim.techniques import Accumulation
from planner.stacked import CPU


def test_the_micro_batch_is_settled_by_what_is_given_or_by_accumulation() -> None:
    assert Question(CPU, 1, 12).settled_micro_batch is None
    assert Question(CPU, 1, 12, micro_batch=3).settled_micro_batch == 3
    assert Question(CPU, 1, 12, (Accumulation(6),)).settled_micro_batch == 2
    assert Question(CPU, 1, 12, (Accumulation(6),), micro_batch=2).settled_micro_batch == 2


@pytest.mark.parametrize(
    ("micro_batch", "fixed", "message"),
    [
        (5, (), "`micro_batch` is 5; expected a divisor of the global batch, 12"),
        (0, (), "`micro_batch` is 0"),
        (None, (Accumulation(5),), "`accumulation.steps` is 5"),
        (4, (Accumulation(6),), "micro-batch 4 x accumulation 6 is not the global batch 12"),
    ],
)
def test_what_does_not_divide_the_global_batch_is_an_error(micro_batch: int, fixed: tuple, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Question(CPU, 2**30, 12, fixed, micro_batch)


@pytest.mark.parametrize(("budget", "rows", "key"), [(0, 8, "budget_bytes"), (2**30, 0, "global_batch")])
def test_no_budget_and_no_rows_are_errors(budget: int, rows: int, key: str) -> None:
    with pytest.raises(SettingsError, match=f"`{key}` is 0; expected"):
        Question(CPU, budget, rows)


def test_a_technique_that_is_fixed_twice_is_an_error() -> None:
    with pytest.raises(TechniqueError, match="given twice"):
        Question(CPU, 2**30, 12, (Accumulation(2), Accumulation(3)))


def test_divisors_stand_largest_first() -> None:
    assert divisors_of(12) == (12, 6, 4, 3, 2, 1)
