"""How fast is brim's training step on this CPU, beside the same model in PyTorch?

WHAT IS COMPARED. One training step (forward, backward, clip to norm 1, AdamW) of a GPT-2-like decoder: 6 layers, 384
wide, 6 heads, context 256, batch 8, tied head, no biases, no dropout, fp32, vocabulary 256 or 50304. Four contenders,
each in a process of its own with the same threads and the same initial parameters and batches, take turns:

    brim            the step that `brim train` runs, recipe in `cpu_step_brim.py`
    torch eager     `cpu_step_torch.py` as it stands
    torch compile   the same under `torch.compile`
    torch compile, MKL fast path
                    the same, with MKL told that it runs on an Intel processor (a one-line library in LD_PRELOAD). On
                    some AMD processors MKL otherwise leaves the widest vector instructions unused.

The losses must agree step by step to 1e-3, or there is no result: contenders that do other work cannot be compared.

WHAT MAY NOT BE CONCLUDED. Nothing about GPUs, bf16, other processors, other shapes or other PyTorch builds: the ratio
depends on which matrix product MKL picks for the processor, and on an Intel processor brim may well be slower. Figures
of a machine that was not quiet are not to be quoted; the report says whether it was.

    python benchmarks/cpu_step.py --torch-python VENV/bin/python
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import machine
from cpu_step_work import Work
from workers import Worker

HERE = Path(__file__).parent
BASELINE = "torch compile"
TOLERANCE = 1e-3
GEMMS = ((2048, 384, 1536), (2048, 2048, 2048))
"""rows, inner, columns of the products that set the machine's rate: the model's own feed-forward, and a square one."""
SLEEPING_THREADS = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "GOMP_SPINCOUNT": "0"}


@dataclass
class Result:
    """What one contender did, over all rounds."""

    name: str
    round_seconds: list[list[float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    peak_rss_bytes: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    gemm_flops: float = 0.0

    def seconds(self) -> list[float]:
        """Median step of each round."""
        return [statistics.median(seconds) for seconds in self.round_seconds]


def main() -> None:
    options = parse()
    torch_versions = subprocess.run(
        [options.torch_python, "-c", "import torch, numpy; print(torch.__version__, numpy.__version__)"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.split()
    report: dict[str, Any] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "processor": machine.processor(),
        "threads": options.threads,
        "rounds": options.rounds,
        "steps_per_round": options.steps,
        "versions": machine.versions("jax", "jaxlib", "optax", "numpy") | {"torch": torch_versions[0]},
        "load_average_before": os.getloadavg()[0],
        "vocabularies": {},
    }
    for vocabulary in options.vocabularies:
        report["vocabularies"][vocabulary] = compare(Work(vocabulary), options)
    report["load_average_after"] = os.getloadavg()[0]
    text = in_markdown(report)
    print(text)
    machine.keep("cpu_step", report, text, options.out)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch-python", required=True, help="a Python with torch and numpy")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[256, 50304])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="steps in a round, per contender")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the report")
    return parser.parse_args()


def compare(work: Work, options: argparse.Namespace) -> dict[str, Any]:
    """Run all contenders at one vocabulary, taking turns; refuse when their losses differ."""
    with tempfile.TemporaryDirectory() as scratch:
        workers = start(work, options, Path(scratch))
        results = [Result(worker.name) for worker in workers]
        try:
            warm_up(workers, results, options)
            before, own = machine.Clock.now(), sum(worker.processor_seconds() for worker in workers)
            for turn in range(options.rounds):
                play_round(workers, results, turn, options.steps)
            own = sum(worker.processor_seconds() for worker in workers) - own
            foreign = before.foreign_share(own)
            for worker, result in zip(workers, results, strict=True):
                result.peak_rss_bytes = worker.ask("peak_rss_bytes")
                result.gemm_flops = max(worker.ask("gemm", rows=m, inner=k, columns=n) for m, k, n in GEMMS)
        finally:
            for worker in workers:
                worker.close()
    return summary(work, results, foreign)


def start(work: Work, options: argparse.Namespace, scratch: Path) -> list[Worker]:
    """Start brim, take its initial parameters, and start the others with them."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])  # children inherit it
    environment = SLEEPING_THREADS | {"OMP_NUM_THREADS": str(options.threads), "JAX_PLATFORMS": "cpu"}
    initial = scratch / "initial.npz"

    def worker(name: str, *command: str, **more: str) -> Worker:
        return Worker(name, command, environment | more)

    brim = worker("brim", sys.executable, str(HERE / "cpu_step_brim.py"), f"--vocabulary={work.vocabulary}")
    brim.ask("export", path=str(initial))
    torch = [options.torch_python, str(HERE / "cpu_step_torch.py"), f"--vocabulary={work.vocabulary}"]
    torch += [f"--threads={options.threads}", f"--initial={initial}"]
    return [
        brim,
        worker("torch eager", *torch),
        worker(BASELINE, *torch, "--compile"),
        worker(f"{BASELINE}, MKL fast path", *torch, "--compile", LD_PRELOAD=str(mkl_stub(scratch))),
    ]


def mkl_stub(scratch: Path) -> Path:
    """A library that answers MKL's question whether the processor is Intel's with yes."""
    library = scratch / "mkl_fast_path.so"
    source = "int mkl_serv_intel_cpu_true(void) { return 1; }\n"
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=source, text=True, check=True)
    return library


def warm_up(workers: Sequence[Worker], results: Sequence[Result], options: argparse.Namespace) -> None:
    """Compile and settle: these steps count for the losses, not for the times."""
    for worker, result in zip(workers, results, strict=True):
        result.losses += worker.ask("steps", count=max(3, options.steps))["losses"]
        result.facts = worker.ask("facts")
        worker.ask("forget_peak_rss")


def play_round(workers: Sequence[Worker], results: Sequence[Result], turn: int, steps: int) -> None:
    """Every contender once; who begins changes from round to round."""
    order = [(turn + place) % len(workers) for place in range(len(workers))]
    for which in order:
        answer = workers[which].ask("steps", count=steps)
        results[which].round_seconds.append(answer["seconds"])
        results[which].losses += answer["losses"]


def summary(work: Work, results: Sequence[Result], foreign: float) -> dict[str, Any]:
    """Medians, ranges and ratios; ends the program when the losses differ."""
    reference = results[0].losses
    apart = {r.name: max(abs(a - b) for a, b in zip(reference, r.losses, strict=True)) for r in results}
    if max(apart.values()) > TOLERANCE:
        raise SystemExit(f"the contenders do not do the same work: losses differ by {apart}; allowed {TOLERANCE}")
    baseline = next(r for r in results if r.name == BASELINE).seconds()
    rate = max(r.gemm_flops for r in results)
    return {
        "flops_per_token": work.flops_per_token,
        "gemm_flops_per_second": rate,
        "foreign_share": foreign,
        "losses": reference,
        "contenders": {
            r.name: row(work, r, baseline, rate) | {"largest_loss_difference": apart[r.name]} for r in results
        },
    }


def row(work: Work, result: Result, baseline: Sequence[float], rate: float) -> dict[str, Any]:
    """One contender's line; the ratio is taken round by round, so that a slow minute hits both sides."""
    speeds = [work.tokens / seconds for seconds in result.seconds()]
    ratios = [theirs / ours for theirs, ours in zip(baseline, result.seconds(), strict=True)]
    return {
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_second_range": [min(speeds), max(speeds)],
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
        "gemm_share": statistics.median(speeds) * work.flops_per_token / rate,
        "gemm_flops_per_second": result.gemm_flops,
        "peak_rss_bytes": result.peak_rss_bytes,
        "facts": result.facts,
        "round_seconds": result.round_seconds,
    }


def in_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    lines = [f"# The CPU step, {report['date'][:10]}", ""]
    lines += [f"- processor: {report['processor']}; {report['threads']} threads"]
    lines += [f"- versions: {', '.join(f'{k} {v}' for k, v in report['versions'].items())}; brim {report['commit']}"]
    lines += [
        f"- {report['rounds']} rounds of {report['steps_per_round']} steps, contenders taking turns; median [range]"
    ]
    lines += [f"- load average {report['load_average_before']:.2f} before, {report['load_average_after']:.2f} after"]
    for vocabulary, found in report["vocabularies"].items():
        lines += ["", f"## Vocabulary {vocabulary}", ""]
        head = ("", "tokens/s", f"ratio to {BASELINE}", "share of GEMM rate", "peak RSS MiB", "max loss difference")
        rows = [shown(name, contender) for name, contender in found["contenders"].items()]
        lines += [machine.markdown_table(head, rows), ""]
        lines += [f"brim's recipe: {found['contenders']['brim']['facts']['recipe']}."]
        lines += [
            f"{found['flops_per_token'] / 1e6:.1f} MFLOP per token (6 N + 12 L T D); this machine's best fp32 matrix "
            f"product, over all contenders' libraries: {found['gemm_flops_per_second'] / 1e9:.0f} GFLOP/s."
        ]
        shown_losses = ", ".join(f"{loss:.4f}" for loss in found["losses"][:6])
        lines += [f"Losses of the first steps: {shown_losses}; the largest difference is over all steps."]
        foreign = found["foreign_share"]
        lines += [f"Other processes used {foreign:.1%} of the machine. {machine.warning(foreign)}"]
    return "\n".join(lines) + "\n"


def shown(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    low, high = found["tokens_per_second_range"]
    worst, best = found["ratio_range"]
    return (
        name,
        f"{found['tokens_per_second']:.0f} [{low:.0f}-{high:.0f}]",
        f"{found['ratio']:.2f} [{worst:.2f}-{best:.2f}]",
        f"{found['gemm_share']:.0%}",
        f"{found['peak_rss_bytes'] / 2**20:.0f}",
        f"{found['largest_loss_difference']:.0e}",
    )


if __name__ == "__main__":
    main()
