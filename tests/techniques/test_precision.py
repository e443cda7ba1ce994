"""Which format is chosen for which device, and which settings are refused."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
import pytest

from brim.errors import SettingsError, TechniqueError
from brim.hardware.device import detect, named
from brim.techniques import Context, Precision, Recipe
from programs import linear_program

PROGRAM = linear_program(1, optax.sgd(0.1))


@pytest.mark.parametrize(
    ("device", "compute"),
    [
        ("v100-16-sxm", "float16"),
        ("t4", "float16"),
        ("rtx-2080-ti", "float16"),
        ("a100", "bfloat16"),
        ("rtx-4090", "bfloat16"),
    ],
)
def test_fp16_is_chosen_where_the_tensor_cores_have_no_bf16(device: str, compute: str) -> None:
    first, second = Precision.options(PROGRAM, named(device))
    assert first == Precision(compute)  # type: ignore[arg-type]
    assert second == Precision(compute, parameters="bfloat16")  # type: ignore[arg-type]
    assert (first.effect, second.effect) == ("rounding", "lossy")
    assert first.needs(PROGRAM, named(device)) is None


def test_a_cpu_computes_in_fp32() -> None:
    assert Precision.options(PROGRAM, detect())[0] == Precision()


def test_bf16_on_turing_says_why_not() -> None:
    with pytest.raises(TechniqueError, match=r"bfloat16 needs compute capability 8\.0"):
        Recipe.of(1, Precision("bfloat16")).points(Context(PROGRAM, named("t4")))


@pytest.mark.parametrize(
    "settings",
    [
        {"rounding": "kahan"},
        {"initial_scale": 1024.0},
        {"compute": "bfloat16", "loss_scale": "static"},
        {"compute": "float16", "initial_scale": 1000.0},
        {"compute": "float16", "growth_updates": 0},
    ],
)
def test_settings_that_would_be_ignored_or_are_out_of_range_are_errors(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        Precision(**settings)


def test_what_is_plain_and_what_is_said() -> None:
    assert Precision().is_plain and Precision().effect == "exact"
    assert not Precision(parameters="bfloat16").is_plain
    words = {
        "fp16": Precision("float16"),
        "fp16 (scale 1024)": Precision("float16", loss_scale="static", initial_scale=1024.0),
        "bf16, bf16 parameters (kahan)": Precision("bfloat16", "bfloat16", "kahan"),
    }
    assert [technique.describe() for technique in words.values()] == list(words)


def test_bf_s1_nearest_rounding_is_warned_about_and_nothing_else_is() -> None:
    said: list[str] = []
    for rounding in ("nearest", "stochastic", "kahan"):
        technique = Precision("bfloat16", "bfloat16", rounding)
        points = Recipe.of(1, technique).points(Context(PROGRAM, detect(), said.append))
        assert points.dtypes.parameters == jnp.bfloat16
    assert said == ["bf16 parameters rounded to nearest: updates below 0.2% of a parameter are lost"]


def test_a_recipe_survives_its_tables() -> None:
    recipe = Recipe.of(2, Precision("float16", "bfloat16", "kahan", "static", 64.0))
    assert Recipe.from_tables(recipe.to_tables()) == recipe
    old = recipe.to_tables()
    old["techniques"]["precision"] = {"compute": "bfloat16"}  # as plans before loss scaling wrote it
    assert Recipe.from_tables(old)["precision"] == Precision("bfloat16")
