"""Attention kernel: which code mixes values, chosen by device, dtype and shape, and said aloud.

WHAT IT DOES. `ops.attention` has one meaning, that of the reference, and three kernels with that meaning:

    cudnn       cuDNN's fused flash attention, through `jax.nn.dot_product_attention`
    blockwise   exact attention in blocks of queries, in plain JAX; see blockwise_attention.py
    reference   all scores at once; the only one with dropout on probabilities

`auto` takes the first that can do what is asked. A kernel asked for by name that cannot do it is replaced by the next
one that can, never silently: `context.say` hears which kernel runs, why, and what it costs.

BYTES, of what a layer keeps for its backward pass beside queries, keys, values and result, for B rows of T positions,
H query heads, c bytes per element of the compute dtype:
    reference            (4 + c) B H T^2    exponentials in fp32, and probabilities
    blockwise, cudnn     4 B H T            one fp32 number per query
A layer that is computed again keeps nothing of this, and has it alive once, while it is being differentiated. cuDNN
takes documents only as a dense bias of c B T^2 bytes, and its backward pass makes a gradient for it, as large again:
that is said, with the bytes. Rows that are one document each need no bias.

TIME. On a GPU, cuDNN is the fastest where it works, because scores never leave the chip. On a CPU, blockwise does 9/16
of the work under a causal mask (eight blocks) with fewer passes over memory.

WHEN IT HARMS. Not in the result: sums in another order. Padded positions (document 0) give exactly 0 with zero
gradient in all three. Packed documents save no work in any. Dropout on probabilities falls back to the reference, T^2
bytes and all; dropout elsewhere does not. The limits below are those that JAX checks before it calls cuDNN. On a
Hopper card it would take heads up to 256 wide, but only when it sees the card: a plan made elsewhere could then not be
compiled, so brim keeps to 128 everywhere.

SOURCES. Dao et al., FlashAttention, 2022 (arXiv:2205.14135); Dao, FlashAttention-2, 2023 (arXiv:2307.08691); NVIDIA,
cuDNN developer guide, fused flash attention; JAX, `jax/_src/cudnn/fused_attention_stablehlo.py` (the limits).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar, Literal, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Key

from brim.hardware.facts import Device
from brim.ops import AttentionMask, reference_attention
from brim.program import ATTENTION, Program, Sizes
from brim.quantities import format_bytes
from brim.settings import require
from brim.techniques.base import Context, Effect, Points
from brim.techniques.blockwise_attention import blockwise_attention, zero_padding

Kernel = Literal["cudnn", "blockwise", "reference"]
WIDEST_CUDNN_HEAD = 128


@dataclass(frozen=True)
class Choice:
    """A kernel, why it was taken, and the bytes of the dense bias it needs for documents (0: none)."""

    kernel: Kernel
    reason: str
    bias_bytes: int = 0

    def __str__(self) -> str:
        size = format_bytes(self.bias_bytes)
        bias = f"; documents become a dense bias of {size}, and its gradient is as large" if self.bias_bytes else ""
        return f"attention runs on the {self.kernel} kernel: {self.reason}{bias}"


@dataclass(frozen=True)
class AttentionKernel:
    """Which attention kernel to use.

    Attributes:
        kernel: `auto`, or one by name; one that cannot do what is asked is replaced, and that is said.
        block: queries per block of the blockwise kernel; 0: chosen from the length.
    """

    name: ClassVar[str] = "attention_kernel"
    points: ClassVar[frozenset[str]] = frozenset({"attention"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    kernel: Literal["auto", "cudnn", "blockwise", "reference"] = "auto"
    block: int = 0

    def __post_init__(self) -> None:
        require(self.block >= 0, "block", self.block, "0 (chosen) or a number of queries")

    @property
    def effect(self) -> Effect:
        """Sums in another order."""
        return "exact" if self.is_plain else "noise"

    @property
    def is_plain(self) -> bool:
        """The reference, by name."""
        return self.kernel == "reference"

    def apply(self, points: Points, context: Context) -> Points:
        """Put attention in place that chooses its kernel when it is traced, by the shapes it meets."""
        if self.is_plain:
            return points
        say_once = cache(context.say)  # layers, recomputation and evaluation trace attention again and again
        return replace(points, attention=partial(_attend, self, context.device, say_once))

    def needs(self, program: Program, device: Device) -> str | None:
        """A program that calls `ops.attention`, if a kernel is asked for by name."""
        del device
        if self.kernel in ("auto", "reference") or ATTENTION in program.calls:
            return None
        return "the program does not compute its attention through ops.attention"

    def describe(self) -> str:
        """Such as `blockwise attention`."""
        block = f" in blocks of {self.block}" if self.block else ""
        return f"{self.kernel} attention{block}"

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """What one layer keeps, see BYTES above: all layers without rematerialization, one with it."""
        queries = micro_batch * sizes.heads * sizes.length
        return queries * sizes.length * (4 + compute_bytes) if self.is_plain else 4 * queries

    def flops_ratio(self, sizes: Sizes) -> float:
        """Scores are made a second time; a seventh product for every six of attention, before causal savings."""
        if self.is_plain:
            return 1.0
        query, key = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
        weights = 2 * sizes.width * (query + key) + (2 + sizes.gated) * sizes.width * sizes.hidden
        product = 2 * sizes.length * query
        plain = sizes.layers * (6 * weights + 6 * product) + 6 * sizes.width * sizes.vocabulary
        return 1 + sizes.layers * product / plain

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """A choice by device and shape, not a search; nothing to say of a program without attention."""
        del device
        return (cls(),) if ATTENTION in program.calls else (cls("reference"),)


def choose(
    wanted: Literal["auto", "cudnn", "blockwise", "reference"],
    device: Device,
    *,
    dtype: DTypeLike,
    shape: tuple[int, ...],
    documents: bool,
    dropout: bool,
) -> Choice:
    """The kernel for one call of attention.

    Args:
        wanted: the kernel asked for.
        device: where it will run.
        dtype: of queries, keys and values.
        shape: of the queries: rows, positions, heads, head width.
        documents: whether the mask tells documents or padding apart.
        dropout: whether attention probabilities are dropped.
    """
    rows, length, heads, _ = shape
    if wanted == "reference":
        return Choice("reference", "it was asked for")
    if dropout:
        cost = format_bytes(8 * rows * heads * length**2)
        reason = f"no other has dropout on probabilities; it keeps up to {cost} of them per layer"
        return Choice("reference", f"{wanted} was asked for, but {reason}" if wanted != "auto" else reason)
    if wanted == "blockwise":
        return Choice("blockwise", "it was asked for")
    if obstacle := _obstacle_to_cudnn(device, dtype, shape, documents):
        return Choice("blockwise", f"cudnn was asked for, but {obstacle}" if wanted == "cudnn" else obstacle)
    bias_bytes = rows * length**2 * jnp.dtype(dtype).itemsize if documents else 0
    return Choice("cudnn", "the device and the shapes allow it", bias_bytes)


def _obstacle_to_cudnn(device: Device, dtype: DTypeLike, shape: tuple[int, ...], documents: bool) -> str | None:
    _, length, _, head_width = shape
    if reason := device.why_not("cudnn_attention"):
        return reason
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"cuDNN's attention takes bfloat16 or float16; these are {jnp.dtype(dtype).name}"
    if head_width % 8 or head_width > WIDEST_CUDNN_HEAD:
        expected = f"head widths that are multiples of 8 up to {WIDEST_CUDNN_HEAD}"
        return f"cuDNN's attention takes {expected}; this one is {head_width}"
    if documents and length % 2:
        return f"cuDNN's attention takes a mask of documents for even lengths only; this one is {length}"
    return None


def _attend(
    technique: AttentionKernel,
    device: Device,
    say: Callable[[str], None],
    query: Float[Array, "B T H D"],
    key: Float[Array, "B T K D"],
    value: Float[Array, "B T K D"],
    mask: AttentionMask,
    *,
    dropout_rate: float = 0.0,
    dropout_keys: Key[Array, " B"] | None = None,
) -> Float[Array, "B T H D"]:
    choice = choose(
        technique.kernel,
        device,
        dtype=query.dtype,
        shape=query.shape,
        documents=mask.documents is not None,
        dropout=dropout_rate > 0 and dropout_keys is not None,
    )
    say(str(choice))
    if choice.kernel == "reference":
        return reference_attention(query, key, value, mask, dropout_rate=dropout_rate, dropout_keys=dropout_keys)
    if choice.kernel == "cudnn":
        return fused_attention(query, key, value, mask)
    # Row by row the scores fit a CPU's cache; a GPU would be left half idle.
    return blockwise_attention(
        query, key, value, mask, block=technique.block, row_by_row=device.platform == "cpu"
    )  # fmt: skip


def fused_attention(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B T K D"],
    value: Float[Array, "B T K D"],
    mask: AttentionMask,
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> Float[Array, "B T H D"]:
    """As `ops.reference_attention` without dropout, by one of JAX's own implementations.

    Padding is a document of its own here: cuDNN hides keys by adding a large finite number, so a query without any key
    would see all of them.
    """
    documents = mask.documents
    same = None if documents is None else (documents[:, None, :, None] == documents[:, None, None, :])
    mixed = jax.nn.dot_product_attention(
        query, key, value, mask=same, is_causal=mask.causal, implementation=implementation
    )
    return zero_padding(mixed, mask)
