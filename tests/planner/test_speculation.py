"""Guesses about what a search asks for next: they follow it closely, and never change where it goes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from brim.planner.bounds import Bound
from brim.planner.compile import Compiled, CompileFunction
from brim.planner.question import Question
from brim.planner.search import consider, decide
from brim.planner.selection import Option, Selection
from brim.techniques import Recipe
from planner.stacked import CPU, stacked_program
from planner.test_selection import Case, cases

KIB = 2**10


def unasked(number: int) -> int:
    raise AssertionError(f"{number} was compiled")


def state(selection: Selection) -> dict[str, object]:
    return {name: copy.copy(value) for name, value in vars(selection).items()}


def begun(case: Case, budget: int) -> Selection:
    return Selection(case.options, budget, unasked)


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 700), st.data())
def test_guessing_changes_nothing(case: Case, budget: int, data: st.DataObject) -> None:
    guessing, plain = begun(case, budget), begun(case, budget)
    while (number := plain.next()) is not None:
        assert guessing.next() == number
        before = state(guessing)
        known = data.draw(st.sets(st.sampled_from(range(len(case.options)))))
        list(islice(guessing.ahead(number, {other: case.peaks[other] for other in known}), 4))
        guessing.expected_compiles(number)
        assert state(guessing) == before
        guessing.record(number, case.peaks[number])
        plain.record(number, case.peaks[number])
    assert guessing.peaks == plain.peaks == case.select(budget).peaks


@settings(max_examples=60, deadline=None)
@given(cases(), st.integers(1, 700))
def test_guesses_are_neither_pending_nor_known_nor_said_twice(case: Case, budget: int) -> None:
    selection = begun(case, budget)
    while (number := selection.next()) is not None:
        known = {other: case.peaks[other] for other in islice(selection.ahead(number), 2)}
        guesses = list(selection.ahead(number, known))
        assert len(guesses) == len(set(guesses))
        assert not {number, *known, *selection.peaks} & set(guesses)
        selection.record(number, case.peaks[number])


def test_most_of_what_is_asked_for_was_among_the_first_two_guesses() -> None:
    """On memories that grow as formulas say, times two, which is what is expected of them."""
    hits = asked = 0
    for budget in range(60, 700, 20):
        case = _regular_case()
        selection, guesses = begun(case, budget), []
        while (number := selection.next()) is not None:
            if selection.peaks:
                asked += 1
                hits += number in guesses
            guesses = list(islice(selection.ahead(number), 2))
            selection.record(number, case.peaks[number])
    assert asked > 50
    assert hits / asked > 0.7


def _regular_case() -> Case:
    rows = (32, 16, 8, 4, 2, 1)
    options, peaks = [], []
    for per_row in (40, 25, 12, 5):
        for count in rows:
            options.append(Option(per_row, count, Bound(20, 10 * (count < 32), per_row * count // 2)))
            peaks.append(30 + per_row * count)
    return Case(options, peaks)


class Hasty:
    """Compile processes that finish guesses at random moments, or never."""

    def __init__(self, compiled: Callable[[Recipe], Compiled], seed: int) -> None:
        self._compiled, self._random = compiled, random.Random(seed)
        self._done: dict[str, Compiled] = {}
        self.guesses = 0

    def compile(self, recipe: Recipe, guesses: Callable[[], Iterable[Recipe]]) -> Compiled:
        for guess in islice(guesses(), self._random.randrange(4)):
            self.guesses += 1
            self._done[str(guess.to_tables())] = self._compiled(guess)
        return self._compiled(recipe)

    def known(self, recipe: Recipe) -> Compiled | None:
        return self._done.get(str(recipe.to_tables()))


def test_a_plan_does_not_depend_on_which_guesses_finish(compile_recipe: CompileFunction) -> None:
    program = stacked_program(sizes=True)
    prospects = consider(program, Question(CPU, 2**30, 8))

    def compiled(recipe: Recipe) -> Compiled:
        return compile_recipe(program, recipe, CPU)

    guesses = 0
    for budget in (500 * KIB, 700 * KIB, 1200 * KIB):
        question = Question(CPU, budget, 8)
        known = decide(program, prospects, question, compile_recipe=compile_recipe)
        for seed in range(5):
            hasty = Hasty(compiled, seed)
            plan = decide(program, prospects, question, workers=hasty)  # type: ignore[arg-type]
            assert replace(plan, seconds=0) == replace(known, seconds=0)
            guesses += hasty.guesses
    assert guesses > 20
