"""Compile processes: what a search asks for is compiled beside what it is likely to ask for next.

Each process (worker.py) builds the program once from a source that can be pickled by reference, and then compiles one
recipe after another; turning it to another program takes less time than starting one. Processes are started afresh,
never forked, because JAX has threads; and the user's own main module is never run again in them.

    with Workers(functools.partial(build_program, run_file), device) as workers:
        compiled = workers.compile(recipe, lambda: (recipe_b, recipe_c))

Guesses only fill idle processes. Their results are used if and when they are asked for, so a search goes the same way
with one process, with many, or with none. A process that dies is a recipe the compiler could not take, told with the
last that it said; another one takes its place.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import jax

from brim.errors import DeviceError
from brim.hardware import host
from brim.hardware.facts import Device
from brim.planner.cache import Cache
from brim.planner.compile import Compiled
from brim.planner.target import is_here
from brim.planner.versions import COMPILE_SETTINGS, TRACED_SETTINGS
from brim.program import Program
from brim.techniques import Recipe
from brim.tree import tree_size

MOST_WORKERS = 4
WORKER_BYTES = 3 * 2**29
"""Host memory of one compile, as measured on models of some hundred million parameters: 1.5 GiB."""

READY, COMPILED, REFUSED, ERROR = "ready", "compiled", "refused", "error"
"""What an answer of a compile process begins with; see worker.py."""

_CACHE_SETTINGS = "jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs"
_HANDED_ON = (*TRACED_SETTINGS, *COMPILE_SETTINGS, *_CACHE_SETTINGS)

LARGE_PARAMETERS = 30_000_000
"""From here on a program that is compiled for the CPU of this machine is worth starting processes for."""

_TAIL_BYTES = 4000

Source = Callable[[], Program]


@dataclass(frozen=True)
class Order:
    """What a compile process is for.

    Attributes:
        source: builds the program.
        device: what is compiled for.
        cache: where compiles are kept; None: nowhere.
    """

    source: Source
    device: Device
    cache: Cache | None = None


def worker_count(memory_bytes: int | None = None, processors: int | None = None) -> int:
    """How many compile processes this machine takes: one per processor, up to 4, as far as its free memory goes."""
    free = host.host_memory().free_bytes if memory_bytes is None else memory_bytes
    return max(1, min(MOST_WORKERS, processors or host.processor_count(), free // WORKER_BYTES))


def cannot_travel(source: Source) -> str | None:
    """Why another process cannot build the program from this source, or None if it can."""
    inner = source
    while isinstance(getattr(inner, "func", None), Callable):  # type: ignore[arg-type] # a partial
        inner = inner.func  # type: ignore[attr-defined]
    if getattr(inner, "__module__", None) == "__main__":
        return "it is defined in the main script or a notebook, which other processes do not import"
    try:
        pickled = pickle.dumps(source, protocol=0)  # in which the names of modules stand as text
    except Exception as error:  # any object may refuse, in any way
        return f"it cannot be pickled ({error})"
    if b"c__main__\n" in pickled:
        return "it holds something of the main script or a notebook, which other processes do not import"
    return None


def worth_workers(program: Program, device: Device) -> bool:
    """Whether compiles of a program are worth processes of their own, which take some seconds to start.

    They are for a device that is not here, since each compile takes longer than that; and for a large program on the
    CPU. A GPU that is here is compiled for in one process, the only one that should take its memory.
    """
    if not is_here(device):
        return True
    return device.platform == "cpu" and tree_size(program.part_specs()[0]) >= LARGE_PARAMETERS


class WorkerDied(Exception):
    """A compile process ended in the midst of its work; says how, and the last it said."""


class Workers:
    """Compile processes for one program at a time; to be used in a `with` block, at whose end they are killed.

    Args:
        source: builds the program; something that pickles by reference, such as a function of a module or a partial.
        device: what is compiled for; processes run on the CPU only, so not a GPU that is here.
        count: of processes; None: as `worker_count` says.
        cache: where compiles are kept; None: nowhere.
    """

    def __init__(self, source: Source, device: Device, *, count: int | None = None, cache: Cache | None = None) -> None:
        self.count = count or worker_count()
        self._order = Order(source, device, cache)
        self._results: dict[Hashable, Future[Compiled]] = {}
        self._guessed: set[Hashable] = set()
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        self._alive: set[_Worker] = set()
        self._lock, self._closed = threading.Lock(), False
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="compile")

    def __enter__(self) -> Self:
        for _ in range(self.count):
            self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes at once, whatever they are at; a second time does nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            ended, self._alive = self._alive, set()
        for worker in ended:
            worker.kill()
        self._threads.shutdown()
        for worker in ended:
            worker.close()

    def turn_to(self, source: Source) -> None:
        """Compile another program from now on, for the same device; what was compiled of the last one is forgotten."""
        self._order = replace(self._order, source=source)
        for future in self._results.values():
            future.cancel()  # what runs already goes on, and nobody will ask for it
        self._results, self._guessed = {}, set()

    def compile(self, recipe: Recipe, guesses: Callable[[], Iterable[Recipe]] = tuple) -> Compiled:
        """What compiling a recipe told; meanwhile idle processes work on guesses.

        Args:
            guesses: what may be asked for next, likeliest first; called whenever a process is idle.

        Raises:
            jax.errors.JaxRuntimeError: if XLA refuses the program, or the process died of it.
            Exception: what the program's own code or a technique raised.
        """
        key = _key(recipe)
        while True:
            future = self._begin(recipe)
            self._wait(future, guesses)
            try:
                return future.result()
            except WorkerDied as death:
                if key not in self._guessed:
                    raise jax.errors.JaxRuntimeError(str(death)) from None
                # A guess may have died of what ran beside it. It counts only when it is asked for.
                self._guessed.discard(key)
                del self._results[key]

    def known(self, recipe: Recipe) -> Compiled | None:
        """What compiling a recipe told, if it is finished and went well."""
        future = self._results.get(_key(recipe))
        if future is None or not future.done() or future.exception() is not None:
            return None
        return future.result()

    def _begin(self, recipe: Recipe) -> Future[Compiled]:
        key = _key(recipe)
        if key not in self._results:
            self._results[key] = self._threads.submit(self._run, self._order, recipe)
        return self._results[key]

    def _wait(self, future: Future[Compiled], guesses: Callable[[], Iterable[Recipe]]) -> None:
        while not future.done():
            running = [other for other in self._results.values() if not other.done()]
            if len(running) < self.count:
                running += self._guess(guesses(), self.count - len(running))
            concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)

    def _guess(self, recipes: Iterable[Recipe], most: int) -> list[Future[Compiled]]:
        started: list[Future[Compiled]] = []
        for recipe in recipes:
            if len(started) == most:
                break
            if (key := _key(recipe)) not in self._results:
                self._guessed.add(key)
                started.append(self._begin(recipe))
        return started

    def _run(self, order: Order, recipe: Recipe) -> Compiled:
        worker = self._idle.get()
        try:
            compiled = worker.compile(order, recipe)
        except WorkerDied:
            self._replace(worker)
            raise
        except BaseException:
            self._idle.put(worker)
            raise
        self._idle.put(worker)
        return compiled

    def _replace(self, dead: _Worker) -> None:
        with self._lock:
            if self._closed:
                return
            self._alive.discard(dead)
        dead.close()
        self._start()

    def _start(self) -> None:
        with self._lock:
            if not self._closed:
                worker = _Worker()
                self._alive.add(worker)
                self._idle.put(worker)


class _Worker:
    """One process, seen from its parent."""

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "brim.planner.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the parent, which then ends the child
        )
        self._order: Order | None = None
        settings = {name: getattr(jax.config, name, None) for name in _HANDED_ON}
        self._settings = {name: value for name, value in settings.items() if value is not None}  # None: as it starts

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def compile(self, order: Order, recipe: Recipe) -> Compiled:
        """Have one recipe of what is ordered compiled.

        Raises: as `Workers.compile`; WorkerDied if the process ended.
        """
        if self._order is None:
            self._open(order)
        elif self._order is not order:
            self._turn(order)
        self._send(recipe)
        return self._receive()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Give back what belongs to a process that has ended."""
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                with contextlib.suppress(OSError):  # what was not sent yet has nobody to go to
                    stream.close()

    def _open(self, order: Order) -> None:
        try:
            self._send(self._settings)
            self._turn(order)
        except WorkerDied as death:
            raise DeviceError(
                f"a compile process could not start: {death}",
                hint="--workers 0, or workers=0, compiles in this process",
            ) from None

    def _turn(self, order: Order) -> None:
        self._send(pickle.dumps(order))
        self._receive()
        self._order = order

    def _send(self, *messages: Any) -> None:
        assert self._process.stdin is not None
        try:
            for message in messages:
                self._process.stdin.write(pickle.dumps(message))
            self._process.stdin.flush()
        except OSError:
            raise WorkerDied(self._last_words()) from None

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        try:
            kind, *content = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            raise WorkerDied(self._last_words()) from None
        if kind == REFUSED:
            raise jax.errors.JaxRuntimeError(content[0])
        if kind == ERROR:
            error, trace = content
            error.add_note(f"in a compile process:\n{trace}")
            raise error
        return content[0] if content else None

    def _last_words(self) -> str:
        code = self._process.wait()
        ended = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        self._said.seek(max(0, self._said.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = self._said.read().decode(errors="replace").strip().splitlines()
        return f"the compile process was ended {ended}" + (f": {lines[-1].strip()}" if lines else "")


def _environment() -> dict[str, str]:
    """The parent's, with its import path; on the CPU only, so that no process takes the memory of a GPU."""
    path = (folder or os.getcwd() for folder in sys.path)  # noqa: PTH109 - a string among strings
    return {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(path)}


def _key(recipe: Recipe) -> Hashable:
    return recipe.micro_batch, recipe.techniques, recipe.assembler, tuple(sorted(recipe.compiler_options.items()))
