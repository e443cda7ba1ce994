"""Which candidates to compile, and in which order: the fastest that fits, proven with few compiles.

Options stand in the order of predicted speed. The first that fits is the choice; it is proven when everything before it
is known not to fit. Three things decide an option without compiling it:

    its lower bound is over the budget
    a smaller micro-batch of its family (the same setting of every technique) was compiled, and with what more rows add
    by formula (of which only a part counts, as in a bound) it is over the budget. More rows add something only if the
    smaller one's peak is more than its state and twice its gradients: else it may be where gradients are. And one
    micro-batch per update holds no gradient sums, so it may need less than several: those sums and, to be safe, one
    more gradient are taken off
    it stands behind the choice and two runners-up

Expectations (from what was compiled of a family, else from formulas) say what to compile first, never how it ends: when
the fastest undecided option is expected not to fit, the smallest of its family that is expected not to fit is compiled
instead, because it rules out most. What only formulas expect to fit closely counts as not fitting. If a compiled
program ever needs less than was said, formulas are not trusted any more, and from then on only the bytes of state and
batch prune.
"""

from __future__ import annotations

import copy
import itertools
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from brim.planner.bounds import SAFETY, Bound

RUNNERS_UP = 2
MAX_COMPILES = 40
MAX_COMPILES_FOR_RUNNERS_UP = 4

EXPECTED_RATIO = 2.0
"""How much more a compiled program is expected to need than formulas say, before any was compiled. Too high a guess
costs less than too low a one: it leads to a smaller program, which may turn out as a runner-up."""

CLOSE_SHARE = 0.8
"""Of the budget: what formulas expect above it may well not fit."""


@dataclass(frozen=True)
class Option:
    """What the selection knows of a recipe.

    Attributes:
        family: equal for recipes that differ in micro-batch only.
        micro_batch: rows per forward and backward pass.
        bound: the least it needs.
    """

    family: Hashable
    micro_batch: int
    bound: Bound


class Selection:
    """The state of one search.

    Args:
        options: fastest predicted first.
        budget_bytes: the most a step may need.
        compile_option: number of an option -> its compiled peak in bytes, or None if the compiler refused it.
        max_compiles: where to stop even without proof.

    Attributes:
        peaks: number of an option -> compiled bytes; None where the compiler refused.
        trusts_formulas: whether no compiled program contradicted its bound so far.
    """

    def __init__(
        self,
        options: Sequence[Option],
        budget_bytes: int,
        compile_option: Callable[[int], int | None],
        max_compiles: int = MAX_COMPILES,
    ) -> None:
        self._options, self._budget, self._compile_option = options, budget_bytes, compile_option
        self._max_compiles = max_compiles
        self._compiles_for_runners_up = 0
        self.peaks: dict[int, int | None] = {}
        self.trusts_formulas = True
        self._last_resort: list[int] | None = None  # replaced, never changed: copies share it

    def run(self) -> None:
        """Compile until the choice and its runners-up are known; when nothing fits, until that is known."""
        while (number := self.next()) is not None:
            self.record(number, self._compile_option(number))

    def next(self) -> int | None:
        """What to compile now; None when all that is needed is known."""
        if self._last_resort:
            return self._last_resort[0]
        number = self._next()
        if number is None and self._last_resort is None and not self.fitting():
            # What is compiled now may show that formulas are not to be trusted; then the search goes on.
            self._last_resort = self._smallest()
            return self._last_resort[0] if self._last_resort else None
        return number

    def record(self, number: int, peak: int | None) -> None:
        """Take in what `next` asked for: the compiled peak in bytes, or None if the compiler refused it."""
        least = max([self.least_bytes(number), *(self._least_after(other, number) for other in self._smaller(number))])
        self.peaks[number] = peak
        if peak is not None and peak < least:
            self.trusts_formulas = False
        if self._last_resort:
            self._last_resort = [other for other in self._last_resort if other != number]

    def ahead(self, pending: int, known: Mapping[int, int | None] = MappingProxyType({})) -> Iterator[int]:
        """What would be asked for after a pending compile, likeliest first: guesses for those who have nothing to do.

        Follows two paths in turn: the pending option needs what is expected of it, and the opposite. Whatever is asked
        for on the way is taken to need what is known or expected of it. This selection itself is not changed.

        Args:
            pending: what `next` said.
            known: peaks that were found already and not asked for yet; they make the guesses better.
        """
        expected = int(self._expected(pending))
        opposite = self._budget + 1 if expected <= self._budget else self._budget
        paths = (self._path(pending, peak, known) for peak in (expected, opposite))
        steps = (number for pair in itertools.zip_longest(*paths) for number in pair if number is not None)
        seen = set()
        for number in steps:
            if number not in seen:
                seen.add(number)
                yield number

    def expected_compiles(self, pending: int) -> int:
        """How many compiles the whole search will take if all goes as expected, the pending one included."""
        path = self._path(pending, int(self._expected(pending)), {})
        return len(self.peaks) + 1 + sum(1 for _ in path)

    def _smallest(self) -> list[int]:
        """What to compile when nothing fits: what is undecided, or anything if nothing was compiled, at its smallest.

        Smallest as expected, and, since not every program has formulas, the slowest among the fewest rows.
        """
        left = self._undecided() or ([] if self.peaks else [*range(len(self._options))])
        if not left:
            return []
        fewest = min(left, key=lambda number: (self._options[number].micro_batch, -number))
        return sorted({min(left, key=self._expected), fewest})

    def fitting(self) -> list[int]:
        """The options that were compiled and fit, fastest predicted first."""
        return sorted(number for number, peak in self.peaks.items() if peak is not None and peak <= self._budget)

    def least_bytes(self, number: int) -> int:
        """The lower bound that prunes."""
        bound = self._options[number].bound
        return bound.least if self.trusts_formulas else bound.arguments

    def pruned(self, number: int) -> bool:
        """Whether an option is over the budget by its bound."""
        return self.least_bytes(number) > self._budget

    def ruled_out_by(self, number: int) -> int | None:
        """The compiled option with the same settings and fewer rows by which this one is over the budget, or None."""
        return next((other for other in self._smaller(number) if self._least_after(other, number) > self._budget), None)

    def growth_bytes(self, smaller: int, larger: int) -> int:
        """What more rows of the same settings add at least, by formula; 0 once formulas are not trusted."""
        more = self._options[larger].bound.formula - self._options[smaller].bound.formula
        return int(SAFETY * more) if self.trusts_formulas else 0

    @property
    def exhausted(self) -> bool:
        """Whether the number of compiles ran out."""
        return len(self.peaks) >= self._max_compiles

    def undecided_before(self, number: int) -> int:
        """How many options that stand before one have no outcome: 0 unless the compiles ran out."""
        return sum(other < number for other in self._undecided())

    def _next(self) -> int | None:
        undecided, fitting = self._undecided(), self.fitting()
        if not undecided or self.exhausted:
            return None
        if fitting and fitting[0] < undecided[0]:  # the choice is proven; what is left is to find runners-up
            known = len(fitting) > RUNNERS_UP and fitting[RUNNERS_UP] < undecided[0]
            if known or self._compiles_for_runners_up >= MAX_COMPILES_FOR_RUNNERS_UP:
                return None
            self._compiles_for_runners_up += 1
        return self._probe(undecided[0])

    def _undecided(self) -> list[int]:
        return [
            number
            for number in range(len(self._options))
            if number not in self.peaks and not self.pruned(number) and self.ruled_out_by(number) is None
        ]

    def _probe(self, first: int) -> int:
        """What to compile so as to decide on an option: itself, or a smaller one that would rule it out."""
        option = self._options[first]
        family = [number for number in self._undecided() if self._options[number].family == option.family]
        limit = self._budget if self._compiled_of(option.family) else CLOSE_SHARE * self._budget
        too_large = [
            number
            for number in family
            if self._options[number].micro_batch <= option.micro_batch and self._expected(number) > limit
        ]
        return min(too_large, key=lambda number: self._options[number].micro_batch, default=first)

    def _path(self, number: int, peak: int, known: Mapping[int, int | None]) -> Iterator[int]:
        """What is asked for after a peak that is only supposed; what is known already is passed over."""
        supposed = copy.copy(self)
        supposed.peaks = dict(self.peaks)
        supposed.record(number, peak)
        while (following := supposed.next()) is not None:
            if following not in known:
                yield following
            supposed.record(following, known.get(following, int(supposed._expected(following))))

    def _smaller(self, number: int) -> list[int]:
        option = self._options[number]
        return [n for n in self._compiled_of(option.family) if self._options[n].micro_batch < option.micro_batch]

    def _least_after(self, smaller: int, larger: int) -> int:
        """The least that an option needs, by a compiled one with fewer rows."""
        bound = self._options[smaller].bound
        sums = bound.gradients - self._options[larger].bound.gradients
        # With few rows the peak may be where gradients are, which more rows leave as it is.
        grows = self._peak(smaller) > bound.standing + bound.gradients
        return self._peak(smaller) - 2 * sums + (self.growth_bytes(smaller, larger) if grows else 0)

    def _compiled_of(self, family: Hashable) -> list[int]:
        return [
            number for number, peak in self.peaks.items() if peak is not None and self._options[number].family == family
        ]

    def _expected(self, number: int) -> float:
        """Bytes that an option is expected to need."""
        option = self._options[number]
        known = sorted(
            (
                (self._options[other].micro_batch, self._beyond_standing(other))
                for other in self._compiled_of(option.family)
            ),
            key=lambda point: abs(point[0] - option.micro_batch),
        )[:2]
        if not known:
            return option.bound.standing + self._formula_ratio() * option.bound.formula
        return option.bound.standing + _through(known, option.micro_batch)

    def _beyond_standing(self, number: int) -> float:
        return self._peak(number) - self._options[number].bound.standing

    def _peak(self, number: int) -> int:
        peak = self.peaks[number]
        assert peak is not None
        return peak

    def _formula_ratio(self) -> float:
        """How much more compiled programs need than formulas say, by those compiled so far."""
        ratios = [
            self._beyond_standing(number) / self._options[number].bound.formula
            for number, peak in self.peaks.items()
            if peak is not None and self._options[number].bound.formula
        ]
        return statistics.median(ratios) if ratios else EXPECTED_RATIO


def _through(points: Sequence[tuple[int, float]], at: int) -> float:
    """The line through two points, or through one and the origin, at another place."""
    (x, y), *rest = points
    if not rest:
        return y * at / x
    ((x2, y2),) = rest
    return y + (y2 - y) * (at - x) / (x2 - x)
