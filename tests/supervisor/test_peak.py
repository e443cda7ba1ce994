"""The measured peak beside the predicted one, with a device that counts and one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brim.supervisor.peak import PeakMemory


@pytest.mark.parametrize(("updates", "read_at"), [(1, 1), (3, 3), (10, 3)])
def test_the_peak_is_read_after_the_first_updates_and_stored(tmp_path: Path, updates: int, read_at: int) -> None:
    path, peaks = tmp_path / "memory.json", iter(range(700, 1000, 10))
    peak = PeakMemory(path, 1000, lambda: next(peaks))
    record: Any = None
    for _ in range(updates):
        peak.log(record)
    peak.close()
    measured = 690 + 10 * read_at
    wanted = {"predicted_bytes": 1000, "measured_bytes": measured, "updates": read_at}
    assert json.loads(path.read_text()) == wanted
    share = f"{measured / 1000:.1%}"
    assert peak.describe() == f"peak memory: predicted 1000 B, measured {measured} B ({share})"


def test_a_device_that_does_not_count_is_said(tmp_path: Path) -> None:
    peak = PeakMemory(tmp_path / "memory.json", 2**20)
    for _ in range(3):
        record: Any = None
        peak.log(record)
    assert json.loads((tmp_path / "memory.json").read_text())["measured_bytes"] is None
    assert "predicted 1.0 MiB; not measured" in peak.describe()


def test_a_run_that_ends_at_once_stores_nothing(tmp_path: Path) -> None:
    PeakMemory(tmp_path / "memory.json", 1).close()
    assert list(tmp_path.iterdir()) == []
