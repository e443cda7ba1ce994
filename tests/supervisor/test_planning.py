"""Planning in a process of its own: it is ended with its parent, and a stored plan that is not one is told."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.errors import CheckpointError
from brim.supervisor.folder import RunFolder
from brim.supervisor.planning import load_plan, printed_by


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", '{"device_facts": 1}', "\x00"])
def test_a_plan_that_is_missing_or_torn_is_told_with_the_next_step(tmp_path: Path, text: str | None) -> None:
    folder = RunFolder(tmp_path)
    if text is not None:
        folder.plan.write_text(text)
    with pytest.raises(CheckpointError, match="plan") as error:
        load_plan(folder)
    assert "brim plan" in error.value.hint


def test_the_planning_process_is_asked_to_end_when_its_parent_is_interrupted(tmp_path: Path) -> None:
    # It must hear of it, to end the processes that compile for it: a kill would leave them behind.
    told, ready = tmp_path / "told", tmp_path / "ready"
    child = (
        "import pathlib, signal, sys, time\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(told)!r}).touch(), sys.exit(1)))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)"
    )
    parent = (
        "import signal, sys\nfrom brim.supervisor.planning import printed_by\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell may have it ignored
        f"printed_by([sys.executable, '-c', {child!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) != 0
    assert told.exists()


def test_what_the_planning_process_prints_is_returned() -> None:
    assert printed_by([sys.executable, "-c", "print('a plan')"]) == "a plan\n"
