from __future__ import annotations

from pathlib import Path

import pytest

from brim.hardware.host import HostMemory, host_memory, processor_name

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path):
    """A root folder with 16 GiB of memory, 10 of them available; `write` adds more files."""

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    kib = 2**20
    write({"proc/meminfo": f"MemTotal: {16 * kib} kB\nMemFree: {2 * kib} kB\nMemAvailable: {10 * kib} kB\n"})
    return write


def test_without_a_container_the_machine_counts(machine):
    assert host_memory(machine({})) == HostMemory(16 * GIB, 10 * GIB)


def test_a_container_limit_of_version_2_counts_without_its_file_cache(machine):
    root = machine(
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/step/memory.max": "max\n",
            "sys/fs/cgroup/job/memory.max": f"{8 * GIB}\n",
            "sys/fs/cgroup/job/memory.current": f"{5 * GIB}\n",
            "sys/fs/cgroup/job/memory.stat": f"anon {2 * GIB}\ninactive_file {3 * GIB}\n",
        }
    )
    assert host_memory(root) == HostMemory(8 * GIB, 6 * GIB)


def test_a_container_limit_of_version_1_counts(machine):
    root = machine(
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/job\n",
            "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{1 * GIB}\n",
        }
    )
    assert host_memory(root) == HostMemory(4 * GIB, 3 * GIB)


def test_a_limit_above_the_machine_changes_nothing(machine):
    root = machine(
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "9223372036854771712\n"},
    )
    assert host_memory(root) == HostMemory(16 * GIB, 10 * GIB)


def test_the_processor_is_named(machine):
    root = machine({"proc/cpuinfo": "processor : 0\nmodel name : Fast 9000 CPU\n"})
    assert processor_name(root) == "Fast 9000 CPU"
    assert processor_name(root / "nothing here")


def test_this_machine_has_memory():
    memory = host_memory()
    assert 0 < memory.free_bytes <= memory.total_bytes
