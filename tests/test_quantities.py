"""Amounts of memory are read strictly: what a person meant, or an error that says how to write it."""

from __future__ import annotations

import pytest

from brim.errors import SettingsError
from brim.quantities import parse_bytes


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("22GiB", 22 * 2**30),
        ("24GB", 24 * 10**9),
        (" 1.5 gib ", 1610612736),
        ("800 MB", 800_000_000),
        ("1073741824", 2**30),
        (2**30, 2**30),
        (2**60 + 1, 2**60 + 1),
        ("0.7", 1),
        (".5k", 512),
        ("1", 1),
    ],
)
def test_an_amount_is_read(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [
        *("0.3", "0.5", "0", "0GiB", "0.0000000001GiB", 0, -1, True, "-1GiB", "22GB/s", "22 PiB", "many", "", "1e9"),
        *("nan", "9" * 400, "9" * 300 + "GiB", "8388608TiB", 2**63, 10**400),
    ],
)
def test_what_is_no_amount_or_rounds_to_nothing_is_an_error(text: str | int) -> None:
    with pytest.raises(SettingsError, match="expected an amount of memory from 1 byte to below 8 EiB") as error:
        parse_bytes(text)
    assert "22GiB" in error.value.hint
    with pytest.raises(SettingsError, match=r"^`plan\.budget` is "):
        parse_bytes(text, "plan.budget")
