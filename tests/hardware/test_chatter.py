"""Known noise is dropped; everything else that native code writes is kept, errors on the way included."""

from __future__ import annotations

import os

import pytest

from brim.hardware.chatter import without_chatter


def test_only_known_noise_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    with without_chatter():
        os.write(2, b"I0000 cudart_stub.cc:31] Could not find cuda drivers\nsomething real\n")
        os.write(1, b"data\n")
    os.write(2, b"after\n")
    assert capfd.readouterr() == ("data\n", "something real\nafter\n")


def test_what_was_written_before_an_error_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="broken"), without_chatter():
        os.write(2, b"why it broke\n")
        raise ValueError("broken")
    assert capfd.readouterr().err == "why it broke\n"
