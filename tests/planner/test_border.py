"""Searches along an axis: borders against brute force."""

from __future__ import annotations

import random

import pytest

from brim.errors import NoPlanFits, SettingsError
from brim.planner.border import Border, border_of


def brute_force(overs: list[int]) -> int:
    return max(place for place, over in enumerate(overs) if over <= 0)


@pytest.mark.parametrize("seed", range(60))
def test_the_border_is_that_of_brute_force_wherever_it_starts(seed: int) -> None:
    numbers = random.Random(seed)
    overs = sorted(numbers.randrange(-(10**6), 10**6) for _ in range(numbers.randrange(1, 200)))
    overs[0] = min(overs[0], 0)
    looked: list[int] = []

    def over(place: int) -> int:
        looked.append(place)
        return overs[place]

    found = border_of(range(len(overs)), over, what="n", start=numbers.randrange(-3, 250))
    best = brute_force(overs)
    assert found.value == best
    assert found.above == (best + 1 if best + 1 < len(overs) else None)
    assert found.over_bytes == (overs[best + 1] if best + 1 < len(overs) else 0)
    assert len(looked) == len(set(looked)) == found.probes
    assert found.probes <= 4 + 3 * len(overs).bit_length()


def test_on_a_line_few_looks_are_enough() -> None:
    found = border_of(range(1, 10_001), lambda n: 1000 * n - 7_654_321, what="layers", start=6000)
    assert (found.value, found.over_bytes) == (7654, 1000 * 7655 - 7_654_321)
    assert found.probes < 17
    assert found.line == "largest layers that fits: 7654 (7655 needs over by 679 B)"


def test_the_end_of_the_axis_is_said() -> None:
    assert border_of([3], lambda n: -1, what="n").line == "largest n that fits: 3 (the last that was to be tried)"


def test_nothing_that_fits_is_an_error_that_ends_with_3() -> None:
    lines: list[str] = []
    with pytest.raises(NoPlanFits, match="no context fits: the smallest that was tried, 8, is over by 12 B") as error:
        border_of([8, 9, 10], lambda n: n + 4, what="context", start=2, progress=lines.append)
    assert error.value.exit_code == 3
    assert lines[0] == "probe 1: context 10: over by 14 B"
    with pytest.raises(SettingsError, match="at least one value"):
        border_of([], float, what="n")  # type: ignore[arg-type]


def test_it_says_what_is_above() -> None:
    assert Border("n", 1, 2, 3, 4).line == "largest n that fits: 1 (2 needs over by 3 B)"
