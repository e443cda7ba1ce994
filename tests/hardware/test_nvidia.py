from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.hardware import mig, nvidia

TWO_CARDS = """\
GPU-aaaa-1, NVIDIA GeForce RTX 4090, 570.86.15, 8.9, 24564, 482, 20000, [N/A]
GPU-bbbb-2, NVIDIA H100 80GB HBM3, 570.86.15, 9.0, 81559, [N/A], 81000, Disabled
"""
# What `nvidia-smi -L` and `nvidia-smi -q -x` print of an H100 with two slices, the latter cut to what is read.
LISTING = """\
GPU 0: NVIDIA GeForce RTX 4090 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb-2)
  MIG 3g.40gb     Device  0: (UUID: MIG-1111)
  MIG 1g.10gb     Device  1: (UUID: MIG-2222)
"""
XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <gpu id="00000000:01:00.0"><mig_devices>None</mig_devices><uuid>GPU-aaaa-1</uuid></gpu>
  <gpu id="00000000:02:00.0">
    <mig_mode><current_mig>Enabled</current_mig></mig_mode>
    <mig_devices>
      <mig_device>
        <index>0</index>
        <fb_memory_usage><total>40448 MiB</total><reserved>0 MiB</reserved><free>40151 MiB</free></fb_memory_usage>
      </mig_device>
      <mig_device>
        <index>1</index>
        <fb_memory_usage><total>9984 MiB</total><reserved>16 MiB</reserved><free>9000 MiB</free></fb_memory_usage>
      </mig_device>
    </mig_devices>
    <uuid>GPU-bbbb-2</uuid>
  </gpu>
</nvidia_smi_log>
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


def test_a_sliced_gpu_gives_way_to_its_slices(pretend_nvidia_smi):
    sliced = TWO_CARDS.replace("Disabled", "Enabled")
    answers = {"-q": XML, "-L": LISTING, "*": sliced}
    cases = (f"{word}) cat <<'END'\n{text}END\n;;" for word, text in answers.items())
    pretend_nvidia_smi(f"case $1 in {' '.join(cases)} esac")
    whole, first, second = nvidia.query().gpus
    assert whole == nvidia.parse(TWO_CARDS)[0]
    assert (first.name, first.uuid) == ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG-1111")
    assert (first.total_bytes, first.free_bytes) == (40448 * MIB, 40151 * MIB)
    assert (second.name, second.total_bytes) == ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9984 - 16) * MIB)
    assert nvidia.visible((whole, first, second), {"CUDA_VISIBLE_DEVICES": "MIG-2222"}) == (second,)


def test_a_sliced_gpu_without_slices_is_not_there():
    cards = nvidia.parse(TWO_CARDS.replace("Disabled", "Enabled"))
    assert [gpu.sliced for gpu in cards] == [False, True]
    assert nvidia.with_slices(cards, {}) == cards[:1]


def test_slices_of_whom_nothing_is_told_are_parsed_without_memory():
    assert mig.parse("", "") == {}
    (only, _) = mig.parse("", LISTING)["GPU-bbbb-2"]
    assert (only.profile, only.total_bytes, only.free_bytes) == ("3g.40gb", 0, 0)


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
