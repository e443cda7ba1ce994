"""FLOPs of a program, counted on its jaxpr.

XLA's own cost analysis counts the body of a scan once and says nothing for a GPU that is not here, so brim counts for
itself: every equation of the jaxpr, times the trip counts of the scans around it.

What counts
    matmul   2 FLOPs for each multiply-add of dot_general and conv_general_dilated (taps that fall on padding, or
             between the elements of a dilated input, are not counted), and of cuDNN's fused attention by formula
    other    1 FLOP for each element of a floating-point result, and for each element that a reduction reads;
             moving data and integer work are free
What repeats
    scan     the body, times its length
    cond     the most expensive branch
    while    the body, once, with a note: its trip count is not known before it runs
    pallas   the body, times the grid
    remat, jit, custom derivatives and all other calls: what is inside; so recomputation is counted where it happens

A program that runs inside shard_map is counted for one device of its mesh.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn


@dataclass(frozen=True)
class Flops:
    """FLOPs of one run of a program.

    Attributes:
        by_dtype: FLOPs of matrix products by the wider dtype of their factors, by its JAX name.
        other: FLOPs of everything else.
        notes: what the count could not know, as sentences.
    """

    by_dtype: Mapping[str, int] = field(default_factory=dict)
    other: int = 0
    notes: tuple[str, ...] = ()

    @property
    def matmul(self) -> int:
        """FLOPs of matrix products of all dtypes."""
        return sum(self.by_dtype.values())

    @property
    def total(self) -> int:
        return self.matmul + self.other

    def __add__(self, more: Flops) -> Flops:
        by_dtype = Counter(self.by_dtype)
        by_dtype.update(more.by_dtype)
        notes = tuple(dict.fromkeys(self.notes + more.notes))
        return Flops(dict(by_dtype), self.other + more.other, notes)

    def __mul__(self, times: int) -> Flops:
        return Flops({dtype: times * flops for dtype, flops in self.by_dtype.items()}, times * self.other, self.notes)


def count_flops(program: Callable[..., Any] | ClosedJaxpr, *specs: Any) -> Flops:
    """FLOPs of one call of a function, or of one run of a jaxpr.

    Args:
        program: a function of arrays, jitted or not, or its closed jaxpr.
        specs: the function's arguments as arrays or `jax.ShapeDtypeStruct`s, in pytrees; none for a jaxpr.
    """
    closed = program if isinstance(program, ClosedJaxpr) else jax.make_jaxpr(program)(*specs)
    return _of_jaxpr(closed)


def _of_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> Flops:
    return sum(map(_of_equation, jaxpr.eqns), Flops())


def _of_equation(equation: JaxprEqn) -> Flops:
    name = equation.primitive.name
    if name in _EXACT:
        return _EXACT[name](equation)
    inner = [] if name in _REDUCTIONS | _UPDATES else list(_inner_jaxprs(equation.params))
    return sum(map(_of_jaxpr, inner), Flops()) if inner else Flops(other=_elementwise(equation))


def _inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Jaxpr | ClosedJaxpr]:
    for value in params.values():
        for one in value if isinstance(value, list | tuple) else (value,):
            if isinstance(one, Jaxpr | ClosedJaxpr):
                yield one


# ---- matrix products


def _dot_general(equation: JaxprEqn) -> Flops:
    left, right = _arrays(equation)
    (contracted, _), _batch = equation.params["dimension_numbers"]
    terms = math.prod(left.shape[axis] for axis in contracted)
    return _products(2 * _size(equation.outvars[0]) * terms, left, right)


def _ragged_dot(equation: JaxprEqn) -> Flops:
    # Every row meets one group's matrix, so the number of groups does not count.
    left, right = _arrays(equation)[:2]
    (contracted, _), _batch = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    terms = math.prod(left.shape[axis] for axis in contracted)
    return _products(2 * _size(equation.outvars[0]) * terms, left, right)


def _convolution(equation: JaxprEqn) -> Flops:
    left, right = _arrays(equation)
    out: Any = equation.outvars[0].aval
    params = equation.params
    numbers = params["dimension_numbers"]
    taps = math.prod(
        _taps(left.shape[i], right.shape[k], out.shape[o], stride, padding, dilation, kernel_dilation)
        for i, k, o, stride, padding, dilation, kernel_dilation in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            numbers.out_spec[2:],
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    )
    batch, features = (out.shape[axis] for axis in numbers.out_spec[:2])
    in_features_per_group = right.shape[numbers.rhs_spec[1]]
    return _products(2 * batch * features * in_features_per_group * taps, left, right)


def _taps(
    length: int, kernel: int, out: int, stride: int, padding: tuple[int, int], dilation: int, kernel_dilation: int
) -> int:
    """How often, along one axis, a tap of the kernel meets a real element of the input."""
    positions = np.arange(out)[:, None] * stride + np.arange(kernel) * kernel_dilation - padding[0]
    real = (positions >= 0) & (positions <= (length - 1) * dilation) & (positions % dilation == 0)
    return int(real.sum())


def _fused_attention(products: int) -> Callable[[JaxprEqn], Flops]:
    """cuDNN's attention: so many products of [queries, features] by [features, keys] for each head.

    The kernel skips blocks that a causal mask empties, so half of them count; documents and padding are data, which
    the count cannot see.
    """

    def flops(equation: JaxprEqn) -> Flops:
        query, key = _arrays(equation)[:2]
        heads_first = bool(equation.params["layout"])
        batch, a, b, features = query.shape
        heads, queries = (a, b) if heads_first else (b, a)
        keys = key.shape[2] if heads_first else key.shape[1]
        causal = "CAUSAL" in str(equation.params.get("mask_type", "")) or equation.params.get("use_causal_mask", False)
        pairs = queries * keys // (2 if causal else 1)
        return _products(2 * products * batch * heads * pairs * features, query, key)

    return flops


def _products(flops: int, left: Any, right: Any) -> Flops:
    wider = max(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
    return Flops({wider.name: flops})


# ---- control flow


def _scan(equation: JaxprEqn) -> Flops:
    return _of_jaxpr(equation.params["jaxpr"]) * equation.params["length"]


def _cond(equation: JaxprEqn) -> Flops:
    return max(map(_of_jaxpr, equation.params["branches"]), key=lambda flops: flops.total)


def _while(equation: JaxprEqn) -> Flops:
    once = _of_jaxpr(equation.params["body_jaxpr"]) + _of_jaxpr(equation.params["cond_jaxpr"])
    return once + Flops(notes=("a while loop is counted once: how often it runs is not known",))


def _pallas_call(equation: JaxprEqn) -> Flops:
    grid = equation.params["grid_mapping"].grid
    known = [steps for steps in grid if isinstance(steps, int)]
    notes = () if len(known) == len(grid) else ("a kernel with a dynamic grid is counted once along it",)
    return _of_jaxpr(equation.params["jaxpr"]) * math.prod(known) + Flops(notes=notes)


_EXACT: Mapping[str, Callable[[JaxprEqn], Flops]] = {
    "dot_general": _dot_general,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
    "scan": _scan,
    "cond": _cond,
    "while": _while,
    "pallas_call": _pallas_call,
    # Forward: scores, and values by weights. Backward: the scores again, and the gradients of values, weights, queries
    # and keys.
    "dot_product_attention_fwd_wrapper": _fused_attention(2),
    "dot_product_attention_bwd_wrapper": _fused_attention(5),
    "dot_product_attention_fp8_fwd_wrapper": _fused_attention(2),
    "dot_product_attention_fp8_bwd_wrapper": _fused_attention(5),
}

# ---- everything else

_REDUCTIONS = frozenset(
    {"reduce", "reduce_sum", "reduce_prod", "reduce_max", "reduce_min"}
    | {"reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"}
    | {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
)
# Only the elements that are written into a larger array count, not the array.
_UPDATES = frozenset({"scatter", "scatter-add", "scatter-sub", "scatter-mul", "scatter-min", "scatter-max"})
_FREE = frozenset(
    {"reshape", "broadcast_in_dim", "transpose", "squeeze", "rev", "split", "concatenate", "pad", "iota", "copy"}
    | {
        "slice",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "scatter",
        "select_n",
        "sort",
        "top_k",
        "get",
        "swap",
    }
    | {"convert_element_type", "bitcast_convert_type", "reduce_precision", "real", "imag", "complex", "empty"}
    | {"device_put", "optimization_barrier", "name", "sharding_constraint", "mesh_cast", "reshard", "pvary"}
)


def _elementwise(equation: JaxprEqn) -> int:
    name = equation.primitive.name
    if name in _FREE or not any(_is_float(variable) for variable in equation.outvars):
        return 0
    if name in _REDUCTIONS:
        return sum(map(_size, equation.invars))
    if name in _UPDATES:
        return _size(equation.invars[-1])
    return sum(_size(variable) for variable in equation.outvars if _is_float(variable))


def _arrays(equation: JaxprEqn) -> list[Any]:
    """Shapes and dtypes of what goes in; JAX types them as less than they are."""
    return [variable.aval for variable in equation.invars]


def _is_float(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and jax.numpy.issubdtype(dtype, jax.numpy.inexact)


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)
