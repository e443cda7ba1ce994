"""Plans of a small program, found by compiling it: the invariants of a search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import pytest

from brim.errors import NoPlanFits, TechniqueError
from brim.planner import Candidate, Plan
from brim.planner.compile import CompileFunction
from brim.planner.question import Question
from brim.planner.search import consider, decide, search, survey
from brim.planner.verdicts import Prospect
from brim.program import Program
from brim.techniques import Accumulation, Recipe, Rematerialization
from planner.stacked import CPU, HIDDEN, LAYERS, LENGTH, PARAMETERS, WIDTH, stacked_program

ROWS = 8
KIB = 2**10


def asked(budget_bytes: int = 2**30, **settled: Any) -> Question:
    return Question(CPU, budget_bytes, ROWS, **settled)


@pytest.fixture(scope="module")
def program() -> Program:
    return stacked_program()


@pytest.fixture(scope="module")
def prospects(program: Program) -> tuple[Prospect, ...]:
    return consider(program, asked())


@pytest.fixture(scope="module")
def everything(program: Program, prospects: tuple[Prospect, ...], compile_recipe: CompileFunction) -> list[Candidate]:
    """Brute force: every candidate in the order of predicted speed, each with its compiled peak."""
    plan = decide(program, prospects, asked(2**40), compile_recipe=compile_recipe)
    return [replace(c, memory=compile_recipe(program, c.recipe, CPU).memory) for c in plan.candidates]


@pytest.fixture(scope="module")
def budgets(everything: list[Candidate]) -> list[int]:
    """Budgets around every peak that occurs, and some in between."""
    peaks = {peak_of(candidate) for candidate in everything}
    return sorted({200 * KIB, *peaks, *(peak - 1 for peak in peaks), *(peak + 20 * KIB for peak in peaks)})


@pytest.fixture(scope="module", params=["formulas", "no formulas"])
def plans(
    request: pytest.FixtureRequest,
    program: Program,
    prospects: tuple[Prospect, ...],
    budgets: list[int],
    compile_recipe: CompileFunction,
) -> list[Plan]:
    """A plan for every budget, smallest budget first."""
    if request.param == "formulas":
        program = stacked_program(sizes=True)
        prospects = consider(program, asked())
    return [decide(program, prospects, asked(budget), compile_recipe=compile_recipe) for budget in budgets]


def peak_of(candidate: Candidate) -> int:
    assert candidate.peak_bytes is not None
    return candidate.peak_bytes


def same_recipe(a: Recipe, b: Recipe) -> bool:
    return (a.techniques, a.micro_batch) == (b.techniques, b.micro_batch)


def test_brute_force_over_a_grid_finds_the_same_winner(plans: list[Plan], everything: list[Candidate]) -> None:
    for plan in plans:
        best = next((candidate for candidate in everything if peak_of(candidate) <= plan.budget_bytes), None)
        assert plan.fits == (best is not None)
        if best is not None:
            assert same_recipe(plan.recipe, best.recipe)
    assert max(plan.compiles for plan in plans) < len(everything)


def test_a_plan_never_exceeds_its_budget(plans: list[Plan]) -> None:
    for plan in plans:
        assert not plan.fits or peak_of(plan.chosen) <= plan.budget_bytes
        assert all(peak_of(candidate) <= plan.budget_bytes for candidate in plan.runners_up)


def test_more_memory_never_gives_a_slower_plan(plans: list[Plan]) -> None:
    seconds = [plan.chosen.cost.seconds for plan in plans if plan.fits]
    assert seconds == sorted(seconds, reverse=True)
    assert len(set(seconds)) > 5


def test_every_candidate_has_a_reason_and_owners_sum_to_peaks(plans: list[Plan]) -> None:
    seen = set()
    for candidate in (candidate for plan in plans for candidate in plan.candidates):
        seen.add(candidate.outcome)
        assert len(candidate.reason) > 10
        assert candidate.recipe.global_batch == ROWS
        if candidate.memory is not None:
            assert sum(candidate.memory.owners.values()) == candidate.peak_bytes
    assert seen >= {"chosen", "fits", "over", "pruned", "ruled out", "slower"}


def test_candidates_stand_in_the_order_of_speed_and_few_are_compiled(plans: list[Plan]) -> None:
    largest = plans[-1]
    assert (largest.compiles, len(largest.runners_up)) == (3, 2)
    for plan in plans:
        assert [c.cost.seconds for c in plan.candidates] == sorted(c.cost.seconds for c in plan.candidates)


def test_the_same_search_replays(
    program: Program, everything: list[Candidate], compile_recipe: CompileFunction
) -> None:
    budget = sorted(map(peak_of, everything))[len(everything) // 2]
    first, second = (survey(program, asked(budget), compile_recipe=compile_recipe) for _ in range(2))
    assert replace(first, seconds=0) == replace(second, seconds=0)


def test_reasons_say_how_much_too_large(
    program: Program, prospects: tuple[Prospect, ...], everything: list[Candidate], compile_recipe: CompileFunction
) -> None:
    budget = min(map(peak_of, everything)) + 100
    plan = decide(program, prospects, asked(budget), compile_recipe=compile_recipe)
    over = next(candidate for candidate in plan.candidates if candidate.outcome == "over")
    assert f"over by {(peak_of(over) - budget) / KIB:.1f} KiB" in over.reason
    ruled = next(candidate for candidate in plan.candidates if candidate.outcome == "ruled out")
    assert "with these settings is over by" in ruled.reason
    assert "the fastest predicted that fits, 100 B to spare" in plan.chosen.reason


def test_progress_is_told_for_every_compile(
    program: Program, prospects: tuple[Prospect, ...], compile_recipe: CompileFunction
) -> None:
    said: list[str] = []
    budget = 700 * KIB
    plan = decide(program, prospects, asked(budget), compile_recipe=compile_recipe, progress=said.append)
    assert said[0].startswith(f"{len(plan.candidates)} candidates, ")
    assert len(said) == 1 + plan.compiles
    assert all(line.startswith(f"compiled {count} of about ") for count, line in enumerate(said[1:], start=1))
    assert all("over by" in line or "to spare" in line for line in said[1:])


def test_when_nothing_fits_the_smallest_and_the_ways_out_are_said(program: Program) -> None:
    with pytest.raises(NoPlanFits) as caught:
        search(program, Question(CPU, 10 * KIB, 2, (Rematerialization("full"),)))
    message, hint = caught.value.message, caught.value.hint
    assert "no plan fits 10.0 KiB on cpu: the smallest that was found is 1 x 2, " in message
    assert "parameters 128.0 KiB" in message and "over by" in message
    assert "a budget of at least" in hint
    assert "parameters, gradients and optimizer state alone are 512.0 KiB" in hint
    assert "it is 1 row" in hint
    assert "searching rematerialization too, which is fixed now" in hint
    assert caught.value.exit_code == 3


def test_when_only_activations_are_in_the_way_the_hint_says_by_how_much(
    program: Program, prospects: tuple[Prospect, ...], everything: list[Candidate], compile_recipe: CompileFunction
) -> None:
    smallest = min(everything, key=peak_of)
    assert smallest.memory is not None
    budget = peak_of(smallest) - 2 * KIB
    plan = decide(program, prospects, asked(budget), compile_recipe=compile_recipe)
    assert not plan.fits
    with pytest.raises(NoPlanFits, match=r"over by 2\.0 KiB") as caught:
        _ = plan.recipe
    share = 2 * KIB / smallest.memory.owners["activations and temporaries"]
    assert f"activations and temporaries would have to shrink by {share:.0%}" in caught.value.hint


def test_a_given_micro_batch_and_fixed_techniques_are_kept(program: Program, compile_recipe: CompileFunction) -> None:
    fixed = (Rematerialization("full"), Accumulation(4))
    plan = survey(program, asked(fixed=fixed), compile_recipe=compile_recipe)
    (only,) = plan.candidates
    assert only.recipe.micro_batch == 2 and all(only.recipe[technique.name] == technique for technique in fixed)
    assert plan.fixed == ("rematerialization", "accumulation")
    given = consider(program, asked(micro_batch=4))
    assert {prospect.recipe.micro_batch for prospect in given} == {4}


def test_what_the_compiler_refuses_is_a_reason_and_no_end(
    program: Program, prospects: tuple[Prospect, ...], compile_recipe: CompileFunction
) -> None:
    def refusing(program: Any, recipe: Recipe, device: Any) -> Any:
        if recipe["rematerialization"] != Rematerialization("full"):
            raise jax.errors.JaxRuntimeError("INTERNAL: no\nmore")
        return compile_recipe(program, recipe, device)

    plan = decide(program, prospects, asked(), compile_recipe=refusing)
    assert (plan.recipe.micro_batch, plan.recipe["rematerialization"]) == (ROWS, Rematerialization("full"))
    refused = [candidate for candidate in plan.candidates if candidate.outcome == "failed"]
    assert refused[0].reason == "the compiler refused it: INTERNAL: no"


def test_a_limit_on_compiles_is_said(
    program: Program, prospects: tuple[Prospect, ...], everything: list[Candidate], compile_recipe: CompileFunction
) -> None:
    budget = min(map(peak_of, everything)) + 10
    plan = decide(program, prospects, asked(budget), compile_recipe=compile_recipe, max_compiles=1)
    assert plan.compiles <= 3
    assert any("the limit of" in candidate.reason for candidate in plan.candidates)
    assert not plan.fits or "predicted faster were not compiled" in plan.chosen.reason


def test_a_host_budget_is_carried_into_the_plan_and_rejects_with_a_reason(
    program: Program, prospects: tuple[Prospect, ...], compile_recipe: CompileFunction
) -> None:
    def with_host(program: Program, recipe: Recipe, device: Any) -> Any:
        """As if what is not recomputed in full lay on the host."""
        compiled = compile_recipe(program, recipe, device)
        host = 0 if recipe["rematerialization"] == Rematerialization("full") else 5 * 2**20
        return replace(compiled, memory=replace(compiled.memory, host=host))

    free = decide(program, prospects, asked(), compile_recipe=with_host)
    assert free.host_budget_bytes is None and free.chosen.memory.host > 0  # type: ignore[union-attr]
    plan = decide(program, prospects, asked(host_budget_bytes=2**20), compile_recipe=with_host)
    assert plan.host_budget_bytes == plan.to_json()["host_budget_bytes"] == 2**20
    assert plan.recipe["rematerialization"] == Rematerialization("full")
    rejected = [candidate for candidate in plan.candidates if candidate.outcome == "over"]
    assert rejected[0].reason == "compiled: 5.0 MiB of host memory, over by 4.0 MiB"
    assert all(candidate.memory.host <= 2**20 for candidate in plan.candidates if candidate.fits)  # type: ignore[union-attr]


def test_an_empty_space_is_an_error(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rematerialization, "options", classmethod(lambda cls, program, device: ()))
    with pytest.raises(TechniqueError, match="no setting of the techniques works"):
        search(program, asked())


def test_the_grid_itself_is_worth_searching(everything: list[Candidate]) -> None:
    """Without rematerialization a scan keeps more than with it, by more than one hidden array per layer."""
    peaks = {(c.recipe.micro_batch, c.recipe["rematerialization"]): peak_of(c) for c in everything}
    plain, full = Rematerialization(), Rematerialization("full")
    assert peaks[ROWS, plain] - peaks[ROWS, full] > 4 * LAYERS * ROWS * LENGTH * HIDDEN
    assert peaks[1, full] > 16 * PARAMETERS + 4 * ROWS * LENGTH * WIDTH
