"""The ledger: every byte of a compiled step gets an owner, and the books must balance.

XLA's own memory analysis says how many bytes a step needs, arguments + outputs - aliased + temporaries. Its buffer
assignment says where each of them lies. The two are added up apart, and a report is only made when they agree to the
byte. Then each arena is replayed: which buffers are alive at each instant, whose they are, and when they are most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from brim.compiled.buffers import Allocation, BufferAssignment
from brim.compiled.leases import Lease, replay
from brim.compiled.module import Module
from brim.compiled.names import path_of
from brim.compiled.owners import ALIGNMENT, OUTPUTS, How, Owner, Owners
from brim.compiled.report import MemoryReport, Peak, Row, Timeline
from brim.compiled.roles import Roles
from brim.errors import DeviceError


@dataclass(frozen=True)
class Span:
    """Bytes of one owner, from one instant to another, both included."""

    owner: Owner
    bytes: int
    begin: int
    end: int


def memory_report(
    module: Module, memory: BufferAssignment, analysis: Any, roles: Roles | None = None, vocabulary: int | None = None
) -> MemoryReport:
    """Give every byte of a compiled step its owner.

    Args:
        module, memory: what was compiled.
        analysis: what `compiled.memory_analysis()` gave for it.
        roles: which arguments are what; by default those of a step that brim assembled.
        vocabulary: size of the vocabulary, if there is one.

    Raises:
        DeviceError: if the buffer assignment and the memory analysis do not agree to the byte, or more bytes are alive
            at once than are allocated.
    """
    owners = Owners(module, memory, roles or Roles(), vocabulary)
    device = [each for each in memory.allocations if not each.on_host and not each.is_constant]
    host = [each for each in memory.allocations if each.on_host and not each.is_constant]
    _require_balance(device, analysis)
    resident, spans = _books(owners, device)
    timeline = _timeline(owners, resident, spans)
    peak = _peak(owners, timeline)
    rows = _rows_at(peak.instant, resident, spans)
    rows = _with_gaps(rows, device)
    return MemoryReport(
        arguments=analysis.argument_size_in_bytes,
        outputs=analysis.output_size_in_bytes,
        aliased=analysis.alias_size_in_bytes,
        temporaries=analysis.temp_size_in_bytes,
        rows=rows,
        host_rows=_host_rows(owners, host),
        constants_bytes=sum(each.bytes for each in memory.allocations if each.is_constant),
        peak=peak,
        timeline=timeline,
        without={kind: max(timeline.live_bytes(without=kind)) for kind in timeline.kinds},
        how=_shares(rows),
    )


def _require_balance(device: Sequence[Allocation], analysis: Any) -> None:
    """Two ways to count the same bytes must give the same number."""
    expected = analysis.argument_size_in_bytes + analysis.output_size_in_bytes
    expected += analysis.temp_size_in_bytes - analysis.alias_size_in_bytes
    found = sum(each.bytes for each in device)
    if found != expected:
        raise DeviceError(
            f"XLA's buffer assignment adds up to {found} bytes on the device; its memory analysis says {expected}",
            hint="this version of JAX counts in another way than brim knows; plan without the report by owner",
        )


def _books(owners: Owners, allocations: Iterable[Allocation]) -> tuple[list[tuple[Owner, int]], list[Span]]:
    """(owner, bytes) of what is there all the time, and spans of what comes and goes."""
    resident: list[tuple[Owner, int]] = []
    spans: list[Span] = []
    for each in allocations:
        if each.number in owners.memory.traces:
            leases = replay(owners.module, owners.memory, each.number)
            spans.extend(span for lease in leases for span in _spans(owners, lease))
        else:
            resident.append((_resident_owner(owners, each), each.bytes))
    return resident, spans


def _spans(owners: Owners, lease: Lease) -> list[Span]:
    stays = owners.stays(lease)
    ends = [stay.begin - 1 for stay in stays[1:]] + [lease.end]
    return [Span(owners.of(stay), lease.bytes, stay.begin, end) for stay, end in zip(stays, ends, strict=True)]


def _resident_owner(owners: Owners, allocation: Allocation) -> Owner:
    """The owner of an allocation that XLA made for one purpose: an argument, an output, or a lone temporary."""
    if allocation.argument is not None:
        return owners.of_argument(allocation.argument)
    number = max(allocation.buffers, key=lambda buffer: owners.memory.buffers[buffer].bytes)
    begin = owners.module.position.get(owners.memory.buffers[number].instruction, 0)
    lease = Lease(allocation.bytes, begin, len(owners.module.order) - 1, ((begin, number),))
    owner = owners.of(owners.stays(lease)[0])
    return replace(owner, kind=OUTPUTS) if allocation.is_live_out else owner


def _timeline(owners: Owners, resident: Iterable[tuple[Owner, int]], spans: Sequence[Span]) -> Timeline:
    length = len(owners.module.order)
    changes: dict[str, list[int]] = {}
    for span in spans:
        change = changes.setdefault(span.owner.kind, [0] * (length + 1))
        change[span.begin] += span.bytes
        change[span.end + 1] -= span.bytes
    live = {kind: tuple(accumulate(change)) for kind, change in changes.items()}
    instants = sorted({0} | {span.begin for span in spans} | {min(span.end + 1, length - 1) for span in spans})
    sizes: Counter[str] = Counter()
    for owner, size in resident:
        sizes[owner.kind] += size
    return Timeline(
        instants=tuple(instants),
        phases=tuple(owners.phases.at(instant) for instant in instants),
        temporaries={kind: tuple(sizes[instant] for instant in instants) for kind, sizes in live.items()},
        resident=dict(sizes.most_common()),
        length=length,
    )


def _peak(owners: Owners, timeline: Timeline) -> Peak:
    live = timeline.live_bytes()
    place = max(range(len(live)), key=live.__getitem__)
    instruction, _ = owners.module.order[timeline.instants[place]]
    named = owners.origins.named_near(instruction) or instruction
    frame = owners.module.source(named)
    return Peak(
        instant=timeline.instants[place],
        bytes=live[place],
        instruction=instruction.name,
        path=path_of(named.op_name),
        phase=timeline.phases[place],
        source=str(frame or ""),
    )


def _rows_at(instant: int, resident: Iterable[tuple[Owner, int]], spans: Iterable[Span]) -> tuple[Row, ...]:
    sizes: Counter[Owner] = Counter()
    pieces: Counter[Owner] = Counter()
    alive = [(span.owner, span.bytes) for span in spans if span.begin <= instant <= span.end]
    for owner, size in [*resident, *alive]:
        sizes[owner] += size
        pieces[owner] += 1
    return _sorted(Row(owner, size, pieces[owner]) for owner, size in sizes.items() if size)


def _host_rows(owners: Owners, allocations: Sequence[Allocation]) -> tuple[Row, ...]:
    """What lies in host memory, at the instant when it is most there."""
    resident, spans = _books(owners, allocations)
    live: Counter[int] = Counter({span.begin: 0 for span in spans} or {0: 0})
    for instant in live:
        live[instant] = sum(span.bytes for span in spans if span.begin <= instant <= span.end)
    return _with_gaps(_rows_at(live.most_common(1)[0][0], resident, spans), allocations)


def _with_gaps(rows: tuple[Row, ...], allocations: Iterable[Allocation]) -> tuple[Row, ...]:
    """The rows, and what lies between the buffers that they count."""
    allocated = sum(each.bytes for each in allocations)
    gaps = allocated - sum(row.bytes for row in rows)
    if gaps < 0:
        raise DeviceError(
            f"{allocated - gaps} bytes are alive at once in allocations of {allocated} bytes",
            hint="this version of XLA traces its heap in another way than brim knows; plan without the report by owner",
        )
    return _sorted([*rows, Row(Owner(ALIGNMENT), gaps, 1)]) if gaps else rows


def _shares(rows: Iterable[Row]) -> Mapping[How, int]:
    shares: Counter[How] = Counter()
    for row in rows:
        shares[row.owner.how] += row.bytes
    return dict(shares.most_common())


def _sorted(rows: Iterable[Row]) -> tuple[Row, ...]:
    return tuple(sorted(rows, key=lambda row: -row.bytes))
