"""The search: which recipe is the fastest that fits the budget, and why.

1. space.py      every recipe at the fixed global batch
2. bounds.py     the least each one needs; those over the budget are pruned
3. cost.py       predicted seconds; the order of the candidates
4. selection.py  what to compile, until the fastest that fits and two runners-up are known
5. plan.py       the record, with a reason for every candidate
6. audited.py    the chosen one compiled once more, to say whose each of its bytes is
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import optax

from brim.hardware.facts import Device
from brim.planner.audited import with_report
from brim.planner.bounds import Bound, Bounds
from brim.planner.cache import Cache
from brim.planner.compile import AuditFunction, Compiled, CompileFunction, audit_window, compile_window
from brim.planner.cost_model import CostModel
from brim.planner.plan import Plan
from brim.planner.question import Question
from brim.planner.selection import MAX_COMPILES, Option, Selection
from brim.planner.space import family_of, no_setting_works, recipes
from brim.planner.target import Target
from brim.planner.verdicts import Prospect, against, exceeds, verdicts
from brim.planner.versions import versions
from brim.planner.workers import Workers
from brim.program import Program
from brim.quantities import format_bytes, format_seconds
from brim.techniques import Recipe


def _unheard(line: str) -> None:
    del line


def search(program: Program, question: Question, *, progress: Callable[[str], None] | None = None) -> Plan:
    """The fastest predicted recipe whose compiled step fits the budget; see `survey` for the arguments.

    Raises:
        NoPlanFits: if nothing fits; says the smallest that was found and what would help.
        TechniqueError: if a fixed technique cannot work on this program or device.
        DeviceError: if the device cannot be compiled for from here.
    """
    plan = survey(program, question, progress=progress)
    _ = plan.chosen
    return plan


def survey(
    program: Program,
    question: Question,
    *,
    progress: Callable[[str], None] | None = None,
    compile_recipe: CompileFunction | None = None,
    workers: Workers | None = None,
    cache: Cache | None = None,
    audit_recipe: AuditFunction | None = None,
    max_compiles: int = MAX_COMPILES,
) -> Plan:
    """As `search`, but a plan that does not fit is returned too (`plan.fits` is False), with every reason.

    Args:
        program: what is trained.
        question: for which device, budget and batch, and what is settled.
        progress: is told a line before the first compile and after each.
        compile_recipe: reads the memory of one recipe; `compile_window` in this process if left out.
        workers, cache: processes that compile in place of `compile_recipe`, ended when all is known, and where
            compiles here are kept, if any.
        audit_recipe: compiles the chosen recipe again for the report; no report if only `compile_recipe` is given.
        max_compiles: where to stop, with the fastest that is known to fit by then.

    Raises:
        TechniqueError, DeviceError: as `search`.
    """
    start = time.perf_counter()
    if compile_recipe is None:
        target = Target.of(question.device)
        audit_recipe = audit_recipe or partial(audit_window, target=target)
        compile_recipe = None if workers else partial(compile_window, target=target, cache=cache)
    how: Any = {"compile_recipe": compile_recipe, "workers": workers, "max_compiles": max_compiles}
    plan = decide(program, consider(program, question), question, progress=progress, **how)
    if workers is not None:
        workers.close()  # a guess that still runs would only slow down the compile for the report
    if audit_recipe is not None:
        plan = with_report(plan, program, audit_recipe, progress or _unheard)
    return replace(plan, seconds=time.perf_counter() - start)


def consider(program: Program, question: Question) -> tuple[Prospect, ...]:
    """Every recipe with its lower bound and predicted time, fastest first; of two alike, the one named first.

    Nothing is compiled, and the budget is not looked at: one list serves questions that differ in their budgets only.

    Raises:
        TechniqueError: as `search`.
    """
    considered = tuple(recipes(program, question))
    if not considered:
        raise no_setting_works()
    traced = _traced_once(program)
    bounds, costs = Bounds(traced, question.device), CostModel(traced, question.device, considered)
    tokens = program.tokens_per_row * question.global_batch
    found = (Prospect(recipe, costs.cost(recipe), _option(recipe, bounds.of(recipe)), tokens) for recipe in considered)
    return tuple(sorted(found, key=lambda prospect: prospect.cost.seconds))


def decide(
    program: Program,
    prospects: Sequence[Prospect],
    question: Question,
    *,
    progress: Callable[[str], None] | None = None,
    compile_recipe: CompileFunction | None = None,
    workers: Workers | None = None,
    max_compiles: int = MAX_COMPILES,
) -> Plan:
    """Compile what must be known of some prospects to choose among them under one budget; arguments as `survey`."""
    start = time.perf_counter()
    in_turn = _in_turn(program, question.device, compile_recipe or compile_window)
    compile_ahead, known = (in_turn, _nothing_known) if workers is None else (workers.compile, workers.known)
    compiler = _Compiler(question, prospects, compile_ahead, known, progress or _unheard, max_compiles)
    compiler.announce()
    compiler.selection.run()
    found = prospects, compiler.selection, compiler.compiled, compiler.failed
    return Plan(
        device=question.device,
        budget_bytes=question.budget_bytes,
        global_batch=question.global_batch,
        candidates=verdicts(*found, question.budget_bytes, question.host_budget_bytes),
        versions=versions(question.device),
        seconds=time.perf_counter() - start,
        compiles=len(compiler.selection.peaks),
        compile_seconds=sum(compiled.seconds for compiled in compiler.compiled.values()),
        fixed=tuple(technique.name for technique in question.fixed),
        unit="tokens" if program.tokens_per_row > 1 else "rows",
        host_budget_bytes=question.host_budget_bytes,
    )


Guesses = Callable[[], Iterator[Recipe]]
"""What may be asked for next, likeliest first."""


def _in_turn(
    program: Program, device: Device, compile_recipe: CompileFunction
) -> Callable[[Recipe, Guesses], Compiled]:
    """Compiling in this process, which has no time for guesses."""
    return lambda recipe, guesses: compile_recipe(program, recipe, device)


def _nothing_known(recipe: Recipe) -> None:
    del recipe


@dataclass
class _Compiler:
    """Has compiled what the selection asks for, keeps what was learnt, and tells."""

    question: Question
    prospects: Sequence[Prospect]
    compile_ahead: Callable[[Recipe, Guesses], Compiled]
    known: Callable[[Recipe], Compiled | None]
    progress: Callable[[str], None]
    max_compiles: int
    compiled: dict[int, Compiled] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    selection: Selection = field(init=False)

    def __post_init__(self) -> None:
        options = [prospect.option for prospect in self.prospects]
        self.selection = Selection(options, self.question.budget_bytes, self.compile, self.max_compiles)

    def announce(self) -> None:
        """Say how much there is to do."""
        pruned = sum(map(self.selection.pruned, range(len(self.prospects))))
        self.progress(f"{len(self.prospects)} candidates, {pruned} pruned by formula")

    def compile(self, number: int) -> int | None:
        """Compiled peak of a prospect in bytes; None if XLA refuses it, or the host has no room for its part."""
        expected = self.selection.expected_compiles(number)
        start = time.perf_counter()
        try:
            compiled = self.compile_ahead(self.prospects[number].recipe, partial(self._guesses, number))
        except jax.errors.JaxRuntimeError as error:
            self.failed[number] = str(error).splitlines()[0]
            self._tell(number, expected, f"failed: {self.failed[number]}", time.perf_counter() - start)
            # A compiler that refuses what is larger than the device (TPUs have one) rules out more rows as well.
            return self.question.device.memory_bytes + 1 if "RESOURCE_EXHAUSTED" in str(error) else None
        self.compiled[number] = compiled
        told = partial(self._tell, number, expected, seconds=compiled.seconds, known=compiled.cached)
        peak, host = compiled.memory.peak_bytes, compiled.memory.host
        if exceeds(host, self.question.host_budget_bytes):
            told(f"{format_bytes(host)} of host memory, over its budget")
            return None
        told(f"{format_bytes(peak)}, {against(peak, self.question.budget_bytes)}")
        return peak

    def _guesses(self, number: int) -> Iterator[Recipe]:
        known = {other: self.known(prospect.recipe) for other, prospect in enumerate(self.prospects)}
        peaks = {other: compiled.memory.peak_bytes for other, compiled in known.items() if compiled is not None}
        return (self.prospects[other].recipe for other in self.selection.ahead(number, peaks))

    def _tell(self, number: int, expected: int, result: str, seconds: float, *, known: bool = False) -> None:
        count = len(self.compiled) + len(self.failed)
        took = f"{format_seconds(seconds)}, known from before" if known else format_seconds(seconds)
        recipe = self.prospects[number].recipe.describe()
        self.progress(f"compiled {count} of about {expected}: {recipe}: {result} ({took})")


def _traced_once(program: Program) -> Program:
    """The program with init and optimizer as jitted functions: JAX then traces them once for all recipes."""
    init, update = jax.jit(program.optimizer.init), jax.jit(program.optimizer.update)
    return replace(program, init=jax.jit(program.init), optimizer=optax.GradientTransformation(init, update))


def _option(recipe: Recipe, bound: Bound) -> Option:
    return Option(family_of(recipe), recipe.micro_batch, bound)
