from __future__ import annotations

import json
import platform
import subprocess

import jax
import numpy as np

import brim
from brim.training.environment import describe_environment, memory_in_use_bytes


def test_versions_devices_and_variables_are_plain_json(monkeypatch, tmp_path):
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    found = describe_environment(tmp_path)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["versions"]["brim"] == brim.__version__
    assert found["versions"]["jax"] == jax.__version__
    assert found["versions"]["numpy"] == np.__version__
    assert found["versions"]["python"] == platform.python_version()
    assert all(found["versions"].values())
    assert found["devices"][0] == {"platform": "cpu", "kind": "cpu"}
    assert found["variables"]["XLA_FLAGS"] == "--xla_cpu_enable_fast_math=false"
    assert "hush" not in json.dumps(found)
    assert found["git"] is None


def test_the_commit_is_recorded_and_whether_files_changed(tmp_path):
    def git(*words: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        return subprocess.run(
            ["git", "-C", tmp_path, *identity, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init")
    assert describe_environment(tmp_path)["git"] is None
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "--message", "One")
    assert describe_environment(tmp_path)["git"] == {"commit": git("rev-parse", "HEAD"), "changed": False}
    (tmp_path / "file").write_text("2")
    assert describe_environment(tmp_path)["git"]["changed"] is True


def test_no_git_at_all_is_null(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_environment(tmp_path)["git"] is None


def test_memory_grows_with_what_is_held():
    before = memory_in_use_bytes()
    held = np.ones(64 * 2**20, np.uint8)
    grown = memory_in_use_bytes() - before
    # Pages of other work come and go; half of what is held is far above that.
    assert 32 * 2**20 < grown < 1024 * 2**20
    assert held.sum() == held.size
