"""Which file runs which command, and how a command ends.

A command's file offers `run(arguments) -> int`, the exit code. It is imported when it is chosen, and not before, so
that `brim --help` answers at once.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import brim
from brim.errors import EXIT_DONE, EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, BrimError, did_you_mean
from brim.hardware.chatter import without_chatter

# Name: its module, and what it does in one line.
COMMANDS = {
    "plan": ("brim.cli.plan", "choose how to fit a run into memory, and show why"),
    "train": ("brim.cli.train", "plan for the device that is here, then train"),
    "resume": ("brim.cli.resume", "go on with a run, bit for bit"),
    "sample": ("brim.cli.sample", "write text with a trained model"),
    "data": ("brim.cli.data", "prepare and look at the tokens of a run"),
    "devices": ("brim.cli.devices", "list the devices that plans can be made for, and what each can run"),
    "doctor": ("brim.cli.doctor", "say what is installed and what is wrong with it"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; what went wrong is on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _sigterm_as_interrupt():
            code = _run(words)
        sys.stdout.flush()
    except BrimError as error:
        if str(error):  # a process below may have told it already
            print(f"brim: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("brim: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone. Python would complain once more when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    return code


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does: processes below it are ended, and its exit code is one of the table."""
    if threading.current_thread() is not threading.main_thread():  # where Python allows no handlers
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        # None stands for a handler that was not set by Python and cannot be put back by it.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def usage() -> str:
    """The text of `brim --help`."""
    width = max(map(len, COMMANDS))
    rows = (f"  {name:{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return "\n".join(
        [
            "usage: brim COMMAND ...",
            "",
            "Train the largest model one GPU can hold, as fast as its memory allows.",
            "",
            *rows,
            "",
            "brim COMMAND --help says more about one of them; brim --version says which brim this is.",
        ]
    )


def _run(words: list[str]) -> int:
    if not words:
        print(usage(), file=sys.stderr)
        return EXIT_USAGE
    command, *rest = words
    if command in ("-h", "--help", "help"):
        print(usage())
        return EXIT_DONE
    if command in ("-V", "--version"):
        print(f"brim {brim.__version__}")
        return EXIT_DONE
    if command not in COMMANDS:
        print(f"brim: no command `{command}`\n\nhint: {did_you_mean(command, COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    with without_chatter():
        module = importlib.import_module(COMMANDS[command][0])
    return module.run(rest)
