"""Where a value's content comes from: through copies, casts, slices, tuples, loops and fusions to what computed it.

A buffer often holds what another instruction computed: a cast of a weight, one layer's slice of a stack, what a loop
wrote into a stack turn by turn. Whose bytes these are is told by the instruction that computed the content, or by the
argument it is a copy of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brim.compiled.module import Instruction, Module
from brim.compiled.names import is_named

Value = tuple[Instruction, int | None]
"""An instruction, and which part of its tuple (None: all)."""

MOVES = frozenset(
    {
        "bitcast", "bitcast-convert", "broadcast", "convert", "copy", "copy-done", "copy-start", "dynamic-slice",
        "optimization-barrier", "reduce-precision", "reshape", "slice", "transpose",
    }
)  # fmt: skip
"""Operations that only move, cast or repeat what their first operand holds."""
_SPANS = frozenset({"fusion", "call", "async-start"})
_WITH_DATA = frozenset({"conditional", "custom-call", "parameter", "rng-bit-generator", "while"})
_HOPS = 3


@dataclass(frozen=True)
class Origin:
    """Where a value's content comes from.

    Attributes:
        instruction: what computed it, or the program's argument that holds it.
        trail: all instructions on the way there, the value's own first.
    """

    instruction: Instruction
    trail: tuple[Instruction, ...]


class Origins:
    """Finds where values of a module come from."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._data_free = _data_free(module)
        self._steps: dict[str, Callable[[Instruction, int | None], Value | None]] = {
            "get-tuple-element": lambda each, part: (self._operand(each, 0), each.index),
            "tuple": self._of_tuple,
            "while": self._of_loop,
            "parameter": self._of_parameter,
            # A stack is named by what a loop writes into it.
            "dynamic-update-slice": lambda each, part: (self._operand(each, 1), None),
            **dict.fromkeys(MOVES, lambda each, part: (self._operand(each, 0), None)),
            **dict.fromkeys((*_SPANS, "conditional"), self._of_span),
            "async-done": lambda each, part: (self._operand(each, 0), part),
        }

    def of(self, instruction: Instruction, part: int | None = None) -> Origin:
        """The origin of an instruction's result, or of one part of it."""
        value, seen = (instruction, part), {(instruction.number, part)}
        trail = [instruction]
        while True:
            step = self._steps.get(value[0].opcode)
            following = step(*value) if step is not None else None
            if following is not None and (following[0].number, following[1]) in seen:
                following = self._start_of_loop(*following)
            if following is None or (following[0].number, following[1]) in seen:
                return Origin(value[0], tuple(trail))
            value = following
            seen.add((value[0].number, value[1]))
            trail.append(value[0])

    def is_argument(self, instruction: Instruction) -> bool:
        """Whether it is an argument of the program."""
        return instruction.opcode == "parameter" and instruction.computation == self.module.entry

    def is_data_free(self, instruction: Instruction) -> bool:
        """Whether no argument of the program has a part in it: masks, counters, zeros."""
        return instruction.number in self._data_free

    def named(self, origin: Origin) -> Instruction | None:
        """The instruction on the way to an origin, or within a fusion on it, that JAX named; nearest to the origin."""
        for instruction in reversed(origin.trail):
            if is_named(instruction.op_name):
                return instruction
        return next(filter(None, map(self._named_inside, origin.trail)), None)

    def named_near(self, instruction: Instruction) -> Instruction | None:
        """What JAX named: the instruction itself, one inside of it, or a neighbour."""
        return self._own_or_inside(instruction) or self.named_neighbour(instruction)

    def named_neighbour(self, instruction: Instruction) -> Instruction | None:
        """A named instruction among operands, else among users, at most three steps away.

        XLA drops the names of some instructions that it rewrites, such as transposed matrix products.
        """
        for neighbours in (self.module.operands, self._users):
            circle = [instruction]
            for _ in range(_HOPS):
                circle = [near for each in circle for near in neighbours(each)]
                found = [self._own_or_inside(each) for each in circle if each.opcode != "parameter"]
                named = [each for each in found if each is not None]
                if named:
                    return max(named, key=lambda each: ("transpose(" in each.op_name, "jvp(" in each.op_name))
        return None

    def _operand(self, instruction: Instruction, place: int) -> Instruction:
        return self.module[instruction.operands[place]]

    def _users(self, instruction: Instruction) -> list[Instruction]:
        return [self.module[number] for number in self.module.users.get(instruction.number, ())]

    def _of_tuple(self, instruction: Instruction, part: int | None) -> Value | None:
        return None if part is None else (self._operand(instruction, part), None)

    def _of_span(self, instruction: Instruction, part: int | None) -> Value:
        return self.module.root(instruction.called[0]), part

    def _of_loop(self, loop: Instruction, part: int | None) -> Value | None:
        if part is None:
            return None
        result = self.module.root(self.module.body(loop))
        if result.opcode != "tuple":
            return result, part
        last = self._operand(result, part)
        return self._into_loop(loop, part) if self._is_carried(last, part) else (last, None)

    def _of_parameter(self, parameter: Instruction, part: int | None) -> Value | None:
        if self.is_argument(parameter):
            return None
        caller = self.module.callers.get(parameter.computation)
        if caller is None:
            return None
        if caller.opcode == "while":
            return self._of_loop(caller, part)
        if caller.opcode == "conditional":  # the operand after the condition belongs to the first branch, and so on
            return self._operand(caller, 1 + caller.called.index(parameter.computation)), part
        return (self._operand(caller, parameter.parameter), part) if caller.opcode in _SPANS else None

    def _is_carried(self, value: Instruction, part: int) -> bool:
        """Whether a loop's turn ends with the same value at a place of its tuple as it began with."""
        return (
            value.opcode == "get-tuple-element"
            and value.index == part
            and self._operand(value, 0).opcode == "parameter"
        )

    def _start_of_loop(self, instruction: Instruction, part: int | None) -> Value | None:
        """Where to go on when the search has come around a loop: what the loop began with."""
        caller = self.module.callers.get(instruction.computation)
        loop = instruction if instruction.opcode == "while" else caller
        if loop is None or loop.opcode != "while" or part is None:
            return None
        return self._into_loop(loop, part)

    def _into_loop(self, loop: Instruction, part: int) -> Value:
        start = self._operand(loop, 0)
        return (self._operand(start, part), None) if start.opcode == "tuple" else (start, part)

    def _own_or_inside(self, instruction: Instruction) -> Instruction | None:
        return instruction if is_named(instruction.op_name) else self._named_inside(instruction)

    def _named_inside(self, instruction: Instruction) -> Instruction | None:
        if instruction.opcode not in _SPANS:
            return None
        inside = [each for called in instruction.called for each in reversed(self.module.inside(called))]
        return next(filter(None, map(self._own_or_inside, inside)), None)


def _data_free(module: Module) -> set[int]:
    """Numbers of the instructions in which no argument has a part. Operands stand before those who take them."""
    free: set[int] = set()
    for number in (number for members in module.members.values() for number in members):
        instruction = module[number]
        if instruction.opcode not in _WITH_DATA and free.issuperset(instruction.operands):
            free.add(number)
    return free
