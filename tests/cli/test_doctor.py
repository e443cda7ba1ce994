"""The whole command, as a person runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import brim

DEAD = "--xla_gpu_graph_level=0"


def doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("XLA_", "JAX_", "CUDA_VISIBLE")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    command = [sys.executable, "-m", "brim", "doctor", *arguments]
    environment = kept | variables
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_it_survives_a_flag_that_kills_jax_and_names_it():
    done = doctor(XLA_FLAGS=DEAD, XLA_CLIENT_MEM_FRACTION=".9", XLA_PYTHON_CLIENT_MEM_FRACTION=".8")
    assert done.returncode == 1
    assert done.stderr == ""
    assert f"1. XLA_FLAGS has `{DEAD}`" in done.stdout
    assert "2. XLA_CLIENT_MEM_FRACTION (.9) and XLA_PYTHON_CLIENT_MEM_FRACTION (.8) are both set" in done.stdout
    assert done.stdout.count("hint: ") == 2


def test_json_holds_the_same_and_ends_with_the_same_code():
    done = doctor("--json", XLA_FLAGS=DEAD)
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert (report["brim"], report["well"]) == (brim.__version__, False)
    assert [finding["name"] for finding in report["findings"]] == ["xla-flag-refused"]
    assert report["environment"]["xla_flags"] == [DEAD]
    assert report["environment"]["started"]["platform"]


def test_all_is_well_where_nothing_is_wrong():
    done = doctor()
    report = json.loads(doctor("--json").stdout)
    assert done.returncode == (0 if report["well"] else 1)
    assert ("All is well." in done.stdout) == report["well"]
    for label in ("brim", "Python", "jax", "jaxlib", "device", "driver", "XLA flags"):
        assert f"\n{label} " in "\n" + done.stdout


def test_help_and_a_wrong_option():
    assert "--json" in doctor("--help").stdout
    wrong = doctor("--jsno")
    assert (wrong.returncode, wrong.stdout) == (2, "")
