"""Seconds per update, predicted before anything is compiled: what orders the candidates of a search.

    products      matrix products at a stated share of the device's peak for their dtype, or the time to read their
                  operands and write their results, whichever is longer
    elementwise   everything else, by the bytes it moves
    loops         copies into and out of the stacked arrays of loops; none where a stack is written out
    kernels       the time to start each kernel, which many small micro-batches pay more often
    host_link     copies between device and host over the link between them. Counted in full: inside one jitted step
                  they hardly overlap with computing

The terms add up, because one kernel waits for the other on one device. FLOPs and bytes are counted on the jaxpr of the
whole step, so recomputation, accumulation and the optimizer are in them. Tracing takes longer than counting, so each
setting of the techniques is traced once, with the fewest micro-batches. At a fixed global batch, what more
micro-batches add (weights read again, gradients summed) is linear in their number and nearly the same for all settings:
it is traced for one setting only.

This is a prediction, good for an order of candidates. `KERNEL_SECONDS` and `LINK_SHARE` are assumed; so are the shares
of peak and bandwidth, unless steps were measured on the device (calibration.py), and then times read off them are right
to a factor of two, not to a percent. None of this decides what fits: that is the compiler's word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax

from brim.hardware.facts import Device
from brim.hardware.flops import count_flops
from brim.hardware.roofline import utilization
from brim.planner.space import with_plain, with_steps
from brim.planner.traffic import Traffic, count_traffic
from brim.program import Program
from brim.techniques import Recipe, Technique
from brim.training.assemble import assemble

PRODUCT_SHARE = 0.6
BANDWIDTH_SHARE = 0.8
LINK_SHARE = 0.8
KERNEL_SECONDS = {"gpu": 2e-6, "tpu": 2e-6, "cpu": 5e-6}

RECOMPUTING_POINTS = frozenset({"residuals", "cross_entropy"})
"""Points at which a technique may compute something a second time."""


@dataclass(frozen=True)
class Work:
    """What one update asks of a device.

    Attributes:
        flops: of matrix products, by dtype.
        traffic: bytes moved.
    """

    flops: Mapping[str, float]
    traffic: Traffic

    def __add__(self, more: Work) -> Work:
        dtypes = sorted(self.flops.keys() | more.flops.keys())
        flops = {dtype: self.flops.get(dtype, 0) + more.flops.get(dtype, 0) for dtype in dtypes}
        return Work(flops, self.traffic + more.traffic)

    def __mul__(self, times: float) -> Work:
        return Work({dtype: times * count for dtype, count in self.flops.items()}, self.traffic * times)

    @property
    def matmul_flops(self) -> float:
        """FLOPs of all matrix products."""
        return sum(self.flops.values())


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of one update, by term, and how much of its arithmetic is done twice.

    Attributes:
        terms: name -> seconds; see the head of this file.
        recompute_share: FLOPs of matrix products beyond those of the same recipe without recomputation, as a share of
            the latter.
        mfu: predicted model FLOPs utilization: products without recomputation over peak times seconds.
    """

    terms: Mapping[str, float]
    recompute_share: float = 0.0
    mfu: float = 0.0

    @property
    def seconds(self) -> float:
        """Predicted seconds of one update."""
        return sum(self.terms.values())

    @classmethod
    def of(cls, work: Work, device: Device, *, without_recomputation: Work | None = None) -> Cost:
        """What the work costs on a device."""
        bandwidth = (device.bandwidth_share or BANDWIDTH_SHARE) * device.bandwidth_bytes_per_second
        share = device.product_share or PRODUCT_SHARE
        link = LINK_SHARE * (device.host_link_bytes_per_second or device.bandwidth_bytes_per_second)
        arithmetic = sum(count / (share * device.peak_flops.of(dtype)) for dtype, count in work.flops.items())
        terms = {
            "products": max(arithmetic, work.traffic.products / bandwidth),
            "elementwise": work.traffic.elementwise / bandwidth,
            "loops": work.traffic.loops / bandwidth,
            "kernels": work.traffic.kernels * KERNEL_SECONDS[device.platform],
            "host_link": work.traffic.host / link,
        }
        # What splitting adds is taken from one setting; where another has less of a term, it may fall below 0.
        terms = {name: max(0.0, seconds) for name, seconds in terms.items()}
        plain = work if without_recomputation is None else without_recomputation
        again = max(0.0, work.matmul_flops / plain.matmul_flops - 1) if plain.matmul_flops else 0.0
        return cls(terms, again, utilization(plain.flops, sum(terms.values()), device))


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
