"""Which plan does brim choose for the models people train, on the cards people have, and how long does the search take?

WHAT IS COMPARED. Six run files (GPT-2 in its four sizes; the Llama shapes of 1.2B and 3.2B with a vocabulary of 32k),
each planned for four cards that are not here, at the global batch of its file, about half a million tokens an update.
Every peak is arguments + outputs - aliased + temporaries of the step as XLA compiled it for that card. Searches start
cold: no compile and no finished search is taken from the cache.

WHAT MAY NOT BE CONCLUDED. Tokens per second are PREDICTIONS from data sheets and shares of peak that are assumed, not
measured; only their order is used. Seconds of a search grow with whatever else the machine does. A GPU adds the CUDA
context, which the budget leaves room for. Nothing here ran on a GPU.

    python benchmarks/planned_models.py                                  # needs the `plan` extra; under an hour
    python benchmarks/planned_models.py --models gpt2-124m --devices rtx-4090
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax

import machine
from brim.hardware.device import named
from brim.planner import Plan
from brim.quantities import format_bytes, format_count, format_seconds
from brim.runfile import RunFile
from brim.supervisor.planning import plan_of
from brim.supervisor.request import Request

CONFIGS = Path(__file__).parent.parent / "configs"
MODELS: Mapping[str, tuple[str, Sequence[str]]] = {
    "gpt2-124m": ("gpt2-124m", ()),
    "gpt2-350m": ("gpt2-124m", ("--model.preset", "gpt2-medium")),
    "gpt2-774m": ("gpt2-124m", ("--model.preset", "gpt2-large")),
    "gpt2-1.5b": ("gpt2-1.5b", ()),
    "llama-1b": ("llama-1b", ()),
    "llama-3b": ("llama-3b", ()),
}
"""Name -> its run file, and what is changed in it."""
DEVICES = ("rtx-3060-12gb", "rtx-4090", "a100-80-sxm", "h100-sxm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="MODEL")
    parser.add_argument("--devices", nargs="+", default=DEVICES, metavar="DEVICE")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", help="folder of the report")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")  # the CUDA plugin then compiles without looking for a driver
    rows = []
    for model in options.models:
        for device in options.devices:
            rows.append(row(model, planned(model, device)))
            print(rows[-1], file=sys.stderr, flush=True)
    report = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": machine.commit(),
        "processor": machine.processor(),
        "versions": machine.versions("jax", "jaxlib", "optax"),
        "rows": rows,
    }
    text = in_markdown(report)
    print(text)
    machine.keep("planned_models", report, text, options.out)


def planned(model: str, device: str) -> Plan:
    """The plan of one model for one card, from a cold start."""
    config, overrides = MODELS[model]
    run = RunFile.load(CONFIGS / f"{config}.toml", overrides)
    return plan_of(run, Request(device=named(device), progress=lambda line: None))


def row(model: str, plan: Plan) -> dict[str, Any]:
    """What the table shows of one plan, as plain values."""
    found: dict[str, Any] = {
        "model": model,
        "device": plan.device.name,
        "fits": plan.fits,
        "budget_bytes": plan.budget_bytes,
        "candidates": len(plan.candidates),
        "compiles": plan.compiles,
        "search_seconds": plan.seconds,
        "compile_seconds": plan.compile_seconds,
    }
    if not plan.fits:
        return found
    return found | {
        "recipe": plan.recipe.describe(),
        "peak_bytes": plan.chosen.peak_bytes,
        "tokens_per_second": plan.chosen.predicted_tokens_per_second,
    }


def in_markdown(report: Mapping[str, Any]) -> str:
    """The report for people."""
    lines = [f"# Plans of six models for four cards, {report['date'][:10]}", ""]
    lines += ["- compiled for cards that were not here; tokens/s are predictions; nothing ran on a GPU"]
    lines += [f"- searched on {report['processor']}, nothing taken from the cache"]
    lines += [f"- {', '.join(f'{k} {v}' for k, v in report['versions'].items())}; brim {report['commit']}", ""]
    head = (
        "model",
        "card",
        "rows x steps, settings",
        "peak",
        "of budget",
        "tokens/s",
        "compiled",
        "compiles",
        "search",
    )
    return "\n".join(lines) + "\n" + machine.markdown_table(head, map(shown, report["rows"])) + "\n"


def shown(found: Mapping[str, Any]) -> tuple[str, ...]:
    """One line of the table."""
    budget = format_bytes(found["budget_bytes"])
    plan = ("none fits", "", budget, "")
    if found["fits"]:
        speed = format_count(round(found["tokens_per_second"]))
        plan = (found["recipe"], format_bytes(found["peak_bytes"]), budget, speed)
    counts = f"{found['compiles']} of {found['candidates']}"
    times = format_seconds(found["compile_seconds"]), format_seconds(found["search_seconds"])
    return (found["model"], found["device"], *plan, counts, *times)


if __name__ == "__main__":
    main()
