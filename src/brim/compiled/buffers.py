"""Where XLA puts the values of a compiled program: allocations, who lies where in them, and for how long.

An allocation is one piece of memory for the whole run: an argument, an output, a constant, or an arena in which
temporaries come and go. For each arena XLA keeps the trace of its heap simulation: in the order of the schedule, with
the bodies of loops run through once, which buffer came, which shares another's bytes, and which went.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from brim.compiled.shapes import HOST_SPACE
from brim.compiled.wire import Message

EventKind = Literal["come", "go", "share"]
_KINDS: tuple[EventKind, ...] = ("come", "go", "share")


@dataclass(frozen=True)
class Buffer:
    """One value that has memory: the result of an instruction, or one part of it.

    Attributes:
        instruction: number of the instruction that makes it.
        part: which part of the instruction's tuple; None for a result that is no tuple.
        bytes: its size, padding included.
    """

    instruction: int
    part: int | None
    bytes: int


@dataclass(frozen=True)
class Allocation:
    """One piece of memory.

    Attributes:
        number: in XLA's list.
        bytes: its size.
        argument: number of the program's argument that lies in it; None if none does.
        is_constant, is_thread_local, is_live_out: a constant; of a thread, outside the count; an output.
        on_host: in the host's memory.
        buffers: buffer number -> (offset, bytes).
    """

    number: int
    bytes: int
    argument: int | None
    is_constant: bool
    is_thread_local: bool
    is_live_out: bool
    on_host: bool
    buffers: dict[int, tuple[int, int]]

    @classmethod
    def read(cls, message: Message) -> Allocation:
        """From a `xla.BufferAllocationProto`."""
        assigned = message.messages(9, "BufferAllocationProto.Assigned")
        return cls(
            number=message.number(1),
            bytes=message.number(2),
            argument=message.number(6) if message.number(5) else None,
            is_constant=bool(message.number(12)),
            is_thread_local=bool(message.number(3)),
            is_live_out=bool(message.number(7)),
            on_host=message.number(8) == HOST_SPACE,
            buffers={each.number(1): (each.number(2), each.number(3)) for each in assigned},
        )


@dataclass(frozen=True)
class Event:
    """A buffer comes into an arena, shares the bytes of another that is there, or goes."""

    kind: EventKind
    buffer: int
    shared_with: int


@dataclass(frozen=True)
class BufferAssignment:
    """All memory of a compiled program.

    Attributes:
        buffers: by number.
        allocations: without those of threads.
        traces: arena's allocation number -> its events.
    """

    buffers: dict[int, Buffer]
    allocations: tuple[Allocation, ...]
    traces: dict[int, tuple[Event, ...]]

    @classmethod
    def read(cls, message: Message) -> BufferAssignment:
        """From a `xla.BufferAssignmentProto`.

        Raises:
            DeviceError: if it is not in the known format.
        """
        buffers = {each.number(1): _buffer(each) for each in message.messages(1, "LogicalBufferProto", required=True)}
        allocations = [Allocation.read(each) for each in message.messages(3, "BufferAllocationProto", required=True)]
        used = tuple(each for each in allocations if not each.is_thread_local)
        home = {buffer: each.number for each in used for buffer in each.buffers}
        traces: dict[int, tuple[Event, ...]] = {}
        for trace in message.messages(4, "HeapSimulatorTrace"):
            events = tuple(map(_event, trace.messages(1, "HeapSimulatorTrace.Event")))
            # The allocation's number in the trace is stale; its buffers tell where it belongs.
            homes = [home[event.buffer] for event in events if event.buffer in home]
            if homes:
                arena = max(set(homes), key=homes.count)
                traces[arena] = traces.get(arena, ()) + events
        return cls(buffers, used, traces)


def _buffer(message: Message) -> Buffer:
    place = message.message(3, "LogicalBufferProto.Location", required=True)
    part = place.numbers(3)
    return Buffer(place.number(4, required=True), part[0] if part else None, message.number(2))


def _event(message: Message) -> Event:
    return Event(_KINDS[message.number(1)], message.number(2), message.number(5))
