"""Bytes that one kernel reads and writes.

A fusion that slices an operand reads only the slice, and one that updates a part of an array in place writes only that
part: a loop over layers would otherwise seem to move its whole stacks in every turn.
"""

from __future__ import annotations

from dataclasses import dataclass

from brim.compiled.module import Instruction, Module
from brim.compiled.shapes import Shape

_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_SAME = frozenset({"bitcast", "reshape"})
_THROUGH = frozenset({"bitcast", "reshape", "copy", "convert"})
_SCRATCH = frozenset({"u8", "s8"})


@dataclass(frozen=True)
class Touched:
    """Bytes of one run of a kernel.

    Attributes:
        read, written: in all.
        host: how many of them lie in host memory and cross the link.
    """

    read: int = 0
    written: int = 0
    host: int = 0


def touched_by(module: Module, instruction: Instruction) -> Touched:
    """Bytes that an instruction reads and writes when it runs once."""
    operands = module.operands(instruction)
    if instruction.opcode == "fusion":
        inside = {each.parameter: each for each in module.inside(instruction.called[0]) if each.opcode == "parameter"}
        sizes = [_read_of(module, inside[place]) for place in range(len(operands))]
        outputs = _written_by(module, module.root(instruction.called[0]))
    elif instruction.opcode == "dynamic-update-slice":
        sizes = [0] + [each.shape.bytes for each in operands[1:]]
        outputs = [(instruction.shape, operands[1].shape.bytes)]
    elif instruction.opcode in _SLICES:
        sizes = [instruction.shape.bytes] + [each.shape.bytes for each in operands[1:]]
        outputs = [(instruction.shape, instruction.shape.bytes)]
    else:
        sizes = [each.shape.bytes for each in operands]
        outputs = [(shape, shape.bytes) for shape in _results(instruction)]
    host = sum(size for each, size in zip(operands, sizes, strict=True) if each.shape.on_host)
    host += sum(size for shape, size in outputs if shape.on_host)
    return Touched(sum(sizes), sum(size for _, size in outputs), host)


def _results(instruction: Instruction) -> list[Shape]:
    """The arrays an instruction writes: not the scratch of a library call, nor the operand that a copy hands on."""
    parts = instruction.shape.parts or (instruction.shape,)
    if instruction.opcode == "copy-start":
        return list(parts[:1])
    if instruction.opcode == "custom-call":
        return [part for place, part in enumerate(parts) if not (place and part.dtype in _SCRATCH)]
    return list(parts)


def _read_of(module: Module, parameter: Instruction) -> int:
    """How much of a parameter a fusion reads."""
    whole, sliced = parameter.shape.bytes, 0
    pending, seen = [parameter], set()
    while pending:
        value = pending.pop()
        for number in module.users.get(value.number, ()):
            user = module[number]
            if user.opcode in _SLICES and user.operands[0] == value.number:
                sliced += user.shape.bytes
            elif user.opcode in _SAME and number not in seen:
                seen.add(number)
                pending.append(user)
            elif not (user.opcode == "dynamic-update-slice" and user.operands[0] == value.number):
                return whole
    return min(whole, sliced)


def _written_by(module: Module, root: Instruction) -> list[tuple[Shape, int]]:
    """(shape, bytes written) of each result of a fusion."""
    results = module.operands(root) if root.opcode == "tuple" else [root]
    return [(each.shape, _written_of(module, each)) for each in results]


def _written_of(module: Module, result: Instruction) -> int:
    inner = result
    while inner.opcode in _THROUGH:
        inner = module.operands(inner)[0]
    if inner.opcode == "dynamic-update-slice":
        # What is written is the update, in the result's own dtype.
        return module.operands(inner)[1].shape.elements * result.shape.bits // 8
    return result.shape.bytes
