"""Whether a function treats every element of its arrays alone, so that it may be asked slice by slice.

Each variable of its jaxpr is of one kind:

    OWN      element for element from the arrays that are given
    SAME     a scalar, or one scalar at every element
    OTHER    any other array, such as the table of a schedule; harmless until it meets an OWN one

Only what is known to be elementwise counts: an operation that is not listed here is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

OWN, SAME, OTHER = "own", "same", "other"
_ELEMENTWISE = frozenset({
    "abs", "add", "add_any", "and", "cbrt", "clamp", "convert_element_type", "copy", "copy_p", "div", "eq", "exp",
    "exp2", "expm1", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "not", "or", "pow", "rsqrt", "select_n", "sign", "sqrt", "square", "stop_gradient", "sub",
    "tanh", "xor",
})  # fmt: skip
_CALLS = frozenset({"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"})


def is_elementwise(jaxpr: ClosedJaxpr) -> bool:
    """Whether each element of every result follows from the same elements of the arguments, and from scalars."""
    results = _kinds(jaxpr, [OWN if variable.aval.shape else SAME for variable in jaxpr.jaxpr.invars])
    return results is not None and OTHER not in results


def _kinds(closed: ClosedJaxpr | Jaxpr, arguments: Sequence[str]) -> list[str] | None:
    """Kinds of a jaxpr's results, or None if elements of an OWN array are mixed."""
    jaxpr = closed.jaxpr if isinstance(closed, ClosedJaxpr) else closed
    kinds: dict[Any, str] = {variable: _constant(variable) for variable in jaxpr.constvars}
    kinds |= dict(zip(jaxpr.invars, arguments, strict=True))

    def kinds_of(variables: Iterable[Any]) -> list[str]:
        return [_constant(each) if isinstance(each, Literal) else kinds[each] for each in variables]

    for equation in jaxpr.eqns:
        results = _results(equation, kinds_of(equation.invars))
        if results is None:
            return None
        kinds |= dict(zip(equation.outvars, results, strict=True))
    return kinds_of(jaxpr.outvars)


def _results(equation: JaxprEqn, operands: Sequence[str]) -> list[str] | None:
    name, found = equation.primitive.name, set(operands)
    inner = [value for value in equation.params.values() if isinstance(value, ClosedJaxpr | Jaxpr)]
    if name in _CALLS and len(inner) == 1:
        return _kinds(inner[0], operands)
    if OWN in found:
        return [OWN for _ in equation.outvars] if name in _ELEMENTWISE and OTHER not in found else None
    same = found <= {SAME} and (name in _ELEMENTWISE or _is_spread_scalar(equation))
    return [SAME if same else _constant(variable) for variable in equation.outvars]


def _is_spread_scalar(equation: JaxprEqn) -> bool:
    return equation.primitive.name == "broadcast_in_dim" and _constant(equation.invars[0]) == SAME


def _constant(variable: Any) -> str:
    return OTHER if variable.aval.shape else SAME
