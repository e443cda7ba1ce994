"""What planning keeps on disk: found again when nothing changed, and never believed when it is damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import brim
from brim.ops import Loss
from brim.planner import Compiled, Plan, api, cache, compile_window, remembered
from brim.planner.cache import Cache, key_of
from brim.planner.question import Question
from brim.planner.remembered import search_key
from brim.program import Program
from brim.techniques import Accumulation, Recipe, Rematerialization
from planner.stacked import CPU, stacked_program

QUICK = {"xla_backend_optimization_level": "0"}  # the same bytes in half the time
RECIPE = Recipe.of(2, Accumulation(2), Rematerialization("full"), compiler_options=QUICK)
FULL = Rematerialization("full")
DAMAGES = {
    "cut short": lambda text: text[: len(text) // 2],
    "empty": lambda text: "",
    "no object": lambda text: "[1, 2]",
    "not text": lambda text: "\x00\ud800" * 9,
    "of another kind": lambda text: text.replace('"value": {', '"value": {"surprise": 1, '),
    "of another key": lambda text: text.replace('"digest": "', '"digest": "0'),
    "with a wrong number": lambda text: text.replace('"temporaries": ', '"temporaries": 1'),
}


@pytest.fixture
def kept(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "plans")


def compiled(kept: Cache | None, program: Program | None = None, recipe: Recipe = RECIPE) -> Compiled:
    return compile_window(program or stacked_program(), recipe, CPU, cache=kept)


def files(kept: Cache) -> list[Path]:
    return sorted(kept.folder.iterdir())


def test_the_same_program_is_not_compiled_twice(kept: Cache) -> None:
    first, again = compiled(kept), compiled(kept)
    assert (first.cached, again.cached) == (False, True)
    assert first.memory == again.memory == compiled(None).memory
    assert len(files(kept)) == 1


def test_whatever_changes_the_program_or_its_owners_is_compiled_anew(
    kept: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(kept)
    assert not compiled(kept, recipe=replace(RECIPE, micro_batch=4)).cached
    assert not compiled(
        kept, recipe=replace(RECIPE, compiler_options={**QUICK, "xla_cpu_enable_fast_math": "True"})
    ).cached
    assert not compiled(kept, replace(stacked_program(), clip_norm=1.0)).cached

    program = stacked_program()

    def renamed(key: Any) -> Any:
        trainable, frozen, variables = program.init(key)
        return {"zup": trainable["up"], "zdown": trainable["down"]}, frozen, variables

    def loss(trainable: Any, *rest: Any) -> Any:
        return program.loss({"up": trainable["zup"], "down": trainable["zdown"]}, *rest)

    assert not compiled(kept, replace(program, init=renamed, loss=loss)).cached
    monkeypatch.setattr(cache, "made_by", lambda: {"jax": "another"})
    assert not compiled(kept).cached


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_is_as_if_not_there(kept: Cache, damage: str) -> None:
    kept.write("compile-1", {"temporaries": 300, "owners": {"batch": 5}})
    (path,) = files(kept)
    text = path.read_text(encoding="utf-8")
    assert kept.read("compile-1") == {"temporaries": 300, "owners": {"batch": 5}}
    damaged = DAMAGES[damage](text)
    assert damaged != text
    path.write_bytes(damaged.encode("utf-8", "surrogatepass"))
    assert kept.read("compile-1") is None
    path.rename(kept.folder / "compile-2.json")
    assert kept.read("compile-2") is None


def test_a_damaged_compile_is_compiled_again_and_written_whole(kept: Cache) -> None:
    right = compiled(kept)
    (path,) = files(kept)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"temporaries": ', '"temporaries": 1'), encoding="utf-8")
    again = compiled(kept)
    assert not again.cached and again.memory == right.memory
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("place", ["/proc/nowhere", __file__])
def test_a_folder_that_cannot_be_written_is_always_empty(place: str) -> None:
    nowhere = Cache(Path(place) / "plans")
    nowhere.write("compile-1", {"a": 1})
    assert nowhere.read("compile-1") is None


def test_the_folder_stays_small_and_the_newest_stay(kept: Cache) -> None:
    small = replace(kept, most_files=3)
    for number in range(6):
        small.write(f"compile-{number}", {"number": number})
        os.utime(kept.folder / f"compile-{number}.json", (number, number))
    assert [path.stem for path in files(small)] == ["compile-3", "compile-4", "compile-5"]
    heavy = replace(kept, most_bytes=3000)
    heavy.write("compile-7", {"text": "x" * 2500})
    os.utime(kept.folder / "compile-7.json", (7, 7))
    heavy.write("compile-8", {"text": "y" * 2500})
    assert [path.stem for path in files(heavy)] == ["compile-8"]


def test_two_processes_that_write_at_once_leave_whole_records(kept: Cache) -> None:
    script = (
        "import sys; from pathlib import Path; from brim.planner.cache import Cache\n"
        "cache, fill = Cache(Path(sys.argv[1]), most_files=2), sys.argv[2]\n"
        "print('ready', flush=True); sys.stdin.read(1)\n"
        "for number in range(300): cache.write(f'compile-{number % 3}', {'text': fill * 20_000})\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, str(kept.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    writers = [subprocess.Popen([*command, fill], text=True, **pipes) for fill in "ab"]  # type: ignore[call-overload]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("x")
        writer.stdin.flush()
    seen = set()
    while any(writer.poll() is None for writer in writers):
        record = kept.read("compile-1")
        if record is not None:
            seen.add(record["text"])
    assert seen <= {"a" * 20_000, "b" * 20_000} and seen
    assert [writer.communicate()[1] for writer in writers] == ["", ""]
    assert [path.suffix for path in files(kept)] == [".json", ".json"]


# ---- finished searches


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    home = tmp_path / "home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture(scope="module")
def found() -> Plan:
    """A real plan."""
    return planned(cache=False)


@pytest.fixture
def searches(home: Path, found: Plan, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Counts what is searched; every search finds the same."""
    counted: list[object] = []

    def counting(program: Program, question: Question, **how: Any) -> Plan:
        counted.append(question)
        return replace(found, seconds=float(len(counted)))

    monkeypatch.setattr(api, "survey", counting)
    return counted


def planned(program: Program | None = None, **changes: Any) -> Plan:
    asked = {"device": CPU, "budget": "1GiB", "global_batch": 2, "updates": 10, "fixed": (FULL, Accumulation(1))}
    return brim.plan(program or stacked_program(), **{**asked, **changes})


def test_a_finished_search_is_found_again_and_equal(searches: list[object]) -> None:
    first, again = planned(), planned()
    assert len(searches) == 1
    assert again == first and str(again) == str(first)
    longer = planned(updates=20, device=replace(CPU, free_bytes=2**30))
    assert len(searches) == 1
    assert longer.updates == 20 and longer.device.free_bytes == 2**30
    assert longer.run_seconds == pytest.approx(2 * (first.run_seconds or 0))


def test_another_question_is_searched_again(searches: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    program = stacked_program()

    def other(*arguments: Any) -> tuple[Loss, Any]:
        loss, variables = program.loss(*arguments)
        return Loss(jnp.sqrt(loss.total), loss.count), variables

    questions: list[dict[str, Any]] = [
        {},
        {"budget": "2GiB"},
        {"global_batch": 4},
        {"micro_batch": 2},
        {"fixed": (FULL,)},
        {"device": replace(CPU, kind="another CPU")},
        {"host_budget": "1GiB"},
        {"allow_lossy": True},
        {"program": replace(program, loss=other)},
        {"program": replace(program, clip_norm=1.0)},
        {"program": replace(program, learning_rate=lambda update: jnp.float32(1) / (1 + update))},
    ]
    for number, question in enumerate(questions, start=1):
        planned(**question)
        assert len(searches) == number
    with jax.default_matmul_precision("highest"):
        planned()
    assert len(searches) == len(questions) + 1
    for name, value in (("XLA_FLAGS", "--xla_cpu_enable_fast_math=true"), ("LIBTPU_INIT_ARGS", "--a=b")):
        keys = {search_key({}, Question(CPU, 2**30, 8))}
        monkeypatch.setenv(name, value)
        keys.add(search_key({}, Question(CPU, 2**30, 8)))
        monkeypatch.delenv(name)
        assert len(keys) == 2
    planned(cache=False)
    assert len(searches) == len(questions) + 2
    for question in questions:
        planned(**question)
    assert len(searches) == len(questions) + 2


def test_a_damaged_plan_is_searched_again(searches: list[object], home: Path) -> None:
    first = planned()
    (path,) = (home / "brim" / "plans").glob("search-*.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    for damage in ("candidates", "device_facts", "versions"):
        broken = json.loads(json.dumps(record))
        broken["value"][damage] = 5
        path.write_text(json.dumps(broken), encoding="utf-8")
        again = planned()
        assert replace(again, seconds=0) == replace(first, seconds=0)
    assert len(searches) == 4


def test_a_search_with_a_failed_compile_is_not_kept(kept: Cache, found: Plan) -> None:
    plan = found
    failed = replace(plan, candidates=(replace(plan.candidates[0], outcome="failed"), *plan.candidates[1:]))
    key = remembered.search_key({}, Question(CPU, 2**30, 2))
    assert remembered.searched(kept, key, lambda: failed) is failed
    assert remembered.remembered(kept, key, CPU) is None
    remembered.searched(kept, key, lambda: plan)
    assert remembered.remembered(kept, key, CPU) == plan


def test_a_key_does_not_depend_on_the_order_of_facts() -> None:
    assert key_of("search", {"a": 1, "b": {"c", "d"}}) == key_of("search", {"b": {"d", "c"}, "a": 1})
    assert key_of("search", {"a": 1}) != key_of("search", {"a": 2})
    assert key_of("search", {"a": 1}) != key_of("compile", {"a": 1})
