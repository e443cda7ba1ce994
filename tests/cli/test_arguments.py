"""Words of a command: flags and overrides in any order, and numbers that make no sense."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import tyro

from brim.cli import main
from brim.cli.arguments import read_with_overrides


@dataclass(frozen=True)
class Arguments:
    run_file: Annotated[Path, tyro.conf.Positional]
    budget: str | None = None
    json: bool = False


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))), ids=str)
def test_flags_and_overrides_go_in_any_order(order: tuple[int, ...]) -> None:
    groups = [["run.toml"], ["--model.layers", "-3"], ["--train.seed=5"], ["--budget", "1.5GiB"], ["--json"]]
    words = [word for place in order for word in groups[place]]
    found, overrides = read_with_overrides(Arguments, words, "plan")
    assert found == Arguments(Path("run.toml"), "1.5GiB", json=True)
    assert sorted(overrides) == ["--model.layers", "--train.seed=5", "-3"]
    assert overrides[overrides.index("--model.layers") + 1] == "-3"


def test_a_word_that_no_flag_knows_and_a_key_without_a_value_are_left_to_the_settings() -> None:
    found, overrides = read_with_overrides(Arguments, ["a.b.toml", "--budgt", "1", "--model.layers"], "plan")
    assert found == Arguments(Path("a.b.toml"))
    assert sorted(overrides) == ["--budgt", "--model.layers", "1"]


@pytest.mark.parametrize("command", ["plan", "train", "data", "resume"])
def test_every_command_with_overrides_reads_them_before_its_file(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    missing = tmp_path / "none"
    code = main([command, "--model.layers", "8", str(missing)])
    assert code == (1 if command == "resume" else 2)
    assert str(missing) in capsys.readouterr().err


@pytest.mark.parametrize("command", ["plan", "train"])
@pytest.mark.parametrize("price", ["-1", "nan", "inf", "-0.01"])
def test_a_price_is_a_number_of_0_or_more(command: str, price: str, capsys: pytest.CaptureFixture) -> None:
    assert main([command, "none.toml", f"--price-per-hour={price}"]) == 2
    said = capsys.readouterr().err
    assert "`--price-per-hour` is" in said
    assert "hint: such as --price-per-hour 0.35" in said
    assert main([command, "none.toml", "--price-per-hour", "0"]) == 2
    assert "no file at none.toml" in capsys.readouterr().err


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_is_what_64_bits_hold(seed: int, capsys: pytest.CaptureFixture) -> None:
    assert main(["sample", "none", f"--seed={seed}"]) == 2
    assert f"`--seed` is {seed}; expected a whole number that 64 bits hold" in capsys.readouterr().err


def test_a_negative_number_of_workers_has_a_next_step(capsys: pytest.CaptureFixture) -> None:
    run = Path(__file__).parents[2] / "configs" / "gpt2-124m.toml"
    assert main(["plan", str(run), "--device", "4090", "--workers", "-1"]) == 2
    said = capsys.readouterr().err
    assert "`--workers` is -1; expected 0 or more processes" in said
    assert "hint: 0: this one alone" in said
