"""The GPU that is here, told apart by what nvidia-smi really prints."""

from __future__ import annotations

import pytest

from brim.hardware import nvidia
from brim.hardware.entries import shipped
from brim.hardware.match import match

MIB = 2**20
# Name, memory.total and memory.reserved as nvidia-smi prints them in MiB; the entry, or none.
PRINTED = [
    ("NVIDIA GeForce RTX 2080 Ti", 11264, 254, "rtx-2080-ti"),
    ("NVIDIA GeForce RTX 3060", 12288, 242, "rtx-3060-12gb"),
    ("NVIDIA GeForce RTX 3060", 8192, 200, None),
    ("NVIDIA GeForce RTX 3060 Laptop GPU", 6144, 150, None),
    ("NVIDIA GeForce RTX 3080", 10240, 236, "rtx-3080-10gb"),
    ("NVIDIA GeForce RTX 3080", 12288, 242, None),
    ("NVIDIA GeForce RTX 3080 Ti", 12288, 242, None),
    ("NVIDIA GeForce RTX 3090", 24576, 309, "rtx-3090"),
    ("NVIDIA GeForce RTX 3090 Ti", 24564, 309, None),
    ("NVIDIA GeForce RTX 4060 Ti", 16380, 432, "rtx-4060-ti-16gb"),
    ("NVIDIA GeForce RTX 4060 Ti", 8188, 225, None),
    ("NVIDIA GeForce RTX 4070 Ti SUPER", 16376, 400, "rtx-4070-ti-super"),
    ("NVIDIA GeForce RTX 4070 Ti", 12282, 300, None),
    ("NVIDIA GeForce RTX 4080", 16376, 388, "rtx-4080"),
    ("NVIDIA GeForce RTX 4080 SUPER", 16376, 388, None),
    ("NVIDIA GeForce RTX 4090", 24564, 482, "rtx-4090"),
    ("NVIDIA GeForce RTX 4090", 49140, 512, None),  # modified boards with twice the memory are sold
    ("NVIDIA GeForce RTX 4090 D", 24564, 482, None),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376, 388, None),
    ("NVIDIA GeForce RTX 5070 Ti", 16303, 461, "rtx-5070-ti"),
    ("NVIDIA GeForce RTX 5080", 16303, 463, "rtx-5080"),
    ("NVIDIA GeForce RTX 5090", 32607, 506, "rtx-5090"),
    ("NVIDIA GeForce RTX 5090 Laptop GPU", 24463, 500, None),
    ("Tesla T4", 15360, 442, "t4"),
    ("Tesla V100-SXM2-16GB", 16384, 0, "v100-16-sxm"),
    ("Tesla V100-SXM2-32GB", 32768, 264, "v100-32-sxm"),
    ("Tesla V100-PCIE-16GB", 16384, 200, "v100-16-pcie"),
    ("Tesla V100S-PCIE-32GB", 32768, 264, None),
    ("NVIDIA A10", 23028, 512, "a10"),
    ("NVIDIA A10G", 23028, 512, None),
    ("NVIDIA L4", 23034, 516, "l4"),
    ("NVIDIA L40S", 46068, 600, "l40s"),
    ("NVIDIA L40", 46068, 600, None),
    ("NVIDIA RTX A6000", 49140, 350, "rtx-a6000"),
    ("NVIDIA RTX A6000", 46068, 448, "rtx-a6000"),  # error correction on
    ("NVIDIA RTX 6000 Ada Generation", 49140, 500, "rtx-6000-ada"),
    ("NVIDIA RTX 6000 Ada Generation", 46068, 570, "rtx-6000-ada"),
    ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", 97887, 637, "rtx-pro-6000"),
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 97887, 637, None),
    ("NVIDIA A100-SXM4-40GB", 40960, 590, "a100-40-sxm"),
    ("NVIDIA A100-SXM4-80GB", 81920, 690, "a100-80-sxm"),
    ("NVIDIA A100-PCIE-40GB", 40960, 590, "a100-40-pcie"),
    ("NVIDIA A100 80GB PCIe", 81920, 690, "a100-80-pcie"),
    ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40448, 0, None),
    ("NVIDIA H100 80GB HBM3", 81559, 480, "h100-sxm"),
    ("NVIDIA H100 PCIe", 81559, 552, "h100-pcie"),
    ("NVIDIA H100 NVL", 95830, 560, None),
    ("NVIDIA H200", 143771, 615, "h200"),
    ("NVIDIA H200 NVL", 143771, 615, None),
    ("NVIDIA GH200 480GB", 97871, 591, None),
    ("NVIDIA B200", 183359, 717, "b200"),
]


@pytest.mark.parametrize(("name", "total", "reserved", "expected"), PRINTED)
def test_a_gpu_is_matched_by_its_whole_name_and_its_memory(name, total, reserved, expected):
    (gpu,) = nvidia.parse(f"GPU-1, {name}, 580.1, 8.9, {total}, {reserved}, 1000, [N/A]\n")
    found = match(gpu)
    assert (found and found[0]) == expected


def test_drivers_that_do_not_tell_what_they_reserve_are_matched_all_the_same():
    (gpu,) = nvidia.parse("GPU-1, NVIDIA GeForce RTX 4090, 450.1, 8.9, 24564, [N/A], 1000, [N/A]\n")
    assert match(gpu)[0] == "rtx-4090"


def test_every_gpu_of_the_tables_was_seen_above():
    seen = {expected for *_, expected in PRINTED if expected}
    gpus = {name for name, entry in shipped().items() if entry.platform == "gpu"}
    assert gpus - seen == {"v100-32-pcie"}
