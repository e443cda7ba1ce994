"""Random numbers that are a pure function of (seed, stream, counter): no state, so any of them can be had again.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014,
https://doi.org/10.1145/2714064.2660195). Its output is fixed by the paper, so an order of rows never changes with a
version of NumPy. `stream` keeps uses apart: two streams of one seed, and two seeds, start at unrelated places.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, Integer, UInt64

_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def random_bits(seed: int, stream: int, counters: Integer[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    """64 random bits for each counter."""
    start = _mix_one(_mix_one(seed & _MASK) ^ (stream & _MASK))
    return _mix(np.uint64(start) + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(_STEP))


def permutation(seed: int, stream: int, count: int) -> Int64[np.ndarray, "count"]:
    """The numbers 0 .. count - 1 in random order."""
    return np.argsort(random_bits(seed, stream, np.arange(count)), kind="stable")


def _mix_one(value: int) -> int:
    return int(_mix(np.array([(value + _STEP) & _MASK], dtype=np.uint64))[0])


def _mix(bits: UInt64[np.ndarray, "n"]) -> UInt64[np.ndarray, "n"]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
