from __future__ import annotations

import json
import math
import struct
from dataclasses import replace

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from brim.training.tensorboard import TensorBoard
from brim.training.tracking import MetricsFile, Record, read_metrics


def record(window: int, **changes) -> Record:
    made = Record(
        window=window,
        update=window,
        loss=3.0 / window,
        learning_rate=1e-3,
        gradient_norm=0.5,
        targets=100,
        skipped=False,
        seconds=0.1,
        tokens_per_second=None if window == 1 else 1000.0,
        waiting_share=0.02,
        memory_bytes=2**20,
        elapsed_seconds=0.1 * window,
    )
    return replace(made, **changes)


def run(path, windows, *, after: int = 0, loss: float = 1.0) -> None:
    """Log windows as a training loop does: the clock goes on from the last record kept."""
    metrics = MetricsFile(path, after_window=after)
    elapsed = metrics.last.elapsed_seconds if metrics.last else 0.0
    for window in windows:
        elapsed += 0.1
        metrics.log(record(window, loss=loss, elapsed_seconds=elapsed))
    metrics.close()


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_lg_s2_steps_logged_past_the_checkpoint_appear_once_after_a_resume(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run(path, range(1, 13), loss=1.0)  # killed after window 12, saved at 10
    run(path, range(11, 16), after=10, loss=2.0)
    records = read_metrics(path)
    assert [found.window for found in records] == list(range(1, 16))
    assert [found.loss for found in records] == [1.0] * 10 + [2.0] * 5
    assert sum(found.targets for found in records) == 15 * 100
    elapsed = [found.elapsed_seconds for found in records]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] == pytest.approx(1.5)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_lg_s2_a_skipped_window_past_the_checkpoint_is_cut_too(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.log(record(10))
    metrics.log(record(11, update=10, skipped=True))  # no update: only the window tells that it is past the save
    metrics.close()
    metrics = MetricsFile(path, after_window=10)
    metrics.close()
    assert metrics.last == record(10)
    assert read_metrics(path) == [record(10)]


def test_lg_s2_a_torn_last_line_is_repaired(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    run(path, range(1, 4))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [found.window for found in read_metrics(path)] == [1, 2]
    assert path.read_bytes() == whole[:-20], "reading must not write"
    assert "line 3" in caplog.text
    run(path, [3, 4], after=3)
    assert [found.window for found in read_metrics(path)] == [1, 2, 3, 4]
    assert all(strict(line) for line in path.read_text().splitlines())
    # A whole record without its line end may still be torn (1e-3 of 1e-30): it is left out as well.
    path.write_bytes(path.read_bytes()[:-1])
    assert [found.window for found in read_metrics(path)] == [1, 2, 3]


def test_lg_s2_an_untouched_file_is_not_rewritten_and_a_new_run_starts_empty(tmp_path):
    path = tmp_path / "metrics.jsonl"
    run(path, range(1, 4))
    before = path.stat().st_ino
    run(path, [4], after=3)
    assert path.stat().st_ino == before
    MetricsFile(path).close()
    assert read_metrics(path) == []


def test_what_is_logged_is_on_disk_at_once_and_comes_back_equal(tmp_path):
    metrics = MetricsFile(tmp_path / "run" / "metrics.jsonl")
    logged = [record(1), record(2, held_out_loss=2.5), record(3, update=2, skipped=True), record(4, loss_scale=2.0**14)]
    for count, each in enumerate(logged, start=1):
        metrics.log(each)
        assert read_metrics(tmp_path / "run" / "metrics.jsonl") == logged[:count]
    metrics.close()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_null_and_named(tmp_path, value):
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    metrics.log(record(1, loss=value, gradient_norm=value))
    metrics.log(record(2))
    metrics.close()
    first, second = map(strict, path.read_text().splitlines())
    assert (first["loss"], first["gradient_norm"], first["nonfinite"]) == (None, None, ["loss", "gradient_norm"])
    assert "nonfinite" not in second
    assert math.isnan(read_metrics(path)[0].loss)
    assert read_metrics(path)[0].tokens_per_second is None


def events(folder) -> list[Event]:
    found = []
    for path in sorted(folder.iterdir()):  # the order in which TensorBoard reads them
        data, position = path.read_bytes(), 0
        while position < len(data):  # a TFRecord: length, its checksum, the event, its checksum
            (length,) = struct.unpack_from("<Q", data, position)
            found.append(Event.FromString(data[position + 12 : position + 12 + length]))
            position += 16 + length
    return found


def curve(folder, tag: str) -> dict[int, float]:
    """A curve as TensorBoard shows it: a start mark purges the earlier points from its step on."""
    points: dict[int, float] = {}
    for event in events(folder):
        if event.session_log.status == SessionLog.START:
            points = {step: value for step, value in points.items() if step < event.step}
        for value in event.summary.value:
            if value.tag == tag:
                points[event.step] = value.simple_value
    return points


def test_lg_s2_tensorboard_shows_each_step_once_after_a_resume(tmp_path):
    for after, windows, loss in ((0, range(1, 13), 1.0), (10, (11, 13), 2.0)):
        board = TensorBoard(tmp_path, after_window=after)
        for window in windows:
            board.log(record(window, loss=loss, held_out_loss=4.0 if window == 5 else None))
        board.close()
    assert curve(tmp_path, "loss/training") == {**dict.fromkeys(range(1, 11), 1.0), 11: 2.0, 13: 2.0}
    assert curve(tmp_path, "loss/held_out") == {5: 4.0}
    assert curve(tmp_path, "memory/bytes")[13] == 2**20


def test_the_loss_scale_is_in_the_file_and_in_tensorboard_and_older_files_are_read(tmp_path):
    path = tmp_path / "metrics.jsonl"
    metrics, board = MetricsFile(path), TensorBoard(tmp_path / "board")
    for each in (record(1), record(2, loss_scale=32768.0), record(3, loss_scale=16384.0, skipped=True)):
        metrics.log(each)
        board.log(each)
    metrics.close()
    board.close()
    assert [strict(line)["loss_scale"] for line in path.read_text().splitlines()] == [None, 32768.0, 16384.0]
    assert curve(tmp_path / "board", "optimizer/loss_scale") == {2: 32768.0, 3: 16384.0}
    assert curve(tmp_path / "board", "optimizer/skipped") == {1: 0.0, 2: 0.0, 3: 1.0}
    older = {name: value for name, value in strict(path.read_text().splitlines()[0]).items() if name != "loss_scale"}
    path.write_text(json.dumps(older) + "\n")
    assert read_metrics(path) == [record(1)]


def test_tensorboard_leaves_out_what_is_not_finite_without_a_warning(tmp_path, caplog):
    board = TensorBoard(tmp_path)
    board.log(record(1, loss=math.nan))
    board.log(record(2))
    board.close()
    assert set(curve(tmp_path, "loss/training")) == {2}
    assert set(curve(tmp_path, "optimizer/learning_rate")) == {1, 2}
    assert caplog.text == ""
