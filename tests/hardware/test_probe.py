from __future__ import annotations

import json

import jax
import pytest

from brim.errors import DeviceError
from brim.hardware import probe
from brim.hardware.probe import Sizes, Speeds

SPEEDS = Speeds(float32_flops=2.0, bfloat16_flops=1.0, bandwidth_bytes_per_second=3.0)


@pytest.fixture
def counted(monkeypatch):
    """Replaces the measuring by a count of how often it was asked for."""
    calls = []
    monkeypatch.setattr(probe, "_measure_cpu_now", lambda: calls.append(1) or SPEEDS)
    monkeypatch.setattr(probe, "busy", lambda: False)
    return calls


def test_a_small_probe_of_this_cpu_gives_real_speeds():
    speeds = probe.measure(jax.devices("cpu")[0], Sizes(float32_side=256, bfloat16_side=128, copied_bytes=2**20))
    # A computer of the last 20 years on one side, a bug in units on the other.
    assert 1e8 < speeds.float32_flops < 1e14
    assert 1e6 < speeds.bfloat16_flops < 1e14
    assert 1e7 < speeds.bandwidth_bytes_per_second < 1e13


def test_the_speeds_are_the_work_over_the_time(monkeypatch):
    monkeypatch.setattr(probe, "_best_seconds", lambda work: 0.5)
    speeds = probe.measure(jax.devices("cpu")[0], Sizes(float32_side=10, bfloat16_side=20, copied_bytes=400))
    assert speeds == Speeds(2 * 10**3 / 0.5, 2 * 20**3 / 0.5, 2 * 400 / 0.5)


def test_the_cpu_is_measured_once(counted, tmp_path):
    assert probe.measure_cpu(tmp_path) == SPEEDS
    assert probe.measure_cpu(tmp_path) == SPEEDS
    assert len(counted) == 1
    [(key, _)] = json.loads((tmp_path / "speeds.json").read_text()).items()
    assert jax.__version__ in key


def test_a_busy_machine_is_not_remembered(counted, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "busy", lambda: True)
    probe.measure_cpu(tmp_path)
    probe.measure_cpu(tmp_path)
    assert len(counted) == 2


@pytest.mark.parametrize("text", ["not json", "[]", '{"other": {}}'])
def test_a_damaged_cache_is_measured_again(counted, tmp_path, text):
    (tmp_path / "speeds.json").write_text(text)
    assert probe.measure_cpu(tmp_path) == SPEEDS
    assert len(counted) == 1


def test_a_cache_that_cannot_be_written_is_no_error(counted, tmp_path):
    (tmp_path / "file").write_text("")
    assert probe.measure_cpu(tmp_path / "file") == SPEEDS


def test_the_cache_follows_the_xdg_rules(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert probe.cache_folder() == tmp_path / "brim"


def test_a_gpu_is_measured_in_another_process(tmp_path, monkeypatch):
    """The child measures JAX's default device, here the CPU."""
    speeds = probe.measure_gpu("pretend", tmp_path)
    assert speeds.float32_flops > 1e8
    monkeypatch.setattr(probe.sys, "executable", "/no/such/python")
    assert probe.measure_gpu("pretend", tmp_path) == speeds
    with pytest.raises(DeviceError, match="could not be measured"):
        probe.measure_gpu("another", tmp_path)
