"""Which recipes a search looks at: micro-batch x accumulation x the settings of every technique.

The planner knows techniques by the registry and their protocol only. One rule is its own: at a fixed global batch the
number of micro-batches follows from the micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from brim.errors import SettingsError, TechniqueError
from brim.hardware.compiler_options import default_options
from brim.hardware.facts import Device
from brim.program import Program
from brim.settings import require
from brim.techniques import REGISTRY, Recipe, Technique, techniques_from

STEPS = "accumulation"


def micro_batches(
    program: Program, global_batch: int, micro_batch: int | None, fixed: Sequence[Technique]
) -> tuple[int, ...]:
    """The micro-batches to try, largest first: the divisors of the global batch, unless something settles it.

    Raises:
        SettingsError: if what is given does not divide the global batch.
    """
    require(global_batch >= 1, "global_batch", global_batch, "at least 1 row")
    if any(technique.name == STEPS for technique in fixed):
        steps = Recipe.of(1, *fixed).accumulation
        _require_divisor(steps, "accumulation.steps", global_batch)
        if micro_batch not in (None, global_batch // steps):
            raise SettingsError(
                f"micro-batch {micro_batch} x accumulation {steps} is not the global batch {global_batch}",
                hint="leave one of them out",
            )
        return (global_batch // steps,)
    if micro_batch is not None:
        _require_divisor(micro_batch, "micro_batch", global_batch)
        return (micro_batch,)
    if not program.rows_independent:
        return (global_batch,)
    return _divisors(global_batch)


def recipes(
    program: Program,
    device: Device,
    global_batch: int,
    sizes: Sequence[int],
    fixed: Sequence[Technique],
    *,
    allow_lossy: bool = False,
) -> Iterator[Recipe]:
    """Every recipe to consider, by settings and then by micro-batch; those that cannot work are left out.

    Settings come in the techniques' own order, cheapest in time first.

    Args:
        sizes: micro-batches.
        fixed: techniques that are given; what is given may be lossy.
        allow_lossy: whether settings are searched too that may change the results. What changes the model never is.

    Raises:
        TechniqueError: if what is fixed cannot work.
    """
    given = {technique.name: technique for technique in fixed}
    _refuse_obstacles(given, program, device)
    searched = [kind for kind in REGISTRY if kind.name != STEPS]
    for techniques in itertools.product(*(_choices(kind, given, program, device, allow_lossy) for kind in searched)):
        for micro_batch in sizes:
            recipe = _recipe(micro_batch, global_batch // micro_batch, techniques, default_options(device))
            if recipe is not None and recipe.obstacle(program, device) is None:
                yield recipe


def settings_of(recipe: Recipe) -> tuple[Technique, ...]:
    """The techniques of a recipe without the one that follows from the micro-batch."""
    return tuple(technique for technique in recipe.techniques if technique.name != STEPS)


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


def _choices(
    kind: type[Technique], given: Mapping[str, Technique], program: Program, device: Device, allow_lossy: bool
) -> tuple[Technique, ...]:
    if kind.name in given:
        return (given[kind.name],)
    return tuple(option for option in kind.options(program, device) if allow_lossy or option.effect != "lossy")


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


def _require_divisor(number: int, key: str, global_batch: int) -> None:
    divisors = _divisors(global_batch)
    nearest = sorted(divisors, key=lambda divisor: abs(divisor - number))[:2]
    require(
        number in divisors,
        key,
        number,
        f"a divisor of the global batch, {global_batch}",
        hint=f"the nearest are {' and '.join(map(str, nearest))}",
    )


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(divisor for divisor in range(number, 0, -1) if number % divisor == 0)
