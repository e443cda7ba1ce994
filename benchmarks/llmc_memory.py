"""Do brim's bytes for GPT-2 124M agree with those that a hand-written CUDA trainer allocates?

WHAT IS COMPARED. llm.c's published allocation for GPT-2 124M at batch 56 x 1024 (bf16, cuDNN attention, A800 80GB), in
its three settings of recomputation, against brim's memory report of the same model and batch, compiled for an A100 80GB
that is not here. llm.c's parts are its own formulas in bytes per position (B T), which give its printed total of 18,564
MiB of activations exactly; brim's are read off XLA's buffer assignment. The rematerialization of brim is by names, so
that both keep the same arrays.

WHAT MAY NOT BE CONCLUDED. Nothing about speed. And both totals leave out the CUDA context and what libraries allocate
for themselves; llm.c's log has 21,315 MiB in use on the device.

    python benchmarks/llmc_memory.py        # needs the `plan` extra; about a minute

SOURCE. A log of llm.c's training of GPT-2 124M with `-b 56 -t 1024 -r 1`, and its `train_gpt2.cu`, 2024.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import optax

import machine
from brim.hardware.device import named
from brim.models import DecoderSettings
from brim.models.decoder import RESIDUAL_NAMES, decoder_program
from brim.planner.compile import audit_window
from brim.techniques import AttentionKernel, ChunkedLoss, Precision, Recipe, Rematerialization, Technique

DEVICE = "a100-80-sxm"
ROWS, LENGTH = 56, 1024
SHAPE = DecoderSettings(preset="gpt2", vocabulary=50304).resolved()
MIB = 2**20
WITHOUT_GELU = tuple(name for name in RESIDUAL_NAMES if name not in ("mlp_activation", "mlp_gate", "mlp_out"))
WITHOUT_NORMS = tuple(name for name in WITHOUT_GELU if name not in ("attention_norm", "mlp_norm"))
REMATERIALIZATIONS = (
    Rematerialization("none"),
    Rematerialization("names", names=WITHOUT_GELU),
    Rematerialization("names", names=WITHOUT_NORMS),
)
"""What llm.c's `-r 0`, `-r 1` and `-r 2` are in brim."""
NOTES = (
    "parameters: llm.c has bf16 weights beside an fp32 master; brim makes a bf16 copy of the fp32 ones in the step",
    "gradients: llm.c holds them in bf16 all the time; brim's come after the peak, in bytes that residuals gave back",
    "residuals: the same arrays. llm.c also keeps statistics of norms, which brim makes again, and one GELU output for"
    " all layers when it is made again, which is a temporary in brim",
    "logits: llm.c writes their gradient over them, in bf16; XLA holds them in bf16 and the gradient in fp32, 6 bytes"
    " a logit. A chunked loss never has them all: plans for large batches choose it",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the CUDA plugin then compiles without looking for a driver
    columns: dict[str, Mapping[str, float]] = {}
    for level, technique in enumerate(REMATERIALIZATIONS):
        columns[f"llm.c -r {level}"] = llmc(level)
        columns[f"brim, {('everything kept', 'GELU again', 'GELU, norms again')[level]}"] = brim(technique)
    columns["brim, chunked loss too"] = brim(REMATERIALIZATIONS[-1], ChunkedLoss(1024))
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "versions": machine.versions("jax", "jaxlib", "optax"),
        "columns": columns,
    }
    text = in_markdown(report)
    print(text)
    machine.keep("llmc_memory", report, text, options.out)


def llmc(level: int) -> dict[str, float]:
    """llm.c's allocation in MiB, with recomputation 0, 1 or 2."""
    tokens, layers = ROWS * LENGTH, SHAPE.layers
    unit = 2 * tokens * SHAPE.width / MIB  # one array of B T C in bf16
    norms, gelus = (0 if level == 2 else 2), (layers if level == 0 else 1)
    statistics = 4 * (layers * (4 * tokens + ROWS * SHAPE.heads * LENGTH) + 3 * tokens) / MIB
    parameters = 124_475_904 / MIB
    return {
        "parameters": 4 * parameters,
        "bf16 weights": 2 * parameters,
        "moments": 8 * parameters,
        "gradients": 2 * parameters,
        "residuals": unit * (1 + layers * (3 + norms + 4 + 3) + 4 * gelus + 1) + statistics,
        "logits and loss": 2 * tokens * SHAPE.vocabulary / MIB,
        "temporaries": 5 * unit,
    }


def brim(*techniques: Technique) -> dict[str, float]:
    """What brim's step holds at its peak in MiB, under the same heads."""
    program = decoder_program(SHAPE, optax.adamw(6e-4), clip_norm=1.0, packed=False)
    recipe = Recipe.of(ROWS, Precision("bfloat16"), AttentionKernel("cudnn"), *techniques)
    owners = dict(audit_window(program, recipe, named(DEVICE)).memory_report(vocabulary=SHAPE.vocabulary).owners)
    found = {
        "parameters": owners.pop("parameters"),
        "bf16 weights": owners.pop("casts and copies", 0),
        "moments": owners.pop("optimizer mu") + owners.pop("optimizer nu"),
        "gradients": owners.pop("gradients", 0),
        "residuals": owners.pop("saved residuals"),
        "logits and loss": owners.pop("logits and loss", 0),
    }
    return {name: size / MIB for name, size in {**found, "temporaries": sum(owners.values())}.items()}


def in_markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    columns = report["columns"]
    lines = [f"# GPT-2 124M at 56 x 1024: llm.c's allocation and brim's compiled bytes, {report['date'][:10]}", ""]
    lines += ["MiB. llm.c: its formulas, equal to its log. brim: compiled for an A100 80GB that was not here.", ""]
    names = next(iter(columns.values()))
    rows = [(name, *(f"{column[name]:,.1f}" for column in columns.values())) for name in names]
    rows.append(("in all", *(f"{sum(column.values()):,.1f}" for column in columns.values())))
    lines += [machine.markdown_table(("", *columns), rows), "", *(f"- {note}" for note in NOTES), ""]
    lines += [f"{', '.join(f'{k} {v}' for k, v in report['versions'].items())}; brim {report['commit']}", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
