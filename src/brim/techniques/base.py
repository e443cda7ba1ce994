"""What a technique is, and the named points of the step where techniques act.

A technique is a frozen record of settings with pure functions. It does not wrap a closure around a closure: it fills
named POINTS of the step, and the assembler calls what stands there in one canonical order.

    point            what stands there                                          default
    dtypes           formats of parameters and of the forward pass              fp32
    residuals        name of an intermediate -> save or recompute, per block    save everything
    unroll           layers written out per turn of the stack's scan            1
    attention        the attention function                                     reference
    cross_entropy    the vocabulary loss                                        reference
    gradients        how an update's loss and gradients come from micro-batches  the batch in one piece
    optimizer        the program's optimizer -> the one in use                   the same, guarded (see `guarded`)
    loss_scaling     what the loss is multiplied by before it is differentiated  nothing
    update           how the optimizer's updates reach the parameters            added in the parameters' format

`effect` says what a technique may do to the numbers: `exact` (same bits on one backend), `noise` (only the order of
floating-point sums), `rounding` (fewer bits in the forward pass, by design and at the user's wish), `lossy`
(searched only when allowed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import jax
from jaxtyping import Array, Bool, Key

from brim.hardware.facts import Device
from brim.ops import AttentionFunction, CrossEntropyFunction, Dtypes, Loss, reference_attention, reference_cross_entropy
from brim.program import Optimizer, Program, Sizes
from brim.techniques.loss_scaling import LossScaling
from brim.techniques.residuals import Residuals
from brim.tree import PyTree, select

Effect = Literal["exact", "noise", "rounding", "lossy"]


@runtime_checkable
class ValueAndGradient(Protocol):
    """Loss, gradients of its sum, and new variables, for some rows."""

    def __call__(
        self, trainable: PyTree, variables: PyTree, batch: PyTree, keys: Key[Array, " rows"], /
    ) -> tuple[Loss, PyTree, PyTree]: ...


@runtime_checkable
class GradientsFunction(Protocol):
    """How the loss and gradient sums of one update are made from `ValueAndGradient`; returns what that returns."""

    def __call__(
        self,
        value_and_gradient: ValueAndGradient,
        trainable: PyTree,
        variables: PyTree,
        batch: PyTree,
        keys: Key[Array, " rows"],
        /,
    ) -> tuple[Loss, PyTree, PyTree]: ...


def whole_batch(
    value_and_gradient: ValueAndGradient, trainable: PyTree, variables: PyTree, batch: PyTree, keys: Any, /
) -> tuple[Loss, PyTree, PyTree]:
    """Gradients of an update in one piece: the default at the `gradients` point."""
    return value_and_gradient(trainable, variables, batch, keys)


@dataclass(frozen=True)
class GuardedOptimizer:
    """An optimizer whose update also takes `updated`, a scalar boolean: where it is False, the state stays as it is.

    That is the optimizer's own affair so that one which rewrites its state in place need not keep the old one.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[..., tuple[PyTree, PyTree]]


def guarded(optimizer: Optimizer) -> Optimizer:
    """The optimizer itself, with its old state taken where nothing is updated: the default at its point."""

    def update(
        gradients: PyTree, state: PyTree, parameters: PyTree, *, updated: Bool[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        updates, new = optimizer.update(gradients, state, parameters)
        return updates, select(updated, new, state)

    return GuardedOptimizer(optimizer.init, update)


@dataclass(frozen=True)
class Updater:
    """An optimizer together with how its updates reach the parameters.

    Attributes:
        init: trainable -> state.
        update: (gradients, state, trainable, key of the window, updated) -> (trainable, state). Where `updated`, one
            truth value, is False, the state stays as it is; what it gives for the parameters is then not taken.
    """

    init: Callable[[PyTree], PyTree]
    update: Callable[[PyTree, PyTree, PyTree, Key[Array, ""], Bool[Array, ""]], tuple[PyTree, PyTree]]


def plain_update(optimizer: Optimizer) -> Updater:
    """Updates added to the parameters, in the parameters' format: the default at the `update` point."""

    def update(
        gradients: PyTree, state: PyTree, trainable: PyTree, key: Key[Array, ""], updated: Bool[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        del key
        updates, state = optimizer.update(gradients, state, trainable, updated=updated)
        return jax.tree.map(lambda old, change: (old + change).astype(old.dtype), trainable, updates), state

    return Updater(optimizer.init, update)


@dataclass(frozen=True)
class Points:
    """What stands at each point; see the head of this file."""

    dtypes: Dtypes = field(default_factory=Dtypes)
    residuals: Residuals = field(default_factory=Residuals)
    unroll: int = 1
    attention: AttentionFunction = reference_attention
    cross_entropy: CrossEntropyFunction = reference_cross_entropy
    gradients: GradientsFunction = whole_batch
    optimizer: Callable[[Optimizer], Optimizer] = guarded
    loss_scaling: LossScaling | None = None
    update: Callable[[Optimizer], Updater] = plain_update


def _unheard(note: str) -> None:
    del note


@dataclass(frozen=True)
class Context:
    """Where a technique is applied: the program, the device, and a way to say what it had to decide on the way."""

    program: Program
    device: Device
    say: Callable[[str], None] = _unheard


@runtime_checkable
class Technique(Protocol):
    """One memory or speed method. Concrete techniques are final frozen dataclasses whose fields are their settings."""

    name: ClassVar[str]
    points: ClassVar[frozenset[str]]
    """Points it fills; `apply` changes no other."""
    conflicts: ClassVar[Mapping[str, str]]
    """Names of techniques it cannot stand beside -> why."""

    @property
    def effect(self) -> Effect:
        """What these settings may do to the numbers."""
        ...

    @property
    def is_plain(self) -> bool:
        """Whether these settings are the plain step: nothing is changed and nothing needs saying."""
        ...

    def apply(self, points: Points, context: Context) -> Points:
        """The points with this technique's functions in place."""
        ...

    def needs(self, program: Program, device: Device) -> str | None:
        """None, or the reason why this technique cannot work on this program or device."""
        ...

    def describe(self) -> str:
        """The settings in a few words, for a table."""
        ...

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """Device bytes that these settings leave alive at the peak, of what this technique governs, by its formula."""
        ...

    def flops_ratio(self, sizes: Sizes) -> float:
        """Largest ratio of the step's FLOPs to those of the plain step."""
        ...

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """Settings worth trying when the planner searches, cheapest in time first; one entry: nothing to search."""
        ...
