"""Compile processes: the same plan with any number of them, and what becomes of a search when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import pytest

import brim
from brim.errors import TechniqueError
from brim.hardware import host
from brim.hardware.device import named
from brim.planner import Plan
from brim.planner.compile import compile_window
from brim.planner.question import Question
from brim.planner.search import consider, decide
from brim.planner.verdicts import Prospect
from brim.planner.workers import WORKER_BYTES, Workers, cannot_travel, worker_count, worth_workers
from brim.techniques import Accumulation, Precision, Recipe, Rematerialization
from planner.hazards import aborting_program, broken_program, dying_once_program, talking_program, waiting_program
from planner.stacked import CPU, PARAMETERS, stacked_program

ROWS, BUDGET = 8, 900 * 2**10  # 921,600 bytes: 4 rows fit (918,038), 8 do not (999,886)
FULL = Rematerialization("full")


@pytest.fixture(scope="module")
def prospects() -> tuple[Prospect, ...]:
    return consider(stacked_program(sizes=True), Question(CPU, BUDGET, ROWS, (FULL,)))


class Local:
    """What a script may hand to its program."""


def plan_with(workers: Workers | None, prospects: tuple[Prospect, ...], budget: int = BUDGET) -> Plan:
    program = stacked_program(sizes=True)
    return replace(
        decide(program, prospects, Question(CPU, budget, ROWS, (FULL,)), workers=workers), seconds=0, compile_seconds=0
    )


def gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(true: Callable[[], bool], seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_the_plan_is_the_same_with_two_processes_one_and_none(prospects: tuple[Prospect, ...]) -> None:
    budgets = BUDGET, 2**30
    here = [plan_with(None, prospects, budget) for budget in budgets]
    outcomes = {candidate.outcome for plan in here for candidate in plan.candidates}
    assert {"over", "chosen", "fits", "slower"} <= outcomes and here[0].recipe != here[1].recipe
    for count in (1, 2):
        with Workers(partial(stacked_program, sizes=True), CPU, count=count) as workers:
            assert [plan_with(workers, prospects, budget) for budget in budgets] == here


def test_a_process_that_aborts_is_a_recipe_that_failed_and_the_search_goes_on(prospects: tuple[Prospect, ...]) -> None:
    with Workers(partial(aborting_program, ROWS), CPU, count=1) as workers:
        plan = plan_with(workers, prospects, 2**30)
    failed = [candidate for candidate in plan.candidates if candidate.outcome == "failed"]
    assert {candidate.recipe.micro_batch for candidate in failed} == {ROWS}
    words = "the compile process was ended by signal SIGABRT: "
    assert all(words in candidate.reason for candidate in failed)
    assert plan.recipe.micro_batch < ROWS and plan.fits


def test_a_process_that_is_killed_in_the_midst_of_a_compile_is_replaced(tmp_path: Path) -> None:
    mark = tmp_path / "pid"

    def kill() -> None:
        assert until(mark.exists)
        os.kill(int(mark.read_text(encoding="utf-8")), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with Workers(partial(waiting_program, 2, mark), CPU, count=1) as workers:
        with pytest.raises(jax.errors.JaxRuntimeError, match="ended by signal SIGKILL"):
            workers.compile(Recipe.of(2, FULL))
        other = workers.compile(Recipe.of(1, FULL))
    killer.join()
    assert other.memory == compile_window(stacked_program(), Recipe.of(1, FULL), CPU).memory


def test_a_guess_that_died_is_compiled_again_when_it_is_asked_for(tmp_path: Path) -> None:
    """It may have died of the memory that another took, so its end is no verdict."""
    deaths = tmp_path / "deaths"
    dying, quick = Recipe.of(2, FULL), Recipe.of(1, FULL)
    with Workers(partial(dying_once_program, 2, deaths), CPU, count=2) as workers:
        workers.compile(quick, lambda: (dying,))
        assert until(deaths.exists) and workers.known(dying) is None
        assert workers.compile(dying).memory == compile_window(stacked_program(), dying, CPU).memory


def test_errors_of_a_program_and_its_techniques_reach_the_one_who_asked() -> None:
    with Workers(broken_program, CPU, count=1) as workers, pytest.raises(LookupError, match="no such model") as caught:
        workers.compile(Recipe.of(1))
    assert "broken_program" in caught.value.__notes__[0]
    device = replace(CPU, compute_capability=None)
    with Workers(stacked_program, device, count=1) as workers:
        with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
            workers.compile(Recipe.of(1, compiler_options={"xla_no_such_option": "1"}))
        with pytest.raises(TechniqueError) as error:
            workers.compile(replace(Recipe.of(1), assembler="none"))
        assert error.value.hint == "the assembler here is `plain`"
        assert workers.compile(Recipe.of(1)).memory.peak_bytes > 16 * PARAMETERS


def test_what_a_program_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    with Workers(talking_program, CPU, count=1) as workers:
        assert workers.compile(Recipe.of(1)).memory.peak_bytes > 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_processes_end_with_their_parent_even_in_the_midst_of_a_compile(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    script = (
        "from functools import partial; from pathlib import Path; from brim.planner.workers import Workers\n"
        "from brim.techniques import Recipe; from planner.hazards import waiting_program\n"
        "from planner.stacked import CPU\n"
        f"with Workers(partial(waiting_program, 1, Path({str(mark)!r})), CPU, count=1) as workers:\n"
        "    workers.compile(Recipe.of(1))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE)
    assert until(mark.exists), parent.stderr
    child = int(mark.read_text(encoding="utf-8"))
    assert not gone(child)
    parent.kill()
    parent.communicate()
    assert until(lambda: gone(child), seconds=10)


def test_the_number_of_processes_follows_processors_and_free_memory() -> None:
    assert worker_count(100 * WORKER_BYTES, processors=64) == 4
    assert worker_count(100 * WORKER_BYTES, processors=2) == 2
    assert worker_count(3 * WORKER_BYTES - 1, processors=64) == 2
    assert worker_count(0, processors=64) == 1


def test_small_programs_for_the_device_that_is_here_need_no_processes() -> None:
    assert not worth_workers(stacked_program(), CPU)
    assert worth_workers(stacked_program(), named("h100-sxm"))


def local_program() -> brim.Program:
    """Pretends to be of the main script."""
    return stacked_program()


def test_a_source_that_no_other_process_can_build_is_compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cannot_travel(stacked_program) is None
    assert cannot_travel(partial(stacked_program, sizes=True)) is None
    assert "cannot be pickled" in (cannot_travel(lambda: stacked_program(sizes=True)) or "")
    monkeypatch.setattr(local_program, "__module__", "__main__")
    assert "main script" in (cannot_travel(partial(local_program)) or "")
    monkeypatch.setattr(Local, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "Local", Local, raising=False)
    assert "main script" in (cannot_travel(partial(stacked_program, sizes=Local())) or "")
    said: list[str] = []
    plan = brim.plan(
        partial(local_program), device=CPU, budget="1GiB", global_batch=2, cache=False, progress=said.append
    )
    assert plan.fits and said[0].startswith("compiling in this process: ")


@pytest.mark.plan
def test_processes_compile_for_a_gpu_that_is_not_here() -> None:
    fixed = (Precision("float32"), FULL, Accumulation(2))
    settings = {"device": named("h100-sxm"), "budget": "1GiB", "global_batch": 4, "fixed": fixed, "cache": False}
    here, elsewhere = (brim.plan(stacked_program, workers=count, **settings) for count in (0, 2))
    assert replace(here, seconds=0, compile_seconds=0) == replace(elsewhere, seconds=0, compile_seconds=0)


# ---- the command

RUN = Path(__file__).parents[2] / "configs" / "demo.toml"
SMALL = (
    "--model.layers 1 --model.width 32 --model.heads 2 --data.vocabulary 512 --train.global_batch 8 "
    "--techniques.chunked_loss.tokens 0 --techniques.rematerialization.policy full"
)


def brim_plan(home: Path, *words: str) -> subprocess.Popen[str]:
    """`brim plan` of a small model in a process group of its own, with an empty cache folder below `home`."""
    # SIGINT is ignored below a shell's `&`, and would stay so in the child.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "brim", "plan", str(RUN), *SMALL.split(), *words]
    return subprocess.Popen(
        [*command, "--budget", "1GiB", "--json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "XDG_CACHE_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
def test_after_ctrl_c_nothing_is_left_and_the_next_start_goes_on(tmp_path: Path) -> None:
    # A busy machine keeps no measured speeds and is not calibrated, and another speed is another question.
    key = f"{host.processor_name()} x {host.processor_count()}, JAX {jax.__version__}"
    speeds = {"float32_flops": 1e11, "bfloat16_flops": 1e11, "bandwidth_bytes_per_second": 1e10}
    (tmp_path / "brim").mkdir()
    (tmp_path / "brim" / "speeds.json").write_text(json.dumps({key: speeds}), encoding="utf-8")
    shares = {key: {"products": 0.5, "bandwidth": 0.8}}
    (tmp_path / "brim" / "shares.json").write_text(json.dumps(shares), encoding="utf-8")

    command = brim_plan(tmp_path, "--workers", "1")
    assert command.stderr is not None
    lines = iter(command.stderr.readline, "")
    assert any(line.startswith("compiled 1 of about ") for line in lines)
    children = [int(pid) for pid in _children(command.pid)]
    os.killpg(command.pid, signal.SIGINT)  # as a terminal does
    _, rest = command.communicate(timeout=60)
    assert command.returncode == 130
    assert rest.endswith("brim: interrupted\n") and "Traceback" not in rest
    assert children and until(lambda: all(map(gone, children)), seconds=10)

    output, said = brim_plan(tmp_path, "--workers", "0").communicate(timeout=300)
    told = [line for line in said.splitlines() if line.startswith("compiled ")]
    assert "known from before" in told[0] and "known from before" not in told[-1]
    again, said = brim_plan(tmp_path).communicate(timeout=60)
    first, kept = json.loads(output), json.loads(again)
    del first["device_facts"], kept["device_facts"]  # what is free now is no part of the answer
    assert kept == first and kept["compiles"] == len(told)
    assert said == "this search was finished before, and its plan kept; --no-cache searches again\n"


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
