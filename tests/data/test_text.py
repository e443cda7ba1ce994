from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.data.text import TextReader
from brim.errors import DataError

Write = Callable[[str, bytes | str], Path]


def text_of(path: Path, **options: object) -> tuple[str, TextReader]:
    reader = TextReader(path, **options)  # type: ignore[arg-type]
    return "".join(reader), reader


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 7, 1 << 20])
def test_line_ends_become_newlines_and_nothing_else_does(write: Write, block_bytes: int) -> None:
    path = write("a.txt", "\ufeffa\r\nb\rc\n\r\nd\u2028e\u2029f\x85g\x0bh\x0ci\x1cj\ufeff")
    text, _ = text_of(path, block_bytes=block_bytes)
    assert text == "a\nb\nc\n\nd\u2028e\u2029f\x85g\x0bh\x0ci\x1cj\ufeff"


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 1 << 20])
def test_da_s2_a_bad_byte_names_file_and_offset(write: Write, block_bytes: int) -> None:
    path = write("bad.txt", b"it\x92s\nok\n")
    with pytest.raises(DataError, match=r"bad\.txt is not UTF-8: byte 2 is 0x92") as caught:
        text_of(path, block_bytes=block_bytes)
    assert "cp1252" in caught.value.hint
    assert "’" in caught.value.hint
    assert "replace" in caught.value.hint


@pytest.mark.parametrize("block_bytes", [1, 2, 3, 1 << 20])
def test_da_s2_replacing_keeps_lines_and_counts_bytes(write: Write, block_bytes: int) -> None:
    text, reader = text_of(write("bad.txt", b"it\x92s\nok\n"), bad_bytes="replace", block_bytes=block_bytes)
    assert text.split("\n") == ["it\ufffds", "ok", ""]
    assert reader.replaced_bytes == 1
    # A sequence broken off by a line end: the line end stays, and each bad byte counts.
    text, reader = text_of(write("cut.txt", b"a\xe2\x80\r\nb\xff\xff"), bad_bytes="replace", block_bytes=block_bytes)
    assert text == "a\ufffd\ufffd\nb\ufffd\ufffd"
    assert reader.replaced_bytes == 4


def test_da_s2_a_real_replacement_character_is_not_counted(write: Write) -> None:
    text, reader = text_of(write("a.txt", "x\ufffdy"), bad_bytes="replace")
    assert (text, reader.replaced_bytes) == ("x\ufffdy", 0)


@pytest.mark.parametrize("block_bytes", [1, 5, 1 << 20])
@pytest.mark.parametrize(("tail", "offset"), [(b"\xe2\x80", 24), (b"\xff", 24), (b"ok\xc0\xaf", 26)])
def test_da_s2_offsets_count_from_the_start_of_the_file(
    write: Write, tail: bytes, offset: int, block_bytes: int
) -> None:
    path = write("late.txt", b"\xef\xbb\xbf" + "0123456789é 01234567".encode() + tail)
    with pytest.raises(DataError, match=f"byte {offset} is"):
        text_of(path, block_bytes=block_bytes)


@pytest.mark.parametrize("bad_bytes", ["error", "replace"])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        (gzip.compress(b"text", mtime=0), "gzip"),
        ("hello".encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + "hello".encode("utf-16-be"), "UTF-16"),
        ("hello".encode("utf-32"), "UTF-32"),
        (b"\x28\xb5\x2f\xfd....", "Zstandard"),
        (b"BZh91AY&SY....", "bzip2"),
        (b"PK\x03\x04....", "zip"),
        ("hello, hello, hello".encode("utf-16-le"), "byte 1 is 0"),
        (b"text, and far on a zero:" + b"x" * 100 + b"\0", "byte 124 is 0"),
    ],
)
def test_da_s2_binary_files_are_recognised_in_both_modes(
    write: Write, content: bytes, named: str, bad_bytes: str
) -> None:
    with pytest.raises(DataError, match=named) as caught:
        text_of(write("file.txt", content), bad_bytes=bad_bytes, block_bytes=32)
    assert caught.value.hint
    assert "file.txt" in caught.value.message


def test_the_hash_and_size_are_those_of_the_bytes(write: Write) -> None:
    content = "\ufeffa\r\nü".encode() * 1
    _, reader = text_of(write("a.txt", content), block_bytes=2)
    assert reader.sha256 == hashlib.sha256(content).hexdigest()
    assert reader.size_bytes == len(content)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, write: Write) -> None:
    with pytest.raises(DataError, match=r"gone\.txt"):
        text_of(tmp_path / "gone.txt")
    if os.geteuid() != 0:
        path = write("closed.txt", "x")
        path.chmod(0)
        with pytest.raises(DataError, match=r"closed\.txt") as caught:
            text_of(path)
        assert "permissions" in caught.value.hint


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.text(st.sampled_from("a\r\n\u2029\x85é😀 "), max_size=60),
    bad=st.binary(max_size=4).filter(lambda b: 0 not in b),
    block_bytes=st.integers(1, 9),
)
def test_where_a_block_ends_changes_nothing(write: Write, text: str, bad: bytes, block_bytes: int) -> None:
    path = write("a.txt", b"start of the file " + text.encode() + bad + text.encode())
    small, reader = text_of(path, bad_bytes="replace", block_bytes=block_bytes)
    whole, other = text_of(path, bad_bytes="replace")
    assert small == whole
    assert reader.replaced_bytes == other.replaced_bytes
    assert "\r" not in small
