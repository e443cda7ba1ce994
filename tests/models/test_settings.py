from __future__ import annotations

import pytest

from brim.errors import SettingsError
from brim.models import PRESETS, DecoderSettings, DecoderShape
from brim.settings import Override, build, to_tables

SIZES = {"layers": 2, "width": 64, "heads": 4, "context": 32, "vocabulary": 256}


def test_preset_alone_is_the_published_shape() -> None:
    for name, preset in PRESETS.items():
        assert DecoderSettings(preset=name).resolved() == preset.shape


def test_a_size_said_beside_a_preset_replaces_only_that_size() -> None:
    shape = build(DecoderSettings, {"preset": "llama-70b", "layers": 8, "vocabulary": Override("256")}).resolved()
    assert (shape.layers, shape.vocabulary, shape.hidden, shape.kv_heads) == (8, 256, 28672, 8)


def test_a_changed_width_frees_what_follows_from_it() -> None:
    shape = DecoderSettings(preset="gpt2", width=384).resolved()
    assert (shape.hidden, shape.head_width, shape.heads) == (1536, 32, 12)
    assert DecoderSettings(preset="gpt2", width=384, hidden=3072).resolved().hidden == 3072


def test_changed_heads_free_the_key_value_heads_of_a_preset() -> None:
    assert DecoderSettings(preset="llama-70b", heads=128).resolved().kv_heads == 128
    assert DecoderSettings(preset="llama-70b", heads=64).resolved().kv_heads == 8


def test_a_changed_family_frees_its_switches() -> None:
    shape = DecoderSettings(preset="gpt2", family="llama").resolved()
    assert (shape.tied, shape.bias, shape.rope_theta, shape.hidden) == (False, False, 10000.0, 2048)


def test_defaults_of_the_families() -> None:
    assert DecoderSettings(**SIZES).resolved() == DecoderShape(
        family="gpt2", kv_heads=4, head_width=16, hidden=256, tied=True, bias=True, rope_theta=None,
        norm_epsilon=1e-5, **SIZES,
    )  # fmt: skip
    assert DecoderSettings(family="llama", **SIZES).resolved() == DecoderShape(
        family="llama", kv_heads=4, head_width=16, hidden=256, tied=False, bias=False, rope_theta=10000.0,
        norm_epsilon=1e-5, **SIZES,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["llama-7b", "llama-13b", "llama-30b"])
def test_default_hidden_of_llama_is_that_of_the_paper(name: str) -> None:
    shape = PRESETS[name].shape
    settings = DecoderSettings(family="llama", layers=1, width=shape.width, heads=shape.heads, context=8, vocabulary=8)
    assert settings.resolved().hidden == shape.hidden


def test_vocabulary_comes_from_the_tokenizer_when_it_is_not_said() -> None:
    sizes = {key: value for key, value in SIZES.items() if key != "vocabulary"}
    assert DecoderSettings(**sizes).resolved(tokenizer_vocabulary=8192).vocabulary == 8192
    assert DecoderSettings(**SIZES).resolved(tokenizer_vocabulary=100).vocabulary == 256
    assert DecoderSettings(preset="gpt2").resolved(tokenizer_vocabulary=100).vocabulary == 50257
    with pytest.raises(SettingsError, match="`vocabulary` is not known yet"):
        DecoderSettings(**sizes).resolved()
    with pytest.raises(SettingsError, match="`vocabulary` is 256; the tokenizer has 257 ids"):
        DecoderSettings(**SIZES).resolved(tokenizer_vocabulary=257)


def test_nothing_said_is_an_error_only_when_the_shape_is_wanted() -> None:
    settings = DecoderSettings()
    assert settings.missing() == ("layers", "width", "heads", "context")
    with pytest.raises(SettingsError, match="no `layers`, `width`, `heads`, `context`"):
        settings.resolved(tokenizer_vocabulary=256)


def test_settings_survive_a_round_trip_through_tables() -> None:
    settings = DecoderSettings(preset="gpt2", layers=3, dropout=0.1, bias=False)
    assert to_tables(settings) == {
        **{"preset": "gpt2", "layers": 3, "bias": False, "dropout": 0.1},
        "shared_layers": "none",
    }
    assert build(DecoderSettings, to_tables(settings)) == settings


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"preset": "gpt2-larg"}, "did you mean `gpt2-large`"),
        (SIZES | {"heads": 5}, "`heads` is 5; expected a divisor of `width`"),
        (SIZES | {"kv_heads": 3}, "`kv_heads` is 3; expected a divisor of `heads`"),
        (SIZES | {"kv_heads": 8}, "`kv_heads` is 8; expected a divisor of `heads`"),
        (SIZES | {"layers": 0}, "`layers` is 0; expected a whole number of at least 1"),
        ({"layers": -3}, "`layers` is -3; expected a whole number of at least 1"),
        ({"width": 64, "vocabulary": 0}, "`vocabulary` is 0; expected a whole number of at least 1"),
        ({"preset": "gpt2", "hidden": 0}, "`hidden` is 0; expected a whole number of at least 1"),
        (SIZES | {"heads": 0}, "`heads` is 0; expected a whole number of at least 1"),
        (SIZES | {"vocabulary": -1}, "`vocabulary` is -1"),
        (SIZES | {"dropout": 1.0}, "`dropout` is 1.0; expected a rate"),
        (SIZES | {"dropout": -0.1}, "`dropout` is -0.1; expected a rate"),
        (SIZES | {"norm_epsilon": 0.0}, "`norm_epsilon` is 0.0"),
        (SIZES | {"rope_theta": 1e4}, "`rope_theta` is 10000.0; expected nothing in the gpt2 family"),
        (SIZES | {"family": "llama", "bias": True}, "`bias` is True; expected false in the llama family"),
        (SIZES | {"family": "llama", "rope_theta": 1.0}, "`rope_theta` is 1.0; expected a number above 1"),
        (SIZES | {"family": "llama", "head_width": 15}, "`head_width` is 15; expected an even number"),
    ],
)
def test_sizes_that_do_not_go_together_name_the_key(table: dict, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        build(DecoderSettings, table)
    assert message in str(caught.value)
