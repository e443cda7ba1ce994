from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import pytest

from brim.training import progress as module
from brim.training.progress import Progress
from brim.training.tracking import Record


def record(window: int, **changes) -> Record:
    made = Record(
        window=window,
        update=window,
        loss=3.25,
        learning_rate=3e-4,
        gradient_norm=0.5,
        targets=100,
        skipped=False,
        seconds=2.0,
        tokens_per_second=None if window == 1 else 12345.0,
        waiting_share=0.02,
        memory_bytes=3 * 2**29,
        elapsed_seconds=100 + 2.0 * (window - 1),
    )
    return replace(made, **changes)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, records, **options) -> str:
    shown = Progress(50, stream=stream, **options)
    for each in records:
        shown.log(each)
    shown.close()
    return stream.getvalue()


def test_plain_lines_have_no_control_characters_and_every_figure():
    output = run(io.StringIO(), (record(window) for window in range(1, 26)), every=10)
    assert "\r" not in output
    assert "\x1b" not in output
    lines = output.splitlines()
    assert [line.split()[1] for line in lines] == ["1/50", "10/50", "20/50", "25/50"]
    assert lines[1] == ("update 10/50  loss 3.2500  lr 3.00e-04  tok/s 12.3k  data 2%  memory 1.50 GiB  left 1m20s")
    assert "tok/s compiling" in lines[0]
    assert "left unknown" in lines[0]


def test_the_loss_scale_is_shown_when_there_is_one():
    plain, scaled = run(io.StringIO(), [record(1)]), run(io.StringIO(), [record(1, loss_scale=32768.0)])
    assert "scale" not in plain
    assert scaled == plain.replace("left unknown", "left unknown  scale 32,768")
    assert "not finite at loss scale 32,768: it made" in run(io.StringIO(), [record(1, loss_scale=2**15, skipped=True)])


def test_a_plain_line_is_not_wrapped_or_cut():
    long = record(10, held_out_loss=2.123456, skipped=True, update=9)
    _, line = run(io.StringIO(), [long]).splitlines()  # the first tells of the skip
    assert len(line) > 100
    assert line.endswith("skipped 1")


def test_an_evaluation_is_shown_at_once_and_kept_on_later_lines():
    output = run(io.StringIO(), [record(1), record(3, held_out_loss=2.5), record(4), record(10)])
    lines = output.splitlines()
    assert ["val 2.5000" in line for line in lines] == [False, True, True]
    assert lines[1].startswith("update 3/50")
    assert "val 1.7500" in run(io.StringIO(), [record(7)], held_out_loss=1.75)


def test_the_time_left_counts_from_the_first_record_of_this_process():
    # Resumed at 40 after a long compile: 2 s per update, 8 updates left.
    output = run(io.StringIO(), [record(40), record(42, elapsed_seconds=record(40).elapsed_seconds + 4)], every=1)
    assert output.splitlines()[-1].endswith("left 16.0 s")
    assert "left" not in run(io.StringIO(), [record(50)])


def test_what_is_not_finite_or_skipped_is_said():
    output = run(io.StringIO(), [record(1), record(2, loss=math.nan, skipped=True, update=1)], every=1)
    assert "loss nan" in output.splitlines()[2]
    assert output.splitlines()[2].endswith("skipped 1")


def test_acc_s5_each_reason_for_a_skip_is_told_once():
    bad = {"loss": math.nan, "skipped": True, "update": 1}
    logged = [record(1), record(2, targets=0, **bad), record(3, targets=0, **bad), record(4, targets=8, **bad)]
    output = run(io.StringIO(), logged)
    assert output.count("window 2 had no target to learn from: it made no update (said once)") == 1
    assert output.count("window 4 had a loss or gradient that is not finite") == 1
    assert output.count("(said once)") == 2


def test_a_terminal_has_one_live_line_redrawn_in_place(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(module, "_REDRAW_SECONDS", 0.0)
    stream = Terminal()
    shown = Progress(50, stream=stream)
    for window in range(1, 6):
        shown.log(record(window))
    shown.note("saved checkpoint 5")
    shown.close()
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "\x1b[" in stream.getvalue()
    assert "saved checkpoint 5" in text
    assert "update 5/50" in text
    last = text.rstrip("\n").splitlines()[-1]
    assert "update 5/50" in last
    assert "left 1m30s" in last
    # Each redraw begins on the line of the one before: nothing but notes and the last line goes down.
    assert stream.getvalue().count("\n") <= 2


def test_a_narrow_terminal_still_has_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    stream = Terminal()
    output = run(stream, [record(1), record(2)])
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", output).rstrip("\n").splitlines()
    assert all(len(part) <= 60 for line in lines for part in line.split("\r"))
    assert "…" in lines[-1]


def test_redrawing_is_limited_but_the_last_window_is_shown(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(module, "_REDRAW_SECONDS", 3600.0)
    output = run(Terminal(), (record(window) for window in range(1, 50)))
    assert "1/50" in output
    assert "25/50" not in output
    assert "49/50" in output


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_nothing_logged_is_no_error(stream):
    shown = Progress(50, stream=stream)
    shown.note("hello")
    shown.close()
    assert "hello" in stream.getvalue()
