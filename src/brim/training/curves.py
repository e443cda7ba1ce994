"""A picture of a run: loss, learning rate and gradient norm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from brim.quantities import format_count
from brim.training.drawing import picture
from brim.training.tracking import Record

_TRAIN, _HELD_OUT, _RATE, _NORM, _SKIPPED = "#2563eb", "#ea580c", "#0d9488", "#7c3aed", "#dc2626"
_SMOOTHING_SHARE = 0.02
_ROUND_STEPS = (1, 2, 5, 10)


def draw_curves(records: Sequence[Record], path: Path, *, title: str = "") -> None:
    """Draw a run's curves into a PNG, in one rename.

    The training loss is shown raw (faint) and smoothed over 2% of the run; held-out losses as dots with the last and
    the best named; skipped updates as ticks at the bottom; the gradient norm on a log scale.

    Args:
        records: in order; none at all gives empty axes.
        path: of the picture; replaced if it is there.
        title: above the picture.

    Raises:
        OSError: if the picture cannot be written.
    """
    with picture(path, (11, 7), title) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=(2, 1))
        loss, rate, norm = (figure.add_subplot(cell) for cell in (grid[0, :], grid[1, 0], grid[1, 1]))
        _draw_loss(loss, records)
        _draw_rate(rate, records)
        _draw_norm(norm, records)


def smoothed(values: Float[np.ndarray, " points"], span: float) -> Float[np.ndarray, " points"]:
    """Exponential moving average over about `span` points; NaN is passed over.

    At the start, where a loss falls fast, the span is a tenth of the points so far: a long memory would lag behind.
    """
    total = weight = 0.0
    means = np.full(len(values), np.nan)
    for index, value in enumerate(values):
        if np.isfinite(value):
            keep = 1 - 1 / max(1.0, min(span, index / 10))
            total = keep * total + float(value)
            weight = keep * weight + 1
        means[index] = total / weight if weight else np.nan
    return means


def _draw_loss(axes: Axes, records: Sequence[Record]) -> None:
    updates, losses = _column(records, "update"), _column(records, "loss")
    mean = _draw_smoothed(axes, updates, losses, _TRAIN, "training")
    held_out = [record for record in records if record.held_out_loss is not None]
    at, values = _column(held_out, "update"), _column(held_out, "held_out_loss")
    if np.isfinite(values).any():
        best = f", best {np.nanmin(values):.3f}" if len(values) > 1 else ""
        label = f"held out{_last_value(values)}{best}"
        axes.plot(at, values, color=_HELD_OUT, linewidth=1.4, alpha=0.6)
        axes.plot(at, values, "o", color=_HELD_OUT, markersize=5.5, markeredgecolor="white", label=label)
    _mark_skipped(axes, records)
    _limit(axes, np.concatenate([mean, values, losses[np.isfinite(losses)][len(losses) // 100 :]]))
    axes.set_title("Loss")
    if records:
        axes.legend(loc="upper right", fontsize=11)
    _count_updates(axes, updates)
    _count_targets(axes, records)


def _draw_rate(axes: Axes, records: Sequence[Record]) -> None:
    updates = _column(records, "update")
    axes.plot(updates, _column(records, "learning_rate"), color=_RATE, linewidth=2, marker=_marker(updates))
    axes.set_title("Learning rate")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=_ROUND_STEPS))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_ylim(bottom=0)
    _count_updates(axes, updates)


def _draw_norm(axes: Axes, records: Sequence[Record]) -> None:
    updates, norms = _column(records, "update"), _column(records, "gradient_norm")
    norms = np.where(norms > 0, norms, np.nan)
    _draw_smoothed(axes, updates, norms, _NORM)
    if np.isfinite(norms).any():
        axes.set_yscale("log")
        axes.set_ylim(np.nanmin(norms) / 1.2, np.nanmax(norms) * 1.2)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_title("Gradient norm")
    _count_updates(axes, updates)


def _draw_smoothed(
    axes: Axes,
    updates: Float[np.ndarray, " points"],
    values: Float[np.ndarray, " points"],
    color: str,
    name: str = "",
) -> Float[np.ndarray, " points"]:
    mean = smoothed(values, _SMOOTHING_SHARE * len(values))
    label = f"{name}{_last_value(mean)}" if name else None
    axes.plot(updates, values, color=color, alpha=0.22, linewidth=0.9)
    axes.plot(updates, mean, color=color, linewidth=2.2, label=label, marker=_marker(updates))
    return mean


def _marker(values: Float[np.ndarray, " points"]) -> str | None:
    """A dot for a single point, which a line would not show."""
    return "o" if len(values) == 1 else None


def _short(value: float) -> str:
    """`6e-4`, `0.02`, `1.5`: as few characters as keep the value."""
    if value == 0 or abs(value) >= 1e-2:
        return f"{value:g}"
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def _column(records: Sequence[Record], name: str) -> Float[np.ndarray, " points"]:
    values = np.array([getattr(record, name) for record in records], np.float64)
    return np.where(np.isfinite(values), values, np.nan)


def _last_value(values: Float[np.ndarray, " points"]) -> str:
    finite = values[np.isfinite(values)]
    return f"  {finite[-1]:.3f}" if len(finite) else ""


def _mark_skipped(axes: Axes, records: Sequence[Record]) -> None:
    skipped = [record.update for record in records if record.skipped]
    if skipped:
        axes.plot(
            skipped,
            np.zeros(len(skipped)),
            "|",
            color=_SKIPPED,
            markersize=14,
            markeredgewidth=1.5,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            label=f"skipped updates  {len(skipped)}",
        )


def _limit(axes: Axes, values: Float[np.ndarray, " points"]) -> None:
    """Fit the axis to what matters: a spike of a few raw points, or the very first ones, may leave the picture."""
    finite = values[np.isfinite(values)]
    if len(finite):
        low, high = finite.min(), np.percentile(finite, 99.8)
        margin = 0.05 * (high - low) or 0.1
        axes.set_ylim(low - margin, high + margin)


def _count_updates(axes: Axes, updates: Float[np.ndarray, " points"]) -> None:
    axes.set_xlabel("updates")
    axes.set_xlim(0, max(1.0, updates.max(initial=0) * 1.01))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=_ROUND_STEPS))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))


def _count_targets(axes: Axes, records: Sequence[Record]) -> None:
    """A second scale on top: targets seen, by their mean per update."""
    updates, targets = (records[-1].update, sum(record.targets for record in records)) if records else (0, 0)
    if updates and targets:
        share = targets / updates
        top = axes.secondary_xaxis("top", functions=(lambda x: np.multiply(x, share), lambda x: np.divide(x, share)))
        top.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=_ROUND_STEPS))
        top.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _count(value)))
        top.set_xlabel("targets seen")
        top.spines["top"].set_visible(False)


def _count(value: float) -> str:
    text = format_count(value)
    return text.replace(".0", "", 1) if text[-1].isalpha() else text
