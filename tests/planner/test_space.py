"""Which recipes are considered."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from brim.errors import TechniqueError
from brim.planner import space
from brim.planner.question import Question
from brim.planner.space import family_of, micro_batches, recipes, settings_of, with_plain, with_steps, words_of
from brim.techniques import REGISTRY, Accumulation, Precision, Recipe, Rematerialization, Technique
from planner.stacked import CPU, stacked_program
from programs import batch_norm_program


def asked(rows: int, *fixed: Technique, **settled: Any) -> Question:
    return Question(CPU, 2**30, rows, fixed, **settled)


def test_every_divisor_of_the_global_batch_largest_first() -> None:
    assert micro_batches(stacked_program(), asked(12)) == (12, 6, 4, 3, 2, 1)


def test_what_is_given_is_not_searched() -> None:
    program = stacked_program()
    assert micro_batches(program, asked(12, micro_batch=3)) == (3,)
    assert micro_batches(program, asked(12, Accumulation(6))) == (2,)


def test_programs_with_dependent_rows_keep_their_batch_whole() -> None:
    assert micro_batches(batch_norm_program(), asked(12)) == (12,)
    assert micro_batches(batch_norm_program(), asked(12, micro_batch=4)) == (4,)


def test_the_space_is_the_product_at_a_fixed_global_batch() -> None:
    program = stacked_program()
    found = list(recipes(program, asked(6)))
    options = 1
    for kind in REGISTRY:
        options *= sum(option.effect != "lossy" for option in kind.options(program, CPU))
    assert len(found) == 4 * options == len({(recipe.techniques, recipe.micro_batch) for recipe in found})
    assert {recipe.global_batch for recipe in found} == {6}


def test_fixed_techniques_stand_in_every_recipe() -> None:
    fixed = (Rematerialization("full"), Precision("bfloat16"))
    for recipe in recipes(stacked_program(), asked(4, *fixed)):
        assert recipe["rematerialization"] == fixed[0] and recipe["precision"] == fixed[1]


def test_a_fixed_technique_that_cannot_work_is_an_error() -> None:
    program = replace(stacked_program(), calls=frozenset())
    with pytest.raises(TechniqueError, match=r"rematerialization .* cannot be used: the program calls no stack"):
        list(recipes(program, asked(4, Rematerialization("full"))))


@dataclass(frozen=True)
class Odd(Precision):
    """A technique with settings that cannot work here, that change results, or that conflict."""

    name: ClassVar[str] = "odd"
    kind: str = "plain"
    conflicts: ClassVar[dict[str, str]] = {"rematerialization": "odd is only for plain stacks"}

    @property
    def effect(self):  # type: ignore[no-untyped-def]
        return "lossy" if self.kind == "lossy" else "exact"

    @property
    def is_plain(self) -> bool:
        return self.kind == "plain"

    def needs(self, program, device):  # type: ignore[no-untyped-def]
        return "not here" if self.kind == "impossible" else None

    @classmethod
    def options(cls, program, device):  # type: ignore[no-untyped-def]
        return tuple(cls(kind=kind) for kind in ("plain", "impossible", "lossy", "good"))


def test_lossy_impossible_and_conflicting_settings_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = (*REGISTRY, Odd)
    monkeypatch.setattr(space, "REGISTRY", registry)
    monkeypatch.setattr("brim.techniques.recipe.REGISTRY", registry)
    found = list(recipes(stacked_program(), asked(2)))
    assert {recipe["odd"].kind for recipe in found} == {"plain", "good"}  # type: ignore[attr-defined]
    assert all(r["rematerialization"].is_plain for r in found if r["odd"].kind == "good")  # type: ignore[attr-defined]


def test_lossy_settings_are_searched_when_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = (*REGISTRY, Odd)
    monkeypatch.setattr(space, "REGISTRY", registry)
    monkeypatch.setattr("brim.techniques.recipe.REGISTRY", registry)
    found = list(recipes(stacked_program(), asked(2, allow_lossy=True)))
    assert {recipe["odd"].kind for recipe in found} == {"plain", "lossy", "good"}  # type: ignore[attr-defined]
    fixed = list(recipes(stacked_program(), asked(2, Odd(kind="lossy"))))
    assert {recipe["odd"].kind for recipe in fixed} == {"lossy"}  # type: ignore[attr-defined]


def test_changes_of_one_thing_keep_the_rest() -> None:
    recipe = Recipe.of(2, Accumulation(4), Rematerialization("full"), compiler_options={"a": "1"})
    assert with_steps(recipe, 2) == Recipe.of(
        4, Accumulation(2), Rematerialization("full"), compiler_options={"a": "1"}
    )
    assert with_plain(recipe, frozenset({"residuals"})) == Recipe.of(2, Accumulation(4), compiler_options={"a": "1"})
    assert settings_of(recipe) == settings_of(with_steps(recipe, 8)) != settings_of(Recipe.of(2, Accumulation(4)))


def test_compiler_options_are_searched_when_that_is_asked_for() -> None:
    question = Question(CPU, 2**30, 2)
    usual = list(recipes(stacked_program(), question))
    found = list(recipes(stacked_program(), replace(question, search_compiler_options=True)))
    assert {recipe.describe() for recipe in usual} < {recipe.describe() for recipe in found}
    assert len(found) == 2 * len(usual) == len({(family_of(recipe), recipe.micro_batch) for recipe in found})
    assert words_of(found[-1]).endswith("xla_cpu_enable_concurrency_optimized_scheduler=False")
