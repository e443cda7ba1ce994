"""The order of compiles, on made-up memories: what is chosen must be what looking at everything would choose."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.planner.bounds import SAFETY, Bound
from brim.planner.selection import MAX_COMPILES_FOR_RUNNERS_UP, RUNNERS_UP, Option, Selection

GLOBAL_BATCH = 16


@dataclass(frozen=True)
class Case:
    """Options in the order of speed, and what a compiler would say of each."""

    options: list[Option]
    peaks: list[int]

    def select(self, budget: int, **limits: int) -> Selection:
        selection = Selection(self.options, budget, self.peaks.__getitem__, **limits)
        selection.run()
        return selection

    def fitting(self, budget: int) -> list[int]:
        return [number for number, peak in enumerate(self.peaks) if peak <= budget]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Families whose bytes grow with the rows and whose speed does too, in any order between them."""
    arguments, sums = draw(st.integers(10, 50)), draw(st.integers(0, 30))
    numbered = []
    for family in range(draw(st.integers(1, 5))):
        per_row, base = draw(st.integers(1, 30)), draw(st.integers(0, 40))
        at_gradients = draw(st.integers(0, sums))  # with few rows the peak may be where gradients are
        slowness = draw(st.integers(0, 20))
        told = draw(st.sampled_from([0.0, 0.5, 1 / SAFETY]))  # formulas: silent, shy, as bold as is safe
        for rows in (16, 8, 4, 2, 1):
            several = rows < GLOBAL_BATCH
            bound = Bound(arguments, sums * several, int(told * per_row * rows))
            peak = bound.standing + max(base + per_row * rows, at_gradients)
            option = Option(family, rows, bound)
            numbered.append(((slowness + GLOBAL_BATCH // rows, len(numbered)), option, peak))
    numbered.sort(key=lambda entry: entry[0])
    return Case([option for _, option, _ in numbered], [peak for _, _, peak in numbered])


@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(1, 700))
def test_the_choice_is_the_fastest_of_all_that_fit(case: Case, budget: int) -> None:
    selection, fitting = case.select(budget), case.fitting(budget)
    assert selection.fitting()[:1] == fitting[:1]
    assert all(case.peaks[number] <= budget for number in selection.fitting())
    assert selection.trusts_formulas
    for number in range(len(case.options)):  # nothing that fits is called too large
        if selection.pruned(number) or selection.ruled_out_by(number) is not None:
            assert case.peaks[number] > budget


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 500), st.integers(0, 200))
def test_more_memory_never_gives_a_slower_choice(case: Case, budget: int, more: int) -> None:
    little, much = case.select(budget).fitting(), case.select(budget + more).fitting()
    if little:
        assert much and much[0] <= little[0]


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 700))
def test_two_runners_up_follow_unless_too_many_compiles_lie_between(case: Case, budget: int) -> None:
    selection, fitting = case.select(budget), case.fitting(budget)
    found = [number for number in selection.fitting() if number in fitting[: 1 + RUNNERS_UP]]
    assert len(found) == min(len(fitting), 1 + RUNNERS_UP) or (
        len([n for n in selection.peaks if n > fitting[0]]) >= MAX_COMPILES_FOR_RUNNERS_UP
    )


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 700))
def test_the_same_search_again_compiles_the_same(case: Case, budget: int) -> None:
    assert list(case.select(budget).peaks.items()) == list(case.select(budget).peaks.items())


@settings(max_examples=200, deadline=None)
@given(cases(), st.integers(1, 700))
def test_compiles_are_few(case: Case, budget: int) -> None:
    families = len({option.family for option in case.options})
    assert len(case.select(budget).peaks) <= 3 * families + MAX_COMPILES_FOR_RUNNERS_UP + 2


def family(name: str, rows: list[int], bounds: list[int]) -> list[Option]:
    return [Option(name, count, Bound(bound, 0, 0)) for count, bound in zip(rows, bounds, strict=True)]


def test_one_compile_rules_out_all_larger_micro_batches() -> None:
    rows, budget = (32, 16, 8, 4, 2, 1), 64
    options = [Option("a", count, Bound(10, 0, 5 * count)) for count in rows]
    selection = Case(options, [10 + 10 * count for count in rows]).select(budget)
    # 32 is pruned. Formulas are expected to say half of the truth, as they do here: 16 and 8 are over, 4 is not.
    assert selection.pruned(0) and not selection.pruned(1)
    assert list(selection.peaks) == [2, 3, 4, 5]
    assert selection.ruled_out_by(1) == 2
    assert selection.fitting() == [3, 4, 5]


def test_what_fits_closely_and_more_rows_by_formula_rule_out_the_next() -> None:
    rows, budget = (4, 2, 1), 64
    options = [Option("a", count, Bound(10, 0, 20 * count)) for count in rows]
    selection = Case(options, [10 + 20 * count for count in rows]).select(budget)
    assert list(selection.peaks) == [1, 2]  # 4 rows need at least the 50 of 2 rows, and half of 40 for 2 more
    assert selection.ruled_out_by(0) == 1 and selection.growth_bytes(1, 0) == 20
    assert selection.fitting() == [1, 2]


def test_growth_that_formulas_overstated_is_not_trusted_any_more() -> None:
    options = [Option("a", count, Bound(10, 0, 20 * count)) for count in (3, 2, 1)]
    selection = Case(options, [45, 44, 40]).select(64)
    assert list(selection.peaks) == [1, 0, 2]  # 3 rows should have needed at least the 44 of 2 and 10, and took 45
    assert not selection.trusts_formulas and selection.growth_bytes(1, 0) == 0
    assert selection.fitting() == [0, 1, 2]


def test_the_smallest_expected_misfit_is_compiled_first() -> None:
    options = [Option("a", rows, Bound(10, 0, 0)) for rows in (32, 16, 8, 4, 2, 1)]
    selection = Case(options, [10 + 10 * rows for rows in (32, 16, 8, 4, 2, 1)]).select(55)
    # 32 is compiled first, since no formula warns; it tells that 8 is the smallest that will not fit.
    assert list(selection.peaks)[:3] == [0, 2, 3]
    assert selection.ruled_out_by(1) == 2


def test_a_formula_that_was_wrong_is_not_trusted_any_more() -> None:
    options = [Option("a", 2, Bound(10, 0, 200)), Option("b", 2, Bound(10, 0, 60))]
    assert Case(options, [50, 60]).select(80).fitting() == [1]  # a needs 110 at least, says its formula
    selection = Case(options, [50, 30]).select(80)  # b needs 40 at least, says its formula, and compiles to 30
    assert not selection.trusts_formulas
    assert selection.fitting() == [0, 1]


def test_formulas_that_pruned_everything_wrongly_are_found_out() -> None:
    options = [Option("a", 2, Bound(10, 0, 400)), Option("a", 1, Bound(10, 0, 200))]
    assert Case(options, [70, 40]).select(80).fitting() == [0, 1]


@pytest.mark.parametrize(("half_peak", "chosen"), [(50, [1]), (101, [])])
def test_the_whole_batch_at_once_needs_no_gradient_sums(half_peak: int, chosen: list[int]) -> None:
    whole, half = Option("a", 2, Bound(10, 0, 0)), Option("a", 1, Bound(10, 30, 0))
    selection = Case([half, whole], [half_peak, 35]).select(40)
    assert selection.fitting() == chosen  # 101 is over the budget even without its sums and one more gradient
    assert len(selection.peaks) == (2 if chosen else 1)


def test_when_nothing_fits_the_smallest_is_found() -> None:
    options = [*family("a", [4, 2, 1], [100, 90, 80]), *family("b", [4, 2, 1], [60, 50, 40])]
    selection = Case(options, [200, 190, 180, 160, 150, 140]).select(30)
    assert selection.fitting() == []
    assert list(selection.peaks) == [5]


def test_a_limit_on_compiles_still_gives_what_fits() -> None:
    options = [Option(name, 1, Bound(10, 0, 0)) for name in "abcdef"]
    case = Case(options, [90, 80, 70, 60, 50, 40])
    selection = case.select(55, max_compiles=2)
    assert set(selection.peaks) == {0, 1, 2, 5}
    assert selection.fitting() == [5] and selection.undecided_before(5) == 2
    assert case.select(55).fitting() == [4, 5]


@pytest.mark.parametrize("refused", [0, 1])
def test_what_the_compiler_refuses_is_passed_over(refused: int) -> None:
    options = family("a", [4, 2, 1], [10, 10, 10])
    peaks = [40, 30, 20]
    selection = Selection(options, 60, lambda number: None if number == refused else peaks[number])
    selection.run()
    assert selection.fitting() == [number for number in (0, 1, 2) if number != refused]


def test_more_rows_are_not_ruled_out_by_fewer_whose_peak_is_at_the_gradients() -> None:
    # GPT-2 124M with a context of 256, everything computed again: in MiB. The gradients of a layer are more than a row.
    one, two = Bound(1430, 475, 120), Bound(1430, 475, 240)
    options = [Option("full", 2, two), Option("full", 1, one)]
    for budget in range(2262, 2290):
        selection = Selection(options, budget, [2262, 2242].__getitem__)
        selection.run()
        assert selection.fitting()[0] == 0
