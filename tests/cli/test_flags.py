"""Flags that may be left out, and flags that take one of some words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from brim import cli
from brim.cli.arguments import read, read_with_overrides

RUN = Path(__file__).parents[2] / "configs" / "gpt2-124m.toml"


@dataclass(frozen=True)
class Arguments:
    """A command."""

    speed: Literal["slow", "fast"] = "slow"
    colour: Literal["red", "green"] | None = None
    count: int | None = None
    name: str | None = None


def said(words: list[str], capsys: pytest.CaptureFixture) -> str:
    """What a wrong flag is told, on one line and without the box around it."""
    with pytest.raises(SystemExit) as error:
        read(Arguments, words, "test")
    assert error.value.code == 2
    return re.sub(r"[\s│]+", " ", capsys.readouterr().err)


def test_words_are_taken_and_may_be_left_out() -> None:
    assert read(Arguments, [], "test") == Arguments()
    assert read(Arguments, ["--colour", "red", "--speed", "fast"], "test") == Arguments("fast", "red")
    found = read_with_overrides(Arguments, ["--colour", "green", "--model.layers", "3"], "test")
    assert found == (Arguments(colour="green"), ["--model.layers", "3"])


@pytest.mark.parametrize(("flag", "choices"), [("--speed", "slow, fast"), ("--colour", "red, green")])
def test_another_word_is_told_the_right_ones_alone_and_the_nearest(
    flag: str, choices: str, capsys: pytest.CaptureFixture
) -> None:
    wrong = choices[-4:] + "t"
    text = said([flag, wrong], capsys)
    nearest = choices.rsplit(", ", maxsplit=1)[1]
    assert f"{flag}: found '{wrong}'; expected one of {choices}; did you mean `{nearest}`?" in text
    text = said([flag, "None"], capsys)
    assert f"found 'None'; expected one of {choices} " in text


def test_none_is_no_word_of_any_flag(capsys: pytest.CaptureFixture) -> None:
    assert "INT" in said(["--count", "None"], capsys)
    assert read(Arguments, ["--name", "None"], "test").name == "None"
    with pytest.raises(SystemExit):
        read(Arguments, ["--help"], "test")
    assert "{None}" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "train", "resume", "sample", "data"])
def test_no_command_offers_none(command: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        cli.main([command, "--help"])
    help_text = capsys.readouterr().out
    assert "--" in help_text and "{None}" not in help_text


def test_a_misspelt_goal_is_told_the_nearest(capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", str(RUN), "--goal", "largest-modle"])
    text = re.sub(r"[\s│]+", " ", capsys.readouterr().err)
    choices = "largest-model, largest-micro-batch, longest-context"
    assert f"found 'largest-modle'; expected one of {choices}; did you mean `largest-model`?" in text
