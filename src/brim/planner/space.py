"""Which recipes a search looks at: micro-batch x accumulation x the settings of every technique.

The planner knows techniques by the registry and their protocol only. One rule is its own: at a fixed global batch the
number of micro-batches follows from the micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence

from brim.errors import TechniqueError
from brim.hardware.compiler_options import default_options, departures_in, option_sets
from brim.hardware.facts import Device
from brim.planner.question import STEPS, Question, divisors_of
from brim.program import Program
from brim.techniques import REGISTRY, Recipe, Technique, techniques_from


def micro_batches(program: Program, question: Question) -> tuple[int, ...]:
    """The micro-batches to try, largest first: the divisors of the global batch, unless something settles it."""
    if question.settled_micro_batch is not None:
        return (question.settled_micro_batch,)
    return divisors_of(question.global_batch) if program.rows_independent else (question.global_batch,)


def recipes(program: Program, question: Question) -> Iterator[Recipe]:
    """Every recipe to consider, by settings and then by micro-batch; those that cannot work are left out.

    Settings come in the techniques' own order, cheapest in time first.

    Raises:
        TechniqueError: if what is fixed cannot work.
    """
    device, sizes = question.device, micro_batches(program, question)
    given = {technique.name: technique for technique in question.fixed}
    _refuse_obstacles(given, program, device)
    choices = (_choices(kind, given, program, question) for kind in REGISTRY if kind.name != STEPS)
    option_sets_asked = option_sets(device) if question.search_compiler_options else (default_options(device),)
    for techniques, options in itertools.product(itertools.product(*choices), option_sets_asked):
        for micro_batch in sizes:
            recipe = _recipe(micro_batch, question.global_batch // micro_batch, techniques, options)
            if recipe is not None and recipe.obstacle(program, device) is None:
                yield recipe


def settings_of(recipe: Recipe) -> tuple[Technique, ...]:
    """The techniques of a recipe without the one that follows from the micro-batch."""
    return tuple(technique for technique in recipe.techniques if technique.name != STEPS)


def family_of(recipe: Recipe) -> Hashable:
    """Equal for recipes that differ in nothing but how the global batch is split."""
    return settings_of(recipe), frozenset(recipe.compiler_options.items())


def words_of(recipe: Recipe, shared: Sequence[Technique] = ()) -> str:
    """The settings of a recipe in a few words, without those that are said elsewhere."""
    own = settings_words([technique for technique in settings_of(recipe) if technique not in shared])
    return ", ".join(filter(None, (own, departures_in(recipe.compiler_options))))


def settings_words(techniques: Sequence[Technique]) -> str:
    """Settings in a few words; `plain` where no technique does anything."""
    return ", ".join(technique.describe() for technique in techniques if not technique.is_plain) or "plain"


def with_steps(recipe: Recipe, steps: int) -> Recipe:
    """The same settings and global batch in another number of micro-batches."""
    return Recipe.of(
        recipe.global_batch // steps,
        *settings_of(recipe),
        *_steps(steps),
        compiler_options=recipe.compiler_options,
    )


def with_plain(recipe: Recipe, points: frozenset[str]) -> Recipe:
    """The same recipe with every technique that fills one of some points at its plain settings."""
    kept = (technique for technique in recipe.techniques if not technique.points & points)
    return Recipe.of(recipe.micro_batch, *kept, compiler_options=recipe.compiler_options)


def no_setting_works() -> TechniqueError:
    """What is said when there is no recipe at all."""
    return TechniqueError(
        "no setting of the techniques works on this program and device",
        hint="take out of the run file what fixes techniques, or plan for another device",
    )


def _choices(
    kind: type[Technique], given: Mapping[str, Technique], program: Program, question: Question
) -> tuple[Technique, ...]:
    if kind.name in given:
        return (given[kind.name],)
    options = kind.options(program, question.device)
    return tuple(option for option in options if question.allow_lossy or option.effect != "lossy")


def _recipe(micro_batch: int, steps: int, techniques: Sequence[Technique], options: Mapping[str, str]) -> Recipe | None:
    try:
        return Recipe.of(micro_batch, *techniques, *_steps(steps), compiler_options=options)
    except TechniqueError:  # these settings conflict
        return None


def _steps(steps: int) -> tuple[Technique, ...]:
    return techniques_from({STEPS: {"steps": steps}})


def _refuse_obstacles(given: Mapping[str, Technique], program: Program, device: Device) -> None:
    for technique in given.values():
        if reason := technique.needs(program, device):
            raise TechniqueError(
                f"{technique.name} ({technique.describe()}) cannot be used: {reason}",
                hint=f"take [techniques.{technique.name}] out of the run file to let the planner choose",
            )
