"""Which bytes are alive when: an arena's trace, replayed.

A lease is one piece of an arena, from the instant its first buffer comes until the last one goes. Buffers that share
bytes follow each other in one lease: what a loop begins with, what each turn leaves, what comes out. Instants are
places in the module's order. Buffers that come at an instant are there together with those that go at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brim.compiled.buffers import BufferAssignment, Event
from brim.compiled.module import Instruction, Module

_SAME_BYTES = frozenset({"get-tuple-element", "bitcast", "tuple", "optimization-barrier"})


@dataclass(frozen=True)
class Lease:
    """A piece of an arena that is taken.

    Attributes:
        bytes: its size.
        begin, end: first and last instant at which it is taken.
        tenants: (instant at which it comes, buffer), in order.
    """

    bytes: int
    begin: int
    end: int
    tenants: tuple[tuple[int, int], ...]


def replay(module: Module, memory: BufferAssignment, arena: int) -> list[Lease]:
    """The leases of one arena.

    Where an instruction works in place, the trace lets the old buffer go just before the new one shares its bytes: the
    lease goes on. When others come in between, the bytes were free for them: that is a new lease.

    Args:
        arena: number of its allocation.
    """
    events = memory.traces[arena]
    first: dict[int, int] = {}  # buffer -> the first buffer of those that share its bytes
    tenants: dict[int, list[tuple[int, int]]] = {}
    alive: dict[int, int] = {}
    bounds: dict[int, tuple[int, int]] = {}
    leases = []
    for event, instants in zip(events, _instants(module, memory, events), strict=True):
        if event.kind == "go":
            head = first[event.buffer]
            alive[head] -= 1
            bounds[head] = instants
            continue
        head = first[event.buffer] = first[event.shared_with] if event.kind == "share" else event.buffer
        if alive.get(head) == 0 and instants[0] > bounds[head][1] + 1:
            leases.append(_lease(module, memory, tenants.pop(head), bounds[head]))
        tenants.setdefault(head, []).append((instants[0], event.buffer))
        alive[head] = alive.get(head, 0) + 1
    return leases + [_lease(module, memory, found, bounds[head]) for head, found in tenants.items()]


def _lease(
    module: Module, memory: BufferAssignment, tenants: Sequence[tuple[int, int]], bounds: tuple[int, int]
) -> Lease:
    """The trace tells between which two arrivals a lease ends; its last use tells where between them."""
    used = max(_last_use(module, memory, buffer) for _, buffer in tenants)
    size = max(memory.buffers[buffer].bytes for _, buffer in tenants)
    return Lease(size, tenants[0][0], min(max(used, bounds[0]), bounds[1]), tuple(tenants))


def _instants(module: Module, memory: BufferAssignment, events: Sequence[Event]) -> list[tuple[int, int]]:
    """For each event: the instant of the last arrival up to it, and the last instant before the next arrival."""
    arrivals = [
        None if event.kind == "go" else module.position[memory.buffers[event.buffer].instruction] for event in events
    ]
    following, end = [], len(module.order)
    for arrival in reversed(arrivals):
        following.append(end - 1)
        end = end if arrival is None else arrival
    now, instants = 0, []
    for arrival, last in zip(arrivals, reversed(following), strict=True):
        now = now if arrival is None else max(now, arrival)
        instants.append((now, max(now, last)))
    return instants


def _last_use(module: Module, memory: BufferAssignment, buffer: int) -> int:
    """The last instant at which an instruction reads a buffer, also through a tuple or under another shape."""
    value = memory.buffers[buffer]
    pending: list[tuple[Instruction, int | None]] = [(module[value.instruction], value.part)]
    last, seen = module.position.get(value.instruction, 0), set()
    while pending:
        instruction, part = pending.pop()
        for number in module.users.get(instruction.number, ()):
            user = module[number]
            is_other_part = user.opcode == "get-tuple-element" and part is not None and user.index != part
            if number in seen or is_other_part:
                continue
            seen.add(number)
            last = max(last, module.position.get(number, 0))
            if user.opcode in _SAME_BYTES:
                pending.append((user, _part_in(user, instruction)))
    return last


def _part_in(user: Instruction, operand: Instruction) -> int | None:
    """Which part of the user's result an operand is; None for all of it."""
    return user.operands.index(operand.number) if user.opcode == "tuple" else None
