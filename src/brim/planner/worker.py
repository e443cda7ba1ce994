"""A compile process, `python -m brim.planner.worker`: builds a program, then compiles recipes of it.

Its parent (workers.py) writes pickles to its standard input and reads pickles from its standard output. Nobody else can
write to these pipes, and nothing pickled ever comes from a disk.

    in    JAX's settings; then an order (what to build and for which device), and one recipe of it after another, or
          another order. An order comes as bytes, because unpickling it may already fail
    out   for an order (READY,); for a recipe (COMPILED, Compiled) or (REFUSED, text); for either (ERROR, exception,
          traceback). It ends after an order that failed

What the program and XLA print goes to standard error, of which the parent shows the end if this process dies. It ends
when its parent does, even in the midst of a compile: the pipe closes, and a thread of its own watches for that.
"""

from __future__ import annotations

import os
import pickle
import queue
import threading
import traceback
from collections.abc import Callable
from typing import Any, BinaryIO

import jax

from brim.planner.compile import Compiled, compile_window
from brim.planner.target import Target
from brim.planner.workers import COMPILED, ERROR, READY, REFUSED, Order
from brim.techniques import Recipe


def main() -> None:
    """Answer until the standard input closes."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a program prints must not end up among the answers,
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # and it must not read the questions
    for name, value in pickle.load(inbox).items():
        jax.config.update(name, value)
    messages = _watched(inbox)
    compile_recipe = _begin(outbox, messages.get())
    while compile_recipe is not None:
        message = messages.get()
        if isinstance(message, bytes):
            compile_recipe = _begin(outbox, message)
        else:
            _answer(outbox, lambda: (COMPILED, compile_recipe(message)))  # noqa: B023 - called at once


def _begin(outbox: BinaryIO, order: Any) -> Callable[[Recipe], Compiled] | None:
    begun: Callable[[Recipe], Compiled] | None = _answer(outbox, lambda: (READY, _compiler(pickle.loads(order))))
    return begun


def _compiler(order: Order) -> Callable[[Recipe], Compiled]:
    program, target = order.source(), Target.of(order.device)
    return lambda recipe: compile_window(program, recipe, order.device, target, order.cache)


def _answer(outbox: BinaryIO, work: Callable[[], tuple[str, Any]]) -> Any:
    """Send what became of some work; returns its result, None if it failed."""
    result = None
    try:
        kind, result = work()
        answer: tuple[Any, ...] = (kind,) if kind == READY else (kind, result)
    except jax.errors.JaxRuntimeError as error:
        answer = (REFUSED, str(error))
    except Exception as error:  # whatever the user's program raises is the parent's to show
        answer = (ERROR, _portable(error), traceback.format_exc())
    outbox.write(pickle.dumps(answer))
    outbox.flush()
    return result


def _portable(error: Exception) -> Exception:
    """The error itself if it can travel, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # any class may refuse, in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _watched(inbox: BinaryIO) -> queue.SimpleQueue[Any]:
    """The messages that come in; ends this process at once when there will be no more."""
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def read() -> None:
        try:
            while True:
                messages.put(pickle.load(inbox))
        finally:
            os._exit(0)  # a compile that runs now would go on for minutes

    threading.Thread(target=read, daemon=True).start()
    return messages


if __name__ == "__main__":
    main()
