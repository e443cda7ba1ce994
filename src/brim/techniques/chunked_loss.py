"""Chunked loss: the loss over a big vocabulary without the full logits.

WHAT IT DOES. The head and the cross-entropy are computed for a chunk of tokens at a time. When the step is
differentiated, each chunk's gradients with respect to its hidden states and to the head are made in the same turn,
while its logits are at hand; the backward pass only scales them by the incoming cotangent. The logits of all tokens
never exist together, and nothing is computed twice. In an evaluation only the losses are made.

Logits and softmax are fp32 within a chunk, whatever the compute dtype: never rounded to bf16, as those of the plain
loss are. The gradient of the head is summed over chunks in fp32.

BYTES, for N tokens, vocabulary V, width D, c bytes per element of the compute dtype, chunks of t tokens:
    plain      N V (c + 4)                    logits in the compute dtype, their gradient in fp32
    chunked    t V (c + 4) + 4 V D + N D c    one chunk, the head's gradient in fp32, that of the hidden states
For GPT-2 with 8192 tokens in bf16 that is 2356 MiB against 294 + 147 + 12 MiB at t = 1024; the head's gradient exists
either way.

TIME. The same three matrix products. Chunks run one after the other: small ones use a device badly, and each adds to
the whole gradient of the head. On a CPU it is faster than plain, because the exponentials of the softmax are made once
and a chunk's logits stay nearer to the cores.

IN FP16 a loss scale would come too late for small gradients of logits: it reaches this code as the cotangent, after
they are made. So they have a gain of 1024 of their own while they are fp16 (they are 1 at most), and both results stay
fp32 until the cotangent has scaled them: 2 N D bytes more for the hidden states and as much for their gradient.

WHEN IT HARMS. With a small vocabulary it saves little and the loop costs something. Second derivatives and forward mode
are not supported, as for every custom VJP.

SOURCES. The gradient in the forward pass: Hsu et al., Liger Kernel, 2024 (arXiv:2410.10989). Why it matters: Wijmans et
al., Cut Your Losses in Large-Vocabulary Language Models, 2024 (arXiv:2411.09009).

Letters: n chunks, t tokens of one chunk, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from brim.hardware.facts import Device
from brim.ops import IGNORED
from brim.ops.cross_entropy import token_losses
from brim.program import CROSS_ENTROPY, Program, Sizes
from brim.settings import require
from brim.techniques.base import Context, Effect, Points

_FP16_GAIN = 2.0**10


@dataclass(frozen=True)
class ChunkedLoss:
    """How many tokens' logits exist at a time.

    Attributes:
        tokens: the most tokens in a chunk; 0: all logits at once.
    """

    name: ClassVar[str] = "chunked_loss"
    points: ClassVar[frozenset[str]] = frozenset({"cross_entropy"})
    conflicts: ClassVar[Mapping[str, str]] = {}

    tokens: int = 0

    def __post_init__(self) -> None:
        require(self.tokens >= 0, "tokens", self.tokens, "0 (off) or the number of tokens in a chunk")

    @property
    def effect(self) -> Effect:
        """Sums in another order; in bf16 the logits are not rounded."""
        return "exact" if self.is_plain else "noise"

    @property
    def is_plain(self) -> bool:
        """All logits at once."""
        return self.tokens == 0

    def apply(self, points: Points, context: Context) -> Points:
        """Compute the loss chunk by chunk."""
        del context
        if self.is_plain:
            return points
        return replace(points, cross_entropy=partial(chunked_cross_entropy, tokens=self.tokens))

    def needs(self, program: Program, device: Device) -> str | None:
        """A loss that goes through `ops.cross_entropy`."""
        del device
        if self.is_plain or CROSS_ENTROPY in program.calls:
            return None
        return "the program does not compute its loss through ops.cross_entropy"

    def describe(self) -> str:
        """Such as `loss in chunks of 1024`."""
        return f"loss in chunks of {self.tokens}" if self.tokens else "loss at once"

    def predicted_bytes(self, sizes: Sizes, micro_batch: int, compute_bytes: int) -> int:
        """Logits alive at once and their gradient; see BYTES above. The head's gradient is that of a parameter."""
        tokens = micro_batch * sizes.length
        return min(self.tokens or tokens, tokens) * sizes.vocabulary * (compute_bytes + 4)

    def flops_ratio(self, sizes: Sizes) -> float:
        """The same products, for fewer than one token per chunk more than there are, to make chunks equal."""
        del sizes
        return 1 + 2 / self.tokens if self.tokens else 1.0

    @classmethod
    def options(cls, program: Program, device: Device) -> tuple[Self, ...]:
        """Fast chunks, all at once, and small chunks for small budgets, if the loss is `ops.cross_entropy`."""
        fast = cls(512 if device.platform == "cpu" else 1024)
        return (fast, cls(), cls(256)) if CROSS_ENTROPY in program.calls else (cls(),)


def chunked_cross_entropy(
    hidden: Float[Array, "*batch D"], head: Float[Array, "V D"], targets: Int[Array, "*batch"], *, tokens: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """As `ops.reference_cross_entropy`, at most `tokens` at a time, with logits in fp32.

    Returns: (sum of the loss over targets, number of targets), both fp32; the number has no gradient.
    """
    chunks = -(-targets.size // tokens)
    size = -(-targets.size // chunks)
    missing = chunks * size - targets.size
    states = jnp.pad(hidden.reshape(-1, hidden.shape[-1]), ((0, missing), (0, 0)))
    wanted = jnp.pad(targets.reshape(-1), (0, missing), constant_values=IGNORED)
    dtype = hidden.dtype
    if dtype == jnp.float16:
        states, head = states.astype(jnp.float32), head.astype(jnp.float32)
    total = _total(dtype, states.reshape(chunks, size, -1), head, wanted.reshape(chunks, size))
    return total, (targets >= 0).sum(dtype=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _total(
    dtype: DTypeLike, states: Float[Array, "n t D"], head: Float[Array, "V D"], targets: Int[Array, "n t"]
) -> Float[Array, ""]:
    # Products are of numbers in `dtype`; gradients have the dtypes of `states` and `head`.
    head = head.astype(dtype)

    def add(total: Array, chunk: tuple[Array, Array]) -> tuple[Array, None]:
        states, targets = chunk
        return total + token_losses(_product("td,vd->tv", states.astype(dtype), head), targets).sum(), None

    return jax.lax.scan(add, jnp.float32(0), (states, targets))[0]


def _forward(dtype: DTypeLike, states: Array, head: Array, targets: Array) -> tuple[Array, tuple[Array, Array]]:
    casted = head.astype(dtype)
    gain = _FP16_GAIN if dtype == jnp.float16 else None

    def add(sums: tuple[Array, Array], chunk: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        states, targets = chunk
        kept, states = states.dtype, states.astype(dtype)
        loss, gradient = _loss_and_gradient(_product("td,vd->tv", states, casted), targets)
        gradient = (gradient if gain is None else gradient * gain).astype(dtype)
        total, of_head = sums
        sums = total + loss, of_head + _product("tv,td->vd", gradient, states)
        return sums, _product("tv,vd->td", gradient, casted).astype(kept)

    start = jnp.float32(0), jnp.zeros(head.shape, jnp.float32)
    (total, of_head), of_states = jax.lax.scan(add, start, (states, targets))
    return total, (of_states, of_head.astype(head.dtype))


def _backward(dtype: DTypeLike, gradients: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array, None]:
    if dtype == jnp.float16:
        cotangent = cotangent / _FP16_GAIN
    of_states, of_head = ((cotangent * x.astype(jnp.float32)).astype(x.dtype) for x in gradients)
    return of_states, of_head, None


_total.defvjp(_forward, _backward)


def _loss_and_gradient(
    logits: Float[Array, "t V"], targets: Int[Array, " t"]
) -> tuple[Float[Array, ""], Float[Array, "t V"]]:
    """Summed loss and its gradient, softmax minus one at the target, in fp32; 0 where the target is below 0."""
    counts = targets >= 0
    highest = logits.max(axis=-1, keepdims=True)
    exponentials = jnp.exp(logits - highest)
    total = exponentials.sum(axis=-1, keepdims=True)
    chosen = jnp.take_along_axis(logits, jnp.maximum(targets, 0)[:, None], axis=-1)
    losses = jnp.where(counts, (jnp.log(total) + (highest - chosen))[:, 0], 0.0)
    probabilities = exponentials * (1 / total)
    is_target = jnp.arange(logits.shape[-1])[None] == targets[:, None]
    gradient = jnp.where(is_target, probabilities - 1, probabilities)
    return losses.sum(), jnp.where(counts[:, None], gradient, 0.0)


def _product(letters: str, first: Array, second: Array) -> Float[Array, "_ _"]:
    return jnp.einsum(letters, first, second, preferred_element_type=jnp.float32)
