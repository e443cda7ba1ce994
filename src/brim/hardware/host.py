"""The memory and the processor of the machine, as the operating system and its containers tell them."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class HostMemory:
    """Memory of the machine in bytes: all of it, and what a process may still take."""

    total_bytes: int
    free_bytes: int


def host_memory(root: Path = Path("/")) -> HostMemory:
    """Memory that this process may use: the machine's, or its container's where that is less.

    Where there is no /proc (macOS), the free bytes are given as the total: nothing better is known there.

    Args:
        root: where /proc and /sys are found; another folder in tests.
    """
    meminfo = _meminfo(root / "proc/meminfo")
    total = meminfo.get("MemTotal") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = meminfo.get("MemAvailable", total)
    for limit, used in _container_limits(root):
        total, free = min(total, limit), min(free, max(limit - used, 0))
    return HostMemory(total, free)


def processor_name(root: Path = Path("/")) -> str:
    """The processor's marketing name, or the best that the platform tells."""
    lines = _text(root / "proc/cpuinfo").splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine() or "unknown processor"


def processor_count() -> int:
    """The number of processors this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def _meminfo(path: Path) -> dict[str, int]:
    fields = (line.split() for line in _text(path).splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in fields if len(words) == 3}


def _container_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, used) in bytes of each control group above this process, version 2 and 1.

    File cache that can be dropped does not count as used: the kernel gives it back before it refuses memory.
    """
    groups = dict.fromkeys(line.split(":", 2)[2].strip("/") for line in _groups(root))
    for group in groups:
        v2, v1 = root / "sys/fs/cgroup", root / "sys/fs/cgroup/memory"
        yield from _limits_up_to(v2, group, "memory.max", "memory.current", "inactive_file")
        yield from _limits_up_to(v1, group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def _groups(root: Path) -> Iterator[str]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _number, controllers, _path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            yield line


def _limits_up_to(mount: Path, group: str, limit: str, used: str, cache: str) -> Iterator[tuple[int, int]]:
    parts = Path(group).parts
    for depth in range(len(parts), -1, -1):
        folder = mount.joinpath(*parts[:depth])
        allowed = _text(folder / limit).strip()
        if allowed.isdigit():
            stat = dict(line.split() for line in _text(folder / "memory.stat").splitlines() if len(line.split()) == 2)
            taken = int(_text(folder / used).strip() or 0) - int(stat.get(cache, 0))
            yield int(allowed), max(taken, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
