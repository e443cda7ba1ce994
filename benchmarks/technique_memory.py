"""How many bytes does each memory technique save, and what does it cost in arithmetic?

WHAT IS COMPARED. The compiled training step of one model with no technique, with each technique alone, and with the
combinations that people use. Bytes are those that XLA will allocate (arguments + outputs - aliased + temporaries of the
compiled, donated step), so they are exact and the same on every run; FLOPs are counted on the jaxpr, times the trip
counts of its loops, so recomputation is in them.

    cpu     a small scanned decoder, fp32
    h100    GPT-2 124M, batch 8 x 1024, bf16, compiled for an H100 that is not there (needs the `plan` extra)

WHAT MAY NOT BE CONCLUDED. Nothing about speed: fewer FLOPs are not less time, and memory traffic is not counted. Bytes
of one model do not scale to another by a factor; `brim plan` compiles yours. A GPU adds the CUDA context and what
libraries allocate for themselves.

    python benchmarks/technique_memory.py cpu
    python benchmarks/technique_memory.py h100
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import optax

import machine
from brim.hardware.device import detect, named
from brim.hardware.facts import Device
from brim.hardware.flops import count_flops
from brim.models import DecoderSettings
from brim.models.decoder import decoder_program
from brim.planner.compile import compile_window
from brim.program import Program
from brim.quantities import format_bytes
from brim.techniques import Recipe, techniques_from
from brim.training.assemble import assemble

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Case:
    """A model on a device, what every row has in common, and what each row adds to it."""

    model: DecoderSettings
    rows: int
    common: Tables
    added: Mapping[str, Tables]


FULL, UNROLLED = {"rematerialization": {"policy": "full"}}, {"rematerialization": {"unroll": 0}}
DOTS = {"rematerialization": {"policy": "dots_without_batch"}}
CHUNKED, ACCUMULATED = {"chunked_loss": {"tokens": 512}}, {"accumulation": {"steps": 4}}
COMBINED: dict[str, Tables] = {
    "full remat + chunked loss": FULL | CHUNKED,
    "full remat + chunked loss + accumulation x4": FULL | CHUNKED | ACCUMULATED,
}
ALONE: dict[str, Tables] = {
    "none": {},
    "remat dots without batch": DOTS,
    "remat full": FULL,
    "unrolled": UNROLLED,
    "chunked loss": CHUNKED,
    "accumulation x4": ACCUMULATED,
}
CASES = {
    "cpu": Case(
        DecoderSettings(layers=8, width=256, heads=4, context=256, vocabulary=8192),
        rows=8,
        common={"attention_kernel": {"kernel": "reference"}},
        added=ALONE
        | {
            "bf16": {"precision": {"compute": "bfloat16"}},
            "attention blockwise": {"attention_kernel": {"kernel": "blockwise"}},
        }
        | COMBINED,
    ),
    "h100": Case(
        DecoderSettings(preset="gpt2", vocabulary=50304),
        rows=8,
        common={"precision": {"compute": "bfloat16"}, "attention_kernel": {"kernel": "cudnn"}},
        added=ALONE | {"attention reference": {"attention_kernel": {"kernel": "reference"}}} | COMBINED,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the CUDA plugin then compiles without looking for a driver
    case = CASES[options.case]
    device = detect() if options.case == "cpu" else named(options.case)
    program = decoder_program(case.model.resolved(), optax.adamw(3e-4), 1.0, packed=False)
    rows = []
    for name, tables in case.added.items():
        rows.append(measure(name, program, recipe_of(case, tables), device))
        print(f"{name}: {format_bytes(rows[-1]['bytes'])}", file=sys.stderr)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "device": device.kind,
        "versions": machine.versions("jax", "jaxlib", "optax"),
        "model": str(case.model.resolved()),
        "rows": rows,
    }
    text = in_markdown(options.case, report)
    print(text)
    machine.keep(f"technique_memory-{options.case}", report, text, options.out)


def recipe_of(case: Case, added: Tables) -> Recipe:
    """The recipe of one row, at the case's global batch."""
    techniques = techniques_from({**case.common, **added})
    steps = int(added.get("accumulation", {}).get("steps", 1))
    return Recipe.of(case.rows // steps, *techniques)


def measure(name: str, program: Program, recipe: Recipe, device: Device) -> dict[str, Any]:
    """Compile one recipe and count its FLOPs."""
    compiled = compile_window(program, recipe, device)
    assembly = assemble(program, recipe, device, lambda note: None)
    return {
        "name": name,
        "recipe": recipe.describe(),
        "bytes": compiled.memory.peak_bytes,
        "temporaries": compiled.memory.temporaries,
        "owners": dict(compiled.memory.owners),
        "flops": count_flops(jax.make_jaxpr(assembly.window)(assembly.state, assembly.batch)).total,
        "notes": compiled.notes,
    }


def in_markdown(case: str, report: dict[str, Any]) -> str:
    """The report for people."""
    plain = report["rows"][0]
    lines = [f"# Bytes and FLOPs of each technique, {case}, {report['date'][:10]}", ""]
    lines += [f"- device: {report['device']}; model: {report['model']}"]
    lines += [
        f"- versions: {', '.join(f'{k} {v}' for k, v in report['versions'].items())}; brim {report['commit']}",
        "",
    ]
    head = ("technique", "bytes", "to none", "temporaries", "GFLOP", "to none", "notes")
    table = machine.markdown_table(head, (shown(row, plain) for row in report["rows"]))
    return "\n".join(lines) + "\n" + table + "\n"


def shown(row: dict[str, Any], plain: dict[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    return (
        row["name"],
        format_bytes(row["bytes"]),
        f"{row['bytes'] / plain['bytes']:.2f}",
        format_bytes(row["temporaries"]),
        f"{row['flops'] / 1e9:.0f}",
        f"{row['flops'] / plain['flops']:.3f}",
        "; ".join(row["notes"]),
    )


if __name__ == "__main__":
    main()
