"""Searching for the plan of a run file, where none is kept.

This file loads what programs are built with, the data pipeline and Optax; a kept plan does without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from brim.planner import Plan
from brim.planner.probe import Probe
from brim.planner.question import Question
from brim.planner.search import survey
from brim.planner.workers import Workers, worth_workers
from brim.program import Program
from brim.runfile import RunFile
from brim.supervisor import setup
from brim.supervisor.request import Request, question_of


def search(run: RunFile, question: Question, request: Request) -> Plan:
    """The plan of a run whose vocabulary is known. It need not fit.

    Raises:
        BrimError: as `brim.planner.survey` does.
    """
    setup.enable_compilation_cache()
    program = setup.build_program(run)
    with _processes(run, program, request) as workers:
        return survey(program, question, progress=request.progress, workers=workers, cache=request.cache)


@contextlib.contextmanager
def probing(run: RunFile, request: Request) -> Iterator[Callable[[RunFile], int]]:
    """Lets ask of runs by how many bytes they are over the budget at their smallest; 0 or below: they fit.

    The processes that compile are started once and serve all of them.

    Args:
        run: one of them, with its vocabulary known.
    """
    setup.enable_compilation_cache()
    with _processes(run, setup.build_program(run), request) as workers:

        def over_bytes(run: RunFile) -> int:
            probe = Probe(question_of(run, request), request.cache, workers)
            return probe.over_bytes(partial(setup.build_program, run))

        yield over_bytes


def _processes(run: RunFile, program: Program, request: Request) -> contextlib.AbstractContextManager[Workers | None]:
    count = request.workers
    if count is None and not worth_workers(program, request.device):
        count = 0
    if count == 0:
        return contextlib.nullcontext()
    return Workers(partial(setup.build_program, run), request.device, count=count, cache=request.cache)
