"""Moments of an optimizer in 8 bits: what they hold, and where in an optimizer's state they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax
from jaxtyping import Array

from brim.ops.blockwise import dequantize, quantize
from brim.tree import PyTree, is_floating

SQUARES = frozenset({"nu", "nu_max", "sum_of_squares"})
"""Names that Optax gives to moments which are never negative."""
SLICE_ELEMENTS = 2**22
"""Most elements of an array without layers that are made fp32 at a time, if it can be cut so."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moment:
    """A moment in 8 bits.

    Attributes:
        codes: uint8, in the shape of the parameter.
        scales: fp32, one for each block: [layers, blocks] of a stacked parameter, else [blocks].
        block: elements in a block.
        signed: whether the moment may be negative.
    """

    codes: Any
    scales: Any
    block: int = field(metadata={"static": True})
    signed: bool = field(metadata={"static": True})

    @classmethod
    def of(cls, values: Array, block: int, *, signed: bool, stacked: bool) -> Moment:
        """Quantize an array; `stacked`: each part along its first axis as if it were alone."""
        codes, scales = quantize(_rows(values, stacked), block, signed=signed)
        return cls(codes.reshape(values.shape), scales if stacked else scales[0], block, signed)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that is kept."""
        return self.codes.shape

    @property
    def stacked(self) -> bool:
        """Whether every layer has blocks of its own."""
        return self.scales.ndim == 2

    def decoded(self) -> Array:
        """The array in fp32."""
        scales = self.scales if self.stacked else self.scales[None]
        rows = dequantize(_rows(self.codes, self.stacked), scales, self.block, signed=self.signed)
        return rows.reshape(self.shape)

    def like(self, values: Array) -> Moment:
        """Another array of the same kind, quantized."""
        return Moment.of(values, self.block, signed=self.signed, stacked=self.stacked)


@dataclass(frozen=True)
class Layout:
    """How one parameter's moments are kept.

    Attributes:
        block: elements in a block; 0: as the transformation makes them.
        stacked: whether the parameter's first axis counts layers.
    """

    block: int
    stacked: bool = False

    def slices(self, shape: tuple[int, ...]) -> int:
        """Into how many equal parts along its first axis an array is cut, each of whole blocks; 1: it stays whole."""
        size = prod(shape)
        if not self.block or not shape:
            return 1
        if self.stacked:
            return shape[0]
        parts = (n for n in range(1, shape[0] + 1) if shape[0] % n == 0 and size // n % self.block == 0)
        return next((n for n in parts if size // n <= SLICE_ELEMENTS), 1)


@dataclass(frozen=True)
class Place:
    """Where an array of an optimizer's state belongs.

    Attributes:
        number: of the parameter, among the leaves of all.
        name: of the moment, such as `mu`; empty if there is none.
    """

    number: int
    name: str


def is_moment(node: Any) -> bool:
    """Whether a node of a state is kept in 8 bits."""
    return isinstance(node, Moment)


def decoded(state: PyTree) -> PyTree:
    """A state as the inner transformation has it: its moments are arrays."""
    return jax.tree.map(lambda node: node.decoded() if is_moment(node) else node, state, is_leaf=is_moment)


def places(state: PyTree, parameters: PyTree) -> list[Place | None]:
    """For every leaf of a state, whose moment it is: of the parameter with its shape whose path its own path ends in.

    A `Moment` counts as one leaf. None: no moment, such as a counter.
    """
    found = jax.tree_util.tree_flatten_with_path(parameters)[0]
    known = {path: (number, leaf.shape) for number, (path, leaf) in enumerate(found)}
    return [_place(path, leaf, known) for path, leaf in jax.tree_util.tree_flatten_with_path(state, is_moment)[0]]


def _place(path: tuple[Any, ...], leaf: Any, known: dict[tuple[Any, ...], tuple[int, tuple[int, ...]]]) -> Place | None:
    if not is_moment(leaf) and not is_floating(leaf):
        return None
    for start in range(len(path) + 1):
        number, shape = known.get(path[start:], (0, None))
        if shape == leaf.shape:
            return Place(number, _word(path[start - 1]) if start else "")
    return None


def _word(key: Any) -> str:
    return str(getattr(key, "name", getattr(key, "key", getattr(key, "idx", key))))


def _rows(values: Array, stacked: bool) -> Array:
    """The array with one row for each layer, or a single one."""
    return values.reshape(values.shape[0] if stacked else 1, -1)
