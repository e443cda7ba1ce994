from __future__ import annotations

import os
import platform

import jax
import pytest

from brim.hardware import examine
from brim.hardware.examine import flags_in_force, refused_flags, start_jax

HERE = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
# Taken out of XLA years ago; still in tutorials.
DEAD = "--xla_gpu_graph_level=0"
GOOD = "--xla_gpu_autotune_level=0"


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("", ()),
        (f" {GOOD}  {DEAD} ", (GOOD, DEAD)),
        ("--xla_dump_to='/a b' --xla_x", ("--xla_dump_to=/a b", "--xla_x")),
        ("--xla_dump_to='/a b", ("--xla_dump_to='/a", "b")),
        ("no-such-file", ("no-such-file",)),
    ],
)
def test_flags_are_split_as_xla_splits_them(text, flags):
    assert flags_in_force(text) == flags


def test_flags_can_stand_in_a_file(tmp_path):
    (tmp_path / "flags").write_text(f"{GOOD}\n{DEAD}\n")
    assert flags_in_force(str(tmp_path / "flags")) == (GOOD, DEAD)


def test_only_the_flags_that_would_kill_the_process_are_refused(tmp_path):
    dump = f"--xla_dump_to={tmp_path / 'with space'}"
    refused = refused_flags((GOOD, DEAD, dump, "--xla_gpu_autotune_level=many", "word"), HERE)
    assert refused == {
        DEAD: "this jaxlib does not know it",
        "--xla_gpu_autotune_level=many": "this jaxlib does not take its value",
        "word": "it is neither a flag, which begins with --, nor a file that can be read",
    }


def test_good_flags_are_all_accepted():
    assert refused_flags((GOOD, "--xla_gpu_triton_gemm_any=true"), HERE) == {}


def test_jax_is_started_in_a_child():
    started = start_jax((), HERE)
    assert (started.platform, started.devices, started.complaint) == ("cpu", ("cpu",), "")


def test_a_jax_that_does_not_start_is_quoted():
    started = start_jax((), HERE | {"JAX_PLATFORMS": "no_such_platform"})
    assert started.platform == ""
    assert "no_such_platform" in started.complaint


def test_a_child_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(examine, "_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(examine, "_START_JAX", "import time; time.sleep(60)")
    assert start_jax((), HERE).complaint == "no answer in 0.5 s"
    monkeypatch.setattr(examine, "_READ_FLAGS", "import time; time.sleep(60)")
    assert refused_flags((GOOD,), HERE) == {GOOD: "jaxlib gave no answer in 0.5 s with it"}


def test_the_machine_is_examined_under_a_flag_that_kills():
    seen = examine.examine(HERE | {"XLA_FLAGS": f"{DEAD} {GOOD}", "XLA_CLIENT_MEM_FRACTION": "0.9", "SECRET": "no"})
    assert seen.python == platform.python_version()
    assert seen.packages["jax"] == jax.__version__
    assert seen.xla_flags == (DEAD, GOOD)
    assert list(seen.refused_flags) == [DEAD]
    assert seen.started.platform == "cpu"
    assert seen.variables["XLA_CLIENT_MEM_FRACTION"] == "0.9"
    assert "SECRET" not in seen.variables
