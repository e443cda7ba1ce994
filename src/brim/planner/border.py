"""Where an axis stops fitting, found with few looks: the largest model, micro-batch or context for a budget.

    probe = Probe(question)     # probe.py
    found = border_of(range(1, 97), lambda layers: probe.over_bytes(partial(make_program, layers)), what="layers")
    print(found.line)           # largest layers that fits: 61 (62 needs over by 112.4 MiB)

`brim.largest` (api.py) adds the plan of the largest; `brim plan --goal` searches along the axes of a run file.

WHY BISECTION. Along an axis every array of a step grows or stays: more layers hold more parameters, moments, gradients
and residuals, more rows or positions hold more activations. So what a step needs grows with the number, and where one
number does not fit, no larger one does. This is a property of the program, not of XLA: a compiler may choose another
order of operations and need a little less for a little more. What is found is therefore a BORDER: this number fits,
compiled, and of the next one the recipes that should need least do not (or its state alone does not, and what is said
to be over is the least that it can be).

The ends are found by doubling; then the line through both says where to look, in turns with the middle, so that a bad
guess costs no more than one look.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from brim.errors import NoPlanFits
from brim.quantities import format_bytes
from brim.settings import require

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
