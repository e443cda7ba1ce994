"""The picture of a step's bytes over its schedule: whose they are, the phases, the peak and the arrays under it."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from brim.compiled import MemoryReport, Timeline
from brim.planner import table
from brim.planner.palette import BUDGET, COLOURS, by_class, class_of, unit_of
from brim.planner.plan import Plan
from brim.planner.space import words_of
from brim.quantities import format_bytes
from brim.training.drawing import INK, QUIET

ARRAYS_NAMED = 7
_PHASE_TINTS = {"forward": "#EFF6FF", "recompute": "#EDE9FE", "backward": "#FFF7ED", "update": "#ECFDF5"}
_LEAST_BAND, _LETTER = 0.012, 0.0135  # of the width: the narrowest band, and a letter of a phase's name
_BUDGET_IN_SIGHT, _NAME_ROOM = 1.6, 1.08
_NAME_CHARACTERS = 38


def draw_timeline(figure: Figure, plan: Plan) -> Axes:
    """Bytes alive over the schedule, stacked by class of owner, beside a list of what is there at the peak."""
    report, shown = plan.memory_report, plan.shown
    assert report is not None and shown is not None
    grid = figure.add_gridspec(1, 2, width_ratios=(2.5, 1))
    axes, panel = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    unit, word = unit_of(report.peak_bytes)
    columns = class_columns(report.timeline)
    instants = np.array([*report.timeline.instants, report.timeline.length])
    stacks = [np.array([*sizes, sizes[-1]]) / unit for sizes in columns.values()]
    colours = [COLOURS[name] for name in columns]
    axes.stackplot(instants, stacks, step="post", colors=colours, labels=list(columns), linewidth=0)
    _draw_bands(axes, report.timeline)
    is_early = report.peak.instant < 0.55 * report.timeline.length
    _draw_peak(axes, report, plan.budget_bytes, unit, is_early)
    _draw_budget(axes, plan.budget_bytes, report.peak_bytes, unit, at_right=is_early)
    axes.set_xlim(0, report.timeline.length)
    axes.set_xlabel("place in the schedule of one step (the body of a loop stands once)")
    axes.set_ylabel(f"device memory, {word}")
    shared = table.shared_settings(plan.candidates)
    settings = words_of(shown.recipe, shared)
    chosen = "chosen" if plan.fits else "smallest found"
    axes.set_title(
        f"Bytes alive, {chosen}: {shown.recipe.micro_batch} x {shown.recipe.accumulation}, {settings}", pad=24
    )
    _draw_panel(panel, report)
    return axes


def class_columns(timeline: Timeline) -> dict[str, tuple[int, ...]]:
    """Class of owner -> bytes alive at each instant, in the order of stacking; classes without bytes are left out."""
    columns = {name: np.zeros(len(timeline.instants), np.int64) for name in COLOURS}
    for kind, size in timeline.resident.items():
        columns[class_of(kind)] += size
    for kind, sizes in timeline.temporaries.items():
        columns[class_of(kind)] += np.array(sizes, np.int64)
    return {name: tuple(map(int, column)) for name, column in columns.items() if column.any()}


def bands(timeline: Timeline) -> list[tuple[str, int, int]]:
    """(phase, first instant, last instant) of the phases, one after the other; specks count to what goes on."""
    starts = [*timeline.instants, timeline.length]
    found: list[tuple[str, int, int]] = []
    for phase, begin, end in zip(timeline.phases, starts[:-1], starts[1:], strict=True):
        if found and found[-1][0] == phase:
            found[-1] = (phase, found[-1][1], end)
        else:
            found.append((phase, begin, end))
    merged: list[tuple[str, int, int]] = []
    for phase, begin, end in found:
        is_speck = end - begin < _LEAST_BAND * timeline.length
        if merged and (is_speck or merged[-1][0] == phase):
            merged[-1] = (merged[-1][0], merged[-1][1], end)
        else:
            merged.append((phase, begin, end))
    return merged


def _draw_bands(axes: Axes, timeline: Timeline) -> None:
    found = bands(timeline)
    widest = {phase: (begin, end) for phase, begin, end in sorted(found, key=lambda band: band[2] - band[1])}
    for phase, begin, end in found:
        axes.axvspan(begin, end, color=_PHASE_TINTS[phase], zorder=-1, linewidth=0)
        axes.axvline(begin, color="#9ca3af", linewidth=0.6)
    for phase, (begin, end) in widest.items():
        if end - begin >= _LETTER * len(phase) * timeline.length:
            axes.annotate(
                phase, ((begin + end) / 2, 1), (0, 5), xycoords=("data", "axes fraction"), textcoords="offset points",
                ha="center", fontsize=10.5, color=QUIET,
            )  # fmt: skip


def _draw_peak(axes: Axes, report: MemoryReport, budget_bytes: int, unit: int, is_early: bool) -> None:
    """Mark the peak; its name stands above the budget's line where there is no room below."""
    x, y = report.peak.instant, report.peak.bytes / unit
    is_near = report.peak.bytes <= budget_bytes <= _NAME_ROOM * report.peak.bytes
    axes.plot([x, x], [0, y], color=INK, linewidth=1.2, linestyle=":")
    axes.plot(x, y, "o", color=INK, markersize=7, markeredgecolor="white", label="peak")
    axes.annotate(
        f"peak {format_bytes(report.peak_bytes)}", (x, budget_bytes / unit if is_near else y),
        (0 if is_near else 8 if is_early else -8, 6), textcoords="offset points",
        ha="left" if is_early else "right", fontweight="bold",
    )  # fmt: skip


def _draw_budget(axes: Axes, budget_bytes: int, peak_bytes: int, unit: int, *, at_right: bool) -> None:
    """The budget as a line, or in words where it would make the picture small."""
    words, height = f"budget {format_bytes(budget_bytes)}", budget_bytes / unit
    if budget_bytes <= _BUDGET_IN_SIGHT * peak_bytes:
        axes.axhline(height, color=BUDGET, linewidth=1.8, linestyle=(0, (5, 3)))
    else:
        words, height = f"{words}, above this picture", 1.12 * peak_bytes / unit
    axes.annotate(
        words, (0.99 if at_right else 0.01, height), (0, 6), xycoords=("axes fraction", "data"),
        textcoords="offset points", ha="right" if at_right else "left", fontweight="bold",
    )  # fmt: skip
    axes.set_ylim(0, 1.12 * max(height, peak_bytes / unit))


def _draw_panel(panel: Axes, report: MemoryReport) -> None:
    """Bytes by class at the peak, which is the legend too, and the largest arrays among them that come and go."""
    panel.set_axis_off()
    panel.set(xlim=(0, 1), ylim=(0, 1))
    there, drawn = by_class(report.owners), class_columns(report.timeline)
    classes = {name: there.get(name, 0) for name in COLOURS if name in there or name in drawn}
    arrays = [row for row in report.rows if row.owner.how != "argument"][:ARRAYS_NAMED]
    line = 1 / (len(classes) + 2 * len(arrays) + 4)
    y = _write(panel, 1 - line / 2, line, f"At the peak: {format_bytes(report.peak_bytes)}", weight="bold")
    for name, size in reversed(classes.items()):
        panel.add_patch(Rectangle((0, y - 0.3 * line), 0.05, 0.6 * line, color=COLOURS[name]))
        y = _write(panel, y, line, name, format_bytes(size) if size else "none then", x=0.08)
    y = _write(panel, y - line, line, "Largest arrays under it", weight="bold")
    for row in arrays:
        y = _write(panel, y, line, row.owner.kind, format_bytes(row.bytes))
        y = _write(panel, y + 0.12 * line, line, _shortened(row.owner.path), x=0.03, color=QUIET, size=9)


def _write(
    panel: Axes, y: float, line: float, text: str, value: str = "", *, x: float = 0.0, weight: str = "normal",
    color: str = INK, size: float = 10.5,
) -> float:  # fmt: skip
    """Write a line, with a value at the right; the height of the next line."""
    panel.text(x, y, text, va="center", fontweight=weight, color=color, fontsize=size)
    panel.text(1, y, value, va="center", ha="right", fontsize=size)
    return y - line


def _shortened(path: str) -> str:
    """The end of a path, which tells most of it."""
    return path if len(path) <= _NAME_CHARACTERS else f"…{path[1 - _NAME_CHARACTERS :]}"
