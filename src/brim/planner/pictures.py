"""Pictures of a plan: what was compiled against the budget, bytes over the step, and bytes against predicted time.

plan-bars.png       a bar for each compiled candidate, its bytes by owner, and the budget
plan-timeline.png   bytes alive over the schedule of the chosen step, with its peak
plan-choices.png    every candidate: predicted seconds against bytes

Colours are those of Okabe and Ito, which people with any kind of colour vision tell apart; nothing is said by colour
alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from brim.planner import memory, table
from brim.planner.candidate import Candidate
from brim.planner.palette import BUDGET, COLOURS, OTHER, unit_of
from brim.planner.plan import Plan
from brim.planner.space import settings_words, words_of
from brim.planner.timeline import draw_timeline
from brim.planner.verdicts import against
from brim.quantities import format_bytes, format_count, format_seconds
from brim.training.drawing import INK, picture

MOST_BARS = 14
WIDTH = 11.0
_LABEL_CHARACTERS, _TITLE_CHARACTERS = 34, 86
_BARS = {
    "parameters": (memory.PARAMETERS, memory.VARIABLES),
    "optimizer state": (memory.OPTIMIZER,),
    "gradients": (memory.GRADIENTS,),
    "saved residuals": (memory.ACTIVATIONS,),
    OTHER: (memory.BATCH, memory.OTHER),
}
_BAR_NAMES = {"saved residuals": "activations and temporaries", OTHER: "batch and counters"}


def draw_plan(plan: Plan, folder: Path, name: str) -> list[Path]:
    """Draw what there is to see of a plan, each picture in one rename.

    Args:
        folder: made if it is not there.
        name: of the model, for the titles.

    Returns: the pictures; no bars if nothing was compiled, and no timeline without a report.

    Raises:
        OSError: if a picture cannot be written.
    """
    shared = [technique for technique in table.shared_settings(plan.candidates) if not technique.is_plain]
    settings = f", {settings_words(shared)}" if shared else ""
    title = f"{name} on {plan.device.kind}, global batch {plan.global_batch} rows{settings}"
    bars = bars_of(plan)
    drawn: list[tuple[str, tuple[float, float], Callable[[Figure, Plan], Any]]] = [
        ("plan-bars.png", (WIDTH, 2.3 + 0.5 * len(bars)), draw_bars),
        ("plan-timeline.png", (WIDTH, 6.2), draw_timeline),
        ("plan-choices.png", (WIDTH, 6.2), draw_choices),
    ]
    is_there = (bool(bars), plan.memory_report is not None, True)
    paths = []
    for (file, size, draw), there in zip(drawn, is_there, strict=True):
        if there:
            paths.append(folder / file)
            with picture(paths[-1], size, textwrap.fill(title, _TITLE_CHARACTERS)) as figure:
                draw(figure, plan)
    return paths


def bars_of(plan: Plan) -> list[Candidate]:
    """The compiled candidates that get a bar, fastest predicted first: the shown one always, and the fastest others."""
    compiled = [candidate for candidate in plan.candidates if candidate.compiled]
    others = [candidate for candidate in compiled if candidate is not plan.shown][: MOST_BARS - 1]
    return [candidate for candidate in compiled if candidate is plan.shown or candidate in others]


def draw_bars(figure: Figure, plan: Plan) -> Axes:
    """A bar for each compiled candidate, stacked by owner; what is over the budget is hatched."""
    axes = figure.add_subplot()
    candidates = bars_of(plan)
    places = np.arange(len(candidates))[::-1]
    peaks = [candidate.peak_bytes or 0 for candidate in candidates]
    unit, word = unit_of(max(*peaks, plan.budget_bytes))
    left = np.zeros(len(candidates))
    for name, owners in _BARS.items():
        sizes = np.array([_bytes_of(candidate, owners) for candidate in candidates]) / unit
        label = _BAR_NAMES.get(name, name)
        axes.barh(places, sizes, 0.62, left=left, color=COLOURS[name], edgecolor="white", linewidth=0.8, label=label)
        left += sizes
    for place, candidate, peak in zip(places, candidates, peaks, strict=True):
        _end_bar(axes, place, candidate, peak, plan.budget_bytes, unit)
    axes.axvline(plan.budget_bytes / unit, color=BUDGET, linewidth=1.8, linestyle=(0, (5, 3)))
    axes.annotate(
        f"budget {format_bytes(plan.budget_bytes)}", (plan.budget_bytes / unit, 1), (4, -2), fontsize=11,
        xycoords=("data", "axes fraction"), textcoords="offset points", va="bottom", fontweight="bold",
    )  # fmt: skip
    axes.set_xlim(0, 1.32 * max(*peaks, plan.budget_bytes) / unit)
    axes.set_ylim(-0.6, len(candidates) - 0.4)
    _label_bars(axes, places, candidates, plan)
    axes.set_xlabel(f"device memory at the peak, {word}")
    axes.grid(axis="y", visible=False)
    counted = f"{len(candidates)} of {len(plan.candidates)} candidates"
    axes.set_title(f"What was compiled ({counted}), fastest predicted first", pad=22)
    handles, _ = axes.get_legend_handles_labels()
    over = [Patch(facecolor="white", edgecolor=INK, hatch="////", label="over the budget")]
    figure.legend(handles=[*handles, *over], loc="outside lower center", ncols=3, fontsize=10.5)
    return axes


def draw_choices(figure: Figure, plan: Plan) -> Axes:
    """Every candidate by predicted seconds and bytes: compiled ones filled, others hollow at their lower bound."""
    axes = figure.add_subplot()
    sizes = [_size(candidate) for candidate in plan.candidates]
    unit, word = unit_of(max(*sizes, plan.budget_bytes))
    for group, style in _groups(plan.candidates).items():
        found = [candidate for candidate in plan.candidates if _group(candidate) == group]
        x, y = (list(column) for column in zip(*(_point(each, unit) for each in found), strict=True))
        axes.plot(x, y, linestyle="none", label=f"{group} ({len(found)})", **style)
    axes.axhline(plan.budget_bytes / unit, color=BUDGET, linewidth=1.8, linestyle=(0, (5, 3)))
    axes.annotate(
        f"budget {format_bytes(plan.budget_bytes)}", (1, plan.budget_bytes / unit), (0, 4), fontsize=11,
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", fontweight="bold",
    )  # fmt: skip
    _log_bytes(axes, [size / unit for size in (*sizes, plan.budget_bytes)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    axes.set_xlabel("predicted time of an update (not measured)")
    axes.set_ylabel(f"device memory, {word}")
    axes.set_title("Every candidate: bytes against predicted time")
    if plan.fits:
        _name_chosen(axes, plan)
    figure.legend(loc="outside lower center", ncols=3, fontsize=10.5)
    return axes


def _bytes_of(candidate: Candidate, owners: Sequence[str]) -> int:
    sizes: Mapping[str, int] = candidate.memory.owners if candidate.memory else {}
    return sum(sizes.get(owner, 0) for owner in owners)


def _end_bar(axes: Axes, place: float, candidate: Candidate, peak: int, budget_bytes: int, unit: int) -> None:
    """Hatch what is over the budget, and write what the bar amounts to behind it."""
    is_over = peak > budget_bytes
    if is_over:
        over = (peak - budget_bytes) / unit
        axes.barh(place, over, 0.62, left=budget_bytes / unit, fill=False, hatch="////", edgecolor=INK, linewidth=0.0)
    words = against(peak, budget_bytes) if is_over else f"{format_seconds(candidate.cost.seconds)} a step"
    axes.annotate(
        f"{format_bytes(peak)}, {words}",
        (max(peak, budget_bytes) / unit, place),
        (6, 0),
        textcoords="offset points",
        va="center",
        fontsize=10.5,
        fontweight="bold" if candidate.outcome == "chosen" else "normal",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
    )


def _label_bars(axes: Axes, places: Iterable[float], candidates: Sequence[Candidate], plan: Plan) -> None:
    labels = [_words(candidate, plan) for candidate in candidates]
    axes.set_yticks(list(places), ["\n".join(textwrap.wrap(label, _LABEL_CHARACTERS)) for label in labels], fontsize=10)
    for tick, candidate in zip(axes.get_yticklabels(), candidates, strict=True):
        tick.set_color(INK)
        tick.set_fontweight("bold" if candidate.outcome == "chosen" else "normal")


def _words(candidate: Candidate, plan: Plan) -> str:
    """A candidate's split and settings, without those that all candidates share."""
    shared = table.shared_settings(plan.candidates)
    settings = words_of(candidate.recipe, shared)
    chosen = "chosen: " if candidate.outcome == "chosen" else ""
    return f"{chosen}{candidate.recipe.micro_batch} x {candidate.recipe.accumulation}, {settings}"


def _size(candidate: Candidate) -> int:
    return candidate.least_bytes if candidate.peak_bytes is None else candidate.peak_bytes


def _point(candidate: Candidate, unit: int) -> tuple[float, float]:
    return candidate.cost.seconds, _size(candidate) / unit


def _group(candidate: Candidate) -> str:
    if candidate.compiled:
        return {"chosen": "chosen", "fits": "compiled, fits"}.get(candidate.outcome, "compiled, over the budget")
    if candidate.outcome == "pruned":
        return "pruned by formula, at its lower bound"
    return "not compiled, at its lower bound"


def _groups(candidates: Sequence[Candidate]) -> dict[str, dict[str, Any]]:
    """Group -> how its points look, in the order in which they are drawn; only groups that there are."""
    hollow = {"markerfacecolor": "none", "markersize": 6, "markeredgewidth": 1.2}
    filled = {"markersize": 8.5, "markeredgecolor": "white", "markeredgewidth": 0.8}
    groups: dict[str, dict[str, Any]] = {
        "not compiled, at its lower bound": {"marker": "o", "markeredgecolor": "#6b7280", **hollow},
        "pruned by formula, at its lower bound": {"marker": "s", "markeredgecolor": COLOURS["temporaries"], **hollow},
        "compiled, over the budget": {"marker": "s", "color": COLOURS["logits and loss"], **filled},
        "compiled, fits": {"marker": "o", "color": COLOURS["parameters"], **filled},
        "chosen": {"marker": "*", "color": COLOURS["gradients"], **filled, "markersize": 19},
    }
    there = {_group(candidate) for candidate in candidates}
    return {group: style for group, style in groups.items() if group in there}


def _name_chosen(axes: Axes, plan: Plan) -> None:
    speed = f"{format_count(round(plan.chosen.predicted_tokens_per_second))} {plan.unit}/s predicted"
    words = "\n".join([*textwrap.wrap(_words(plan.chosen, plan), 40), f"{format_bytes(_size(plan.chosen))}, {speed}"])
    box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": COLOURS["gradients"]}
    # Candidates that are slow and large at once are rare, so this corner is the emptiest.
    axes.text(0.985, 0.96, words, transform=axes.transAxes, ha="right", va="top", fontsize=10.5, bbox=box, zorder=5)


def _log_bytes(axes: Axes, sizes: Sequence[float]) -> None:
    """A log scale where sizes differ much, since a bound may be many times the budget; round numbers at the ticks."""
    least, most = min(sizes), max(sizes)
    if least > 0 and most > 6 * least:
        axes.set_yscale("log")
        axes.set_ylim(least / 1.5, most * 1.5)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.set_ylim(0, most * 1.15)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
