from __future__ import annotations

import math
import warnings
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest

from brim.training.curves import draw_curves, smoothed
from brim.training.tracking import Record

BLUE, ORANGE, RED = (0x25, 0x63, 0xEB), (0xEA, 0x58, 0x0C), (0xDC, 0x26, 0x26)


def records(count: int) -> list[Record]:
    return [
        Record(
            window=window,
            update=window,
            loss=2 + 6 / window,
            learning_rate=1e-3,
            gradient_norm=1 / window,
            targets=100,
            skipped=False,
            seconds=0.1,
            tokens_per_second=1000.0,
            waiting_share=0.0,
            memory_bytes=1,
            elapsed_seconds=0.1 * window,
        )
        for window in range(1, count + 1)
    ]


def pixels_of(path, colour: tuple[int, int, int]) -> int:
    picture = np.round(matplotlib.image.imread(path)[..., :3] * 255).astype(int)
    return int((abs(picture - colour).sum(-1) == 0).sum())


def test_the_picture_shows_training_held_out_and_skipped(tmp_path):
    logged = records(50)
    path = tmp_path / "plots" / "curves.png"
    draw_curves(logged, path)
    plain = {colour: pixels_of(path, colour) for colour in (BLUE, ORANGE, RED)}
    assert plain[BLUE] > 1000
    assert (plain[ORANGE], plain[RED]) == (0, 0)
    logged[9] = replace(logged[9], held_out_loss=4.0)
    logged[20] = replace(logged[20], loss=math.nan, gradient_norm=math.inf, update=20, skipped=True)
    draw_curves(logged, path, title="a run")
    assert pixels_of(path, ORANGE) > 20
    assert pixels_of(path, RED) > 20
    assert [each.name for each in path.parent.iterdir()] == ["curves.png"]


@pytest.mark.parametrize(
    "logged",
    [
        [],
        records(1),
        records(2),
        [replace(each, loss=math.nan, gradient_norm=math.nan, skipped=True, update=0) for each in records(3)],
        [replace(each, learning_rate=math.nan, gradient_norm=0.0, targets=0) for each in records(3)],
    ],
    ids=["none", "one", "two", "all skipped", "nothing known"],
)
def test_little_to_draw_is_no_error_and_no_warning(tmp_path, logged):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw_curves(logged, tmp_path / "curves.png")
    assert matplotlib.image.imread(tmp_path / "curves.png").shape[:2] == (1120, 1760)


def test_one_point_is_a_dot(tmp_path):
    draw_curves(records(1), tmp_path / "one.png")
    draw_curves([], tmp_path / "none.png")
    assert pixels_of(tmp_path / "one.png", BLUE) > pixels_of(tmp_path / "none.png", BLUE) + 50


def test_smoothing_is_a_weighted_mean_that_passes_over_nan():
    assert smoothed(np.full(30, 2.5), 10) == pytest.approx(np.full(30, 2.5))
    with_gap = np.full(30, 2.5)
    with_gap[[0, 7, 8]] = math.nan, math.inf, math.nan
    assert np.isnan(smoothed(with_gap, 10)[0])
    assert smoothed(with_gap, 10)[1:] == pytest.approx(np.full(29, 2.5))
    noise = np.random.default_rng(0).normal(size=5000)
    # An exponential average over `span` points leaves variance 1 / (2 span - 1).
    assert smoothed(noise, 100)[1000:].std() == pytest.approx((1 / 199) ** 0.5, rel=0.2)
    falling = np.exp(-np.arange(100) / 10)
    assert smoothed(falling, 50)[20] < 1.3 * falling[20]
