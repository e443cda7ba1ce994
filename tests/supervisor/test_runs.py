"""Whole runs of a tiny model through the command line's own functions: train, stop, resume, compare every bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.cli import main
from brim.errors import EXIT_DONE, EXIT_ERROR, EXIT_NO_PLAN, EXIT_SAVED, EXIT_USAGE
from brim.runfile import RunFile
from brim.settings import load_toml
from brim.supervisor.inspection import newest_arrays
from brim.training.tracking import read_metrics

RUN = """
[model]
layers = 2
width = 32
heads = 2
context = 32
dropout = 0.1

[data]
paths = ["texts mit ümläut"]
held_out = 0.2

[schedule]
kind = "cosine"
learning_rate = 3e-3
minimum = 3e-4
warmup = 2

[train]
updates = 12
global_batch = 4
micro_batch = 2
evaluate_every = 4
checkpoint_every = 4
log_every = 1

[techniques.rematerialization]
policy = "full"

[techniques.chunked_loss]
tokens = 32
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run file and twelve short documents, in a path with a space and an umlaut."""
    folder = tmp_path_factory.mktemp("a place ü")
    texts = folder / "texts mit ümläut"
    texts.mkdir()
    words = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]
    chooser = random.Random(0)
    for number in range(12):
        (texts / f"{number:02}.txt").write_text(" ".join(chooser.choices(words, k=60)))
    (folder / "run.toml").write_text(RUN)
    return folder


def state_of(folder: Path) -> dict[str, np.ndarray]:
    """Every leaf of the newest checkpoint, and the data position."""
    window, arrays, records = newest_arrays(folder)
    return arrays | {"at": np.array(window), "data": np.array(json.dumps(records["data"], sort_keys=True))}


def assert_same_bits(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].tobytes() == array.tobytes(), name


@pytest.fixture(scope="module")
def straight(place: Path) -> Path:
    """The run without an interruption."""
    out = place / "straight run"
    assert main(["train", str(place / "run.toml"), "--out", str(out)]) == EXIT_DONE
    return out


def test_a_run_learns_and_writes_what_it_promises(straight: Path) -> None:
    records = read_metrics(straight / "metrics.jsonl")
    assert [record.window for record in records] == list(range(1, 13))
    assert records[-1].loss < records[0].loss
    assert [r.window for r in records if r.held_out_loss is not None] == [4, 8, 12]
    assert records[0].learning_rate == pytest.approx(1e-3)  # warmup 2: a third, two thirds, then the peak
    assert (straight / "curves.png").stat().st_size > 10_000
    assert list((straight / "tensorboard").iterdir())
    resolved = RunFile.from_tables(load_toml(straight / "run.toml"))
    assert resolved.settings.model.vocabulary == 257
    assert Path(resolved.settings.data.paths[0]).is_absolute()
    plan = json.loads((straight / "plan.json").read_text())
    assert plan["chosen"]["micro_batch"] == 2
    assert sum(plan["chosen"]["owners"].values()) == plan["report"]["peak"]["bytes"] + plan["chosen"]["owners"].get(
        "alignment and gaps", 0
    )
    memory = json.loads((straight / "memory.json").read_text())
    assert memory == {"predicted_bytes": plan["chosen"]["peak_bytes"], "measured_bytes": None, "updates": 3}


@pytest.mark.parametrize(("stop_after", "overrides"), [(3, []), (4, ["--data.store", "a store"]), (6, [])])
def test_ck_s6_stopped_and_resumed_equals_uninterrupted_in_every_bit(
    place: Path, straight: Path, stop_after: int, overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = place / f"stopped after {stop_after}"
    with monkeypatch.context() as patched:
        patched.chdir(place)  # a relative store is in the folder where it was typed, wherever the run goes on
        _stop_after(patched, stop_after)
        assert main(["train", str(place / "run.toml"), "--out", str(out), *overrides]) == EXIT_SAVED
    assert (place / "a store" if overrides else out / "data").joinpath("manifest.json").exists()
    assert main(["resume", str(out)]) == EXIT_DONE
    assert main(["sample", str(out), "--tokens", "1"]) == EXIT_DONE
    assert_same_bits(state_of(out), state_of(straight))
    both = (read_metrics(folder / "metrics.jsonl") for folder in (out, straight))
    for found, wanted in zip(*both, strict=True):
        for name in ("window", "update", "loss", "learning_rate", "gradient_norm", "targets", "held_out_loss"):
            assert getattr(found, name) == getattr(wanted, name)


def _stop_after(patched: pytest.MonkeyPatch, windows: int) -> None:
    """Send this process a SIGTERM while window `windows` is being handed over."""
    from brim.training.step import Step

    original, count = Step.__call__, [0]

    def counted(self: Step, state: Any, batch: Any) -> Any:
        count[0] += 1
        if count[0] == windows:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, state, batch)

    patched.setattr(Step, "__call__", counted)


def test_ck_s4_a_changed_model_is_refused_and_nothing_is_altered(straight: Path, capsys: Any) -> None:
    before = {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()}
    assert main(["resume", str(straight), "--model.layers", "3", "--schedule.warmup", "1"]) == 1
    said = capsys.readouterr().err
    assert "model.layers: 2 -> 3" in said
    assert "schedule.warmup: 2 -> 1" in said
    assert {path: path.read_bytes() for path in straight.rglob("*") if path.is_file()} == before


def test_sc_s3_a_longer_run_asks_what_becomes_of_the_schedule(straight: Path, capsys: Any) -> None:
    assert main(["resume", str(straight), "--train.updates", "24"]) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "--train.horizon 24 to stretch" in said
    assert "--train.horizon 12 to keep" in said


@pytest.mark.slow
def test_sc_s3_a_stated_choice_is_told_with_both_learning_rates(straight: Path, place: Path, capsys: Any) -> None:
    out = place / "stretched"
    shutil.copytree(straight, out)
    assert main(["resume", str(out), "--train.updates", "13", "--train.horizon", "24"]) == EXIT_DONE
    assert "schedule: at update 12 the learning rate would jump from 0.0003 to 0.0018" in capsys.readouterr().err


def test_a_second_train_into_the_same_folder_is_refused(place: Path, straight: Path, capsys: Any) -> None:
    assert main(["train", str(place / "run.toml"), "--out", str(straight)]) == EXIT_USAGE
    assert "brim resume" in capsys.readouterr().err


def test_the_run_file_itself_is_not_written_over(place: Path, capsys: Any) -> None:
    before = (place / "run.toml").read_bytes()
    assert main(["train", str(place / "run.toml"), "--out", str(place)]) == EXIT_USAGE
    assert "--out" in capsys.readouterr().err
    assert (place / "run.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("--train.global_batch", "5000", "--train.micro_batch", "5000"), "5000"),
        (("--model.context", "100000"), "100000"),
    ],
)
def test_da_s3_too_little_text_is_told_before_anything_is_planned(
    place: Path, capfd: Any, overrides: tuple[str, ...], said: str
) -> None:
    assert main(["train", str(place / "run.toml"), "--out", str(place / "little"), *overrides]) == EXIT_ERROR
    told = capfd.readouterr().err
    assert said in told and "compiled" not in told


def test_no_plan_fits_is_exit_code_3(place: Path, capfd: Any) -> None:
    out = place / "too small"
    assert main(["train", str(place / "run.toml"), "--out", str(out), "--plan.budget", "100KiB"]) == EXIT_NO_PLAN
    assert "hint:" in capfd.readouterr().err


def test_cl_s1_a_wrong_key_is_exit_code_2_before_anything_is_made(place: Path, capsys: Any) -> None:
    out = place / "never"
    assert main(["train", str(place / "run.toml"), "--out", str(out), "--train.updatess", "3"]) == EXIT_USAGE
    assert "train.updates" in capsys.readouterr().err
    assert not out.exists()


def test_cl_s3_ctrl_c_finishes_the_update_saves_and_leaves_no_process(place: Path) -> None:
    out = place / "interrupted"
    command = [sys.executable, "-m", "brim", "train", str(place / "run.toml"), "--out", str(out)]
    command += ["--train.updates", "100000", "--train.evaluate_every", "0", "--train.checkpoint_every", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, text=True)
    try:
        _wait_for(lambda: (out / "metrics.jsonl").exists() and len(read_metrics(out / "metrics.jsonl")) > 3, process)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert process.returncode == EXIT_SAVED, said
    assert f"brim resume {out}" in said
    last = read_metrics(out / "metrics.jsonl")[-1].window
    assert [path.name for path in (out / "checkpoints").iterdir()] == [str(last)]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def _wait_for(condition: Any, process: subprocess.Popen[str]) -> None:
    for _ in range(1800):
        if condition():
            return
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    raise AssertionError("the run did not get going in three minutes")
