"""What a result must say about where it was measured: processor, versions, and whether anything else was running."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

LOUD_SHARE = 0.03
"""Processor time of other processes, as a share of the machine, above which a timing is not to be quoted."""


def processor() -> str:
    """Name, family and model (names of virtual processors say little), count, and widest vector instructions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = dict(reversed([map(str.strip, line.split(":", 1)) for line in lines if ":" in line]))  # type: ignore[misc]
    flags = facts.get("flags", "").split()
    widest = next((name for name in ("avx512_bf16", "avx512f", "avx2", "avx") if name in flags), "no AVX")
    described = f"family {facts.get('cpu family')}, model {facts.get('model')}, {widest}"
    return f"{os.cpu_count()} x {facts.get('model name', platform.machine())} ({described})"


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of installed packages."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def commit() -> str:
    """The commit that was measured, and whether its sources had been changed since."""
    root = Path(__file__).parent.parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=False).stdout.strip()

    changed = " with changes" if git("status", "--porcelain", "--", "src") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + changed


@dataclass(frozen=True)
class Clock:
    """Wall time and busy processor time of the whole machine, in seconds since it started."""

    wall: float
    busy: float

    @classmethod
    def now(cls) -> Clock:
        ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = sum(ticks) - ticks[3] - ticks[4]  # all but idle and waiting for disks
        return cls(float(Path("/proc/uptime").read_text().split()[0]), busy / os.sysconf("SC_CLK_TCK"))

    def foreign_share(self, own_seconds: float) -> float:
        """Share of the machine that processes other than ours used since this clock was read."""
        now = Clock.now()
        capacity = (now.wall - self.wall) * (os.cpu_count() or 1)
        return max(0.0, now.busy - self.busy - own_seconds) / capacity


def warning(foreign_share: float) -> str:
    """A sentence when the machine was not quiet, else nothing."""
    if foreign_share <= LOUD_SHARE:
        return ""
    return (
        f"WARNING: other processes used {foreign_share:.0%} of this machine while it was measured. "
        "Ratios move by tens of percent under load: do not quote these."
    )


def markdown_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A table in Markdown, numbers as given."""
    lines = [list(map(str, head))]
    lines += [["---"] * len(lines[0]), *(list(map(str, row)) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def keep(question: str, report: Any, text: str, folder: Path) -> None:
    """Keep a report beside earlier ones, named by question and date: for people in Markdown, its values in JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"{question}-{datetime.now(UTC).date()}"
    stem.with_suffix(".md").write_text(text, encoding="utf-8")
    stem.with_suffix(".json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(f"written to {stem}.md and .json", file=sys.stderr)
