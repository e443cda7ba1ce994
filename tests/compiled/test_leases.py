"""The replay of an arena, on a program of four instructions whose trace is written by hand."""

from __future__ import annotations

from brim.compiled.buffers import Buffer, BufferAssignment, Event
from brim.compiled.leases import Lease, replay
from brim.compiled.module import Instruction, Module
from brim.compiled.shapes import Shape


def instruction(number: int, *operands: int) -> Instruction:
    return Instruction(number, 0, "add", f"add.{number}", Shape("f32"), operands, (), "", 0, 0, 0, "", "", (), 0)


def module(*instructions: Instruction) -> Module:
    numbers = tuple(each.number for each in instructions)
    return Module(0, {each.number: each for each in instructions}, {0: numbers}, {0: numbers[-1]}, {0: numbers}, {})


# 1 makes 100 bytes; 2 makes 50; 3 adds to 1's in place; 4 makes nothing in the arena and reads 3.
PROGRAM = module(instruction(1), instruction(2, 1), instruction(3, 1, 2), instruction(4, 3))
BUFFERS = {1: Buffer(1, None, 100), 2: Buffer(2, None, 50), 3: Buffer(3, None, 80)}
TRACE = (
    Event("come", 1, 0),
    Event("come", 2, 0),
    Event("share", 3, 1),
    Event("go", 1, 0),
    Event("go", 2, 0),
    Event("go", 3, 0),
)


def test_buffers_that_share_bytes_are_one_lease_until_the_last_is_read() -> None:
    leases = replay(PROGRAM, BufferAssignment(BUFFERS, (), {7: TRACE}), 7)
    assert leases == [
        Lease(bytes=100, begin=0, end=3, tenants=((0, 1), (2, 3))),
        Lease(bytes=50, begin=1, end=2, tenants=((1, 2),)),
    ]


def test_a_lease_ends_before_the_next_one_takes_its_place() -> None:
    # 1 goes before 2 comes, although its last reader seems to be the fourth instruction.
    program = module(instruction(1), instruction(2), instruction(3, 2), instruction(4, 1))
    trace = (Event("come", 1, 0), Event("go", 1, 0), Event("come", 2, 0), Event("go", 2, 0))
    first, second = replay(program, BufferAssignment(BUFFERS, (), {7: trace}), 7)
    assert (first.begin, first.end) == (0, 0)
    assert (second.begin, second.end) == (1, 2)


def test_work_in_place_goes_on_with_a_lease_that_was_just_empty() -> None:
    trace = (TRACE[0], TRACE[1], TRACE[3], TRACE[2], *TRACE[4:])  # 1 goes before 3 shares its bytes
    moved = replay(PROGRAM, BufferAssignment(BUFFERS, (), {7: trace}), 7)
    assert moved == replay(PROGRAM, BufferAssignment(BUFFERS, (), {7: TRACE}), 7)


def test_bytes_that_others_could_take_meanwhile_are_two_leases() -> None:
    # 3 has the bytes that 1 had, but 1 was gone when 2 came.
    program = module(instruction(1), instruction(2), instruction(3, 2), instruction(4, 3))
    trace = (
        TRACE[0],
        Event("go", 1, 0),
        Event("come", 2, 0),
        Event("share", 3, 1),
        Event("go", 2, 0),
        Event("go", 3, 0),
    )
    leases = replay(program, BufferAssignment(BUFFERS, (), {7: trace}), 7)
    assert [(lease.bytes, lease.begin, lease.end) for lease in leases] == [(100, 0, 0), (50, 1, 2), (80, 2, 3)]
