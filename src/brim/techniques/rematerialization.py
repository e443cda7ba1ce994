"""Rematerialization (activation checkpointing): compute intermediates again instead of keeping them.

WHAT IT DOES. The backward pass needs the intermediates of the forward pass. Here each block of the stack keeps only
what its map of residuals says, and the rest is computed again, block by block, when the backward pass reaches it.

    none                 keep everything
    dots                 keep the results of all matrix products, attention scores included
    dots_without_batch   keep the results of products with weights; recompute norms, activations and attention
    names                keep the named intermediates in `names`
    full                 keep only each block's input

`unroll` stands beside it: how many layers are written out in each turn of the stack's loop (0: all of them).

BYTES, of what the L layers keep, for N tokens in a micro-batch, width D, query width Hq and key-value width Hk,
hidden F, g = 1 with a gate and else 0, c bytes per element of the compute dtype:
    full                 L N c D
    dots_without_batch   L N c (2 D + Hq + 2 Hk + (1 + g) F)
    none, at the least   L N c (4 D + 2 Hq + 2 Hk + (2 + 2 g) F)
    names                L N c (D + the widths of the named ones)
plus one block's full working set while it is being recomputed. Tested against compiled programs.

TIME. `full` runs the stack's forward products twice: at most 4/3 of the step's FLOPs. `dots_without_batch` repeats
attention and the elementwise work. Where memory traffic is the limit it can even be faster than keeping everything:
writing and reading stacked residuals costs more than some recomputation (compiled for an A100; not yet measured).

WHEN IT HARMS. On a CPU it saves memory only while the stack is scanned (`unroll` = 1): unrolled, XLA pays the FLOPs
and keeps the bytes. On a GPU an unrolled stack needs somewhat more than a scanned one (GPT-2 124M at 8 x 1024, compiled
for an H100: 6.76 against 6.19 GiB) and takes three to four times as long to compile, minutes near the card's memory. It
may run faster, which has not been measured. So unrolling is searched on a CPU, where it pays, and elsewhere taken when
it is asked for.
Around a scan instead of inside it, rematerialization would save nothing.

SOURCES. Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016 (arXiv:1604.06174); Korthikanti et al.,
Reducing Activation Recomputation in Large Transformer Models, 2022 (arXiv:2205.05198).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from brim.hardware.facts import Device
from brim.program import Program, Sizes
from brim.settings import require
from brim.techniques.base import Context, Effect, Points
from brim.techniques.residuals import Residuals, Rule

Policy = Literal["none", "full", "dots", "dots_without_batch", "names"]
_RULES: dict[str, Rule] = {
    "none": "save",
    "full": "recompute",
    "names": "recompute",
    "dots": "dots",
    "dots_without_batch": "dots_without_batch",
}


@dataclass(frozen=True)
class Rematerialization:
    """What each block of the stack keeps for the backward pass, and how many blocks are written out per loop turn."""

    name: ClassVar[str] = "rematerialization"
    points: ClassVar[frozenset[str]] = frozenset({"residuals", "unroll"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    policy: Policy = "none"
    names: tuple[str, ...] = ()
    unroll: int = 1

    def __post_init__(self) -> None:
        require(self.unroll >= 0, "unroll", self.unroll, "0 (all layers) or a number of layers")
        require(
            bool(self.names) == (self.policy == "names"),
            "names",
            list(self.names),
            "names of residuals exactly when policy is `names`",
            hint='write policy = "names" and names = ["attention_out", "mlp_hidden"], or leave names out',
        )

    @property
    def effect(self) -> Effect:
        """The same operations in the same order; XLA may fuse the second run differently."""
        return "exact" if self.is_plain else "noise"

    @property
    def is_plain(self) -> bool:
        """Everything kept, one layer per turn."""
        return self.policy == "none" and self.unroll == 1

    def apply(self, points: Points, context: Context) -> Points:
        """Fill the map of residuals and the unroll factor."""
        del context
        residuals = Residuals(rule=_RULES[self.policy], saved=points.residuals.saved | frozenset(self.names))
        return replace(points, residuals=residuals, unroll=self.unroll)

    def needs(self, program: Program, device: Device) -> str | None:
        """A stack: without equal layers in a scan there is no block to recompute."""
        del device
        if not self.is_plain and "stack" not in program.calls:
            return "the program calls no stack; run its equal layers through ops.stack"
        return None

    def describe(self) -> str:
        """Such as `remat full, unrolled`."""
        kept = f"keeping {'+'.join(self.names)}" if self.policy == "names" else self.policy.replace("_", " ")
        unrolled = {0: "unrolled", 1: ""}.get(self.unroll, f"unroll {self.unroll}")
        if self.policy == "none":
            return unrolled or "no remat"
        return ", ".join(filter(None, (f"remat {kept}", unrolled)))

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """What all layers keep; see BYTES above."""
        widths = {"none": _kept_by_none, "dots": _kept_by_dots, "dots_without_batch": _kept_by_dots}
        if self.policy == "names":
            known = residual_widths(sizes)
            width = sizes.width + sum(known.get(name, 0) for name in self.names)
        else:
            width = widths.get(self.policy, _kept_by_full)(sizes)
        return sizes.layers * micro_batch * sizes.length * compute_bytes * width

    def flops_ratio(self, sizes: Sizes) -> float:
        """At most the stack's forward products once more, over three times those of the whole model."""
        block, attention = _forward_flops_per_token(sizes)
        whole = 3 * (sizes.layers * (block + attention) + 2 * sizes.width * sizes.vocabulary)
        again = {"none": 0.0, "dots": attention, "dots_without_batch": attention}.get(self.policy, block + attention)
        return 1 + sizes.layers * again / whole

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """From the fastest to the smallest; a stack is written out on a CPU only, see WHEN IT HARMS."""
        if "stack" not in program.calls:
            return (cls(),)
        unrolled = (cls(unroll=0),) if device.platform == "cpu" else ()
        return (*unrolled, cls(), cls("dots_without_batch"), cls("full"))


def residual_widths(sizes: Sizes) -> dict[str, int]:
    """Elements per token of each residual that the built-in models name."""
    query, key = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    widths = {"attention_norm": sizes.width, "query": query, "key": key, "value": key, "attention": query}
    widths |= {"attention_out": sizes.width, "mlp_norm": sizes.width, "mlp_hidden": sizes.hidden}
    widths |= {"mlp_gate": sizes.hidden * sizes.gated, "mlp_activation": sizes.hidden, "mlp_out": 0}
    return widths


def _kept_by_full(sizes: Sizes) -> int:
    return sizes.width


def _kept_by_dots(sizes: Sizes) -> int:
    query, key = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    return 2 * sizes.width + query + 2 * key + (1 + sizes.gated) * sizes.hidden


def _kept_by_none(sizes: Sizes) -> int:
    query, key = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    return 4 * sizes.width + 2 * query + 2 * key + (2 + 2 * sizes.gated) * sizes.hidden


def _forward_flops_per_token(sizes: Sizes) -> tuple[float, float]:
    """(products with weights, attention scores and mixing without causal saving) of one layer, per token."""
    query, key = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    projections = sizes.width * (query + 2 * key) + query * sizes.width
    feed_forward = (2 + sizes.gated) * sizes.width * sizes.hidden
    return 2.0 * (projections + feed_forward), 4.0 * sizes.length * query
