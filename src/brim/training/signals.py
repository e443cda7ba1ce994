"""Ctrl-C and SIGTERM end a run in good order.

The first signal only sets a flag: the loop finishes its update, saves, and the program ends with exit code 75. A Ctrl-C
after that stops at once by `KeyboardInterrupt`; checkpoints are atomic, so nothing is harmed.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_STDERR = 2
_MESSAGE = "finishing this update, then saving. Press Ctrl-C to stop at once."


@dataclass
class StopRequest:
    """Whether somebody asked the run to stop.

    Attributes:
        received: the first signal that came, or None.
    """

    received: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.received is not None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a flag, and a SIGINT after it into `KeyboardInterrupt`.

    Further SIGTERMs are ignored: schedulers repeat them. The handlers before are put back at the end. Outside the main
    thread, where Python allows no handlers, the flag just stays unset.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if request and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not request:
            request.received = signal.Signals(number)
            # os.write, since a handler may interrupt a print to the same stream.
            os.write(_STDERR, f"\n{request.received.name}: {_MESSAGE}\n".encode())

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            # None stands for a handler that was not set by Python and cannot be put back by it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
