"""Shapes between the published ones."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from brim.models.ladder import MOST_DEPTH_RATIO, SERIES, ladder, series_of, sizes_in_words
from brim.models.presets import PRESETS
from brim.models.settings import DecoderSettings
from brim.models.shape import DecoderShape, parameter_count


def rungs_of(series: str) -> tuple[DecoderShape, ...]:
    return ladder(PRESETS[SERIES[series][0]].shape, series)


def sizes(shape: DecoderShape) -> tuple[int, ...]:
    return shape.layers, shape.width, shape.heads, shape.kv_heads, shape.head_width, shape.hidden


@pytest.mark.parametrize("series", SERIES)
def test_every_published_shape_is_a_rung_and_parameters_grow(series: str) -> None:
    rungs = rungs_of(series)
    counts = [parameter_count(rung) for rung in rungs]
    assert all(one < other for one, other in itertools.pairwise(counts))
    for name in SERIES[series]:
        assert sizes(PRESETS[name].shape) in map(sizes, rungs)


@pytest.mark.parametrize("series", SERIES)
def test_a_rung_is_no_deeper_than_its_larger_published_neighbour(series: str) -> None:
    published = [PRESETS[name].shape for name in SERIES[series]]
    for small, large in itertools.pairwise(published):
        between = [
            rung
            for rung in rungs_of(series)
            if parameter_count(small) <= parameter_count(replace(rung, vocabulary=small.vocabulary))
            and rung.width in (small.width, large.width)
            and sizes(rung) != sizes(small)
        ]
        ends = [rung for rung in between if rung.width == small.width != large.width]
        assert all(rung.layers <= max(small.layers, large.layers) for rung in ends)


def test_between_gpt2_and_its_medium_first_layers_then_width_then_layers() -> None:
    rungs = rungs_of("gpt2")
    first, last = (
        next(n for n, rung in enumerate(rungs) if sizes(rung) == sizes(PRESETS[name].shape))
        for name in ("gpt2", "gpt2-medium")
    )
    found = [(rung.width, rung.layers) for rung in rungs[first : last + 1]]
    assert found == [*((768, layers) for layers in range(12, 24)), *((1024, layers) for layers in range(12, 25))]
    assert rungs[-1].layers == MOST_DEPTH_RATIO * 48


def test_what_is_no_size_stays_as_the_run_has_it() -> None:
    mine = DecoderSettings(preset="gpt2", context=256, vocabulary=100, dropout=0.1).resolved()
    for rung in ladder(mine, "gpt2"):
        assert (rung.context, rung.vocabulary, rung.dropout, rung.tied) == (256, 100, 0.1, True)
        assert rung.width == rung.heads * rung.head_width


def test_the_series_of_presets_and_of_shapes_of_ones_own() -> None:
    assert [series_of(name, "") for name in ("gpt2-large", "llama-13b", "llama3.2-3b")] == ["gpt2", "llama", "llama3"]
    assert [series_of("", family) for family in ("gpt2", "llama")] == ["gpt2", "llama3"]


def test_the_words_are_overrides_that_give_the_shape() -> None:
    rung = rungs_of("llama3")[20]
    words = sizes_in_words(rung).split()
    given = {key.removeprefix("--model."): int(value) for key, value in zip(words[::2], words[1::2], strict=True)}
    again = DecoderSettings(preset="llama3.2-1b", tied=True, rope_theta=500000.0, **given).resolved()
    assert sizes(again) == sizes(rung)
