from __future__ import annotations

import pytest

from brim.data import DataSettings
from brim.errors import SettingsError
from brim.settings import build, to_toml


def test_the_table_reads_back_what_it_writes() -> None:
    import tomllib

    settings = DataSettings(paths=("a b/é.txt", "c/**/*.py"), separator="\n", tokenizer="bpe", vocabulary=512)
    assert build(DataSettings, tomllib.loads(to_toml(settings))) == settings


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("held_out", 1.0),
        ("held_out", -0.1),
        ("vocabulary", 257),
        ("pattern", ""),
        ("pattern", "/etc/*"),
        ("separator", "\r\n"),
        ("paths", ("a", "")),
        ("tokenizer", "words"),
        ("sampling", "twice"),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: object) -> None:
    with pytest.raises(SettingsError, match=field):
        build(DataSettings, {field: value})


def test_a_tail_split_takes_no_separator() -> None:
    with pytest.raises(SettingsError, match="separator"):
        DataSettings(split="tail", separator="\n")
