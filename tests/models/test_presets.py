from __future__ import annotations

import jax
import pytest

from brim.models import PRESETS, DecoderSettings, DecoderShape, parameter_count
from brim.models.decoder import Decoder
from brim.tree import tree_size

PUBLISHED = {
    "gpt2": 124439808,
    "gpt2-medium": 354823168,
    "gpt2-large": 774030080,
    "gpt2-xl": 1557611200,
    "llama-7b": 6738415616,
    "llama-13b": 13015864320,
    "llama-30b": 32528943616,
    "llama-70b": 68976648192,
    "llama3.2-1b": 1235814400,
    "llama3.2-3b": 3212749824,
    "llama3.1-8b": 8030261248,
}


def counted(shape: DecoderShape) -> int:
    """Parameters of the model itself, without making them."""
    return tree_size(jax.eval_shape(lambda key: Decoder.create(key, shape), jax.random.key(0)))


def test_presets_are_the_published_ones() -> None:
    assert {name: preset.parameters for name, preset in PRESETS.items()} == PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_and_formula_have_the_published_number_of_parameters(name: str) -> None:
    assert counted(PRESETS[name].shape) == parameter_count(PRESETS[name].shape) == PUBLISHED[name]


def test_formula_counts_every_kind_of_model(shape: DecoderShape) -> None:
    assert parameter_count(shape) == counted(shape)


def test_formula_counts_a_rotary_model_without_positions_and_ties() -> None:
    sizes = {"family": "llama", "layers": 2, "width": 8, "heads": 2, "hidden": 12, "vocabulary": 10}
    short, long = (DecoderSettings(context=context, **sizes).resolved() for context in (4, 400))
    # By hand: embedding and head 2 * 80, final norm 8; per layer 4 * 64 attention, 3 * 96 feed-forward, 2 * 8 norms.
    assert parameter_count(short) == parameter_count(long) == counted(short) == 160 + 8 + 2 * (256 + 288 + 16)
