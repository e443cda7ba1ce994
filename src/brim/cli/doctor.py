"""`brim doctor`: what is installed and in force, and what is wrong with it."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterator

import brim
from brim.errors import EXIT_DONE, EXIT_ERROR
from brim.hardware.doctor import FRACTIONS, Environment, Finding, findings
from brim.hardware.examine import examine
from brim.quantities import format_bytes

_SUMMARY = "Say what is installed and what is wrong with it. Exit code 0 if all is well, 1 if not."


def run(arguments: list[str]) -> int:
    """Print the report, or JSON with --json; 0 if nothing is wrong, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="brim doctor", description=_SUMMARY)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    environment = examine()
    wrong = findings(environment)
    print(_as_json(environment, wrong) if options.json else "\n".join(_as_text(environment, wrong)))
    return EXIT_ERROR if wrong else EXIT_DONE


def _as_json(environment: Environment, wrong: tuple[Finding, ...]) -> str:
    report = {
        "brim": brim.__version__,
        "well": not wrong,
        "environment": dataclasses.asdict(environment),
        "findings": [dataclasses.asdict(finding) for finding in wrong],
    }
    return json.dumps(report, indent=2)


def _as_text(environment: Environment, wrong: tuple[Finding, ...]) -> Iterator[str]:
    rows = list(_rows(environment))
    width = max(len(label) for label, _ in rows)
    yield from (f"{label:{width}}  {value}" for label, value in rows)
    for number, finding in enumerate(wrong, start=1):
        yield f"\n{number}. {finding.message}\n   hint: {finding.hint}"
    yield f"\n{len(wrong)} to look at." if wrong else "\nAll is well."


def _rows(environment: Environment) -> Iterator[tuple[str, str]]:
    yield "brim", brim.__version__
    yield "Python", environment.python
    yield from environment.packages.items()
    yield "device", ", ".join(environment.started.devices) or "none: JAX does not start"
    yield "platform", environment.started.platform or "none"
    for gpu in environment.gpus:
        yield "GPU", f"{gpu.name}, {format_bytes(gpu.free_bytes)} free of {format_bytes(gpu.total_bytes)}"
        yield "driver", gpu.driver
    if not environment.gpus:
        yield "driver", environment.gpu_complaint.partition("\n")[0] or "none (no nvidia-smi)"
    set_by = next((name for name in FRACTIONS if environment.variables.get(name)), None)
    unset = "not set: `brim train` sets it from the plan on a GPU; JAX alone would take 0.75"
    yield "memory fraction", f"{environment.variables[set_by]} ({set_by})" if set_by else unset
    yield "XLA flags", " ".join(environment.xla_flags) or "none"
    yield from ((name, value) for name, value in environment.variables.items() if name != "XLA_FLAGS")
