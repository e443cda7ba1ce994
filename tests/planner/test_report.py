"""What is printed of a report, against the report's own numbers and against planted faults."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import jax.numpy as jnp
import pytest
from rich.console import Console, RenderableType

from brim.compiled import MemoryReport, Owner, Row
from brim.compiled.owners import UNEXPLAINED
from brim.planner import Plan
from brim.planner.report import chunks_loss, of_kernels, of_memory, of_rows, wide_products
from brim.quantities import MIB, format_bytes
from brim.techniques import ChunkedLoss, Recipe
from compiled.small import ROLES, VOCABULARY, audited


def printed(renderable: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(renderable)
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def plain() -> MemoryReport:
    return audited().memory_report(ROLES, VOCABULARY)


def test_owners_stand_largest_first_and_add_up(plain: MemoryReport) -> None:
    text = printed(of_memory(plain, is_chunked=False)).split("what if")[0]
    places = [text.index(f"\n {name} ") for name in plain.owners]
    assert places == sorted(places)
    rows = re.findall(r"^ (\w[^\d\n<]*?) +([\d.]+|<0\.1) +[\d<.]+%", text, flags=re.MULTILINE)
    shown = {name: 0.0 if size == "<0.1" else float(size) for name, size in rows}
    peak = shown.pop("peak")
    assert shown.keys() == plain.owners.keys()
    assert peak == pytest.approx(plain.peak_bytes / MIB, abs=0.05)
    assert sum(shown.values()) == pytest.approx(peak, abs=0.1 * len(shown))


def test_the_largest_scopes_of_saved_residuals_are_named(plain: MemoryReport) -> None:
    text = printed(of_memory(plain, is_chunked=False))
    scopes = [scope for scope in plain.scopes("saved residuals") if scope]
    assert len(scopes) >= 2
    assert re.search(rf"\n +{scopes[0]} +{next(iter(plain.scopes('saved residuals').values())) / MIB:.1f} ", text)


def test_the_peak_is_told_in_words(plain: MemoryReport) -> None:
    text = " ".join(printed(of_memory(plain, is_chunked=False)).split())
    assert f"at {plain.peak.path} ({plain.peak.source})" in text
    assert "small.py:" in plain.peak.source
    assert f"instant {plain.peak.instant:,} of {plain.timeline.length:,}" in text


def test_what_if_lines_are_lower_bounds_of_what_is_compiled(plain: MemoryReport) -> None:
    text = printed(of_memory(plain, is_chunked=False))
    found = dict(re.findall(r"(without logits and loss|with the loss in 8 chunks) +at least ([\d.]+ \w+)", text))
    assert found["without logits and loss"] == format_bytes(plain.without["logits and loss"])
    eighth = float(found["with the loss in 8 chunks"].split()[0]) * MIB
    assert plain.without["logits and loss"] - 0.06 * MIB <= eighth < plain.peak_bytes
    assert eighth - 0.06 * MIB <= audited(chunks=8).memory_report(ROLES, VOCABULARY).peak_bytes
    assert "8 chunks" not in printed(of_memory(plain, is_chunked=True))
    assert "donated" not in text


def test_a_lost_donation_has_a_what_if_line(plain: MemoryReport) -> None:
    text = printed(of_memory(audited(donate=False).memory_report(ROLES, VOCABULARY), is_chunked=False))
    bound = re.search(r"with the state donated +at least ([\d.]+) MiB", text)
    assert bound and float(bound[1]) * MIB <= plain.peak_bytes + 0.06 * MIB


def test_a_planted_fp32_head_is_flagged_in_words() -> None:
    wide = audited(compute=jnp.bfloat16, head_dtype=jnp.float32).kernels()
    lines = wide_products(wide)
    assert lines and all("fp32 in a 16-bit step" in line and "loss/" in line and "small.py:" in line for line in lines)
    assert lines[0] in " ".join(printed(of_kernels(wide)).split())
    assert wide_products(audited(compute=jnp.bfloat16).kernels()) == []
    assert wide_products(audited().kernels()) == []  # a step meant for fp32
    assert wide_products(None) == []


def test_kernels_are_listed_with_their_sums() -> None:
    kernels = audited().kernels()
    text = printed(of_kernels(kernels))
    assert re.search(rf"\n all +{kernels.runs} +{re.escape(format_bytes(kernels.bytes))} ", text)
    for kind in kernels.by_kind():
        assert f"\n {kind} " in text
    assert text.count("loss/") >= sum("loss/" in kernel.path for kernel in kernels.kernels)


def test_bytes_without_an_owner_are_said(plain: MemoryReport) -> None:
    assert "Unexplained" not in printed(of_memory(plain, is_chunked=False))
    first, *others = plain.rows
    odd = replace(plain, rows=(replace(first, owner=Owner(UNEXPLAINED, how="none")), *others))
    assert f"Unexplained: {format_bytes(first.bytes)}" in printed(of_memory(odd, is_chunked=False))


def test_host_bytes_stand_beside(plain: MemoryReport) -> None:
    offloaded = replace(plain, host_rows=(Row(Owner("optimizer mu"), 3 * MIB, 1),))
    text = printed(of_memory(offloaded, is_chunked=False))
    assert "In host memory beside it: 3.0 MiB (optimizer mu 3.0 MiB)." in text
    assert "optimizer mu (host)" in printed(of_rows(offloaded))


def test_every_row_is_printed_on_demand(plain: MemoryReport) -> None:
    text = printed(of_rows(plain))
    assert all(row.owner.path in text for row in plain.rows)
    assert len(text.splitlines()) >= len(plain.rows)


def test_a_technique_that_takes_the_place_of_the_loss_is_seen() -> None:
    assert chunks_loss(Recipe.of(4, ChunkedLoss(256)))
    assert not chunks_loss(Recipe.of(4))
    assert not chunks_loss(Recipe.of(4, ChunkedLoss(0)))


def test_a_printed_plan_holds_its_report(reported: Plan) -> None:
    text = str(reported)
    assert "at the peak" in text and "optimizer mu" in text and "The peak comes in" in text
