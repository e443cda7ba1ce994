"""How near are brim's predictions to a real GPU: bytes of the peak, seconds of a step, and how busy the card is?

WHAT IS COMPARED. Six training steps in bf16, each compiled and run on the GPU that is here:

    GPT-2 124M        nothing recomputed; full rematerialization; full rematerialization and a loss in chunks;
                      the same in micro-batches (accumulation)
    llama-1b shapes   full rematerialization; full rematerialization and a loss in chunks

The rows of each step come from the card's memory (see `rows_for`), so that the same script runs on 12 and on 140 GB.
For every step, in a process of its own so that peaks do not mix:

    predicted peak    arguments + outputs - aliased + temporaries of the compiled step: what `brim plan` judges by. For
                      a card that brim's table has, the same recipe is also compiled as for a card that is NOT here
                      (another process without a GPU, needs the `plan` extra), which is what a laptop would have said
    measured peak     `memory_stats()["peak_bytes_in_use"]` after the timed steps
    step              median seconds of the timed steps after warm-up, each ended by fetching its loss
    predicted step    by the cost model, with assumed shares and with shares calibrated on this card
    MFU               products of the model (recomputation left out) over the card's published bf16 peak and the median

WHAT MAY NOT BE CONCLUDED. Data is made up and lies on the device, so nothing is said of data pipelines. A median of
ten steps says nothing of hours: a card that grows hot slows down. The measured peak is that of JAX's allocator: CUDA's
context and what cuDNN and cuBLAS take for themselves outside of it are not in it, and the allocator rounds up. The
state is made before the step by another program, whose peak may exceed the step's own in small models; where it does
the report says so, and the pair says nothing of the step. One card of a kind is not the kind: clocks and cooling
differ. A table entry that is missing means that its speeds were measured by brim itself, and MFU is then against that.

    python benchmarks/gpu.py                # one GPU; within 8 minutes, what is left out then is named
    python benchmarks/gpu.py --dry-run      # the whole path on a CPU with tiny sizes; its numbers mean nothing
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import machine
from brim.quantities import format_bytes, format_seconds

MOST_SECONDS = 480
"""Of the whole script; a step that would begin later is left out and named."""

STEP_SECONDS_LIMIT = 150
"""Of one process: compile, warm up, time."""

WARM_UP, TIMED = 3, 10
REQUIRED_BF16 = "bfloat16"


@dataclass(frozen=True)
class Case:
    """One training step: a model, techniques, micro-batches per update, and bytes of a card per row of a micro-batch.

    Attributes:
        standing_bytes: state and gradients of the model, roughly: what is there before the first row.
        bytes_per_row: of activations at these settings, roughly and rather too many. Both only choose the rows.
    """

    model: Mapping[str, Any]
    techniques: Mapping[str, Mapping[str, Any]]
    standing_bytes: float
    bytes_per_row: float
    steps: int = 1


GPT2 = {"preset": "gpt2", "vocabulary": 50304}
LLAMA_1B = {"preset": "llama3.2-1b", "vocabulary": 32000, "context": 2048, "rope_theta": 10000.0}
TINY = {"layers": 2, "width": 32, "heads": 2, "context": 32, "vocabulary": 128}
FULL, CHUNKED = {"rematerialization": {"policy": "full"}}, {"chunked_loss": {"tokens": 2048}}
CASES: dict[str, Case] = {
    "GPT-2 124M, none": Case(GPT2, {}, 2.5e9, 1.0e9),
    "GPT-2 124M, full remat": Case(GPT2, FULL, 2.5e9, 4.5e8),
    "GPT-2 124M, full remat, chunked loss": Case(GPT2, FULL | CHUNKED, 2.5e9, 1.5e8),
    "GPT-2 124M, full remat, chunked loss, accumulation x4": Case(GPT2, FULL | CHUNKED, 3.0e9, 1.5e8, steps=4),
    "llama-1b, full remat": Case(LLAMA_1B, FULL, 24.0e9, 1.5e9),
    "llama-1b, full remat, chunked loss": Case(LLAMA_1B, FULL | CHUNKED, 24.0e9, 8.0e8),
}
MOST_ROWS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes on the CPU; numbers mean nothing")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # a JSON request: this process does one part and answers
    options = parser.parse_args()
    if options.part:
        print(json.dumps(do_part(json.loads(options.part))))
        return
    report = make_report(dry_run=options.dry_run)
    text = in_markdown(report)
    print(text)
    name = "dry-run" if report["dry_run"] else report["device"]["table_name"] or "gpu"
    machine.keep(f"gpu-{name}", report, text, options.out)


def make_report(*, dry_run: bool) -> dict[str, Any]:
    """Run every part in a process of its own, until the time is up."""
    began = time.perf_counter()
    common = {"dry_run": dry_run}
    facts = in_process({"do": "facts", **common}, dry_run)
    if "failed" in facts:
        raise SystemExit(f"gpu.py: {facts['failed']}")
    shares = in_process({"do": "calibrate", **common}, dry_run)
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        if time.perf_counter() - began > MOST_SECONDS - STEP_SECONDS_LIMIT:
            rows.append({"name": name, "failed": "left out: the time was up"})
            continue
        request = {"name": name, "rows": rows_for(case, facts["usable_bytes"], dry_run=dry_run), **common}
        if request["rows"] == 0:
            rows.append({"name": name, "failed": "left out: the card has too little memory for one row"})
            continue
        row = {"name": name, **in_process({"do": "measure", "shares": shares, **request}, dry_run)}
        if facts["table_name"] and "failed" not in row:
            row["elsewhere"] = in_process({"do": "elsewhere", "device": facts["table_name"], **request}, True)
        rows.append(row)
        print(f"{name}: {row.get('failed') or format_seconds(row['step_seconds'])}", file=sys.stderr)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "versions": machine.versions("jax", "jaxlib", "optax"),
        "dry_run": dry_run,
        "device": facts,
        "shares": shares,
        "seconds": time.perf_counter() - began,
        "rows": rows,
    }


def rows_for(case: Case, usable_bytes: int, *, dry_run: bool) -> int:
    """Rows of a micro-batch: the largest power of two that should fill at most three quarters of the card."""
    if dry_run:
        return 2
    left = 0.75 * usable_bytes - case.standing_bytes
    rows = int(left // case.bytes_per_row)
    return min(MOST_ROWS, 1 << (rows.bit_length() - 1)) if rows > 0 else 0


def in_process(request: dict[str, Any], on_cpu: bool) -> dict[str, Any]:
    """The answer of another process to one request; `failed` with the last line of its complaint if it has none."""
    environment = dict(os.environ)
    if on_cpu:
        environment["JAX_PLATFORMS"] = "cpu"
    else:
        # The allocator may have nearly all of the card, as `brim train` sets it from the plan.
        environment.setdefault("XLA_CLIENT_MEM_FRACTION", "0.92")
    command = [sys.executable, __file__, "--part", json.dumps(request)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=STEP_SECONDS_LIMIT, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"took longer than {STEP_SECONDS_LIMIT} s"}
    if done.returncode:
        complaint = [line for line in done.stderr.splitlines() if line.strip()]
        return {"failed": complaint[-1][:300] if complaint else f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


# ---- the parts, each in a process of its own


def do_part(request: dict[str, Any]) -> dict[str, Any]:
    """Do what one request asks."""
    parts = {"facts": facts_here, "calibrate": calibrate, "measure": measure, "elsewhere": predict_elsewhere}
    return parts[request["do"]](request)


def facts_here(request: dict[str, Any]) -> dict[str, Any]:
    """What the card is; a machine without one has none to benchmark."""
    from brim.hardware.device import detect, here

    device = detect()
    if device.platform != "gpu" and not request["dry_run"]:
        return {"failed": "no GPU that JAX can use; `brim doctor` says why. --dry-run tries the script on a CPU"}
    return {
        "kind": device.kind,
        "table_name": here(),
        "memory_bytes": device.memory_bytes,
        "usable_bytes": device.usable_bytes,
        "bf16_peak_flops": device.peak_flops.of(REQUIRED_BF16),
        "bandwidth_bytes_per_second": device.bandwidth_bytes_per_second,
        "speeds": device.source,
    }


def calibrate(request: dict[str, Any]) -> dict[str, Any]:
    """Shares of peak and bandwidth, measured now; nothing is kept."""
    from brim.hardware.device import detect
    from brim.planner.calibration import Case as Small
    from brim.planner.calibration import measure as measured

    shares = measured(detect(), (Small(1, 16, 2, 16, 64, 2),) if request["dry_run"] else ())
    return {"products": shares.products, "bandwidth": shares.bandwidth}


def measure(request: dict[str, Any]) -> dict[str, Any]:
    """Predict, run and time one step on the device that is here."""
    import jax

    from brim.hardware.device import detect
    from brim.hardware.roofline import utilization
    from brim.planner.cost import Cost
    from brim.planner.cost_model import work_of
    from brim.planner.memory import Memory
    from brim.training.step import Step

    device = detect()
    program, recipe = program_and_recipe(request, device)
    work = work_of(program, recipe, device)
    once = work_of(program, replace(recipe, techniques=without_rematerialization(recipe)), device)
    step = Step(program, recipe, device)
    predicted = Memory.of(step.compiled, step.assembly, accumulating=recipe.accumulation > 1)
    state = step.init(jax.random.key(0))
    batch = made_up_batch(step.assembly.batch, program.sizes.vocabulary if program.sizes else 2)
    state = jax.block_until_ready(state)
    before = peak_bytes()
    seconds, state = timed(step, state, batch)
    calibrated = replace(
        device,
        product_share=request["shares"].get("products"),
        bandwidth_share=request["shares"].get("bandwidth"),
    )
    return {
        "recipe": recipe.describe(),
        "tokens": program.tokens_per_row * recipe.global_batch,
        "predicted_peak_bytes": predicted.peak_bytes,
        "owners": dict(predicted.owners),
        "measured_peak_bytes": peak_bytes(),
        "peak_before_the_step_bytes": before,
        "step_seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "predicted_seconds": Cost.of(work, device).seconds,
        "predicted_seconds_calibrated": Cost.of(work, calibrated).seconds,
        "mfu": utilization(once.flops, statistics.median(seconds), device),
        "compile_seconds": sum(step.compile_seconds.values()),
        "notes": step.notes,
    }


def predict_elsewhere(request: dict[str, Any]) -> dict[str, Any]:
    """The peak that a machine without this card predicts: the same recipe, compiled for its description."""
    from brim.hardware.device import named
    from brim.planner.compile import compile_window

    device = named(request["device"])
    program, recipe = program_and_recipe(request, device)
    return {"predicted_peak_bytes": compile_window(program, recipe, device).memory.peak_bytes}


def program_and_recipe(request: dict[str, Any], device: Any) -> tuple[Any, Any]:
    """The program and recipe of a request; the same wherever it is compiled."""
    import optax

    from brim.hardware.compiler_options import default_options
    from brim.models.decoder import decoder_program
    from brim.models.settings import DecoderSettings
    from brim.techniques import Accumulation, Recipe, techniques_from

    case = CASES[request["name"]]
    shape = DecoderSettings(**(TINY if request["dry_run"] else case.model)).resolved()
    program = decoder_program(shape, optax.adamw(3e-4), 1.0, packed=False)
    common: dict[str, Any] = {} if request["dry_run"] else {"precision": {"compute": REQUIRED_BF16}}
    chunk = {"chunked_loss": {"tokens": 32}} if request["dry_run"] and "chunked_loss" in case.techniques else {}
    techniques = techniques_from({**common, **case.techniques, **chunk})
    options = default_options(device)
    return program, Recipe.of(request["rows"], *techniques, Accumulation(case.steps), compiler_options=options)


def without_rematerialization(recipe: Any) -> tuple[Any, ...]:
    """The techniques with everything kept and the loss whole, so that no product is counted twice."""
    again = ("rematerialization", "chunked_loss")
    return tuple(type(technique)() if technique.name in again else technique for technique in recipe.techniques)


def made_up_batch(specs: Any, vocabulary: int) -> Any:
    """Token ids at random, on the device."""
    import jax
    import numpy as np

    random = np.random.default_rng(0)
    return jax.device_put(
        jax.tree.map(lambda spec: random.integers(0, vocabulary, spec.shape).astype(spec.dtype), specs)
    )


def timed(step: Any, state: Any, batch: Any) -> tuple[list[float], Any]:
    """Seconds of each step after warm-up; a step has ended when its loss was fetched."""
    seconds = []
    for number in range(WARM_UP + TIMED):
        start = time.perf_counter()
        state, metrics = step(state, batch)
        loss = float(metrics.loss)
        if number >= WARM_UP:
            seconds.append(time.perf_counter() - start)
    if not math.isfinite(loss):
        raise SystemExit("the loss is not finite: the step that was timed is broken")
    return seconds, state


def peak_bytes() -> int | None:
    """The most that JAX's allocator had handed out at a time; None where it does not tell, as on a CPU."""
    import jax

    return (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")


# ---- the report


def in_markdown(report: dict[str, Any]) -> str:
    """The report for people."""
    device, shares = report["device"], report["shares"]
    title = "DRY RUN, numbers mean nothing" if report["dry_run"] else device["kind"]
    calibrated = (
        f"{shares['products']:.0%} of the peak in products, {shares['bandwidth']:.0%} of the bandwidth"
        if "failed" not in shares
        else f"failed ({shares['failed']})"
    )
    lines = [
        f"# Predicted against measured: {title}, {report['date'][:10]}",
        "",
        f"- device: {device['kind']}, {format_bytes(device['memory_bytes'])}, speeds {device['speeds']}",
        f"- calibrated shares: {calibrated}",
        f"- versions: {', '.join(f'{k} {v}' for k, v in report['versions'].items())}; brim {report['commit']}",
        f"- the whole script took {format_seconds(report['seconds'])}; {TIMED} steps timed after {WARM_UP}",
        "",
    ]
    head = (
        *("step", "rows x steps", "predicted peak", "predicted elsewhere", "measured peak", "predicted / measured"),
        *("median step", "predicted / measured", "calibrated / measured", "tokens/s", "MFU"),
    )
    return "\n".join(lines) + "\n" + machine.markdown_table(head, map(shown, report["rows"])) + "\n"


def shown(row: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    if "failed" in row:
        return (row["name"], row["failed"], *[""] * 9)
    elsewhere = row.get("elsewhere", {})
    predicted, measured, seconds = row["predicted_peak_bytes"], row["measured_peak_bytes"], row["step_seconds"]
    above = measured is not None and measured > (row["peak_before_the_step_bytes"] or 0)
    ratio = f"{predicted / measured:.3f}" if above else "no measure of the step"
    return (
        row["name"],
        row["recipe"].split(",")[0],
        format_bytes(predicted),
        format_bytes(elsewhere["predicted_peak_bytes"])
        if "predicted_peak_bytes" in elsewhere
        else elsewhere.get("failed", "not tried"),
        "not told" if measured is None else format_bytes(measured),
        ratio,
        format_seconds(seconds),
        f"{row['predicted_seconds'] / seconds:.2f}",
        f"{row['predicted_seconds_calibrated'] / seconds:.2f}",
        f"{row['tokens'] / seconds:,.0f}",
        f"{row['mfu']:.1%}",
    )


if __name__ == "__main__":
    main()
