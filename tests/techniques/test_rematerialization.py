"""How rematerialization says what it does."""

from __future__ import annotations

import pytest

from brim.techniques import AttentionKernel, Recipe, Rematerialization


@pytest.mark.parametrize(
    ("technique", "words"),
    [
        (Rematerialization(), "no remat"),
        (Rematerialization(unroll=0), "unrolled"),
        (Rematerialization("full"), "remat full"),
        (Rematerialization("dots_without_batch", unroll=4), "remat dots without batch, unroll 4"),
        (Rematerialization("names", names=("query", "mlp_out")), "remat keeping query+mlp_out"),
    ],
)
def test_its_words_make_sense_alone(technique: Rematerialization, words: str) -> None:
    assert technique.describe() == words


def test_in_a_recipe_plain_settings_need_no_words() -> None:
    reference = AttentionKernel("reference")
    assert Recipe.of(4, reference).describe() == "4 x 1"
    assert Recipe.of(4, reference, Rematerialization("full")).describe() == "4 x 1, remat full"
