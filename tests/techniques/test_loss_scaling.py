"""The scale against a few lines of Python; and what it does to gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brim.errors import SettingsError
from brim.techniques.loss_scaling import LossScale, LossScaling, factor_of_sum, unscaled

OVERFLOW, GOOD, EMPTY = "overflow", "good", "empty"


def oracle(events: list[str], scale: float, growth: int) -> list[tuple[float, int]]:
    """Scale and good updates in a row after each window, as the rule is written down."""
    found, good = [], 0
    for event in events:
        if event == OVERFLOW:
            scale, good = max(scale / 2, 1.0), 0
        elif event == GOOD:
            good += 1
            if good == growth:
                scale, good = min(scale * 2, 2.0**24), 0
        found.append((scale, good))
    return found


def play(scaling: LossScaling, events: list[str]) -> list[tuple[float, int]]:
    after = jax.jit(lambda scale, finite, updated: scaling.after(scale, finite=finite, updated=updated))
    scale, found = scaling.init(), []
    for event in events:
        scale = after(scale, jnp.asarray(event != OVERFLOW), jnp.asarray(event == GOOD))
        found.append((float(scale.value), int(scale.good_updates)))
    return found


def test_the_scale_follows_the_rule_over_a_thousand_windows() -> None:
    random = np.random.default_rng(0)
    events = random.choice([OVERFLOW, GOOD, EMPTY], 1000, p=[0.1, 0.8, 0.1]).tolist()
    found = play(LossScaling(initial=2.0**10, growth_updates=5), events)
    assert found == oracle(events, 2.0**10, 5)
    assert len({scale for scale, _ in found}) > 5


def test_fp_s1_the_scale_stops_at_its_floor() -> None:
    found = play(LossScaling(initial=65536.0), [OVERFLOW] * 20)
    assert [scale for scale, _ in found] == [2.0**power for power in range(15, -1, -1)] + [1.0] * 4


def test_fp_s2_the_scale_doubles_after_growth_updates_in_a_row() -> None:
    found = play(LossScaling(initial=65536.0, growth_updates=5), [OVERFLOW] * 8 + [GOOD] * 3 + [GOOD] * 2)
    assert (found[7], found[10], found[12]) == ((256.0, 0), (256.0, 3), (512.0, 0))


def test_the_scale_has_a_ceiling() -> None:
    found = play(LossScaling(initial=2.0**23, growth_updates=1), [GOOD] * 3)
    assert [scale for scale, _ in found] == [2.0**24] * 3


def test_a_static_scale_stays() -> None:
    assert play(LossScaling(dynamic=False, initial=128.0, growth_updates=1), [OVERFLOW, GOOD]) == [(128.0, 0)] * 2


@pytest.mark.parametrize(("tokens", "factor"), [(1, 1024.0), (7, 256.0), (8, 128.0), (65536, 2.0**-6)])
def test_the_factor_of_a_sum_is_a_power_of_two_near_that_of_the_mean(tokens: int, factor: float) -> None:
    scale = LossScale(jnp.float32(1024), jnp.int32(0))
    assert float(factor_of_sum(scale, tokens)) == factor
    assert 1024 / tokens <= factor < 2 * 1024 / tokens


def test_unscaling_by_a_power_of_two_rounds_nothing_and_keeps_what_is_not_finite() -> None:
    plain = np.random.default_rng(0).normal(0, 1e-3, 1000).astype(np.float32)
    found = unscaled({"w": jnp.asarray(plain) * 2.0**20}, jnp.float32(2.0**20))
    np.testing.assert_array_equal(found["w"], plain)
    bad = unscaled(jnp.asarray([np.inf, -np.inf, np.nan]), jnp.float32(2.0**20))
    np.testing.assert_array_equal(bad, [np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("initial", [0.0, 0.5, 1000.0, 2.0**25, float("nan")])
def test_a_scale_that_would_round_or_lies_outside_is_an_error(initial: float) -> None:
    with pytest.raises(SettingsError, match="power of two"):
        LossScaling(initial=initial)


def test_growth_takes_at_least_one_update() -> None:
    with pytest.raises(SettingsError, match="1 or more updates"):
        LossScaling(growth_updates=0)
