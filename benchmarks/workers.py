"""Contenders in processes of their own, driven through pipes so that only one of them computes at a time.

The parent writes one JSON object per line, the child answers with one. Between two requests the child is stopped by a
signal: a runtime whose idle threads spin (OpenMP's do) cannot take time from the one that is measured. Needs nothing
but the standard library, so that it also runs in the Python of another framework.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


class WorkerFailed(Exception):
    """A contender ended or answered with an error; its own words are on stderr."""


class Worker:
    """The parent's side of one contender.

    Args:
        name: for reports.
        command: starts the child, which calls `serve`.
        environment: laid over this process's environment.
    """

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict(environment),
        )
        self._read()

    def ask(self, request: str, **arguments: Any) -> Any:
        """Wake the child, have one request answered, and stop it again.

        Raises:
            WorkerFailed: if it died.
        """
        self._process.send_signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"request": request, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise WorkerFailed(f"{self.name} is gone") from None
        return self._read()

    def close(self) -> None:
        """End the child, however it is."""
        self._process.kill()
        self._process.wait()

    def processor_seconds(self) -> float:
        """Processor time the child has used so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.name} ended with code {self._process.wait()}")
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(line)


def serve(handlers: Mapping[str, Callable[..., Any]], replies: Any) -> None:
    """The child's side: answer requests by handlers' results until stdin ends."""
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        arguments = json.loads(line)
        answer = handlers[arguments.pop("request")](**arguments)
        print(json.dumps(answer), file=replies, flush=True)


def open_replies() -> Any:
    """The stream for answers; afterwards everything that prints to stdout lands on stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def peak_rss_bytes() -> int:
    """Largest resident memory of this process since `forget_peak_rss`, or since it began."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


def forget_peak_rss() -> None:
    """Measure the peak from here: compiling takes more memory than running, in every framework."""
    Path("/proc/self/clear_refs").write_text("5")


def median_seconds(run: Callable[[], Any], times: int) -> float:
    """Median wall time of a call, after one call that is not counted."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds)[times // 2]
