"""What the numbers of a described device can be, in their units: a number far out was most likely written in others.

Data sheets say 24 GB, 1008 GB/s and 165 TFLOP/s; a table takes bytes and FLOP per second. A card of 24 bytes would be
planned for as readily as any other, so what no device has is refused, with the number as it was probably meant.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

from brim.errors import SettingsError
from brim.hardware.facts import PeakFlops, Target

_BYTES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
_BYTES_PER_SECOND = (("GB/s", 1e9), ("TB/s", 1e12), ("MB/s", 1e6))
_BITS_PER_SECOND = (("Gbit/s", 1e9), ("Mbit/s", 1e6))
_FLOPS = (("TFLOP/s", 1e12), ("GFLOP/s", 1e9), ("PFLOP/s", 1e15))
_GIGAHERTZ = (("MHz", 1e-3), ("Hz", 1e-9))
_BYTES_OF_A_CHIP = (("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True)
class Range:
    """What a number can be.

    Attributes:
        least, most: both are allowed.
        unit: what it is counted in, in words.
        others: units that people write in its place, and what one of each is in `unit`.
        usual: a number of the first of those, as many devices have it; what is nearest to it was meant.
        why: where the range is from, if that is not plain.
    """

    least: float
    most: float
    unit: str
    others: tuple[tuple[str, float], ...] = ()
    usual: float = 0.0
    why: str = ""

    def check(self, key: str, found: float) -> None:
        """Refuse a number that is out of the range.

        Raises:
            SettingsError: naming the key, its unit and the number that was probably meant.
        """
        if not self.least <= found <= self.most:
            written = f"{found:.12g}" if isinstance(found, float) else f"{found}"
            expected = f"{self.unit}, from {self.least:.4g} to {self.most:.4g}{self.why and ': '}{self.why}"
            raise SettingsError(f"`{key}` is {written}; expected {expected}", hint=self._hint(found))

    def _hint(self, found: float) -> str:
        if not self.others:
            return ""
        usual = (self.usual, *self.others[0])
        meant = [(found, *other) for other in self.others if self.least <= found * other[1] <= self.most]
        number, name, factor = min(meant, key=lambda one: _apart(_value(one), _value(usual)), default=usual)
        return f"in {self.unit}: {number:.12g} {name} is {_spelled(number, factor)}"


_CHIP_BYTES = Range(2**14, 2**20, "bytes", _BYTES_OF_A_CHIP[1:], 100, "no GPU has less or more")
_CLOCK = Range(0.1, 10, "GHz", _GIGAHERTZ, 2520)
_MEMORY = Range(2**30, 2**44, "bytes", _BYTES, 24)
_COUNT = "a number"

RANGES: Mapping[str, Range] = {
    "memory_bytes": _MEMORY,
    "nominal_bytes": _MEMORY,
    "bandwidth_bytes_per_second": Range(1e10, 1e14, "bytes per second", _BYTES_PER_SECOND, 1008),
    "memory_bus_bits": Range(8, 2**20, "bits"),
    "memory_bits_per_pin_per_second": Range(1e8, 1e12, "bits per second", _BITS_PER_SECOND, 21),
    "host_link_bytes_per_second": Range(1e8, 1e13, "bytes per second", _BYTES_PER_SECOND, 31.5),
    "matrix_clock_ghz": _CLOCK,
    "target.core_count": Range(1, 2**14, _COUNT),
    "target.fpus_per_core": Range(1, 2**14, _COUNT),
    "target.clock_rate_ghz": _CLOCK,
    "target.l2_cache_size": Range(2**18, 2**30, "bytes", _BYTES_OF_A_CHIP, 72, "no GPU has less or more"),
    "target.shared_memory_per_core": _CHIP_BYTES,
    "target.shared_memory_per_block_optin": _CHIP_BYTES,
    "target.threads_per_core_limit": Range(32, 2**14, _COUNT),
}

_SLOWEST, _FASTEST = 1e11, 1e17
# Few units of a card for games multiply in float64.
_SLOWEST_FLOAT64 = 1e9
# No core of any GPU so far multiplies more per clock: Blackwell's do 32768 in float4.
_MOST_FLOP_PER_CORE_AND_CLOCK = 32768


def check_target(target: Target) -> None:
    """Hold the inner numbers of a GPU to what GPUs have.

    Raises:
        SettingsError: naming the key.
    """
    for name, found in dataclasses.asdict(target).items():
        RANGES[f"target.{name}"].check(f"target.{name}", found)


def check_peaks(peaks: PeakFlops, target: Target | None) -> None:
    """Hold the peaks of a device to what any chip reaches, and those of a GPU to its cores and its clock.

    Raises:
        SettingsError: naming the key.
    """
    for name, found in dataclasses.asdict(peaks).items():
        if found is not None:
            most, why = _most_flops(name, target)
            least = _SLOWEST_FLOAT64 if name == "float64" else _SLOWEST
            Range(least, most, "FLOP per second", _FLOPS, 165, why).check(f"peak_flops.{name}", found)


def _most_flops(name: str, target: Target | None) -> tuple[float, str]:
    if target is None:
        return _FASTEST, "no chip is slower or faster"
    clocks = target.core_count * target.clock_rate_ghz * 1e9
    if name == "float32":
        # 5% of grace: boards boost past the clock that they state.
        return 1.05 * clocks * target.fpus_per_core * 2, "at most core_count x fpus_per_core x 2 x clock_rate_ghz"
    most = clocks * _MOST_FLOP_PER_CORE_AND_CLOCK
    return most, f"at most {_MOST_FLOP_PER_CORE_AND_CLOCK} FLOP per core and clock"


def _value(spelled: tuple[float, str, float]) -> float:
    return spelled[0] * spelled[2]


def _apart(one: float, other: float) -> float:
    return abs(math.log(one / other))


def _spelled(number: float, factor: float) -> str:
    """A number times a factor as it would be written in TOML."""
    if factor >= 1e6 and math.log10(factor).is_integer():
        return f"{number:.12g}e{round(math.log10(factor))}"
    value = number * factor
    return f"{round(value):_}" if value >= 1000 else f"{value:.12g}"
