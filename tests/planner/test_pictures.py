"""Pictures of a plan: they exist and are not blank, and what they plot are the plan's own numbers."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from brim.compiled import MemoryReport
from brim.planner import Plan
from brim.planner.palette import COLOURS, by_class, unit_of
from brim.planner.pictures import MOST_BARS, bars_of, draw_bars, draw_choices, draw_plan
from brim.planner.timeline import bands, class_columns, draw_timeline
from brim.quantities import GIB, KIB, MIB, format_bytes


@pytest.fixture(scope="module")
def report(reported: Plan) -> MemoryReport:
    assert reported.memory_report is not None
    return reported.memory_report


def drawn(draw: Any, plan: Plan) -> Any:
    return draw(Figure(figsize=(11, 6)), plan)


def texts(axes: Any) -> str:
    return "\n".join(text.get_text() for panel in axes.figure.axes for text in panel.texts)


def test_three_pictures_are_written_whole(reported: Plan, tmp_path: Path) -> None:
    folder = tmp_path / "new ü"
    paths = draw_plan(reported, folder, "stacked")
    assert [path.name for path in paths] == ["plan-bars.png", "plan-timeline.png", "plan-choices.png"]
    assert sorted(folder.iterdir()) == sorted(paths)
    for path in paths:
        pixels = np.round(matplotlib.image.imread(path)[..., :3] * 255).astype(int)
        assert pixels.shape[1] == 1760 and pixels.shape[0] > 500
        assert 0.02 < (pixels != 255).any(-1).mean() < 0.9
        found = {f"#{red:02X}{green:02X}{blue:02X}" for red, green, blue in np.unique(pixels.reshape(-1, 3), axis=0)}
        assert len(found & set(COLOURS.values())) >= 2, path.name


def test_without_a_report_there_is_no_timeline(reported: Plan, tmp_path: Path) -> None:
    paths = draw_plan(replace(reported, memory_report=None), tmp_path, "stacked")
    assert [path.name for path in paths] == ["plan-bars.png", "plan-choices.png"]


def test_each_bar_is_a_candidates_owners_and_ends_at_its_peak(reported: Plan) -> None:
    axes = drawn(draw_bars, reported)
    candidates = bars_of(reported)
    unit = unit_of(max(reported.budget_bytes, *(each.peak_bytes or 0 for each in candidates)))[0]
    stacks = [container for container in axes.containers if not str(container.get_label()).startswith("_")]
    assert [stack.get_label() for stack in stacks][:3] == ["parameters", "optimizer state", "gradients"]
    for place, candidate in enumerate(candidates):
        widths = [stack.patches[place].get_width() * unit for stack in stacks]
        assert candidate.memory is not None
        assert widths[0] == pytest.approx(candidate.memory.owners["parameters"])
        assert sum(widths) == pytest.approx(candidate.peak_bytes)
    hatched = [patch for patch in axes.patches if patch.get_hatch()]
    over = [each.peak_bytes - reported.budget_bytes for each in candidates if each.outcome == "over"]
    assert over
    assert [patch.get_width() * unit for patch in hatched] == pytest.approx(over)
    assert all(patch.get_x() * unit == pytest.approx(reported.budget_bytes) for patch in hatched)
    assert axes.lines[0].get_xdata()[0] * unit == reported.budget_bytes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.startswith("chosen: ") for label in labels] == [each.outcome == "chosen" for each in candidates]


def test_many_bars_are_the_fastest_and_the_chosen_one(reported: Plan) -> None:
    compiled = [each for each in reported.candidates if each.compiled]
    over = next(each for each in compiled if each.outcome == "over")
    copies = tuple(replace(over, tokens=1000 + number) for number in range(30))
    found = bars_of(replace(reported, candidates=(*copies, *reported.candidates)))
    assert len(found) == MOST_BARS
    assert found[:-1] == list(copies[: MOST_BARS - 1])
    assert found[-1] == reported.chosen


def test_the_timeline_stacks_up_to_the_live_bytes(reported: Plan, report: MemoryReport) -> None:
    axes = drawn(draw_timeline, reported)
    unit = unit_of(report.peak_bytes)[0]
    columns = class_columns(report.timeline)
    assert tuple(map(sum, zip(*columns.values(), strict=True))) == report.timeline.live_bytes()
    stacks = [each for each in axes.collections if each.get_label() in COLOURS]
    assert [each.get_label() for each in stacks] == list(columns)
    assert [to_hex(each.get_facecolor()[0]).upper() for each in stacks] == [COLOURS[name] for name in columns]
    tops = [each.get_paths()[0].vertices[:, 1].max() * unit for each in stacks]
    assert tops == sorted(tops)
    assert tops[-1] == pytest.approx(report.peak.bytes)
    peak = next(line for line in axes.lines if line.get_label() == "peak")
    assert (peak.get_xdata()[0], peak.get_ydata()[0] * unit) == (report.peak.instant, report.peak.bytes)


def test_the_panel_names_what_is_under_the_peak(reported: Plan, report: MemoryReport) -> None:
    words = texts(drawn(draw_timeline, reported))
    assert f"At the peak: {format_bytes(report.peak_bytes)}" in words
    sizes = by_class(report.owners)
    for name in sizes | class_columns(report.timeline):  # the panel is the legend too
        assert f"{name}\n{format_bytes(sizes[name]) if name in sizes else 'none then'}" in words
    largest = next(row for row in report.rows if row.owner.how != "argument")
    assert f"{largest.owner.kind}\n{format_bytes(largest.bytes)}\n" in words


@pytest.mark.parametrize(("times", "is_line"), [(1.3, True), (5, False)], ids=["near", "far"])
def test_a_budget_far_above_is_said_and_does_not_flatten_the_picture(
    reported: Plan, report: MemoryReport, times: float, is_line: bool
) -> None:
    budget = int(times * report.peak_bytes)
    axes = drawn(draw_timeline, replace(reported, budget_bytes=budget))
    unit = unit_of(report.peak_bytes)[0]
    heights = [line.get_ydata()[0] * unit for line in axes.lines]
    assert (pytest.approx(budget) in heights) == is_line
    assert ("above this picture" in texts(axes)) == (not is_line)
    assert axes.get_ylim()[1] * unit < 1.8 * report.peak_bytes


def test_phases_are_bands_without_gaps(report: MemoryReport) -> None:
    found = bands(report.timeline)
    assert (found[0][1], found[-1][2]) == (report.timeline.instants[0], report.timeline.length)
    assert all(before[2] == after[1] and before[0] != after[0] for before, after in pairwise(found))
    assert {"forward", "backward"} <= {phase for phase, _, _ in found}


def test_choices_are_all_candidates_at_their_seconds_and_bytes(reported: Plan) -> None:
    axes = drawn(draw_choices, reported)
    sizes = [each.peak_bytes or each.least_bytes for each in reported.candidates]
    unit = unit_of(max(*sizes, reported.budget_bytes))[0]
    groups = [line for line in axes.lines if line.get_marker() != "None"]
    hollow = [line for line in groups if line.get_markerfacecolor() == "none"]
    points = {True: set[Any](), False: set[Any]()}
    for line in groups:
        points[line in hollow] |= {(x, round(y * unit)) for x, y in zip(*line.get_data(), strict=True)}
    for is_hollow in (True, False):
        wanted = {
            (each.cost.seconds, size)
            for each, size in zip(reported.candidates, sizes, strict=True)
            if each.compiled != is_hollow
        }
        assert wanted and points[is_hollow] == wanted
    star = next(line for line in groups if line.get_marker() == "*")
    assert star.get_xdata()[0] == reported.chosen.cost.seconds
    budget = next(line for line in axes.lines if line.get_marker() == "None")
    assert budget.get_ydata()[0] * unit == reported.budget_bytes


def test_a_search_without_a_plan_is_drawn_too(reported: Plan, tmp_path: Path) -> None:
    none = replace(reported, candidates=tuple(each for each in reported.candidates if not each.fits), budget_bytes=1)
    assert len(draw_plan(none, tmp_path, "stacked")) == 3


def test_classes_keep_every_byte(report: MemoryReport) -> None:
    assert sum(by_class(report.owners).values()) == report.peak_bytes
    assert by_class({"optimizer mu": 3, "optimizer temporaries": 5}) == {"optimizer state": 3, "temporaries": 5}
    assert [unit_of(size)[0] for size in (KIB, 3 * MIB, 2 * GIB)] == [KIB, MIB, GIB]
