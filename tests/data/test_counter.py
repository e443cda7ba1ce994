from __future__ import annotations

import numpy as np

from brim.data.counter import permutation, random_bits

MASK = (1 << 64) - 1


def splitmix64(state: int) -> int:
    """The published generator in plain integers: one output from the state before the step."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    bits = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def test_the_plain_generator_gives_the_published_numbers() -> None:
    # First outputs for seed 1234567, as listed with the reference implementation (rosettacode.org, Splitmix64).
    state, found = 1234567, []
    for _ in range(3):
        found.append(splitmix64(state))
        state = (state + 0x9E3779B97F4A7C15) & MASK
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_bits_equal_the_plain_generator() -> None:
    start = splitmix64(splitmix64(7) ^ 3)
    expected = [splitmix64((start + n * 0x9E3779B97F4A7C15) & MASK) for n in (0, 1, 5, 10**12)]
    assert random_bits(7, 3, np.array([0, 1, 5, 10**12])).tolist() == expected


def test_permutations_are_complete_and_differ_between_seeds_and_streams() -> None:
    orders = [permutation(seed, stream, 1000) for seed in (0, 1, 2) for stream in (0, 1, 256)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(1000))
    # Two unrelated orders of 1000 share about one place; 15 is far beyond chance (below 1e-12).
    for i, order in enumerate(orders):
        for other in orders[:i]:
            assert np.count_nonzero(order == other) < 15


def test_places_are_uniform() -> None:
    counts = np.bincount(np.argsort(permutation(5, 0, 10_000)) // 1000, minlength=10)
    assert counts.tolist() == [1000] * 10
    low = random_bits(5, 0, np.arange(100_000)) % np.uint64(10)
    # 10,000 expected in each, standard deviation 95: five of them either way.
    assert np.abs(np.bincount(low.astype(int)) - 10_000).max() < 475
