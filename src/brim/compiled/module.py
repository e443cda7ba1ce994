"""A compiled program as XLA describes it: computations, instructions in their scheduled order, source lines.

What is read is the `HloModuleProto` after all optimizations. Field numbers are those of XLA's `hlo.proto`; instructions
refer to each other by number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from brim.compiled.shapes import Shape
from brim.compiled.wire import Message

_TRIPS = re.compile(r'"known_trip_count":\{"n":"?(\d+)')
_CALLS_IN_PLACE = frozenset({"call", "conditional", "async-start"})  # what is asynchronous begins at its start


@dataclass(frozen=True)
class Frame:
    """One place in the source: a file, the line, and the function around it."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line} {self.function}"


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        number: by which others refer to it.
        computation: number of the computation it belongs to.
        opcode, name, shape: as in XLA's text form.
        operands: numbers of the instructions whose results it takes.
        called: numbers of the computations it calls.
        op_name: JAX's name: scopes and operation, such as `jit(step)/jvp(loss)/dot_general`; may be empty. Of an
            argument of the program it is the path in the arguments, such as `state.window`.
        frame: number of the source place, for `Module.frames`; 0 for none.
        parameter: which argument of its computation a `parameter` is.
        index: which part of a tuple a `get-tuple-element` takes.
        target: which code a `custom-call` calls.
        config: the back end's own settings, as text.
        contracted: dimensions of the left operand that a `dot` sums over.
        output_feature: which dimension of a `convolution`'s kernel counts the output's features.
    """

    number: int
    computation: int
    opcode: str
    name: str
    shape: Shape
    operands: tuple[int, ...]
    called: tuple[int, ...]
    op_name: str
    frame: int
    parameter: int
    index: int
    target: str
    config: str
    contracted: tuple[int, ...]
    output_feature: int

    @classmethod
    def read(cls, message: Message, computation: int) -> Instruction:
        """From an `xla.HloInstructionProto`."""
        metadata = message.message(7, "OpMetadata")
        return cls(
            number=message.number(35, required=True),
            computation=computation,
            opcode=message.text(2, required=True),
            name=message.text(1, required=True),
            shape=Shape.read(message.message(3, "ShapeProto", required=True)),
            operands=tuple(message.numbers(36)),
            called=tuple(message.numbers(38)),
            op_name=metadata.text(2),
            frame=metadata.number(15),
            parameter=message.number(9),
            index=message.number(13),
            target=message.text(28),
            config=message.text(43),
            contracted=tuple(message.message(30, "DotDimensionNumbers").numbers(1)),
            output_feature=message.message(16, "ConvolutionDimensionNumbers").number(4),
        )

    @property
    def trips(self) -> int:
        """How often a `while` runs its body: 1 if XLA does not know."""
        found = _TRIPS.search(self.config)
        return int(found[1]) if found else 1


@dataclass(frozen=True)
class Module:
    """A compiled program.

    Attributes:
        entry: number of the computation that runs.
        instructions: all of them, by number.
        members: numbers of the instructions of each computation.
        roots: number of each computation's result.
        schedule: the order in which a computation's instructions run; fused computations have none.
        frames: source places from the innermost outwards, by the number that `Instruction.frame` has.
    """

    entry: int
    instructions: dict[int, Instruction]
    members: dict[int, tuple[int, ...]]
    roots: dict[int, int]
    schedule: dict[int, tuple[int, ...]]
    frames: dict[int, tuple[Frame, ...]]

    @classmethod
    def read(cls, message: Message) -> Module:
        """From an `xla.HloModuleProto` after optimization and scheduling.

        Raises:
            DeviceError: if it is not in the known format.
        """
        instructions: dict[int, Instruction] = {}
        members, roots = {}, {}
        for computation in message.messages(3, "HloComputationProto", required=True):
            number = computation.number(5, required=True)
            found = [
                Instruction.read(each, number) for each in computation.messages(2, "HloInstructionProto", required=True)
            ]
            instructions |= {each.number: each for each in found}
            members[number] = tuple(each.number for each in found)
            roots[number] = computation.number(6, required=True)
        return cls(
            entry=message.number(6, required=True),
            instructions=instructions,
            members=members,
            roots=roots,
            schedule=_schedule(message.message(7, "HloScheduleProto", required=True)),
            frames=_frames(message.message(17, "StackFrameIndexProto")),
        )

    def __getitem__(self, number: int) -> Instruction:
        return self.instructions[number]

    def operands(self, instruction: Instruction) -> list[Instruction]:
        """The instructions whose results it takes."""
        return [self.instructions[number] for number in instruction.operands]

    def root(self, computation: int) -> Instruction:
        """The result of a computation."""
        return self.instructions[self.roots[computation]]

    def inside(self, computation: int) -> list[Instruction]:
        """The instructions of a computation."""
        return [self.instructions[number] for number in self.members[computation]]

    def body(self, loop: Instruction) -> int:
        """The computation that a `while` repeats: the larger of the two it calls, the other being its condition."""
        return max(loop.called, key=lambda computation: self.root(computation).shape.bytes)

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """Who takes the result of each instruction."""
        found: dict[int, list[int]] = {}
        for instruction in self.instructions.values():
            for operand in instruction.operands:
                found.setdefault(operand, []).append(instruction.number)
        return {number: tuple(users) for number, users in found.items()}

    @cached_property
    def callers(self) -> dict[int, Instruction]:
        """The instruction that calls each computation; the last one, if several do."""
        return {called: each for each in self.instructions.values() for called in each.called}

    @cached_property
    def arguments(self) -> dict[int, Instruction]:
        """The program's arguments by their number."""
        return {each.parameter: each for each in self.inside(self.entry) if each.opcode == "parameter"}

    @cached_property
    def order(self) -> tuple[tuple[Instruction, int], ...]:
        """Every instruction that runs by itself, in the order in which they run, and how often; loops appear once.

        What a loop's condition and body hold stands before the loop itself, as where XLA simulates its heap.
        """
        return tuple(self._run(self.entry, 1))

    @cached_property
    def position(self) -> dict[int, int]:
        """The place of each instruction in `order`."""
        places: dict[int, int] = {}
        for place, (instruction, _) in enumerate(self.order):
            places.setdefault(instruction.number, place)
        return places

    def source(self, instruction: Instruction) -> Frame | None:
        """The line of the user's code that an instruction comes from: the innermost one outside installed packages."""
        frames = self.frames.get(instruction.frame, ())
        outside = (frame for frame in frames if "site-packages" not in frame.file)
        return next(outside, None)

    def _run(self, computation: int, times: int) -> Iterator[tuple[Instruction, int]]:
        for number in self.schedule.get(computation, ()):
            instruction = self.instructions[number]
            if instruction.opcode == "while":
                for called in sorted(instruction.called, key=lambda each: each == self.body(instruction)):
                    yield from self._run(called, times * instruction.trips)
            elif instruction.opcode in _CALLS_IN_PLACE:
                for called in instruction.called:
                    yield from self._run(called, times)
            yield instruction, times


def _schedule(message: Message) -> dict[int, tuple[int, ...]]:
    entries = message.messages(1, "HloScheduleProto.sequences", required=True)
    return {each.number(1): tuple(each.message(2, "InstructionSequence").numbers(1)) for each in entries}


def _frames(message: Message) -> dict[int, tuple[Frame, ...]]:
    """Chains of source places; all numbers in the message count from 1."""
    files, functions = message.texts(1), message.texts(2)
    locations = [
        Frame(files[each.number(1) - 1], each.number(3), functions[each.number(2) - 1].rsplit(".", 1)[-1])
        for each in message.messages(3, "FileLocation")
    ]
    stack = [(each.number(1), each.number(2)) for each in message.messages(4, "StackFrame")]
    chains: dict[int, tuple[Frame, ...]] = {}
    for first in range(1, len(stack) + 1):
        chain, number = [], first
        while number:
            location, number = stack[number - 1]
            chain.append(locations[location - 1])
        chains[first] = tuple(chain)
    return chains
