"""Matrix products in a compiled program: their FLOPs by the dtypes they multiply in.

dot, convolution     2 FLOPs for each multiply-add
cuBLAS               the same, from the custom call's own settings
cuDNN attention      by formula: two products of the scores' size forward, and 2.5 times that backward; half of it
                     under a causal mask, since cuDNN skips what is masked
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from brim.compiled.module import Instruction, Module
from brim.compiled.origins import MOVES

_CUBLAS = re.compile(r"gemm|matmul")
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]')
_SCORES = re.compile(r'"intermediate_tensor_shape":\s*\{[^}]*?"dimensions":\s*\[([^\]]*)\]')
_CAUSAL = re.compile(r'"mask_type":\s*"(?:PADDING_)?CAUSAL"')
_NARROW = frozenset({"bf16", "f16"})
_BACKWARD_ATTENTION = 2.5


@dataclass(frozen=True)
class Product:
    """One matrix product.

    Attributes:
        operands: dtype it multiplies in.
        result: dtype it sums into.
        flops: of one run.
        is_wide: it multiplies in fp32 and at least one operand really is fp32. False where a back end without 16-bit
            arithmetic, such as a CPU, widened both operands by itself.
    """

    operands: str
    result: str
    flops: float
    is_wide: bool = False


def products_of(module: Module, instruction: Instruction) -> Iterator[Product]:
    """All matrix products that one instruction does, those inside a fusion included."""
    if instruction.opcode in ("fusion", "async-start"):
        for called in instruction.called:
            for each in module.inside(called):
                yield from products_of(module, each)
    elif instruction.opcode in ("dot", "convolution"):
        yield _product(module, instruction, _summed(module, instruction))
    elif instruction.opcode == "custom-call" and "fmha" in instruction.target:
        yield _attention(module, instruction)
    elif instruction.opcode == "custom-call" and _CUBLAS.search(instruction.target):
        yield _product(module, instruction, _summed_by_library(module, instruction))


def _product(module: Module, instruction: Instruction, summed: int) -> Product:
    operands = module.operands(instruction)[:2]
    dtype, result = operands[0].shape.dtype, instruction.shape.part(0)
    is_wide = dtype == "f32" and any(not _was_narrow(module, each) for each in operands)
    return Product(dtype, result.dtype, 2.0 * result.elements * summed, is_wide)


def _summed(module: Module, instruction: Instruction) -> int:
    """Multiply-adds for each element of the result of a dot or a convolution."""
    left, right = module.operands(instruction)
    if instruction.opcode == "dot":
        return math.prod(left.shape.dimensions[each] for each in instruction.contracted)
    return right.shape.elements // right.shape.dimensions[instruction.output_feature]


def _summed_by_library(module: Module, instruction: Instruction) -> int:
    left = module.operands(instruction)[0].shape.dimensions
    found = _CONTRACTED.search(instruction.config)
    places = re.findall(r"\d+", found[1]) if found else [len(left) - 1]
    return math.prod(left[int(place)] for place in places)


def _attention(module: Module, instruction: Instruction) -> Product:
    query = module.operands(instruction)[0].shape
    scores = _SCORES.search(instruction.config)
    # [rows, heads, queries, keys]; each score is one product over the head, and so is each mixed value.
    elements = math.prod(map(int, re.findall(r"\d+", scores[1]))) if scores else 0
    flops = 4.0 * elements * query.dimensions[-1]
    flops *= 0.5 if _CAUSAL.search(instruction.config) else 1.0
    flops *= _BACKWARD_ATTENTION if "ackward" in instruction.target else 1.0
    return Product(query.dtype, query.dtype, flops)


def _was_narrow(module: Module, operand: Instruction) -> bool:
    """Whether a fp32 operand is a 16-bit value that the compiler widened by itself."""
    while True:
        if operand.opcode == "parameter" and operand.computation != module.entry:
            caller = module.callers.get(operand.computation)
            if caller is None or caller.opcode != "fusion":
                return False
            operand = module[caller.operands[operand.parameter]]
        elif operand.opcode == "fusion" and not operand.shape.parts:
            operand = module.root(operand.called[0])
        elif operand.opcode == "convert" and module.operands(operand)[0].shape.dtype in _NARROW:
            return not operand.op_name.endswith("convert_element_type")
        elif operand.opcode in MOVES:
            operand = module.operands(operand)[0]
        else:
            return False
