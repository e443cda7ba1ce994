"""Where the bytes of a plan's step go and what it runs, for people: tables and a few sentences."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from brim.compiled import Kernel, KernelList, MemoryReport
from brim.compiled.owners import LOGITS, OUTPUTS, RESIDUALS, UNEXPLAINED
from brim.quantities import MIB, format_bytes, format_count
from brim.techniques import Recipe

SCOPES_SHOWN = 3
ASSUMED_CHUNKS = 8
LOSS_POINT = "cross_entropy"
_NOT_DONATED_SHARE = 0.01
_PHASES = {
    "forward": "the forward pass", "recompute": "recomputation in the backward pass", "backward": "the backward pass",
    "update": "the update",
}  # fmt: skip


def chunks_loss(recipe: Recipe) -> bool:
    """Whether a technique of the recipe already takes the place of the plain loss."""
    return any(LOSS_POINT in each.points and not each.is_plain for each in recipe.techniques)


def of_memory(report: MemoryReport, is_chunked: bool) -> RenderableType:
    """Device bytes at the peak by owner, when the peak is, and what would make it smaller.

    Args:
        is_chunked: whether the loss is computed in chunks already.
    """
    table = _table(("at the peak", "left"), ("MiB", "right"), ("share", "right"))
    for name, size in report.owners.items():
        table.add_row(Text(name), _mib(size), _share(size, report.peak_bytes))
        scopes = report.scopes(RESIDUALS) if name == RESIDUALS else {}
        for scope, bytes_ in list(scopes.items())[:SCOPES_SHOWN]:
            cells = f"  {scope}", _mib(bytes_), _share(bytes_, report.peak_bytes)
            table.add_row(*(Text(cell, style="dim") for cell in cells))
    table.add_section()
    table.add_row("peak", _mib(report.peak_bytes), _share(report.peak_bytes, report.peak_bytes))
    return Group(table, *map(Text, _sentences(report)), what_if(report, is_chunked))


def what_if(report: MemoryReport, is_chunked: bool) -> RenderableType:
    """The peak if something were gone: lower bounds, and said to be."""
    table = _table(("what if", "left"), ("peak, a lower bound", "right"), ("saves at most", "right"))
    for label, least in _bounds(report, is_chunked):
        table.add_row(label, f"at least {format_bytes(least)}", format_bytes(max(0, report.peak_bytes - least)))
    return table if table.row_count else Text("")


def of_rows(report: MemoryReport) -> RenderableType:
    """Every row of the report, with the path, phase and source line of its owner."""
    table = _table(("owner", "left"), ("MiB", "right"), ("pieces", "right"), ("what", "left"), ("line", "left"))
    for place, rows in (("", report.rows), (" (host)", report.host_rows)):
        for row in rows:
            owner = row.owner
            what = f"{owner.path} ({owner.phase})" if owner.phase else owner.path
            cells = f"{owner.kind}{place}", _mib(row.bytes), f"{row.buffers}", what, owner.source
            table.add_row(*map(Text, cells))
    return table


def of_kernels(kernels: KernelList) -> RenderableType:
    """Kernels by kind, FLOPs by dtype, and the whole list, most bytes first."""
    kinds = _table(("kernels", "left"), ("runs", "right"), ("bytes", "right"), ("FLOPs", "right"))
    for kind, (runs, size, flops) in kernels.by_kind().items():
        kinds.add_row(Text(kind), format_count(runs), format_bytes(size), _flops(flops))
    kinds.add_section()
    total = sum(kernels.flops.values())
    kinds.add_row("all", format_count(kernels.runs), format_bytes(kernels.bytes + kernels.host_bytes), _flops(total))
    products = [f"matrix products {dtypes}: {format_count(flops)} FLOPs" for dtypes, flops in kernels.flops.items()]
    return Group(kinds, *map(Text, products), *map(Text, wide_products(kernels)), _listed(kernels))


def wide_products(kernels: KernelList | None) -> list[str]:
    """A line for each kernel that multiplies in fp32 in a step whose other products are in 16 bits."""
    if kernels is None or all(each.is_wide for kernel in kernels.kernels for each in kernel.products):
        return []
    total = sum(kernels.flops.values())
    return [
        f"fp32 in a 16-bit step: {_where(kernel)} multiplies fp32 operands, "
        f"{kernel.runs * kernel.flops / total:.1%} of the step's FLOPs"
        for kernel in kernels.wide()
    ]


def _sentences(report: MemoryReport) -> Iterator[str]:
    peak = report.peak
    source = f" ({peak.source})" if peak.source else ""
    yield (
        f"The peak comes in {_PHASES.get(peak.phase, peak.phase)}, at {peak.path or peak.instruction}{source}: "
        f"instant {peak.instant:,} of {report.timeline.length:,}."
    )
    if size := report.owners.get(UNEXPLAINED, 0):
        yield f"Unexplained: {format_bytes(size)}, {_share(size, report.peak_bytes)} of the peak, have no owner."
    if report.host_bytes:
        owners = ", ".join(f"{name} {format_bytes(size)}" for name, size in report.host_owners.items())
        yield f"In host memory beside it: {format_bytes(report.host_bytes)} ({owners})."


def _bounds(report: MemoryReport, is_chunked: bool) -> Iterator[tuple[str, int]]:
    if LOGITS in report.without:
        yield f"without {LOGITS}", _bound(report, LOGITS, 0.0)
        if not is_chunked:
            yield f"with the loss in {ASSUMED_CHUNKS} chunks", _bound(report, LOGITS, 1 / ASSUMED_CHUNKS)
    if report.owners.get(OUTPUTS, 0) > _NOT_DONATED_SHARE * report.peak_bytes:
        yield "with the state donated", _bound(report, OUTPUTS, 0.0)


def _bound(report: MemoryReport, kind: str, kept: float) -> int:
    """Least peak if only a share of one kind were there at each instant."""
    timeline = report.timeline
    pairs = zip(timeline.live_bytes(), timeline.live_bytes(without=kind), strict=True)
    return max(int(less + kept * (all_ - less)) for all_, less in pairs)


def _listed(kernels: KernelList) -> Table:
    table = _table(("runs", "right"), ("bytes", "right"), ("FLOPs", "left"), ("kind", "left"), ("what", "left"))
    for kernel in sorted(kernels.kernels, key=lambda each: -each.runs * each.bytes):
        products = ", ".join(
            f"{format_count(kernel.runs * each.flops)} {each.operands} -> {each.result}" for each in kernel.products
        )
        cells = f"{kernel.runs}", format_bytes(kernel.runs * kernel.bytes), products, kernel.kind, _where(kernel)
        table.add_row(*map(Text, cells))
    return table


def _where(kernel: Kernel) -> str:
    place = f" ({kernel.source})" if kernel.source else ""
    return f"{kernel.phase}: {kernel.path or kernel.name}{place}"


def _table(*columns: tuple[str, str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for name, justify in columns:
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    return table


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}" if size >= 0.05 * MIB else "<0.1"


def _share(size: int, whole: int) -> str:
    share = size / whole if whole else 0.0
    return f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def _flops(flops: float) -> str:
    return format_count(flops) if flops else ""
