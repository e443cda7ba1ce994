"""How much memory traffic and how many kernels a program asks for, counted on its jaxpr with its loops' trip counts.

What a compiled program really moves depends on what XLA fuses; this count orders programs before any is compiled.

    products      operands and results of matrix products and convolutions: weights are read once per micro-batch in the
                  forward pass, twice in the backward pass, and again when recomputed
    elementwise   results of floating-point operations that are no products, the optimizer and gradient sums among them.
                  XLA fuses them, so that only one in `FUSED` is written and read again
    loops         what a scan slices from stacked arrays and writes into them: weights of a layer, its gradients, saved
                  residuals. A loop that is written out whole (unroll 0, or its length) needs no such copies. Counted
                  once each, this explains why an unrolled stack is 7 to 11% faster than a scanned one, as measured on a
                  CPU
    host          what crosses the link between device and host, either way
    kernels       matrix products, and one in `FUSED` of the others

Recomputation is counted where it happens, since it is in the jaxpr.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.numpy import issubdtype
from numpy import inexact

FUSED = 4
"""Elementwise operations per value that reaches memory. Assumed; calibration on a device replaces it."""

_PRODUCTS = frozenset({"dot_general", "ragged_dot_general", "conv_general_dilated"})
_FREE = frozenset({"reshape", "broadcast_in_dim", "squeeze", "name", "convert_element_type", "iota", "slice"})


@dataclass(frozen=True)
class Traffic:
    """Bytes read and written, by what moves them, and the number of kernels; see the head of this file."""

    products: float = 0.0
    elementwise: float = 0.0
    loops: float = 0.0
    kernels: float = 0.0
    host: float = 0.0

    def __add__(self, more: Traffic) -> Traffic:
        return Traffic(
            self.products + more.products,
            self.elementwise + more.elementwise,
            self.loops + more.loops,
            self.kernels + more.kernels,
            self.host + more.host,
        )

    def __mul__(self, times: float) -> Traffic:
        return Traffic(*(times * count for count in dataclasses.astuple(self)))


def count_traffic(jaxpr: Jaxpr | ClosedJaxpr) -> Traffic:
    """Memory traffic of one run of a jaxpr."""
    return sum(map(_of_equation, jaxpr.eqns), Traffic())


def _of_equation(equation: JaxprEqn) -> Traffic:
    name = equation.primitive.name
    if name == "scan":
        return _scan(equation)
    if name in _PRODUCTS:
        return Traffic(products=_bytes(equation.invars) + _bytes(equation.outvars), kernels=1)
    if name == "device_put":
        return Traffic(host=_bytes(equation.outvars) if _crosses(equation) else 0)
    inner = [count_traffic(jaxpr) for jaxpr in _inner_jaxprs(equation.params.values())]
    if name == "cond":
        return max(inner, key=lambda traffic: traffic.products + traffic.elementwise + traffic.loops + traffic.host)
    if inner and not name.startswith(("reduce", "scatter")):
        return sum(inner, Traffic())
    written = 0 if name in _FREE else _bytes(equation.outvars)
    return Traffic(elementwise=2 * written / FUSED, kernels=bool(written) / FUSED)


def _scan(equation: JaxprEqn) -> Traffic:
    params = equation.params
    length, carried = params["length"], params["num_carry"]
    stacked = equation.invars[params["num_consts"] + carried :] + equation.outvars[carried:]
    whole = params["unroll"] == 0 or params["unroll"] >= length
    copies = 0 if whole else _bytes(stacked)
    return count_traffic(params["jaxpr"]) * length + Traffic(loops=copies)


def _inner_jaxprs(values: Any) -> Iterator[Jaxpr | ClosedJaxpr]:
    for value in values:
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, Jaxpr | ClosedJaxpr):
                yield one


def _crosses(equation: JaxprEqn) -> bool:
    """Whether arrays are copied from the device's memory to the host's, or back."""
    sides: Any = equation.invars, equation.outvars
    before, after = ({variable.aval.memory_space for variable in side} for side in sides)
    return before != after


def _bytes(variables: Any) -> int:
    """Bytes of the floating-point arrays among some variables of a jaxpr."""
    arrays = (variable.aval for variable in variables if hasattr(variable.aval, "dtype"))
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in arrays if issubdtype(array.dtype, inexact))
