"""`make demo`: a small GPT learns Python within a memory budget, is interrupted, and goes on bit for bit.

The text is the Python standard library's own source, which is on every machine that has Python. Nothing is downloaded.
Everything below goes through the `brim` command, as a person would; this script only watches and compares.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "runs" / "demo"
TEXT, RUN, STRAIGHT = OUT / "text", OUT / "run", OUT / "straight"
CONFIG = ROOT / "configs" / "demo.toml"
INTERRUPT_AFTER = 25
OVERHEAD_MIB = 900
"""Beyond the plan: Python, JAX and XLA themselves, the compiler's own memory, and the data pipeline."""


def main() -> int:
    """Run the demo; 0 when every promise was kept."""
    start = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    title("1. Text: the standard library's own source")
    count, size = gather_text()
    tell(f"{count} files, {size / 1e6:.1f} MB, copied to {shown(TEXT)}")

    title(f"2. Plan and train within the budget; a Ctrl-C comes after {INTERRUPT_AFTER} updates")
    code, high_water_bytes = train(RUN, interrupt_after=INTERRUPT_AFTER)
    require(code == 75, f"the interrupted run should end with exit code 75 (saved); it ended with {code}")
    plan = json.loads((RUN / "plan.json").read_text())
    tell_plan(plan)

    title("3. Resume")
    code, resumed_bytes = brim("resume", str(RUN))
    require(code == 0, f"resume ended with exit code {code}")
    check_memory(plan, max(high_water_bytes, resumed_bytes))
    check_loss()

    title("4. The same run without an interruption, to compare every bit")
    code, _ = train(STRAIGHT)
    require(code == 0, f"the uninterrupted run ended with exit code {code}")
    compare_bits()

    title("5. What it writes")
    code, _ = brim("sample", str(RUN), "--prompt", "def ", "--tokens", "120", "--seed", "1")
    require(code == 0, f"sample ended with exit code {code}")
    title("Done")
    tell(f"loss curves: {shown(RUN / 'curves.png')}    metrics: {shown(RUN / 'metrics.jsonl')}")
    tell(f"all promises kept, in {time.monotonic() - start:.0f} s")
    return 0


def gather_text() -> tuple[int, int]:
    """Copy the standard library's Python files, without tests and packages; returns their number and bytes."""
    library = Path(sysconfig.get_paths()["stdlib"])
    left_out = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "encodings", "__pycache__"}
    files = [path for path in sorted(library.rglob("*.py")) if not left_out & set(path.relative_to(library).parts)]
    for path in files:
        target = TEXT / path.relative_to(library)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return len(files), sum(path.stat().st_size for path in files)


def train(folder: Path, interrupt_after: int | None = None) -> tuple[int, int]:
    """`brim train` into a folder; see `brim`."""
    words = ("--data.paths", str(TEXT), "--data.store", str(OUT / "tokens"), "--out", str(folder))
    return brim("train", str(CONFIG), *words, watch=folder, at=interrupt_after)


def brim(*words: str, watch: Path | None = None, at: int | None = None) -> tuple[int, int]:
    """Run a brim command, send it a Ctrl-C once `at` windows stand in the watched run's metrics.

    Returns: the exit code, and the largest resident memory of the process itself, in bytes.
    """
    print(f"$ brim {' '.join(shown(word) for word in words)}", flush=True)
    process = subprocess.Popen([sys.executable, "-m", "brim", *words])
    highest = [0]

    def look() -> None:
        interrupted = False
        while process.poll() is None:
            highest[0] = max(highest[0], high_water_bytes(process.pid))
            if at is not None and watch is not None and not interrupted and windows_in(watch) >= at:
                process.send_signal(signal.SIGINT)
                interrupted = True
            time.sleep(0.05)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        process.wait()
    except KeyboardInterrupt:
        process.wait()
        raise SystemExit(130) from None
    watcher.join()
    return process.returncode, highest[0]


def high_water_bytes(pid: int) -> int:
    """The most memory a process ever had resident; 0 where the system does not tell."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


def windows_in(folder: Path) -> int:
    """Windows in the metrics of a run so far."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def tell_plan(plan: dict[str, Any]) -> None:
    """What was chosen, and that the plain settings were rejected by their compiled bytes."""
    budget, chosen = plan["budget_bytes"], plan["chosen"]
    plain = min(
        (c for c in plan["candidates"] if c["accumulation"] == 1 and c["compiled"] and c["peak_bytes"] > budget),
        key=lambda c: c["predicted_step_seconds"],
        default=None,
    )
    require(plain is not None, "the default settings should not fit the budget")
    assert plain is not None
    tell(f"fastest settings, the whole batch at once: rejected. {plain['reason']} (budget {mib(budget)})")
    tell(f"chosen: {chosen['micro_batch']} x {chosen['accumulation']}, {mib(chosen['peak_bytes'])}. {chosen['reason']}")
    require(chosen["peak_bytes"] <= budget, "the chosen plan exceeds the budget")


def check_memory(plan: dict[str, Any], highest_bytes: int) -> None:
    """The process stayed within the plan plus a stated overhead."""
    allowed = plan["chosen"]["peak_bytes"] + OVERHEAD_MIB * 2**20
    tell(f"process memory: at most {mib(highest_bytes)}; plan + {OVERHEAD_MIB} MiB for Python and XLA = {mib(allowed)}")
    require(0 < highest_bytes <= allowed, "the process needed more than the plan and the stated overhead")


def check_loss() -> None:
    """The held-out loss is clearly down."""
    records = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    held_out = [record["held_out_loss"] for record in records if record["held_out_loss"] is not None]
    first = records[0]["loss"]
    tell(f"loss before training {first:.2f}; held-out loss {' -> '.join(f'{loss:.2f}' for loss in held_out)}")
    require(held_out[-1] < first - 1.5, "the held-out loss should be more than 1.5 nats below the first loss")


def compare_bits() -> None:
    """Parameters, moments, keys, counters and data position of both runs, byte for byte."""
    found, wanted = newest_state(RUN), newest_state(STRAIGHT)
    different = [name for name in wanted if found[name] != wanted[name]]
    require(found.keys() == wanted.keys() and not different, f"these differ: {different[:5]}")
    size = sum(map(len, wanted.values()))
    tell(f"{len(wanted)} arrays, {size / 2**20:.1f} MiB: resumed and uninterrupted run are equal in every bit")


def newest_state(folder: Path) -> dict[str, bytes]:
    """Every array of a run's newest checkpoint, as bytes, by name; and its data position."""
    from brim.supervisor.inspection import newest_arrays

    window, arrays, records = newest_arrays(folder)
    data = json.dumps(records["data"], sort_keys=True).encode()
    return {name: array.tobytes() for name, array in arrays.items()} | {"window": str(window).encode(), "data": data}


def mib(count: float) -> str:
    """Bytes in MiB."""
    return f"{count / 2**20:.0f} MiB"


def shown(path: Path | str) -> str:
    """A path as short as it can be said from here."""
    text = str(path)
    return os.path.relpath(text) if text.startswith(str(ROOT)) else text


def title(text: str) -> None:
    """A headline."""
    print(f"\n=== {text}", flush=True)


def tell(text: str) -> None:
    """One line of findings."""
    print(f"  {text}", flush=True)


def require(kept: bool, broken: str) -> None:
    """End the demo with exit code 1 when a promise was not kept."""
    if not kept:
        print(f"\ndemo: {broken}", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main())
