"""A step that is compiled once: ahead of time, jitted, donated, with its options recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import jax
from jaxtyping import Array, Key

from brim.errors import ShapeError
from brim.hardware.facts import Device
from brim.ops import Loss
from brim.program import Program
from brim.techniques import Recipe
from brim.training.assemble import Assembly, assemble
from brim.training.state import State, StepMetrics
from brim.tree import PyTree, Specs, shape_changes


class Step:
    """One window of training for a program under a recipe, on the device that is here.

        step = Step(program, recipe, device)
        state = step.init(jax.random.key(0))
        state, metrics = step(state, batch)

    The state is donated: the one passed in is gone, its buffers hold the new one. Everything is compiled at first use,
    once; arguments of another shape raise instead of compiling again.

    Attributes:
        assembly: the pure functions and specs.
        notes: what techniques had to decide, in the order it was said; complete after compiling.
        compile_seconds: time spent in tracing and XLA, by function name; never part of a step's time.
    """

    def __init__(self, program: Program, recipe: Recipe, device: Device) -> None:
        self.program, self.recipe, self.device = program, recipe, device
        self.notes: list[str] = []
        self.compile_seconds: dict[str, float] = {}
        self.assembly: Assembly = assemble(program, recipe, device, self._note)

    def init(self, key: Key[Array, ""]) -> State:
        """A fresh state, made on the device by one compiled function."""
        return self._compile("init", self.assembly.init, key)(key)

    def __call__(self, state: State, batch: PyTree) -> tuple[State, StepMetrics]:
        """Run one window and return at once; the results are futures until somebody reads them.

        Raises:
            ShapeError: if the batch or the state has other shapes than the compiled step; names each change.
        """
        _require_shapes(self.assembly.state, state, "state")
        _require_shapes(self.assembly.batch, batch, "batch")
        return self.compiled(state, batch)

    def evaluate(self, state: State, batch: PyTree) -> Loss:
        """Summed loss of one micro-batch, without dropout; the state is kept.

        Raises:
            ShapeError: as for a window.
        """
        _require_shapes(self.assembly.state, state, "state")
        _require_shapes(self.assembly.evaluation_batch, batch, "evaluation batch")
        return self.compiled_evaluation(state, batch)

    @cached_property
    def compiled(self) -> Any:
        """The compiled window; also what memory is read from."""
        return self._compile("window", self.assembly.window, self.assembly.state, self.assembly.batch, donate=(0,))

    @cached_property
    def compiled_evaluation(self) -> Any:
        """The compiled evaluation of one micro-batch."""
        return self._compile("evaluation", self.assembly.evaluate, self.assembly.state, self.assembly.evaluation_batch)

    def _compile(self, name: str, function: Callable[..., Any], *specs: Specs, donate: tuple[int, ...] = ()) -> Any:
        start = time.perf_counter()
        lowered = jax.jit(function, donate_argnums=donate).lower(*specs)
        compiled = lowered.compile(compiler_options=dict(self.recipe.compiler_options) or None)
        self.compile_seconds[name] = time.perf_counter() - start
        return compiled

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)


def _require_shapes(expected: Specs, found: PyTree, what: str) -> None:
    old, new = jax.tree.leaves(expected), jax.tree.leaves(found)
    same = len(old) == len(new) and all(
        a.shape == b.shape and a.dtype == b.dtype for a, b in zip(old, new, strict=True)
    )
    if not same:
        changes = shape_changes(expected, found)
        raise ShapeError(
            f"the {what} has other shapes than the compiled step:\n  " + "\n  ".join(changes),
            hint="a step is compiled once per run; pad every batch to one shape, and keep the state of the same step",
        )
