"""What the bytes of a compiled step are for, as data: at the peak, over time, and what if something were gone."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.compiled.owners import UNEXPLAINED, How, Owner


@dataclass(frozen=True)
class Row:
    """Bytes of one owner.

    Attributes:
        owner: whose they are.
        bytes: how many.
        buffers: in how many pieces.
    """

    owner: Owner
    bytes: int
    buffers: int


@dataclass(frozen=True)
class Peak:
    """The instant at which most bytes are alive.

    Attributes:
        instant: its place in the schedule, in which the bodies of loops stand once.
        bytes: alive on the device; gaps in the arenas are not counted.
        instruction: what runs then, by XLA's name.
        path: its scopes and operation.
        phase: of the step.
        source: the user's line, if known.
    """

    instant: int
    bytes: int
    instruction: str
    path: str
    phase: str
    source: str


@dataclass(frozen=True)
class Timeline:
    """Bytes alive on the device over the schedule. Each entry holds from its instant until the next one.

    Attributes:
        instants: places in the schedule at which something changes.
        phases: the phase of the step at each.
        temporaries: kind -> bytes at each instant, of what comes and goes.
        resident: kind -> bytes of what is there all the time.
        length: of the schedule.
    """

    instants: tuple[int, ...]
    phases: tuple[str, ...]
    temporaries: Mapping[str, tuple[int, ...]]
    resident: Mapping[str, int]
    length: int

    @property
    def kinds(self) -> tuple[str, ...]:
        """All kinds of bytes, resident ones first."""
        return tuple(dict.fromkeys([*self.resident, *self.temporaries]))

    def live_bytes(self, *, without: str = "") -> tuple[int, ...]:
        """Bytes alive at each instant.

        Args:
            without: a kind that is left out.
        """
        base = sum(size for kind, size in self.resident.items() if kind != without)
        columns = [sizes for kind, sizes in self.temporaries.items() if kind != without]
        return tuple(base + sum(column) for column in zip(*columns, strict=True)) or (base,) * len(self.instants)


@dataclass(frozen=True)
class MemoryReport:
    """Where the bytes of a compiled step go.

    Attributes:
        arguments, outputs, aliased, temporaries: the four parts of the peak, as XLA's memory analysis gives them.
        rows: device bytes at the peak by owner, largest first; their sum is `peak_bytes` exactly.
        host_rows: bytes in host memory beside them.
        constants_bytes: of constants in the program; XLA keeps them apart from the peak.
        peak: the instant with most bytes alive.
        timeline: bytes alive over the schedule.
        without: kind -> the peak if that kind were gone: a LOWER bound, since what would be there in its place is not
            counted.
        how: how the owners were found -> bytes.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    rows: tuple[Row, ...]
    host_rows: tuple[Row, ...]
    constants_bytes: int
    peak: Peak
    timeline: Timeline
    without: Mapping[str, int]
    how: Mapping[How, int]

    @property
    def peak_bytes(self) -> int:
        """Device bytes the step needs: arguments + outputs - aliased + temporaries."""
        return self.arguments + self.outputs - self.aliased + self.temporaries

    @property
    def host_bytes(self) -> int:
        """Host bytes the step needs beside them."""
        return sum(row.bytes for row in self.host_rows)

    @property
    def owners(self) -> dict[str, int]:
        """Kind -> device bytes at the peak, largest first; the sum is the peak."""
        return by_kind(self.rows)

    @property
    def host_owners(self) -> dict[str, int]:
        """Kind -> bytes in host memory, largest first."""
        return by_kind(self.host_rows)

    def scopes(self, kind: str) -> dict[str, int]:
        """Bytes of one kind by scope, without the operation: `feed_forward/mlp_hidden` -> bytes; largest first."""
        sizes: Counter[str] = Counter()
        for row in self.rows:
            if row.owner.kind == kind:
                sizes[row.owner.path.rsplit("/", 1)[0]] += row.bytes
        return dict(sizes.most_common())

    @property
    def unexplained_share(self) -> float:
        """Share of the peak that has no owner."""
        return self.owners.get(UNEXPLAINED, 0) / self.peak_bytes if self.peak_bytes else 0.0

    def to_json(self) -> dict[str, Any]:
        """As plain dictionaries, lists and numbers."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> MemoryReport:
        """What `to_json` made, also after it went through a file."""
        timeline = data["timeline"]
        return cls(
            **{
                **data,
                "rows": tuple(map(_row, data["rows"])),
                "host_rows": tuple(map(_row, data["host_rows"])),
                "peak": Peak(**data["peak"]),
                "timeline": Timeline(
                    **{
                        **timeline,
                        "instants": tuple(timeline["instants"]),
                        "phases": tuple(timeline["phases"]),
                        "temporaries": {kind: tuple(sizes) for kind, sizes in timeline["temporaries"].items()},
                    }
                ),
            }
        )


def by_kind(rows: tuple[Row, ...]) -> dict[str, int]:
    """Kind -> bytes, largest first."""
    sizes: Counter[str] = Counter()
    for row in rows:
        sizes[row.owner.kind] += row.bytes
    return dict(sizes.most_common())


def _row(data: Mapping[str, Any]) -> Row:
    return Row(Owner(**data["owner"]), data["bytes"], data["buffers"])
