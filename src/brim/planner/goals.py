"""The largest model, micro-batch or context that fits: a search along one axis, by compiling few points of it.

    found = largest(make_program, range(1, 97), what="layers", device="rtx-4090", global_batch=8)
    print(found.line)       # largest layers that fits: 61 (62 needs over by 112.4 MiB)
    print(found.plan)

WHY BISECTION. Along an axis every array of a step grows or stays: more layers hold more parameters, moments, gradients
and residuals, more rows or positions hold more activations. So what a step needs grows with the number, and where one
number does not fit, no larger one does. This is a property of the program, not of XLA: a compiler may choose another
order of operations and need a little less for a little more. What is found is therefore a BORDER, exactly as it is
said: this number fits, the next one does not, both compiled.

WHAT A PROBE COSTS. Whether a number fits at all is decided by its smallest recipe, not by its fastest: one compile if
that fits, and often a second if it does not, because formulas do not always know which recipe is the smallest. State
and batch alone over the budget need none. The ends are found by doubling; then the line through both says where to
look, in turns with the middle, so that a bad guess costs no more than one compile. The border itself gets a whole
search, for an ordinary plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Generic, TypeVar

from brim.errors import NoPlanFits
from brim.hardware.device import Device, detect, find
from brim.planner.bounds import Bound, Bounds
from brim.planner.budget import default_budget
from brim.planner.compile import CompileFunction, compile_window
from brim.planner.plan import Plan
from brim.planner.search import search
from brim.planner.selection import EXPECTED_RATIO
from brim.planner.space import micro_batches, recipes
from brim.planner.target import Target
from brim.program import Program
from brim.quantities import format_bytes, parse_bytes
from brim.settings import require
from brim.techniques import Recipe, Technique

T = TypeVar("T")


@dataclass(frozen=True)
class Border(Generic[T]):
    """Where an axis stops fitting.

    Attributes:
        what: name of the axis, for people.
        value: the largest that fits.
        above: the next one, which does not fit; None if the axis ends with `value`.
        over_bytes: by how much `above` is over the budget, at its smallest; 0 without `above`.
        probes: how many points were looked at.
        words: how a value is written for people.
    """

    what: str
    value: T
    above: T | None
    over_bytes: int
    probes: int
    words: Callable[[T], str] = str

    @property
    def line(self) -> str:
        """What was found, in one line."""
        found = f"largest {self.what} that fits: {self.words(self.value)}"
        if self.above is None:
            return f"{found} (the last that was to be tried)"
        return f"{found} ({self.words(self.above)} needs over by {format_bytes(self.over_bytes)})"


@dataclass(frozen=True)
class Largest:
    """The largest number that fits, with its plan.

    Attributes:
        border: what was found, and what is next to it.
        plan: an ordinary plan of the program with that number.
    """

    border: Border[int]
    plan: Plan

    @property
    def number(self) -> int:
        """The largest that fits."""
        return self.border.value

    @property
    def line(self) -> str:
        """What was found, in one line."""
        return self.border.line


def largest(
    make: Callable[[int], Program],
    numbers: Sequence[int],
    *,
    global_batch: int,
    what: str = "number",
    device: Device | str | None = None,
    budget: int | str | None = None,
    fixed: Sequence[Technique] = (),
    micro_batch: int | None = None,
    progress: Callable[[str], None] | None = None,
    compile_recipe: CompileFunction | None = None,
) -> Largest:
    """The largest of some numbers whose program fits a budget, with its plan; see the head of this file.

    Args:
        make: number -> program; must need more memory for a larger number.
        numbers: what may be tried, ascending, such as `range(1, 97)`.
        global_batch: rows per update, for every number.
        what: the name of the number, for messages.
        device, budget, fixed, micro_batch: as for `brim.plan`.
        progress: is told a line after each probe.
        compile_recipe: reads the memory of one recipe; `brim.planner.compile_window` if left out.

    Raises:
        NoPlanFits: if the first number does not fit.
        SettingsError: if there are no numbers. BrimError: as `brim.planner.search` does.
    """
    if not isinstance(device, Device):
        device = detect() if device is None else find(device)
    budget_bytes = default_budget(device) if budget is None else parse_bytes(budget)
    probe = Probe(device, budget_bytes, global_batch, tuple(fixed), micro_batch, compile_recipe)
    border = border_of(numbers, lambda number: probe.over_bytes(make(number)), what=what, progress=progress)
    plan = search(
        make(border.value),
        device=device,
        budget_bytes=budget_bytes,
        global_batch=global_batch,
        fixed=fixed,
        micro_batch=micro_batch,
        progress=progress,
    )
    return Largest(border, plan)


@dataclass(frozen=True)
class Probe:
    """Asks whether a program fits at all: by the compiled peak of its smallest recipe.

    Attributes: as the arguments of `largest`.
    """

    device: Device
    budget_bytes: int
    global_batch: int
    fixed: tuple[Technique, ...] = ()
    micro_batch: int | None = None
    compile_recipe: CompileFunction | None = None

    def over_bytes(self, program: Program) -> int:
        """Least bytes over the budget; 0 or below: it fits.

        Raises:
            SettingsError, TechniqueError, DeviceError: as `brim.planner.search`.
        """
        sizes = micro_batches(program, self.global_batch, self.micro_batch, self.fixed)
        bounds = Bounds(program, self.device)
        found = list(recipes(program, self.device, self.global_batch, sizes, self.fixed))
        needs = [bounds.of(recipe) for recipe in found]
        least = min(bound.arguments for bound in needs)
        if least > self.budget_bytes:  # no compiler needs less than the state and the batch
            return least - self.budget_bytes
        overs: list[int] = []
        for recipe in _smallest(found, needs):
            overs.append(self._peak(program, recipe) - self.budget_bytes)
            if overs[-1] <= 0:
                break
        return min(overs)

    def _peak(self, program: Program, recipe: Recipe) -> int:
        compile_recipe = self.compile_recipe or partial(compile_window, target=Target.of(self.device))
        return compile_recipe(program, recipe, self.device).memory.peak_bytes


def _smallest(found: Sequence[Recipe], needs: Sequence[Bound]) -> list[Recipe]:
    """What may need least: what formulas expect to, and the fewest rows with the most saving settings.

    They differ where gradient sums over several micro-batches weigh about as much as more rows at once.
    """
    places = range(len(found))
    expected = min(places, key=lambda n: (needs[n].standing + EXPECTED_RATIO * needs[n].formula, -n))
    # Not every program has formulas; settings stand cheapest in time first, so the last saves most.
    fewest = min(places, key=lambda n: (found[n].micro_batch, needs[n].formula, -n))
    return [found[n] for n in dict.fromkeys((expected, fewest))]


def border_of(
    values: Sequence[T],
    over_bytes: Callable[[T], int],
    *,
    what: str,
    words: Callable[[T], str] = str,
    size: Callable[[T], float] = float,  # type: ignore[assignment]
    start: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Border[T]:
    """The last of ascending values that fits, with few looks; see the head of this file.

    Args:
        over_bytes: how much a value is over the budget; 0 or below: it fits.
        what, words: for messages.
        size: what memory is expected to grow with, in a line.
        start: the place to look at first.
        progress: is told a line after each look.

    Raises:
        NoPlanFits: if the first value does not fit.
        SettingsError: if there are no values.
    """
    require(len(values) > 0, what, "nothing", "at least one value to try")
    looks = _Looks(values, over_bytes, what, words, size, progress)
    low, high = looks.narrowed(*looks.bracket(min(max(start, 0), len(values) - 1)))
    if high == len(values):
        return Border(what, values[low], None, 0, len(looks.known), words)
    return Border(what, values[low], values[high], looks.over(high), len(looks.known), words)


@dataclass(frozen=True)
class _Looks(Generic[T]):
    """What was looked at so far: place -> bytes over the budget; see `border_of`."""

    values: Sequence[T]
    over_bytes: Callable[[T], int]
    what: str
    words: Callable[[T], str]
    size: Callable[[T], float]
    progress: Callable[[str], None] | None
    known: dict[int, int] = field(default_factory=dict)

    def over(self, place: int) -> int:
        if place not in self.known:
            self.known[place] = self.over_bytes(self.values[place])
            if self.progress is not None:
                value, found = self.words(self.values[place]), _against(self.known[place])
                self.progress(f"probe {len(self.known)}: {self.what} {value}: {found}")
        return self.known[place]

    def bracket(self, start: int) -> tuple[int, int]:
        """A place that fits and one above it that does not (or the end), found by doubling from a start."""
        step, last = 1, len(self.values) - 1
        if self.over(start) > 0:
            high = start
            while high > 0 and self.over(max(0, high - step)) > 0:
                high, step = max(0, high - step), 2 * step
            if high == 0:
                self._nothing_fits()
            return max(0, high - step), high
        low = start
        while low < last and self.over(min(last, low + step)) <= 0:
            low, step = min(last, low + step), 2 * step
        return low, min(last, low + step) if low < last else len(self.values)

    def narrowed(self, low: int, high: int) -> tuple[int, int]:
        """The same with nothing between both, by the line through them and the middle in turns."""
        by_line = True
        while high - low > 1 and high < len(self.values):
            place = self._on_the_line(low, high) if by_line else (low + high) // 2
            by_line = not by_line
            low, high = (place, high) if self.over(place) <= 0 else (low, place)
        return low, high

    def _on_the_line(self, low: int, high: int) -> int:
        """The last place strictly inside where the line through both ends is not over the budget."""
        sizes = [self.size(value) for value in self.values[low : high + 1]]
        share = -self.over(low) / (self.over(high) - self.over(low))
        wanted = sizes[0] + share * (sizes[-1] - sizes[0])
        return low + max((n for n in range(1, high - low) if sizes[n] <= wanted), default=1)

    def _nothing_fits(self) -> None:
        over = format_bytes(self.over(0))
        raise NoPlanFits(
            f"no {self.what} fits: the smallest that was tried, {self.words(self.values[0])}, is over by {over}",
            hint="a larger budget, a larger device, or a smaller model",
        )


def _against(over: int) -> str:
    return f"fits, {format_bytes(-over)} to spare" if over <= 0 else f"over by {format_bytes(over)}"
