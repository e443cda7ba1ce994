"""The least a recipe needs, by formula: what spares a compile that could only end over the budget.

    arguments   the state and the whole batch of an update, to the byte, from their specs. No compiler needs less.
    gradients   4 bytes per trainable parameter for gradient sums, when an update has several micro-batches; less if the
                loss does not use every parameter
    formula     what the techniques say their settings leave alive at the peak

All three are alive at the same time. Of the latter two only `SAFETY` counts, because a bound must never throw away what
would have fit. Where a compiled program needs less than its bound said all the same, the search stops trusting anything
but the arguments (see selection.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from jax.numpy import dtype

from brim.hardware.facts import Device
from brim.planner.memory import argument_bytes, gradient_bytes
from brim.planner.space import settings_of
from brim.program import Program
from brim.techniques import Context, Recipe, Technique
from brim.training.assemble import assemble

SAFETY = 0.5


@dataclass(frozen=True)
class Bound:
    """Bytes that a recipe needs at least.

    Attributes:
        arguments: state and batch, to the byte.
        gradients: sums over several micro-batches; 0 when there is one.
        formula: what the techniques predict.
    """

    arguments: int
    gradients: int
    formula: int

    @property
    def standing(self) -> int:
        """What does not grow with the micro-batch."""
        return self.arguments + self.gradients

    @property
    def least(self) -> int:
        """The safe lower bound."""
        return self.arguments + int(SAFETY * (self.gradients + self.formula))


class Bounds:
    """Bounds of recipes of one program; the state's specs are made once for each set of techniques."""

    def __init__(self, program: Program, device: Device) -> None:
        self._program, self._device = program, device
        self._fixed: dict[tuple[Technique, ...], tuple[int, int, int]] = {}

    def of(self, recipe: Recipe) -> Bound:
        """The bound of one recipe."""
        key = settings_of(recipe)
        if key not in self._fixed:
            self._fixed[key] = self._measure(recipe)
        arguments, gradients, compute_bytes = self._fixed[key]
        sizes = self._program.sizes
        formula = 0
        if sizes is not None:
            formula = sum(t.predicted_bytes(sizes, recipe.micro_batch, compute_bytes) for t in recipe.techniques)
        return Bound(arguments, gradients if recipe.accumulation > 1 else 0, formula)

    def _measure(self, recipe: Recipe) -> tuple[int, int, int]:
        assembly = assemble(self._program, recipe, self._device, say=lambda note: None)
        points = recipe.points(Context(self._program, self._device))
        compute_bytes = dtype(points.dtypes.compute).itemsize
        return argument_bytes(assembly), gradient_bytes(assembly.state, accumulating=True), compute_bytes
