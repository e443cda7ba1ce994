"""Strict settings: every wrong key, type and value is an error that names the path and the nearest right one."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.errors import SettingsError
from brim.settings import build, differences, load_toml, merge, parse_overrides, require, to_toml


@dataclass(frozen=True)
class Optimizer:
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.95)
    kind: Literal["adamw", "lion"] = "adamw"
    steps: int | None = None
    clip: float | None = 1.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, "learning_rate", self.learning_rate, "a number above 0")


@dataclass(frozen=True)
class Run:
    optimizer: Optimizer = field(default_factory=Optimizer)
    name: str = ""
    layers: tuple[int, ...] = ()


def run(text: str, *overrides: str) -> Run:
    return build(Run, merge(tomllib.loads(text), parse_overrides(overrides)), source="run.toml")


def test_cl_s1_misspelt_key_is_an_error_with_its_path_and_the_nearest_name() -> None:
    with pytest.raises(SettingsError) as error:
        run("[optimizer]\nlearning_rte = 1.0e-3")
    assert "optimizer.learning_rte" in error.value.message
    assert "optimizer.learning_rate" in error.value.hint
    assert error.value.exit_code == 2


def test_cl_s1_key_at_the_wrong_level_is_told_where_it_belongs() -> None:
    with pytest.raises(SettingsError) as error:
        run("learning_rate = 1.0e-3")
    assert error.value.hint == "did you mean `optimizer.learning_rate`?"


def test_cl_s1_same_key_twice_empty_file_and_list_for_a_table(tmp_path: Path) -> None:
    twice = tmp_path / "twice.toml"
    twice.write_text("name = 'a'\nname = 'b'\n")
    with pytest.raises(SettingsError, match=r"twice.toml is not valid TOML.*line 2"):
        load_toml(twice)
    assert run("") == Run()
    with pytest.raises(SettingsError, match=r"`optimizer` is \[1\] \(list\); expected a table"):
        run("optimizer = [1]")
    with pytest.raises(SettingsError, match="no file at"):
        load_toml(tmp_path / "none.toml")


def test_cl_s1_overrides_are_as_strict() -> None:
    for words in (["--optimizer.learning-rte", "1"], ["--optimizer.learning_rate"], ["stray"], ["--", "1"]):
        with pytest.raises(SettingsError):
            run("", *words)
    with pytest.raises(SettingsError, match="given twice"):
        run("", "--name", "a", "--name=b")
    assert run("", "--optimizer.learning-rate", "0.5").optimizer.learning_rate == 0.5


@pytest.mark.parametrize(
    ("text", "value"), [("1e-4", 1e-4), ("5E-5", 5e-5), ("1.0e4", 1e4), ("1e4", 1e4), ('"3e-4"', 3e-4), ("1", 1.0)]
)
def test_cl_s2_numbers_are_numbers(text: str, value: float) -> None:
    assert run(f"[optimizer]\nlearning_rate = {text}").optimizer.learning_rate == value
    assert run("", "--optimizer.learning_rate", text.strip('"')).optimizer.learning_rate == value


@pytest.mark.parametrize("text", ['"abc"', "-1", "nan", "inf", "true", "[1]", '""', '"."', '"1:30"', "1979-05-27"])
def test_cl_s2_what_is_no_positive_number_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate"):
        run(f"[optimizer]\nlearning_rate = {text}")


@pytest.mark.parametrize(("text", "value"), [("1_000", 1000), ("8", 8), ("-3", -3)])
def test_cl_s2_whole_numbers(text: str, value: int) -> None:
    assert run(f"[optimizer]\nsteps = {text}").optimizer.steps == value
    assert run("", "--optimizer.steps", text).optimizer.steps == value


@pytest.mark.parametrize("text", ["8.5", "010", "1:30", "8.0", "1e3", "true", "off", ""])
def test_cl_s2_what_is_no_whole_number_is_an_error(text: str) -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.steps"):
        run("", "--optimizer.steps", text)


@pytest.mark.parametrize("text", ['"off"', '"no"', "0", "1", '"true"'])
def test_cl_s2_only_true_and_false_are_booleans(text: str) -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.nesterov"):
        run(f"[optimizer]\nnesterov = {text}")


def test_text_stays_text() -> None:
    assert run('name = "no"').name == "no"
    assert run("", "--name", "no").name == "no"
    with pytest.raises(SettingsError, match="expected text"):
        run("name = 5")


def test_choices_suggest_the_nearest() -> None:
    with pytest.raises(SettingsError) as error:
        run('[optimizer]\nkind = "adamv"')
    assert error.value.hint == "did you mean `adamw`?"


def test_none_and_arrays_in_overrides() -> None:
    changed = run("[optimizer]\nsteps = 3", "--optimizer.steps", "none", "--layers", "1,2", "--optimizer.betas=0.8,.9")
    assert changed.optimizer.steps is None
    assert changed.layers == (1, 2)
    assert changed.optimizer.betas == (0.8, 0.9)


def test_none_that_is_no_default_is_written_and_read() -> None:
    unclipped = run("", "--optimizer.clip", "none")
    assert unclipped.optimizer.clip is None
    assert tomllib.loads(to_toml(unclipped))["optimizer"]["clip"] == "none"
    assert run(to_toml(unclipped)) == unclipped
    assert run('[optimizer]\nclip = "none"') == unclipped
    assert "steps" not in to_toml(unclipped)  # None is what leaving it out means
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate"):
        run('[optimizer]\nlearning_rate = "none"')


def test_none_without_a_default_and_inside_an_array_is_read_back() -> None:
    @dataclass(frozen=True)
    class Bare:
        size: int | None
        sizes: tuple[int | None, ...] = ()
        made: int | None = field(default_factory=lambda: 3)

    bare = Bare(None, (1, None), None)
    assert build(Bare, tomllib.loads(to_toml(bare))) == bare


def test_differences_name_dotted_keys() -> None:
    assert differences(Run(), run("", "--optimizer.steps", "3")) == {"optimizer.steps": (None, 3)}
    assert differences(Run(), run("", "--optimizer.clip", "none")) == {"optimizer.clip": (1.0, None)}


SETTINGS = st.builds(
    Run,
    st.builds(
        Optimizer,
        st.floats(1e-30, 1e30),
        st.tuples(st.floats(-1e9, 1e9), st.floats(0, 1)),
        st.sampled_from(["adamw", "lion"]),
        st.none() | st.integers(-(2**62), 2**62),
        st.none() | st.floats(-1e9, 1e9),
        st.booleans(),
    ),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.lists(st.integers(0, 99)).map(tuple),
)


@given(SETTINGS)
def test_what_is_written_is_read_back_equal(settings: Any) -> None:
    assert build(Run, tomllib.loads(to_toml(settings))) == settings
