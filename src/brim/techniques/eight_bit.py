"""Any Optax transformation with its moments in 8 bits: `eight_bit(optax.adamw(1e-3))`.

A moment is an array of the transformation's state with the path and the shape of a parameter, such as Adam's `mu` and
`nu`, the momentum of SGD (`trace`) or of Lion (`mu`). Between updates it is kept as a `Moment`: codes and scales. An
update makes it fp32, asks the inner transformation, and quantizes what comes out.

An inner transformation that treats every element alone (Adam, Lion, momentum) is asked for one slice of the large
arrays at a time, in a loop that writes codes and updates in place: no whole moment in fp32 is ever there. The other
arrays are empty then, so that it finds the tree that it knows. Whether it treats elements alone is read from its jaxpr.
One that mixes them (Muon) is asked for everything at once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from brim.program import Optimizer
from brim.techniques.elementwise import is_elementwise
from brim.techniques.moments import SQUARES, Layout, Moment, Place, is_moment, places
from brim.tree import PyTree, path_names, select, specs_of

LayoutOf = Callable[[str, Any], Layout]
"""Says of a parameter, by its path such as `layers.query.weight` and its array or spec, how its moments are kept."""


def eight_bit(inner: Optimizer, layout_of: LayoutOf = lambda name, leaf: Layout(256)) -> Any:
    """The transformation with moments in 8 bits.

    Args:
        inner: an Optax transformation.
        layout_of: how each parameter's moments are kept; if left out, all in blocks of 256.

    Returns:
        an `optax.GradientTransformationExtraArgs`. Its update takes `updated` beside what the inner one takes, a scalar
        boolean: where it is False, the state stays as it is.
    """
    import optax  # here, because a plan or a run file that only names the technique needs no Optax

    inner = optax.with_extra_args_support(inner)
    return optax.GradientTransformationExtraArgs(partial(_init, inner, layout_of), partial(_update, inner, layout_of))


def _init(inner: Any, layout_of: LayoutOf, parameters: PyTree) -> PyTree:
    layouts = _layouts(layout_of, parameters)
    state = inner.init(parameters)
    leaves, structure = jax.tree.flatten(state)
    # Initial moments are constants, and XLA would spend minutes on computing their codes at compile time.
    one = jax.lax.optimization_barrier(jnp.float32(1))

    def kept(leaf: Array, place: Place | None) -> Array | Moment:
        if place is None or not layouts[place.number].block:
            return leaf
        layout, signed = layouts[place.number], place.name not in SQUARES
        return Moment.of(leaf * one.astype(leaf.dtype), layout.block, signed=signed, stacked=layout.stacked)

    return jax.tree.unflatten(structure, map(kept, leaves, places(state, parameters)))


def _update(
    inner: Any,
    layout_of: LayoutOf,
    gradients: PyTree,
    state: PyTree,
    parameters: PyTree | None = None,
    *,
    updated: Bool[Array, ""] | None = None,
    **more: Any,
) -> tuple[PyTree, PyTree]:
    call = _Call.of(partial(inner.update, **more), gradients, state, parameters)
    layouts = _layouts(layout_of, gradients)
    counts = [layout.slices(leaf.shape) for layout, leaf in zip(layouts, call.gradients, strict=True)]
    jaxpr, specs = call.traced()
    if not (call.has_moments_alone() and is_elementwise(jaxpr)):
        counts = [1 for _ in counts]
    updates, moments = call.part({number for number, count in enumerate(counts) if count == 1}, _itself, updated)
    for count in sorted(set(counts) - {1}):
        numbers = {number for number, its_count in enumerate(counts) if its_count == count}
        of_loop, moments_of_loop = call.loop(numbers, count, specs, updated)
        updates, moments = updates | of_loop, moments | moments_of_loop
    return call.trees(updates, moments)


def _layouts(layout_of: LayoutOf, parameters: PyTree) -> list[Layout]:
    return list(map(layout_of, path_names(parameters), jax.tree.leaves(parameters)))


@dataclass(frozen=True)
class _Call:
    """A call of the inner transformation: leaves of gradients, state and parameters, and what makes them trees again.

    `places` says whose moment each leaf of the state is.
    """

    function: Callable[..., tuple[PyTree, PyTree]]
    gradients: list[Any]
    state: list[Any]
    parameters: list[Any]
    structures: tuple[Any, Any, Any]
    places: list[Place | None]

    @classmethod
    def of(cls, function: Callable[..., Any], gradients: PyTree, state: PyTree, parameters: PyTree | None) -> _Call:
        leaves, structures = zip(
            *(jax.tree.flatten(tree, is_leaf=is_moment) for tree in (gradients, state, parameters)), strict=True
        )
        return cls(function, leaves[0], leaves[1], leaves[2], structures, places(state, gradients))

    def has_moments_alone(self) -> bool:
        """Whether the state holds nothing but moments and scalars."""
        others = [leaf for leaf, place in zip(self.state, self.places, strict=True) if place is None]
        return not any(leaf.shape for leaf in others)

    def traced(self) -> tuple[Any, list[Any]]:
        """The jaxpr of the whole call, and the specs of its updates."""
        state = [jax.ShapeDtypeStruct(leaf.shape, jnp.float32) if is_moment(leaf) else leaf for leaf in self.state]
        specs = specs_of((self.gradients, state, self.parameters))
        jaxpr, (updates, _) = jax.make_jaxpr(self._ask, return_shape=True)(*specs)
        return jaxpr, updates

    def part(
        self, numbers: Collection[int], cut: Callable[[Any], Any], updated: Bool[Array, ""] | None
    ) -> tuple[dict[int, Array], dict[int, Any]]:
        """Ask for some parameters, cut to a part; all others are empty.

        Returns: the updates, by number of the parameter; what is kept of their moments, and of the rest of the state,
            by number of the leaf.
        """
        old = {
            index: leaf if place is None else cut(leaf)
            for index, (leaf, place) in enumerate(zip(self.state, self.places, strict=True))
            if place is None or place.number in numbers
        }
        updates, state = self._ask(
            [cut(leaf) if number in numbers else _empty(leaf) for number, leaf in enumerate(self.gradients)],
            [_decoded(old[index]) if index in old else _empty(leaf) for index, leaf in enumerate(self.state)],
            [cut(leaf) if number in numbers else _empty(leaf) for number, leaf in enumerate(self.parameters)],
        )
        new = {index: leaf.like(state[index]) if is_moment(leaf) else state[index] for index, leaf in old.items()}
        return {number: updates[number] for number in numbers}, new if updated is None else select(updated, new, old)

    def loop(
        self, numbers: Collection[int], count: int, specs: list[Any], updated: Bool[Array, ""] | None
    ) -> tuple[dict[int, Array], dict[int, Any]]:
        """As `part` in so many slices, one after the other; updates take the place of gradients of their dtype."""
        owned = [index for index, place in enumerate(self.places) if place is not None and place.number in numbers]
        replaced = [number for number in numbers if self.gradients[number].dtype == specs[number].dtype]

        def turn(slice_number: Array, carry: tuple[dict[int, Array], dict[int, Any]]) -> tuple[Any, Any]:
            updates, moments = carry
            gradients = [updates[n] if n in replaced else leaf for n, leaf in enumerate(self.gradients)]
            state = [moments.get(index, leaf) for index, leaf in enumerate(self.state)]
            call = replace(self, gradients=gradients, state=state)
            new = call.part(numbers, partial(_slice, slice_number, count), updated)
            of_slice = new[0], {index: new[1][index] for index in owned}
            return jax.tree.map(partial(_write, slice_number, count), carry, of_slice)

        start = {
            number: leaf if number in replaced else jnp.zeros(leaf.shape, specs[number].dtype)
            for number, leaf in enumerate(self.gradients)
            if number in numbers
        }
        return jax.lax.fori_loop(0, count, turn, (start, {index: self.state[index] for index in owned}))

    def trees(self, updates: dict[int, Array], state: dict[int, Any]) -> tuple[PyTree, PyTree]:
        """Updates and state as trees."""
        leaves = (leaf for _, leaf in sorted(updates.items())), (leaf for _, leaf in sorted(state.items()))
        return jax.tree.unflatten(self.structures[0], leaves[0]), jax.tree.unflatten(self.structures[1], leaves[1])

    def _ask(self, *leaves: list[Any]) -> tuple[list[Any], list[Any]]:
        updates, state = self.function(*map(jax.tree.unflatten, self.structures, leaves))
        return jax.tree.leaves(updates), jax.tree.leaves(state)


def _itself(leaf: Any) -> Any:
    return leaf


def _decoded(leaf: Any) -> Array:
    return leaf.decoded() if is_moment(leaf) else leaf


def _empty(leaf: Any) -> Array:
    """No row of an array; a scalar as it is."""
    if is_moment(leaf):
        return jnp.zeros((0, *leaf.shape[1:]), jnp.float32)
    return leaf[:0] if leaf.ndim else leaf


def _slice(number: Array, count: int, leaf: Any) -> Any:
    def cut(array: Array) -> Array:
        size = array.shape[0] // count
        return jax.lax.dynamic_slice_in_dim(array, number * size, size)

    return jax.tree.map(cut, leaf)


def _write(number: Array, count: int, array: Array, of_slice: Array) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(array, of_slice, number * (array.shape[0] // count), 0)
