from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.hardware import nvidia

TWO_CARDS = """\
GPU-aaaa-1, NVIDIA GeForce RTX 4090, 570.86.15, 8.9, 24564, 482, 20000
GPU-bbbb-2, NVIDIA H100 80GB HBM3, 570.86.15, 9.0, 81559, [N/A], 81000
"""
MIB = 2**20


@pytest.fixture
def pretend_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def pretend(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return pretend


def test_two_cards_are_read():
    first, second = nvidia.parse(TWO_CARDS)
    assert (first.name, first.driver, first.compute_capability) == ("NVIDIA GeForce RTX 4090", "570.86.15", (8, 9))
    assert (first.total_bytes, first.free_bytes) == ((24564 - 482) * MIB, 20000 * MIB)
    assert (second.total_bytes, second.free_bytes) == (81559 * MIB, 81000 * MIB)


def test_no_program_means_no_gpu_and_no_complaint(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert nvidia.query() == nvidia.Answer()


def test_the_program_is_asked(pretend_nvidia_smi):
    pretend_nvidia_smi(f"cat <<'END'\n{TWO_CARDS}END")
    assert nvidia.query() == nvidia.Answer(nvidia.parse(TWO_CARDS))


def test_a_failing_program_is_a_complaint(pretend_nvidia_smi):
    pretend_nvidia_smi("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18")
    assert nvidia.query() == nvidia.Answer(complaint="Failed to initialize NVML: Driver/library version mismatch")


@pytest.mark.parametrize(
    ("variables", "shown"),
    [
        ({}, [0, 1]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "1,0"}, [1, 0]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "0,7,1"}, [0]),
        ({"CUDA_VISIBLE_DEVICES": ""}, []),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(variables, shown):
    cards = nvidia.parse(TWO_CARDS)
    assert nvidia.visible(cards, variables) == tuple(cards[number] for number in shown)
