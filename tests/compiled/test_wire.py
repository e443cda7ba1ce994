"""The decoder, against bytes that are written out by hand from the wire format's own description."""

from __future__ import annotations

import jax
import pytest

from brim.compiled.wire import Message
from brim.errors import DeviceError

# 1: 150 (the example of the format's documentation); 2: "testing"; 3: a message with 1: 1; 4: packed 3, 270, 86942
BYTES = bytes.fromhex("08 96 0112 07 74 65 73 74 69 6e 671a 02 08 0122 06 03 8e 02 9e a7 05")


def test_each_kind_of_field_is_read() -> None:
    message = Message(BYTES, "Example")
    assert message.number(1) == 150
    assert message.text(2) == "testing"
    assert message.message(3, "Inner").number(1) == 1
    assert message.numbers(4) == [3, 270, 86942]


def test_negative_numbers_are_twos_complements_of_64_bits() -> None:
    assert Message(bytes.fromhex("08 ff ff ff ff ff ff ff ff ff 01"), "Example").number(1) == -1


def test_repeated_fields_keep_their_order_and_the_last_of_a_single_one_counts() -> None:
    message = Message(bytes.fromhex("08 05 08 0712 01 61 12 01 62"), "Example")
    assert message.numbers(1) == [5, 7]
    assert message.number(1) == 7
    assert message.texts(2) == ["a", "b"]
    assert [each.number(1) for each in Message(bytes.fromhex("1a 02 08 01 1a 02 08 02"), "").messages(3, "")] == [1, 2]


def test_fixed_sizes_are_passed_over() -> None:
    assert Message(bytes.fromhex("09 00 00 00 00 00 00 f0 3f15 00 00 80 3f18 09"), "Example").number(3) == 9


def test_what_is_missing_is_zero_or_empty_unless_it_is_required() -> None:
    message = Message(b"", "Example")
    assert (message.number(1), message.text(2), message.numbers(3), message.messages(4, "")) == (0, "", [], [])
    assert message.message(5, "Inner").number(1) == 0
    with pytest.raises(DeviceError, match="Example has no field 1") as caught:
        message.number(1, required=True)
    assert f"jax {jax.__version__}" in caught.value.message


def test_a_field_of_another_kind_is_an_error() -> None:
    with pytest.raises(DeviceError, match="field 2 of Example holds bytes; int is expected"):
        Message(BYTES, "Example").number(2)
    with pytest.raises(DeviceError, match="field 1 of Example holds int; bytes is expected"):
        Message(BYTES, "Example").text(1)


@pytest.mark.parametrize("data", ["08", "12 05 61", "0b 00", "09 00"], ids=["varint", "length", "group", "fixed"])
def test_bytes_that_are_no_message_are_an_error(data: str) -> None:
    with pytest.raises(DeviceError, match="Example cannot be decoded"):
        Message(bytes.fromhex(data), "Example")
