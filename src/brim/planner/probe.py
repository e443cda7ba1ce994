"""Whether a program fits at all, with as few compiles as that takes.

That is decided by its smallest recipe, not by its fastest: one compile if that fits, and often a second if it does not,
because formulas do not always know which recipe is the smallest. State and batch alone over the budget need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax

from brim.planner.bounds import Bound, Bounds
from brim.planner.cache import Cache
from brim.planner.compile import Compiled, CompileFunction, compile_window
from brim.planner.memory import Memory
from brim.planner.question import Question
from brim.planner.selection import EXPECTED_RATIO
from brim.planner.space import no_setting_works, recipes
from brim.planner.target import Target
from brim.planner.workers import Source, Workers
from brim.program import Program
from brim.techniques import Recipe


@dataclass(frozen=True)
class Probe:
    """Asks whether a program fits at all: by the compiled peak of its smallest recipe.

    Attributes:
        question: the device, the budgets and the batch; and what is settled.
        cache: where compiles are kept and looked up; None: nowhere.
        workers: compile processes, which are turned to each program in turn; None: this process compiles.
        compile_recipe: reads the memory of one recipe, in place of both; `compile_window` if left out.
    """

    question: Question
    cache: Cache | None = None
    workers: Workers | None = None
    compile_recipe: CompileFunction | None = None

    def over_bytes(self, source: Source) -> int:
        """Least bytes over the budget; 0 or below: it fits. A program that XLA refuses does not.

        Args:
            source: builds the program; something that can travel to other processes, if there are any.

        Raises:
            TechniqueError, DeviceError: as `brim.planner.search`.
        """
        program, budget_bytes = source(), self.question.budget_bytes
        bounds = Bounds(program, self.question.device)
        found = list(recipes(program, self.question))
        if not found:
            raise no_setting_works()
        needs = [bounds.of(recipe) for recipe in found]
        least = min(bound.arguments for bound in needs)
        if least > budget_bytes:  # no compiler needs less than the state and the batch
            return least - budget_bytes
        overs: list[int] = []
        compile_ahead = self._compiler(source, program)
        smallest = _smallest(found, needs)
        for place, recipe in enumerate(smallest, start=1):
            try:
                overs.append(self._over(compile_ahead(recipe, smallest[place:]).memory))
            except jax.errors.JaxRuntimeError:  # a compiler may refuse what is larger than the device, or die of it
                overs.append(self._over_when_refused())
            if overs[-1] <= 0:
                break
        return min(overs)

    def _over_when_refused(self) -> int:
        return max(1, self.question.device.memory_bytes + 1 - self.question.budget_bytes)

    def _compiler(self, source: Source, program: Program) -> Callable[[Recipe, Sequence[Recipe]], Compiled]:
        """(recipe, what may be asked for next) -> what compiling told."""
        if self.compile_recipe is None and self.workers is not None:
            workers = self.workers
            workers.turn_to(source)
            return lambda recipe, guesses: workers.compile(recipe, lambda: guesses)
        device = self.question.device
        here = self.compile_recipe or partial(compile_window, target=Target.of(device), cache=self.cache)
        return lambda recipe, guesses: here(program, recipe, device)

    def _over(self, memory: Memory) -> int:
        over, host = memory.peak_bytes - self.question.budget_bytes, self.question.host_budget_bytes
        return over if host is None else max(over, memory.host - host)


def _smallest(found: Sequence[Recipe], needs: Sequence[Bound]) -> list[Recipe]:
    """What may need least: what formulas expect to, and the fewest rows with the most saving settings.

    They differ where gradient sums over several micro-batches weigh about as much as more rows at once.
    """
    places = range(len(found))
    expected = min(places, key=lambda n: (needs[n].standing + EXPECTED_RATIO * needs[n].formula, -n))
    # Not every program has formulas; settings stand cheapest in time first, so the last saves most.
    fewest = min(places, key=lambda n: (found[n].micro_batch, needs[n].formula, -n))
    return [found[n] for n in dict.fromkeys((expected, fewest))]
