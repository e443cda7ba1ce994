"""Predicted costs of recipes, counted on the jaxprs of their steps; cost.py says what the terms are.

Tracing takes longer than counting, so each setting of the techniques is traced once, with the fewest micro-batches. At
a fixed global batch, what more micro-batches add (weights read again, gradients summed) is linear in their number and
nearly the same for all settings: it is traced for one setting only.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax

from brim.hardware.facts import Device
from brim.hardware.flops import count_flops
from brim.planner.cost import Cost, Work
from brim.planner.space import with_plain, with_steps
from brim.planner.traffic import count_traffic
from brim.program import Program
from brim.techniques import Recipe, Technique
from brim.training.assemble import assemble

RECOMPUTING_POINTS = frozenset({"residuals", "cross_entropy"})
"""Points at which a technique may compute something a second time."""


def work_of(program: Program, recipe: Recipe, device: Device) -> Work:
    """What one update under a recipe asks for, counted on the jaxpr of its whole step."""
    assembly = assemble(program, recipe, device, say=lambda note: None)
    jaxpr = jax.make_jaxpr(assembly.window)(assembly.state, assembly.batch)
    return Work(count_flops(jaxpr).by_dtype, count_traffic(jaxpr))


class CostModel:
    """Predicts the cost of recipes of one program at one global batch.

    Args:
        recipes: all that will be asked for.
    """

    def __init__(self, program: Program, device: Device, recipes: Sequence[Recipe]) -> None:
        self._program, self._device, self._reference = program, device, recipes[0]
        counts = {recipe.accumulation for recipe in recipes}
        self._fewest, self._most = min(counts), max(counts)
        self._traced: dict[tuple[tuple[Technique, ...], int], Work] = {}

    def cost(self, recipe: Recipe) -> Cost:
        """Predicted seconds and recompute share of one recipe."""
        plain = with_plain(recipe, RECOMPUTING_POINTS)
        return Cost.of(self._work(recipe), self._device, without_recomputation=self._work(plain))

    def _work(self, recipe: Recipe) -> Work:
        work = self._trace(with_steps(recipe, self._fewest))
        if recipe.accumulation == self._fewest:
            return work
        share = (recipe.accumulation - self._fewest) / (self._most - self._fewest)
        return work + self._of_splitting() * share

    def _of_splitting(self) -> Work:
        """What the most micro-batches ask for beyond the fewest, by the settings of the reference."""
        few, many = (self._trace(with_steps(self._reference, steps)) for steps in (self._fewest, self._most))
        return many + few * -1

    def _trace(self, recipe: Recipe) -> Work:
        key = (recipe.techniques, recipe.micro_batch)
        if key not in self._traced:
            self._traced[key] = work_of(self._program, recipe, self._device)
        return self._traced[key]
