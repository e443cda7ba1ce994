"""Strict settings: every wrong key, type and value is an error that names the path and the nearest right one."""

from __future__ import annotations

import os
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
    words: tuple[str, ...] = ()


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


@pytest.mark.parametrize("name", ["file.toml/x", "x" * 300, "loop.toml", ".", "bytes.toml", "none.toml"])
def test_a_file_that_cannot_be_read_is_named_with_a_next_step(tmp_path: Path, name: str) -> None:
    (tmp_path / "file.toml").write_text("")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "bytes.toml").write_bytes(b"a = '\xff'")
    with pytest.raises(SettingsError) as error:
        load_toml(tmp_path / name)
    assert str(tmp_path / name) in error.value.message
    assert error.value.hint


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(SettingsError, match=r"a\.toml: Permission denied"):
        load_toml(tmp_path / "a.toml")


@pytest.mark.parametrize("text", [f"a = {'9' * 5000}", f"a = {'[' * 5000}", "a = 1979-13-45", "a ="])
def test_toml_that_python_does_not_take_is_no_valid_toml(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(SettingsError, match=r"a\.toml is not valid TOML"):
        load_toml(tmp_path / "a.toml")


def test_cl_s1_overrides_are_as_strict() -> None:
    for words in (["--optimizer.learning-rte", "1"], ["--optimizer.learning_rate"], ["stray"], ["--", "1"]):
        with pytest.raises(SettingsError):
            run("", *words)
    with pytest.raises(SettingsError, match="found `stray`") as stray:
        run("", "stray")
    assert "quotes" in stray.value.hint
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


@pytest.mark.parametrize(
    "text", ["e5", ".e5", "+e5", "E-5", ".", "-", "+.", "1e", "1e999", "_1", "1_", "9" * 400, "9" * 5000]
)
def test_cl_s2_what_only_looks_like_a_number_is_an_error_too(text: str) -> None:
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate.*expected a finite number"):
        run("", "--optimizer.learning_rate", text)
    with pytest.raises(SettingsError, match=r"optimizer\.learning_rate.*expected a finite number"):
        build(Run, {"optimizer": {"learning_rate": text}})


@pytest.mark.parametrize(("text", "value"), [("5.", 5.0), (".5", 0.5), ("+1_0.5e-1", 1.05), ("9" * 40, 1e40)])
def test_cl_s2_every_way_to_write_a_number(text: str, value: float) -> None:
    assert run("", "--optimizer.learning_rate", text).optimizer.learning_rate == value


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_cl_s2_a_whole_number_that_64_bits_do_not_hold_is_an_error(digits: int) -> None:
    for table in ({"steps": "9" * digits}, {"steps": -(10**digits)}):
        with pytest.raises(SettingsError, match=r"optimizer\.steps.*64 bits"):
            build(Run, {"optimizer": table})
    if digits > 308:
        with pytest.raises(SettingsError, match=r"optimizer\.learning_rate.*finite"):
            build(Run, {"optimizer": {"learning_rate": 10**digits}})


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


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("part[0-9]", ("part[0-9]",)),
        ("[ab]*.txt", ("[ab]*.txt",)),
        ("[0-9]", ("[0-9]",)),
        ("[ab]x, y[cd]", ("[ab]x", "y[cd]")),
        ("[a, b c]", ("a", "b c")),
        ("[[ab]x,y[cd]]", ("[ab]x", "y[cd]")),
        ('["a, b", "c]"]', ("a, b", "c]")),
        ("['a']", ("a",)),
        ("[]", ()),
        ("", ()),
        ("a,,b,", ("a", "b")),
        ("[a", ("[a",)),
    ],
)
def test_brackets_are_taken_off_an_array_only_where_they_are_around_it(text: str, entries: tuple[str, ...]) -> None:
    assert run("", "--words", text).words == entries


def test_a_number_in_brackets_is_an_array_of_one() -> None:
    assert run("", "--layers", "[3]").layers == (3,)
    assert run("", "--optimizer.betas", "[0.8, .9]").optimizer.betas == (0.8, 0.9)


def test_text_that_utf_8_cannot_write_is_refused_with_its_key() -> None:
    argument = os.fsdecode(b"caf\xe9.txt")
    for words, key in ((("--name", argument), "`name`"), (("--words", f"a,{argument}"), r"`words`\[1\]")):
        with pytest.raises(SettingsError, match=key) as error:
            run("", *words)
        assert "udce9" in error.value.message
        assert "UTF-8" in error.value.hint
    assert run("", "--name", "caf\xe9.txt").name == "café.txt"


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
    st.lists(st.text(st.characters(exclude_categories=["Cs"]))).map(tuple),
)


@given(SETTINGS)
def test_what_is_written_is_read_back_equal(settings: Any) -> None:
    assert build(Run, tomllib.loads(to_toml(settings))) == settings
