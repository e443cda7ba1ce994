"""The loop hands work over ahead of the device, tells trackers in order, and stops when nothing is learned."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from brim.errors import DivergenceError
from brim.hardware.device import detect
from brim.ops import Loss
from brim.program import Program
from brim.techniques import Accumulation, Recipe
from brim.training.evaluation import evaluate
from brim.training.loop import Loop, Outcome
from brim.training.settings import TrainSettings
from brim.training.state import State, StepMetrics
from brim.training.step import Step
from brim.training.tracking import Record
from programs import linear_batch, linear_program


class Recorder:
    """A tracker that keeps what it is told."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def log(self, record: Record) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing is buffered."""


def slow_program() -> Program:
    """Its step really takes tens of milliseconds of computing, and cannot start before the step before it is done.

    A host callback that sleeps will not do: on a CPU such a step runs inside its own dispatch.
    """
    program = linear_program(1, optax.sgd(0.1))

    def loss(trainable: Any, *rest: Any) -> tuple[Loss, Any]:
        start = jnp.full((256, 256), jax.lax.stop_gradient(trainable)[0])
        end = jax.lax.fori_loop(0, 200, lambda _, x: jnp.sin(x @ x), start)
        return program.loss(trainable + 0 * end[0, 0], *rest)

    return replace(program, loss=loss)


def make_loop(program: Program, settings: TrainSettings, **changes: Any) -> tuple[Loop, Recorder]:
    recorder = Recorder()
    rows = settings.global_batch
    step = Step(
        program, Recipe.of(settings.micro_batch or rows, Accumulation(rows // (settings.micro_batch or rows))), detect()
    )
    given: dict[str, Any] = {"trackers": [recorder], "evaluate": None, "save": lambda *a: None, "stop": lambda: False}
    return Loop(step=step, settings=settings, **(given | changes)), recorder


def run(loop: Loop, batches: Iterator[Any]) -> Outcome:
    return loop.run(loop.step.init(jax.random.key(0)), batches)


class Ahead:
    """Wraps a step and notes, at each hand-over, whether the window before was still running."""

    def __init__(self, step: Step, *, item: bool = False) -> None:
        self._step, self._item = step, item
        self._previous: StepMetrics | None = None
        self.still_running: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __call__(self, state: State, batch: Any) -> tuple[State, StepMetrics]:
        if self._previous is not None:
            self.still_running.append(not self._previous.loss.is_ready())
        state, metrics = self._step(state, batch)
        if self._item:
            metrics.loss.item()
        self._previous = metrics
        return state, metrics


def hand_overs(*, item: bool) -> list[bool]:
    loop, _ = make_loop(slow_program(), TrainSettings(updates=12, global_batch=1))
    ahead = Ahead(loop.step, item=item)
    run(replace(loop, step=ahead), itertools.repeat(linear_batch([[1.0]])))
    return ahead.still_running[2:]


def test_the_next_window_is_handed_over_while_the_last_one_runs() -> None:
    assert sum(hand_overs(item=False)) >= 8  # of 9: one may be late on a busy machine


def test_a_planted_item_is_caught() -> None:
    assert sum(hand_overs(item=True)) == 0


def test_pr_s2_intervals_are_those_of_the_device_and_add_up_to_wall_time() -> None:
    loop, recorder = make_loop(slow_program(), TrainSettings(updates=15, global_batch=1))
    state, batch = loop.step.init(jax.random.key(0)), linear_batch([[1.0]])
    alone = []
    for _ in range(5):
        start = time.perf_counter()
        state, metrics = loop.step(state, batch)
        metrics.loss.block_until_ready()
        alone.append(time.perf_counter() - start)
    start = time.perf_counter()
    run(loop, itertools.repeat(batch))
    wall = time.perf_counter() - start
    seconds = [record.seconds for record in recorder.records]
    assert min(seconds[1:]) >= 0.5 * min(alone)  # an interval that ended at dispatch would be a thousandth of it
    assert sum(seconds) == pytest.approx(wall, rel=0.15)
    assert recorder.records[0].tokens_per_second is None


def test_every_window_is_told_once_in_order_with_its_own_numbers() -> None:
    loop, recorder = make_loop(linear_program(1, optax.sgd(0.5)), TrainSettings(updates=5, global_batch=2))
    run(loop, itertools.repeat(linear_batch([[1.0], [1.0]], offsets=[3, 3])))
    assert [record.window for record in recorder.records] == [1, 2, 3, 4, 5]
    assert [record.loss for record in recorder.records] == [3.0, 2.5, 2.0, 1.5, 1.0]
    assert {record.targets for record in recorder.records} == {2}


def test_acc_s2_an_epoch_of_ten_micro_batches_in_windows_of_four_makes_three_whole_updates() -> None:
    settings = TrainSettings(updates=3, global_batch=4, micro_batch=1)
    loop, recorder = make_loop(linear_program(1, optax.sgd(0.1)), settings)
    weights = np.array([1.0] * 10 + [0.0] * 2).reshape(3, 4)
    outcome = run(loop, (linear_batch([[w] for w in part], weights=part) for part in weights))
    np.testing.assert_allclose(outcome.state.trainable, [-0.30], rtol=1e-6)
    assert [record.targets for record in recorder.records] == [4, 4, 2]


def test_evaluation_and_saving_happen_when_they_are_due() -> None:
    evaluated: list[int] = []
    saved: list[tuple[int, float | None]] = []

    def held_out(state: State) -> float:
        evaluated.append(int(state.window))
        return float(state.window) / 10

    settings = TrainSettings(updates=7, global_batch=1, evaluate_every=3, checkpoint_every=2)
    loop, recorder = make_loop(
        linear_program(1, optax.sgd(0.1)),
        settings,
        evaluate=held_out,
        save=lambda window, state, loss: saved.append((window, loss)),
    )
    outcome = run(loop, itertools.repeat(linear_batch([[1.0]])))
    assert evaluated == [3, 6, 7]
    assert saved == [(2, None), (4, None), (6, 0.6), (7, 0.7)]
    assert [record.held_out_loss for record in recorder.records] == [None, None, 0.3, None, None, 0.6, 0.7]
    assert (outcome.held_out_loss, outcome.stopped) == (0.7, False)


def test_a_stop_request_saves_where_it_stands() -> None:
    answers = iter([False, False, False, True])
    saved: list[int] = []
    loop, recorder = make_loop(
        linear_program(1, optax.sgd(0.1)),
        TrainSettings(updates=100, global_batch=1),
        save=lambda window, state, loss: saved.append(window),
        stop=lambda: next(answers),
    )
    outcome = run(loop, itertools.repeat(linear_batch([[1.0]])))
    assert (outcome.window, outcome.stopped, saved, len(recorder.records)) == (3, True, [3], 3)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (lambda: linear_batch([[math.nan]]), "4 windows in a row were not finite"),
        (lambda: linear_batch([[1.0]], weights=[0]), "4 windows in a row had no target"),
    ],
)
def test_fp_s1_a_run_that_learns_nothing_stops_and_says_what_it_knows(batch: Callable[[], Any], said: str) -> None:
    settings = TrainSettings(updates=1000, global_batch=1, stop_after_skips=4)
    loop, recorder = make_loop(linear_program(1, optax.sgd(0.1)), settings)
    good = [linear_batch([[1.0]])] * 2
    with pytest.raises(DivergenceError, match=said) as error:
        run(loop, itertools.chain(good, itertools.repeat(batch())))
    assert "last update made was 2" in error.value.message
    assert error.value.hint
    assert sum(record.skipped for record in recorder.records) == 4


def test_a_run_that_is_stopped_before_its_first_window_is_saved() -> None:
    saved: list[int] = []
    settings = TrainSettings(updates=3, global_batch=1)
    loop, _ = make_loop(
        linear_program(1, optax.sgd(0.1)), settings, stop=lambda: True, save=lambda window, *_: saved.append(window)
    )
    outcome = run(loop, itertools.repeat(linear_batch([[1.0]])))
    assert (outcome.window, outcome.stopped, saved) == (0, True, [0])


def test_acc_s5_one_window_without_a_target_is_skipped_and_told() -> None:
    loop, recorder = make_loop(linear_program(1, optax.sgd(0.1)), TrainSettings(updates=3, global_batch=1))
    batches = [linear_batch([[1.0]]), linear_batch([[1.0]], weights=[0]), linear_batch([[1.0]])]
    outcome = run(loop, iter(batches))
    assert [record.skipped for record in recorder.records] == [False, True, False]
    assert [record.update for record in recorder.records] == [1, 1, 2]
    assert [math.isnan(record.loss) for record in recorder.records] == [False, True, False]
    np.testing.assert_allclose(outcome.state.trainable, [-0.2], rtol=1e-6)


def padded_rows(losses: list[float], weights: list[float], rows: int) -> list[Any]:
    """The rows in batches of `rows`, the last one filled up with empty rows."""
    missing = -len(losses) % rows
    losses, weights = losses + [0.0] * missing, weights + [0.0] * missing
    parts = range(0, len(losses), rows)
    return [linear_batch([[0.0]] * rows, weights=weights[i : i + rows], offsets=losses[i : i + rows]) for i in parts]


def held_out_loss(losses: list[float], weights: list[float], rows: int) -> float:
    step = Step(linear_program(1, optax.sgd(0.1)), Recipe.of(rows), detect())
    return evaluate(step, step.init(jax.random.key(0)), padded_rows(losses, weights, rows))


def test_lg_s3_held_out_loss_is_the_mean_over_all_targets() -> None:
    assert held_out_loss([2.0] * 16 + [5.0], [1.0] * 17, 8) == pytest.approx(37 / 17, rel=1e-6)


def test_lg_s3_held_out_loss_does_not_depend_on_the_batch_size() -> None:
    losses = np.random.default_rng(0).uniform(0, 5, 17).tolist()
    weights = [float(n) for n in range(1, 18)]
    expected = float(np.average(losses, weights=weights))
    for rows in (1, 2, 8, 17):
        assert held_out_loss(losses, weights, rows) == pytest.approx(expected, rel=1e-6)


def test_held_out_loss_of_nothing_is_nan_not_zero() -> None:
    assert math.isnan(held_out_loss([1.0], [0.0], 1))
