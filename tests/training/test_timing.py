from __future__ import annotations

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

from brim.training.timing import Throughput


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


def test_pr_s2_compile_and_first_update_are_in_no_speed():
    clock = FakeClock()
    speed = Throughput(clock)
    clock.spend(30)
    first = speed.finish(targets=1000)
    assert (first.seconds, first.tokens_per_second) == (30, None)
    assert (speed.tokens_per_second, speed.seconds_per_update) == (None, None)
    for seconds, targets in ((0.5, 1000), (0.25, 1000), (0.25, 2000)):
        clock.spend(seconds)
        interval = speed.finish(targets)
        assert (interval.seconds, interval.tokens_per_second) == (seconds, targets / seconds)
    assert speed.tokens_per_second == 4000
    assert speed.seconds_per_update == pytest.approx(1 / 3)


def test_pr_s2_waiting_for_data_is_a_share_of_its_own_interval():
    clock = FakeClock()
    speed = Throughput(clock)
    for waited, worked, share in ((2, 8, 0.2), (0, 5, 0.0), (3, 1, 0.75)):
        with speed.waiting():
            clock.spend(waited)
        clock.spend(worked)
        assert speed.finish(1).waiting_share == pytest.approx(share)


def test_pr_s2_a_restart_leaves_out_what_passed():
    clock = FakeClock()
    speed = Throughput(clock)
    speed.finish(1)
    clock.spend(1)
    speed.finish(10)
    with speed.waiting():
        clock.spend(50)
    speed.restart()
    clock.spend(2)
    interval = speed.finish(10)
    assert (interval.seconds, interval.tokens_per_second, interval.waiting_share) == (2, 5, 0)
    assert speed.tokens_per_second == pytest.approx(20 / 3)


def test_pr_s2_a_step_that_takes_50_ms_is_measured_at_its_fetch_not_at_dispatch():
    updates, sleep_seconds = 30, 0.05

    def slow(value: np.ndarray) -> np.ndarray:
        time.sleep(sleep_seconds)
        return value

    @jax.jit
    def step(state):
        loss = io_callback(slow, jax.ShapeDtypeStruct((), jnp.float32), state, ordered=False)
        return loss + 1, loss

    @jax.jit
    def busy(matrix):
        return jax.lax.fori_loop(0, 300, lambda _, x: jnp.tanh(x @ x), matrix)[0, 0]

    # The CPU backend runs a step with a callback inside the call when its inputs are ready, and behind it when not.
    matrix = jnp.full((256, 256), 1 / 256)
    busy(matrix).block_until_ready()
    speed, dispatch_seconds, intervals = Throughput(), [], []
    time.sleep(0.3)  # stands for a compile that takes longer than a step
    compiled = step.lower(jnp.float32(0)).compile()
    state, pending = busy(matrix), None
    for _ in range(updates):
        start = time.perf_counter()
        state, loss = compiled(state)
        dispatch_seconds.append(time.perf_counter() - start)
        if pending is not None:
            float(pending)
            intervals.append(speed.finish(targets=100))
            if len(intervals) == 1:
                began = time.perf_counter()
        pending = loss
    float(pending)
    intervals.append(speed.finish(targets=100))
    wall_seconds = time.perf_counter() - began

    first, *measured = intervals
    assert len(intervals) == updates
    assert (first.tokens_per_second, first.seconds > 0.3) == (None, True)
    # Else a clock around the call would pass this test too.
    assert min(dispatch_seconds[1:]) < 0.045, "dispatch did not run ahead"
    assert min(interval.seconds for interval in measured) >= 0.045
    assert sum(interval.seconds for interval in measured) == pytest.approx(wall_seconds, rel=0.05)
    assert speed.seconds_per_update == pytest.approx(wall_seconds / len(measured), rel=0.05)
    assert speed.seconds_per_update >= 0.05
    assert speed.tokens_per_second == pytest.approx(100 / speed.seconds_per_update, rel=1e-6)
    assert speed.tokens_per_second <= 2000
