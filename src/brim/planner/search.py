"""The search: which recipe is the fastest that fits the budget, and why.

1. space.py      every recipe at the fixed global batch
2. bounds.py     the least each one needs; those over the budget are pruned
3. cost.py       predicted seconds; the order of the candidates
4. selection.py  what to compile, until the fastest that fits and two runners-up are known
5. plan.py       the record, with a reason for every candidate
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import jax
import optax

from brim.errors import TechniqueError
from brim.hardware.facts import Device
from brim.planner.bounds import Bound, Bounds
from brim.planner.compile import Compiled, CompileFunction, Target, compile_window
from brim.planner.cost import CostModel
from brim.planner.plan import Plan
from brim.planner.selection import MAX_COMPILES, Option, Selection
from brim.planner.space import micro_batches, recipes, settings_of
from brim.planner.verdicts import Prospect, against, exceeds, verdicts
from brim.planner.versions import versions
from brim.program import Program
from brim.quantities import format_bytes
from brim.settings import require
from brim.techniques import Recipe, Technique


def _unheard(line: str) -> None:
    del line


def search(
    program: Program,
    *,
    device: Device,
    budget_bytes: int,
    global_batch: int,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    updates: int | None = None,
    price_per_hour: float | None = None,
    host_budget_bytes: int | None = None,
    allow_lossy: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The fastest predicted recipe whose compiled step fits the budget; see `survey` for the arguments.

    Raises:
        NoPlanFits: if nothing fits; says the smallest that was found and what would help.
        SettingsError: if the global batch, the micro-batch and what is fixed do not go together.
        TechniqueError: if a fixed technique cannot work on this program or device.
        DeviceError: if the device cannot be compiled for from here.
    """
    plan = survey(
        program,
        device=device,
        budget_bytes=budget_bytes,
        global_batch=global_batch,
        fixed=fixed,
        micro_batch=micro_batch,
        updates=updates,
        price_per_hour=price_per_hour,
        host_budget_bytes=host_budget_bytes,
        allow_lossy=allow_lossy,
        progress=progress,
    )
    _ = plan.chosen
    return plan


def survey(
    program: Program,
    *,
    device: Device,
    budget_bytes: int,
    global_batch: int,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    updates: int | None = None,
    price_per_hour: float | None = None,
    host_budget_bytes: int | None = None,
    allow_lossy: bool = False,
    progress: Callable[[str], None] | None = None,
    compile_recipe: CompileFunction | None = None,
    max_compiles: int = MAX_COMPILES,
) -> Plan:
    """As `search`, but a plan that does not fit is returned too (`plan.fits` is False), with every reason.

    Args:
        program: what is trained.
        device: where it would run; it need not be here.
        budget_bytes: the most device memory the step may need.
        global_batch: rows per update; never changed.
        fixed: techniques that are given and not searched.
        micro_batch: rows per forward and backward pass, when given; else every divisor of the global batch is tried.
            Programs whose rows depend on each other keep the global batch in one piece.
        updates: length of the run, to say how long it takes.
        price_per_hour: of the device, to say what it costs.
        host_budget_bytes: the most host memory the step may need; None: not limited.
        allow_lossy: whether techniques are searched that may change the results.
        progress: is told a line before the first compile and after each.
        compile_recipe: reads the memory of one recipe; `compile_window` if left out.
        max_compiles: where to stop, with the fastest that is known to fit by then.

    Raises:
        SettingsError, TechniqueError, DeviceError: as `search`.
    """
    start = time.perf_counter()
    if compile_recipe is None:
        compile_recipe = partial(compile_window, target=Target.of(device))
    prospects = consider(
        program,
        device=device,
        global_batch=global_batch,
        fixed=fixed,
        micro_batch=micro_batch,
        allow_lossy=allow_lossy,
    )
    plan = decide(
        program,
        prospects,
        device=device,
        budget_bytes=budget_bytes,
        host_budget_bytes=host_budget_bytes,
        progress=progress,
        compile_recipe=compile_recipe,
        max_compiles=max_compiles,
    )
    return replace(
        plan,
        seconds=time.perf_counter() - start,
        updates=updates,
        price_per_hour=price_per_hour,
        fixed=tuple(technique.name for technique in fixed),
    )


def consider(
    program: Program,
    *,
    device: Device,
    global_batch: int,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    allow_lossy: bool = False,
) -> tuple[Prospect, ...]:
    """Every recipe with its lower bound and predicted time, fastest first; of two alike, the one named first.

    Nothing is compiled, and no budget is asked for: one list serves searches under several budgets.

    Raises:
        SettingsError, TechniqueError: as `search`.
    """
    sizes = micro_batches(program, global_batch, micro_batch, fixed)
    considered = tuple(recipes(program, device, global_batch, sizes, fixed, allow_lossy=allow_lossy))
    if not considered:
        raise TechniqueError("no setting of the techniques works on this program and device")
    traced = _traced_once(program)
    bounds, costs = Bounds(traced, device), CostModel(traced, device, considered)
    tokens = program.tokens_per_row * global_batch
    found = (Prospect(recipe, costs.cost(recipe), _option(recipe, bounds.of(recipe)), tokens) for recipe in considered)
    return tuple(sorted(found, key=lambda prospect: prospect.cost.seconds))


def decide(
    program: Program,
    prospects: Sequence[Prospect],
    *,
    device: Device,
    budget_bytes: int,
    host_budget_bytes: int | None = None,
    progress: Callable[[str], None] | None = None,
    compile_recipe: CompileFunction,
    max_compiles: int = MAX_COMPILES,
) -> Plan:
    """Compile what must be known of some prospects to choose among them under one budget; arguments as `survey`."""
    start = time.perf_counter()
    require(budget_bytes > 0, "budget_bytes", budget_bytes, "more than 0 bytes")
    compiler = _Compiler(
        program, device, budget_bytes, host_budget_bytes, prospects, compile_recipe, progress or _unheard
    )
    selection = Selection([prospect.option for prospect in prospects], budget_bytes, compiler.compile, max_compiles)
    compiler.announce(selection)
    selection.run()
    return Plan(
        device=device,
        budget_bytes=budget_bytes,
        global_batch=prospects[0].recipe.global_batch,
        candidates=verdicts(prospects, selection, compiler.compiled, compiler.failed, budget_bytes, host_budget_bytes),
        versions=versions(device),
        seconds=time.perf_counter() - start,
        compiles=len(selection.peaks),
        unit="tokens" if program.tokens_per_row > 1 else "rows",
        host_budget_bytes=host_budget_bytes,
    )


@dataclass
class _Compiler:
    """Compiles what the selection asks for, keeps what was learnt, and tells."""

    program: Program
    device: Device
    budget_bytes: int
    host_budget_bytes: int | None
    prospects: Sequence[Prospect]
    compile_recipe: CompileFunction
    progress: Callable[[str], None]
    compiled: dict[int, Compiled] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)

    def announce(self, selection: Selection) -> None:
        """Say how much there is to do."""
        pruned = sum(map(selection.pruned, range(len(self.prospects))))
        self.progress(f"{len(self.prospects)} candidates, {pruned} pruned by formula")

    def compile(self, number: int) -> int | None:
        """Compiled peak of a prospect in bytes; None if XLA refuses it, or the host has no room for its part."""
        recipe = self.prospects[number].recipe
        try:
            compiled = self.compile_recipe(self.program, recipe, self.device)
        except jax.errors.JaxRuntimeError as error:
            self.failed[number] = str(error).splitlines()[0]
            self._tell(recipe, f"failed: {self.failed[number]}")
            return None
        self.compiled[number] = compiled
        peak, host = compiled.memory.peak_bytes, compiled.memory.host
        if exceeds(host, self.host_budget_bytes):
            self._tell(recipe, f"{format_bytes(host)} of host memory, over its budget")
            return None
        self._tell(recipe, f"{format_bytes(peak)}, {against(peak, self.budget_bytes)}")
        return peak

    def _tell(self, recipe: Recipe, result: str) -> None:
        count = len(self.compiled) + len(self.failed)
        self.progress(f"compiled {count}: {recipe.describe()}: {result}")


def _traced_once(program: Program) -> Program:
    """The program with init and optimizer as jitted functions: JAX then traces them once for all recipes."""
    init, update = jax.jit(program.optimizer.init), jax.jit(program.optimizer.update)
    return replace(program, init=jax.jit(program.init), optimizer=optax.GradientTransformation(init, update))


def _option(recipe: Recipe, bound: Bound) -> Option:
    return Option(settings_of(recipe), recipe.micro_batch, bound)
