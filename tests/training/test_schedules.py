from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from brim.errors import SettingsError
from brim.training.schedules import Horizon, ScheduleSettings, horizon_change, schedule

KINDS = ("constant", "linear", "cosine", "warmup-stable-decay")


def settings(kind: str = "cosine", **fields) -> ScheduleSettings:
    return ScheduleSettings(kind=kind, **{"learning_rate": 1e-3, **fields})


def values(made: ScheduleSettings, total: int, positions: int | None = None) -> np.ndarray:
    rate = schedule(made, total)
    return np.array([float(rate(p)) for p in range(total if positions is None else positions)])


@pytest.mark.parametrize("kind", KINDS)
def test_sc_s1_warmup_as_long_as_the_run(kind):
    rates = values(settings(kind, warmup=100), 100, positions=101)
    assert np.all(np.isfinite(rates))
    assert np.all(np.diff(rates) > 0)
    # Optax interpolates from the peak, so a small value keeps about 1e-10 of absolute error.
    assert rates[0] == pytest.approx(1e-3 / 101, abs=1e-10)
    assert rates[100] == pytest.approx(1e-3, rel=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_sc_s1_warmup_longer_than_the_run_is_an_error_naming_both(kind):
    with pytest.raises(SettingsError, match=r"200.*100"):
        schedule(settings(kind, warmup=200), 100)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("warmup", "first"), [(0, 1e-3), (1, 5e-4)])
def test_sc_s1_a_run_of_one_update(kind, warmup, first):
    assert values(settings(kind, warmup=warmup), 1) == pytest.approx([first], rel=1e-6)


def test_sc_s2_without_warmup_the_first_update_uses_the_peak():
    rates = values(settings(), 10, positions=11)
    assert np.all(np.isfinite(rates))
    assert rates[0] == pytest.approx(1e-3, rel=1e-7)
    assert rates[5] == pytest.approx(5e-4, rel=1e-6)
    assert rates[10] == 0


def test_sc_s3_a_longer_run_on_resume_is_a_jump_with_both_numbers():
    change = horizon_change(Horizon(settings(), 100), Horizon(settings(), 200), at_update=80)
    assert change.old_learning_rate == pytest.approx(9.549e-5, rel=1e-4)
    assert change.new_learning_rate == pytest.approx(6.545e-4, rel=1e-4)
    assert change.ratio == pytest.approx(6.85, abs=5e-3)
    assert all(word in str(change) for word in ("update 80", "9.549e-05", "0.0006545", "6.85", "100", "200"))


def test_sc_s3_no_jump_no_change():
    assert horizon_change(Horizon(settings(), 100), Horizon(settings(), 100), 80) is None
    constant = settings("constant")
    assert horizon_change(Horizon(constant, 100), Horizon(constant, 200), 80) is None
    stable = settings("warmup-stable-decay", decay=10)
    assert horizon_change(Horizon(stable, 100), Horizon(stable, 200), 80) is None
    assert horizon_change(Horizon(stable, 100), Horizon(stable, 200), 95).ratio == pytest.approx(2)


def test_sc_s3_from_an_end_value_of_zero_the_ratio_is_infinite():
    assert horizon_change(Horizon(settings(), 100), Horizon(settings(), 200), 100).ratio == math.inf


def test_sc_s4_warmup_is_subtracted_once():
    rate = schedule(settings(warmup=10), 100)
    for position, expected in ((50, 5.8682e-4), (90, 3.0154e-5), (95, 7.596e-6)):
        # The case gives four or five digits.
        assert float(rate(position)) == pytest.approx(expected, rel=7e-5)
        exact = 1e-3 * 0.5 * (1 + math.cos(math.pi * (position - 10) / 90))
        # 1 + cos loses digits near the end in fp32: 1e-7 of the peak is what is left.
        assert float(rate(position)) == pytest.approx(exact, abs=1e-10)
    assert float(rate(100)) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize("kind", ["linear", "cosine", "warmup-stable-decay"])
def test_the_minimum_is_a_learning_rate_and_is_met_at_the_end_and_kept(kind):
    rates = values(settings(kind, warmup=7, minimum=1e-4), 50, positions=60)
    assert rates[7] == pytest.approx(1e-3, rel=1e-6)
    assert np.all(rates[7:49] > 1.001e-4)
    assert rates[50:] == pytest.approx([1e-4] * 10, rel=1e-5)


def test_warmup_stable_decay_stays_then_falls_in_equal_steps():
    rates = values(settings("warmup-stable-decay", warmup=10, minimum=2e-4, decay=8), 40, positions=41)
    assert rates[10:33] == pytest.approx([1e-3] * 23, rel=1e-6)
    assert np.diff(rates[32:]) == pytest.approx([-1e-4] * 8, rel=1e-3)
    fifth = values(settings("warmup-stable-decay"), 40, positions=41)
    assert (fifth[32], fifth[33]) == (pytest.approx(1e-3), pytest.approx(8.75e-4))


def test_a_decay_that_does_not_fit_is_an_error():
    with pytest.raises(SettingsError, match=r"30.*80.*100"):
        schedule(settings("warmup-stable-decay", warmup=30, decay=80), 100)


@pytest.mark.parametrize("kind", KINDS)
def test_fp32_and_the_same_under_jit(kind):
    rate = schedule(settings(kind, warmup=3), 20)
    jitted = jax.jit(rate)
    for position in range(21):
        inside = jitted(jnp.int32(position))
        assert inside.dtype == jnp.float32
        assert inside.shape == ()
        # Fused and unfused fp32 may differ in the last two bits of the peak.
        assert float(inside) == pytest.approx(float(rate(position)), abs=2e-10)


@pytest.mark.parametrize(
    "fields",
    [
        {"learning_rate": 0.0},
        {"learning_rate": -1.0},
        {"warmup": -1},
        {"minimum": 2e-3},
        {"minimum": -1e-9},
        {"decay": 5},
        {"kind": "warmup-stable-decay", "decay": 0},
        {"kind": "constant", "minimum": 1e-4},
    ],
)
def test_values_out_of_range_or_ignored_are_errors(fields):
    with pytest.raises(SettingsError, match=f"`{[key for key in fields if key != 'kind'][-1]}`"):
        settings(**fields)


def test_a_run_needs_an_update():
    with pytest.raises(SettingsError, match="total_updates"):
        schedule(settings(), 0)
