"""Run files: the shipped ones load and plan-ready, overrides act, and what would be misunderstood is refused."""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from brim.errors import SettingsError
from brim.models import parameter_count
from brim.runfile import KEEPS_THE_STATE, RunFile, RunSettings
from brim.settings import build, keys_of, to_toml
from brim.supervisor.setup import build_program
from brim.supervisor.vocabulary import with_known_vocabulary
from brim.techniques.registry import REGISTRY
from brim.training.schedules import schedule
from brim.tree import tree_size

CONFIGS = Path(__file__).parent.parent / "configs"
NAMES = ["demo", "gpt2-1.5b", "gpt2-124m", *(f"llama-{size}b" for size in (1, 3, 7, 13, 30, 70)), "shakespeare-cpu"]
PARAMETERS = {"gpt2-124m": 124e6, "gpt2-1.5b": 1.56e9, "llama-7b": 6.74e9, "llama-13b": 13.0e9, "llama-30b": 32.5e9}


def test_the_shipped_run_files_are_those_that_are_promised() -> None:
    assert sorted(path.stem for path in CONFIGS.glob("*.toml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_run_file_builds_a_program_and_says_what_it_is_for(name: str) -> None:
    path = CONFIGS / f"{name}.toml"
    text = path.read_text()
    assert text.startswith("# What it is for: ")
    assert "# Command: " in text
    vocabulary = ["--model.vocabulary", "65"] if name == "shakespeare-cpu" else []
    run = with_known_vocabulary(RunFile.load(path, vocabulary))
    trainable, _, _ = build_program(run).part_specs()
    count = tree_size(trainable)
    assert count == parameter_count(run.settings.model.resolved())
    assert count == pytest.approx(PARAMETERS.get(name, count), rel=0.005)


@pytest.mark.parametrize("name", NAMES)
def test_a_resolved_run_file_reads_back_equal(name: str) -> None:
    run = RunFile.load(CONFIGS / f"{name}.toml", ["--model.vocabulary", "60000", "--data.vocabulary", "50000"])
    assert RunFile.from_tables(tomllib.loads(run.to_toml())) == run


def test_techniques_in_the_file_are_fixed_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('model.preset = "gpt2"\n[techniques.rematerialization]\npolicy = "full"\n')
    run = RunFile.load(path, ["--techniques.chunked_loss.tokens", "64"])
    assert {technique.name for technique in run.techniques} == {"rematerialization", "chunked_loss"}
    assert RunFile.from_tables(tomllib.loads(run.to_toml())) == run
    for words, said in (
        (["--techniques.rematerialisation.policy", "full"], "rematerialization"),
        (["--techniques.rematerialization.polcy", "full"], "policy"),
        (["--techniques.rematerialization.policy", "ful"], "full"),
        (["--techniques", "full"], "tables"),
    ):
        with pytest.raises(SettingsError, match=said):
            RunFile.load(path, words)


def test_paths_of_the_file_and_of_overrides_are_taken_from_where_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    path = tmp_path / "run.toml"
    path.write_text('model.preset = "gpt2"\n[data]\npaths = ["texts"]\n')
    monkeypatch.chdir(tmp_path / "here")
    assert RunFile.load(path).settings.data.paths == (str(tmp_path / "texts"),)
    changed = RunFile.load(path, ["--data.paths", "a, b c"]).settings.data.paths
    assert changed == (str(tmp_path / "here" / "a"), str(tmp_path / "here" / "b c"))
    for glob in ("part[0-9]", "[ab]*.txt"):
        assert RunFile.load(path, ["--data.paths", glob]).settings.data.paths == (str(tmp_path / "here" / glob),)


def test_the_store_too_is_taken_from_where_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    path = tmp_path / "run.toml"
    path.write_text('model.preset = "gpt2"\n[data]\nstore = "tokens"\n')
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert RunFile.load(path).settings.data.store == str(tmp_path / "tokens")
    for typed, meant in (
        ("mystore", tmp_path / "here" / "mystore"),
        ("~/mystore", tmp_path / "home" / "mystore"),
        ("~no-such-user/x", tmp_path / "here" / "~no-such-user" / "x"),
        ("/a/b", Path("/a/b")),
    ):
        data = RunFile.load(path, ["--data.store", typed, "--data.paths", typed]).settings.data
        assert (data.store, data.paths) == (str(meant), (str(meant),))
    assert RunFile.load(path, ["--data.store", ""]).settings.data.store == ""
    path.write_text('[data]\npaths = [""]\n')
    with pytest.raises(SettingsError, match="no empty path"):
        RunFile.load(path)


def test_sc_s1_a_warmup_longer_than_the_run_names_both(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[schedule]\nwarmup = 200\n[train]\nupdates = 100\n")
    with pytest.raises(SettingsError, match="200 updates, longer than the 100 updates"):
        RunFile.load(path)


def test_sc_s1_a_decay_longer_than_what_the_warmup_leaves_names_all_three(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    text = 'model.preset = "gpt2"\n[schedule]\nkind = "warmup-stable-decay"\nwarmup = 40\n[train]\nupdates = 100\n'
    path.write_text(text)
    with pytest.raises(
        SettingsError, match=r"`schedule\.decay` is 61 .* the 60 that a warmup of 40 leaves of 100"
    ) as error:
        RunFile.load(path, ["--schedule.decay", "61"])
    assert "--schedule.decay 60" in error.value.hint
    for decay, horizon in (("60", "100"), ("61", "101"), ("none", "100")):
        run = RunFile.load(path, ["--schedule.decay", decay, "--train.horizon", horizon])
        schedule(run.settings.schedule, run.settings.train.schedule_updates)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the model has no `layers`, `width`, `heads`, `context`"),
        ("[model]\nlayers = 2\nwidth = 8\n", "the model has no `heads`, `context`"),
        ("[model]\nlayers = -3\n", "`model.layers` is -3"),
        ('[model]\npreset = "gpt2"\ncontext = 1\n', "`model.context` is 1; expected at least 2 tokens"),
        ('[model]\npreset = "gpt2"\nvocabulary = 256\n', "`vocabulary` is 256; the tokenizer has 257 ids"),
        ('data.tokenizer = "bpe"\n[model]\npreset = "gpt2"\nvocabulary = 256\n', "the tokenizer has 257 ids"),
    ],
)
def test_what_can_be_known_of_the_model_is_checked_before_any_text_is_read(
    tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        RunFile.load(path)
    assert said in error.value.message


def test_a_model_that_can_read_the_data_or_need_not_is_let_through(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[model]\nlayers = 2\n")
    assert RunFile.load(path, needs_model=False).settings.model.layers == 2
    path.write_text('[model]\npreset = "gpt2"\n')
    for words in (["257"], ["256", "--data.split=tail"], ["9", "--data.tokenizer", "characters"]):
        run = RunFile.load(path, ["--model.vocabulary", *words])
        assert run.settings.model.vocabulary == int(words[0])


def test_a_micro_batch_that_does_not_divide_is_told_what_does(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[train]\nglobal_batch = 12\nmicro_batch = 5\n")
    with pytest.raises(SettingsError) as error:
        RunFile.load(path)
    assert "1, 2, 3, 4, 6, 12" in error.value.hint


def test_changes_name_their_keys() -> None:
    old = RunFile.from_tables({"model": {"layers": 2}})
    new = RunFile.from_tables({"model": {"layers": 3}, "techniques": {"chunked_loss": {"tokens": 8}}})
    assert old.changes(new) == {"model.layers": (2, 3), "techniques.chunked_loss": (None, {"tokens": 8})}


def test_keys_that_may_change_on_resume_exist() -> None:
    assert set(keys_of(RunSettings)) >= KEEPS_THE_STATE


TABLES = [*get_type_hints(RunSettings).values(), *REGISTRY]
VALUES = (True, False, 7, 8, 300, 0.25, "text", "22GiB", "gpt2", (0.5, 0.25), ("a", "b"))
BESIDE = {
    "decay": {"kind": "warmup-stable-decay"},
    "micro_batch": {"global_batch": 7},
    "minimum": {"learning_rate": 1.0},
    "names": {"policy": "names"},
    "rounding": {"parameters": "bfloat16"},
    **{key: {"compute": "float16"} for key in ("loss_scale", "initial_scale", "growth_updates")},
}


@pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
def test_every_field_of_every_table_reads_back_whatever_it_is(kind: type) -> None:
    hints = get_type_hints(kind)
    for field in fields(kind):
        variants = list(variants_of(kind, field.name, hints[field.name]))
        others = {getattr(one, field.name) for one in variants} - {getattr(kind(), field.name)}
        assert others or get_args(hints[field.name]) == ("adamw",), field.name
        for one in variants:
            assert build(kind, tomllib.loads(to_toml(one))) == one


def variants_of(kind: type, name: str, annotation: Any) -> Iterator[Any]:
    """The settings with other values of one field: each of the right type and range, and None where that is allowed."""
    choices = get_args(annotation)
    words = [word for word in (*choices, *(word for one in choices for word in get_args(one))) if isinstance(word, str)]
    beside = BESIDE.get(name, {})
    for value in (*VALUES, *words):
        with contextlib.suppress(SettingsError):
            yield build(kind, {**beside, name: value})
    if type(None) in choices:
        yield replace(build(kind, beside), **{name: None})


@pytest.mark.parametrize("budget", ["0.5", "0", "many", "9" * 400])
def test_a_budget_that_is_none_names_its_key_and_how_to_write_it(budget: str) -> None:
    with pytest.raises(SettingsError, match=r"`plan\.budget` is '") as error:
        RunFile.from_tables({"plan": {"budget": budget}})
    assert "22GiB" in error.value.hint
