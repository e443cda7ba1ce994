"""`brim plan --devices` and `--goal`, with searches that answer at once."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brim import cli
from brim.cli import plan_goals
from brim.cli.plan_goals import axis_of
from brim.errors import NoPlanFits
from brim.hardware.device import named
from brim.models.presets import PRESETS
from brim.models.shape import parameter_count
from brim.planner import Memory, Plan
from brim.planner.candidate import Candidate
from brim.planner.cost import Cost
from brim.planner.probe import Probe
from brim.planner.question import Question
from brim.runfile import RunFile
from brim.supervisor import searching, setup
from brim.techniques import Accumulation, Recipe

RUN = Path(__file__).parents[2] / "configs" / "gpt2-124m.toml"
GIB = 2**30

Asked = list[tuple[RunFile, Question]]


def run_file(**model: Any) -> RunFile:
    tables = {"model": {"preset": "gpt2", "vocabulary": 50304, **model}, "train": {"global_batch": 24}}
    return RunFile.from_tables(tables)


def peak_of(run: RunFile) -> int:
    """A stand-in for compiling: grows along each axis."""
    shape = run.settings.model.resolved()
    return 16 * parameter_count(shape) + (run.settings.train.micro_batch or 1) * shape.context * 2**20


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    """What `survey` was asked for; the program that it is handed is the run itself, and nothing was kept before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked: Asked = []

    def survey(program: RunFile, question: Question, **how: Any) -> Plan:
        asked.append((program, question))
        peak = peak_of(program)
        fits = peak <= question.budget_bytes
        rows = question.micro_batch or 1
        recipe = Recipe.of(rows, Accumulation(question.global_batch // rows))
        memory = Memory(peak, 0, 0, 0, {"parameters": peak})
        cost = Cost({"products": 1.0})
        one = Candidate(recipe, "chosen" if fits else "over", "as it is in this test", cost, 1024, 0, memory)
        return Plan(question.device, question.budget_bytes, question.global_batch, (one,))

    monkeypatch.setattr(searching, "survey", survey)
    monkeypatch.setattr(searching, "worth_workers", lambda program, device: False)
    monkeypatch.setattr(setup, "build_program", lambda run: run)
    monkeypatch.setattr(setup, "enable_compilation_cache", lambda: None)
    monkeypatch.setattr(Probe, "over_bytes", lambda probe, source: peak_of(source()) - probe.question.budget_bytes)
    return asked


def test_devices_are_compared_in_one_table(planned: Asked, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["plan", str(RUN), "--devices", "3060,4090@0.5", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert list(record) == ["rtx-3060-12gb", "rtx-4090"]
    assert [question.device.name for _, question in planned] == list(record)
    assert [question.budget_bytes for _, question in planned] == [named(name).usable_bytes for name in record]
    assert [one["price_per_hour"] for one in record.values()] == [None, 0.5]
    assert cli.main(["plan", str(RUN), "--devices", "3060,4090@0.5"]) == 0
    output = capsys.readouterr()
    assert "rtx-4090: predicted times are uncalibrated: a prediction" in output.out
    assert "device 2 of 2: rtx-4090" in output.err


def test_no_device_that_fits_ends_with_3(planned: Asked) -> None:
    assert cli.main(["plan", str(RUN), "--devices", "3060,4090", "--budget", "1GiB"]) == 3


@pytest.mark.parametrize(
    "words",
    [
        ["--devices", "3060", "--device", "4090"],
        ["--devices", "3060", "--goal", "largest-model"],
        ["--goal", "largest"],
        ["--devices", ","],
        ["--devices", "3060", "--report"],
        ["--devices", "3060", "--kernels"],
        ["--devices", "3060", "--pictures", "somewhere"],
        ["--device", "3060", "--budget", ""],
        ["--device", "3060", "--host-budget", ""],
        ["--device", "3060", "--budget", "80GiB"],
        ["--device", "3060", "--budget", "80GiB", "--goal", "largest-model"],
    ],
)
def test_what_does_not_go_together_is_a_usage_error(words: list[str], planned: Asked) -> None:
    try:
        code = cli.main(["plan", str(RUN), *words])
    except SystemExit as error:  # tyro's own
        code = error.code  # type: ignore[assignment]
    assert (code, planned) == (2, [])


@pytest.mark.parametrize(
    ("goal", "key", "line"),
    [
        ("largest-model", "--model.layers", "largest model that fits: "),
        ("largest-micro-batch", "--train.micro_batch 16", "largest micro-batch that fits: 16 of 512 rows (32 of"),
        ("longest-context", "--model.context", "largest context that fits: "),
    ],
)
def test_a_goal_gives_an_ordinary_plan_and_one_line(
    goal: str, key: str, line: str, planned: Asked, capsys: pytest.CaptureFixture
) -> None:
    words = ["plan", str(RUN), "--device", "4090", "--goal", goal, "--budget", "20GiB"]
    assert cli.main(words) == 0
    output = capsys.readouterr()
    assert line in output.out and "needs over by" in output.out
    assert f"to train it: brim train RUN.toml {key}" in output.out
    assert "predicted times are uncalibrated: a prediction" in output.out
    assert "probe 1: " in output.err
    ((run, question),) = planned
    assert question.budget_bytes == 20 * GIB and peak_of(run) <= 20 * GIB
    assert cli.main([*words, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert Plan.from_json(record).fits
    assert record["goal"]["name"] == goal and record["goal"]["line"].startswith(line)
    assert record["goal"]["next_over_bytes"] > 0


def test_the_overrides_of_a_goal_give_its_run(planned: Asked, capsys: pytest.CaptureFixture) -> None:
    words = ["plan", str(RUN), "--device", "4090", "--goal", "largest-model", "--budget", "20GiB", "--json"]
    assert cli.main(words) == 0
    overrides = json.loads(capsys.readouterr().out)["goal"]["overrides"].split()
    again = RunFile.load(RUN, overrides).settings.model.resolved()
    assert again == planned[0][0].settings.model.resolved()


def test_nothing_on_the_axis_ends_with_3(planned: Asked, capsys: pytest.CaptureFixture) -> None:
    words = ["plan", str(RUN), "--device", "4090", "--goal", "longest-context", "--budget", "1GiB"]
    assert cli.main(words) == NoPlanFits.exit_code == 3
    assert "no context fits: the smallest that was tried, 128 tokens" in capsys.readouterr().err


def test_the_models_of_a_run_are_its_family_with_its_own_context_and_vocabulary() -> None:
    axis = axis_of("largest-model", run_file(context=512), 20 * GIB)
    shapes = [run.settings.model.resolved() for run in axis.runs]
    assert {(shape.context, shape.vocabulary, shape.tied, shape.bias) for shape in shapes} == {(512, 50304, True, True)}
    for name in ("gpt2", "gpt2-xl"):
        published = replace(PRESETS[name].shape, context=512, vocabulary=50304)
        assert published in shapes
    sizes = list(map(axis.size, axis.runs))
    assert sizes == sorted(sizes)
    assert 16 * sizes[axis.start] < 20 * GIB <= 16 * sizes[axis.start + 1]
    assert "12 layers of width 768, 12 heads, 124.1M parameters" in map(axis.words, axis.runs)


def test_micro_batches_are_the_divisors_of_the_global_batch_whatever_is_fixed() -> None:
    run = replace(run_file(), techniques=(Accumulation(4),))
    axis = axis_of("largest-micro-batch", run, GIB)
    assert [one.settings.train.micro_batch for one in axis.runs] == [1, 2, 3, 4, 6, 8, 12, 24]
    assert {one.settings.train.global_batch for one in axis.runs} == {24}
    assert all(one.techniques == () for one in axis.runs)


def test_contexts_grow_by_little_and_begin_at_the_runs_own() -> None:
    axis = axis_of("longest-context", run_file(), GIB)
    lengths = [int(axis.size(run)) for run in axis.runs]
    steps = [after - before for before, after in itertools.pairwise(lengths)]
    assert lengths[axis.start] == 1024 and lengths[0] == 128 and lengths[-1] >= 2**21
    assert all(step % 128 == 0 and step <= max(128, before / 32) for step, before in zip(steps, lengths, strict=False))
    assert plan_goals.CONTEXT_STEP == 128
