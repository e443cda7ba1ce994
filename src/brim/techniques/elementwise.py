"""Whether a function treats every element of its arrays alone, so that it may be asked slice by slice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

_ELEMENTWISE = frozenset({
    "abs", "add", "add_any", "and", "cbrt", "clamp", "convert_element_type", "copy", "copy_p", "div", "eq", "exp",
    "exp2", "expm1", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "not", "or", "pow", "rsqrt", "select_n", "sign", "sqrt", "square", "stop_gradient", "sub",
    "tanh", "xor",
})  # fmt: skip
_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


def is_elementwise(jaxpr: ClosedJaxpr | Jaxpr) -> bool:
    """Whether each element of every result follows from the same elements of the arguments, and from scalars.

    Only what is known to be so counts: an operation that is not listed here gives False.
    """
    constants = jaxpr.consts if isinstance(jaxpr, ClosedJaxpr) else ()
    return all(not getattr(constant, "ndim", 0) for constant in constants) and all(map(_is_alone, jaxpr.eqns))


def _is_alone(equation: JaxprEqn) -> bool:
    name = equation.primitive.name
    if name in _ELEMENTWISE or _are_scalars([*equation.invars, *equation.outvars]):
        return True
    if name == "broadcast_in_dim":
        return _are_scalars(equation.invars)
    return name in _CALLS and all(map(is_elementwise, _inner(equation)))


def _are_scalars(variables: Iterable[Any]) -> bool:
    return all(not variable.aval.shape for variable in variables)


def _inner(equation: JaxprEqn) -> Iterator[ClosedJaxpr | Jaxpr]:
    return (value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr))
