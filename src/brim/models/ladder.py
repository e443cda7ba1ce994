"""Shapes between and around the published ones of a family, smallest first: what "a larger model" means. Needs no JAX.

Published families grow in layers, width and heads together: GPT-2 goes 12 x 768, 24 x 1024, 36 x 1280, 48 x 1600. The
rungs between two of them change layers at one of both widths:

    the smaller width, with more layers, as long as that has fewer parameters than
    the larger width with the smaller one's layers; from there on more layers, up to the larger shape

Below the smallest published shape all three shrink together, head by head; above the largest, layers are added. So
parameters grow from rung to rung, and every shape lies within the widths and depths of its published neighbours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from brim.models.presets import PRESETS
from brim.models.shape import DecoderShape, parameter_count

SERIES = {
    "gpt2": ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"),
    "llama3": ("llama3.2-1b", "llama3.2-3b", "llama3.1-8b"),
    "llama": ("llama-7b", "llama-13b", "llama-30b", "llama-70b"),
}
"""Published shapes that grow into each other."""

MOST_DEPTH_RATIO = 4
"""How many times deeper than the largest published shape the last rung is."""


def series_of(preset: str, family: str) -> str:
    """The series of a preset, or, for a shape of one's own, that of its family."""
    named = next((series for series, members in SERIES.items() if preset in members), None)
    return named or ("gpt2" if family == "gpt2" else "llama3")


def ladder(shape: DecoderShape, series: str) -> tuple[DecoderShape, ...]:
    """The rungs of a series, fewest parameters first.

    Args:
        shape: its context, vocabulary, switches and dropout stay; its layers, width and heads do not count.
        series: a key of `SERIES`.
    """
    unshared = replace(shape, shared_layers="none", distinct_layers=None)
    published = [_with_sizes(unshared, PRESETS[name].shape) for name in SERIES[series]]
    anchors = [*_smaller(published[0]), *published]
    rungs = [rung for small, large in itertools.pairwise(anchors) for rung in _between(small, large)]
    last = anchors[-1]
    rungs += [replace(last, layers=layers) for layers in range(last.layers, MOST_DEPTH_RATIO * last.layers + 1)]
    return tuple(_ascending([_sharing_as(shape, rung) for rung in rungs if _can_share_as(shape, rung)]))


def sizes_in_words(shape: DecoderShape) -> str:
    """The overrides of a run file that ask for a shape."""
    keys = ("layers", "width", "heads", "kv_heads", "head_width", "hidden")
    return " ".join(f"--model.{key} {getattr(shape, key)}" for key in keys)


def _with_sizes(shape: DecoderShape, sizes: DecoderShape) -> DecoderShape:
    keys = ("layers", "width", "heads", "kv_heads", "head_width", "hidden")
    return replace(shape, **{key: getattr(sizes, key) for key in keys})


def _can_share_as(shape: DecoderShape, rung: DecoderShape) -> bool:
    return shape.distinct_layers is None or rung.layers % shape.distinct_layers == 0


def _sharing_as(shape: DecoderShape, rung: DecoderShape) -> DecoderShape:
    return replace(rung, shared_layers=shape.shared_layers, distinct_layers=shape.distinct_layers)


def _smaller(shape: DecoderShape) -> Iterator[DecoderShape]:
    """The shape shrunk head by head; query heads stay a multiple of key-value heads."""
    group = shape.heads // shape.kv_heads
    for heads in range(group, shape.heads, group):
        yield replace(
            shape,
            layers=max(1, shape.layers * heads // shape.heads),
            width=shape.width * heads // shape.heads,
            heads=heads,
            kv_heads=heads // group,
            hidden=shape.hidden * heads // shape.heads,
        )


def _between(small: DecoderShape, large: DecoderShape) -> Iterator[DecoderShape]:
    """From one shape to the next, the latter left out."""
    most = max(small.layers, large.layers)
    wide = [replace(large, layers=layers) for layers in range(min(small.layers, large.layers), large.layers)]
    least_wide = parameter_count(wide[0] if wide else large)
    for layers in range(small.layers, most + 1):
        deeper = replace(small, layers=layers)
        if layers == small.layers or parameter_count(deeper) < least_wide:
            yield deeper
    yield from wide


def _ascending(shapes: list[DecoderShape]) -> Iterator[DecoderShape]:
    largest = 0
    for shape in shapes:
        count = parameter_count(shape)
        if count > largest:
            largest = count
            yield shape
