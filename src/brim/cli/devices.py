"""`brim devices`: the devices that brim can plan for without having one, and what each can and cannot run."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import brim
from brim.errors import EXIT_DONE
from brim.hardware.device import here
from brim.hardware.entries import SOURCES, Entry, own, shipped
from brim.hardware.facts import FEATURES
from brim.hardware.names import entry, is_path, named, reading_of
from brim.quantities import format_bytes
from brim.settings import user_path

_SUMMARY = (
    "List the devices that `brim plan --device` knows. With NAME, or the path of a TOML file that describes a device: "
    "its facts with their sources, and what it can and cannot run."
)
_COLUMNS = (
    "device",
    "architecture",
    "SMs",
    "memory",
    "usable",
    "GB/s",
    "link",
    "bf16",
    "fp16",
    "fp8",
    "TF32",
    "fp32",
)
_PEAKS = ("bfloat16", "float16", "float8", "tensorfloat32", "float32")
_LEGEND = (
    "memory: GiB that programs see; usable: GiB without CUDA's context and the gaps between arrays.",
    "GB/s: of the memory; link: GB/s to the host, one way.",
    "bf16 to fp32: TFLOP/s of dense matrix products with float32 sums; -: no units for it, it runs as fp32.",
)
_NARROW = 110
"""Columns of a terminal below which only names, memory and speeds are shown."""


def run(arguments: list[str]) -> int:
    """Print the list, or one device."""
    parser = argparse.ArgumentParser(prog="brim devices", description=_SUMMARY)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a device, such as 4090, or a TOML file")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    options = parser.parse_args(arguments)
    found = dict(sorted(shipped().items())) if options.name is None else dict([_one(options.name)])
    note = reading_of(options.name) if options.name else None
    if options.json:
        records = [record(name, facts) for name, facts in found.items()]
        print(json.dumps({"brim": brim.__version__, "here": here(), "reading": note, "devices": records}, indent=2))
        return EXIT_DONE
    if note:
        print(f"device: {note}", file=sys.stderr)
    if options.name:
        ((name, facts),) = found.items()
        print("\n".join(_page(name, facts)))
    else:
        _print_list(found, here())
    return EXIT_DONE


def record(name: str, facts: Entry) -> dict[str, Any]:
    """One device as plain values for JSON; every key is there for every device, and is null where nothing is known."""
    device, target = facts.device(name), facts.target
    return {
        "name": name,
        "kind": facts.kind,
        "platform": facts.platform,
        "architecture": facts.architecture or None,
        "compute_capability": facts.compute_capability,
        "cores": target.core_count if target else None,
        "clock_ghz": target.clock_rate_ghz if target else None,
        "l2_bytes": target.l2_cache_size if target else None,
        "nominal_bytes": facts.nominal_bytes,
        "memory_bytes": device.memory_bytes,
        "usable_bytes": device.usable_bytes,
        "bandwidth_bytes_per_second": facts.bandwidth_bytes_per_second,
        "host_link": facts.host_link or None,
        "host_link_bytes_per_second": facts.host_link_bytes_per_second,
        "peak_flops": dataclasses.asdict(facts.peak_flops),
        "can": {feature: device.can(feature) for feature in FEATURES},
        "why_not": {feature: why for feature in FEATURES if (why := device.why_not(feature))},
        "topology": facts.topology,
        "aliases": [*facts.aliases, *facts.stands_for],
        "notes": facts.notes,
        "sources": facts.sources,
    }


def _one(name: str) -> tuple[str, Entry]:
    return own(user_path(name)) if is_path(name) else (named(name).name, entry(name))


def _print_list(found: Mapping[str, Entry], present: str | None) -> None:
    rows = [_row(name, facts, mark="*" if name == present else "") for name, facts in found.items()]
    notes = [*_LEGEND, *([f"*: the device that is here, {found[present].kind}"] if present else [])]
    if sys.stdout.isatty():
        _print_rich(rows, notes)
    else:
        print("\n".join(_aligned([_COLUMNS, *rows])), *notes, sep="\n")


def _row(name: str, facts: Entry, mark: str) -> tuple[str, ...]:
    device = facts.device(name)
    link = facts.host_link_bytes_per_second
    return (
        name + mark,
        facts.architecture,
        str(facts.target.core_count) if facts.target else "-",
        f"{device.memory_bytes / 2**30:.1f}",
        f"{device.usable_bytes / 2**30:.1f}",
        f"{facts.bandwidth_bytes_per_second / 1e9:.0f}",
        f"{link / 1e9:.0f}" if link else "-",
        *(_tera(getattr(facts.peak_flops, name)) for name in _PEAKS),
    )


def _tera(flops: float | None) -> str:
    return "-" if flops is None else f"{flops / 1e12:.1f}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns two spaces apart; words to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{'<' if i < 2 else '>'}{widths[i]}}" for i, cell in enumerate(row))
        yield "  ".join(cells).rstrip()


def _print_rich(rows: Sequence[Sequence[str]], notes: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console()
    narrow = console.width < _NARROW
    hidden = {"architecture", "SMs", "link"} if narrow else set()
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1 if narrow else 2, 0, 0))
    for number, column in enumerate(_COLUMNS):
        if column not in hidden:
            table.add_column(column, justify="left" if number < 2 else "right", no_wrap=True)
    for row in rows:
        cells = (cell for column, cell in zip(_COLUMNS, row, strict=True) if column not in hidden)
        table.add_row(*cells, style="bold" if row[0].endswith("*") else None)
    console.print(table)
    for note in notes:
        console.print(note, style="dim", highlight=False)


def _page(name: str, facts: Entry) -> Iterator[str]:
    """One device: facts beside their sources, features, notes, and what the words of the sources mean."""
    device = facts.device(name)
    yield f"{name}: {facts.kind}"
    yield ""
    yield from _aligned_text([(key, shown, facts.sources.get(key, "")) for key, shown in _facts(facts)])
    yield ""
    context = device.memory_bytes - device.free_bytes
    parts = [f"{format_bytes(context)} for the CUDA context"] if context else []
    parts.append(f"{format_bytes(device.reserve_bytes)} for kernels, work space and gaps (assumed)")
    total = format_bytes(device.memory_bytes)
    yield f"usable memory: {format_bytes(device.usable_bytes)}, which is {total} less {' and '.join(parts)}"
    yield ""
    for feature in FEATURES:
        why = device.why_not(feature)
        yield f"cannot  {feature:15}  {why}" if why else f"can     {feature}"
    if facts.notes or facts.aliases or facts.stands_for:
        yield ""
    yield from (f"note: {note}" for note in facts.notes)
    if others := (*facts.aliases, *facts.stands_for):
        yield f"also called: {', '.join(others)}"
    used = {re.split(r"\W", source, maxsplit=1)[0] for source in facts.sources.values()}
    if used & SOURCES.keys():
        yield ""
        yield from (f"{word}: {meaning}" for word, meaning in SOURCES.items() if word in used)


def _facts(facts: Entry) -> Iterator[tuple[str, str]]:
    """Dotted key and value of every number that is known."""
    known = dataclasses.asdict(facts)
    for key in dict.fromkeys(("architecture", "compute_capability", "topology", "nominal_bytes", *known)):
        value = known[key]
        if key in ("kind", "aliases", "stands_for", "notes", "sources", "platform") or value in (None, ""):
            continue
        if isinstance(value, dict):
            yield from (
                (f"{key}.{inner}", _shown(inner, number)) for inner, number in value.items() if number is not None
            )
        else:
            yield key, _shown(key, value)


def _shown(key: str, value: Any) -> str:
    if key == "compute_capability":
        return ".".join(map(str, value))
    if isinstance(value, float) and value >= 1e6:
        return f"{value:.5g}"
    size = f" ({format_bytes(value)})" if key.endswith("_bytes") or "memory" in key or key.startswith("l2") else ""
    return f"{value}{size}" if key != "memory_bus_bits" else str(value)


def _aligned_text(rows: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
    yield from (f"{key:{first}}  {value:{second}}  {source}".rstrip() for key, value, source in rows)
