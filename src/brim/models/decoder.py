"""A decoder-only transformer: the GPT-2 family and the Llama family, as one scanned stack.

    program = decoder_program(DecoderSettings(preset="gpt2").resolved(), optax.adamw(3e-4), clip_norm=1.0)

Letters: B rows, T positions, V vocabulary.

A batch is a dictionary of int32 arrays [B, T]: `tokens`; `targets` (below 0: none); `documents` (number of the document
within the row, 0 for padding); `positions` (restarting at 0 in each document). `documents` and `positions` may be
absent: a row is then one document without padding.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Key

from brim.errors import ShapeError
from brim.models.layers import Attention, Embedding, FeedForward, LayerNorm, Linear, RMSNorm, Rotary, create_norm, named
from brim.models.shape import DecoderShape
from brim.ops import ONCE, AttentionFunction, AttentionMask, Loss, Ops, Repeats, dropout, residual, site_keys
from brim.program import ATTENTION, CROSS_ENTROPY, DTYPES, STACK, Program, Sizes
from brim.tree import PyTree

RESIDUAL_NAMES = (
    "block_input",
    "attention_norm",
    "query",
    "key",
    "value",
    "attention",
    "attention_out",
    "mlp_norm",
    "mlp_hidden",
    "mlp_gate",
    "mlp_activation",
    "mlp_out",
)
"""Names of a block's intermediates, in the order in which they are made; `mlp_gate` in the Llama family only."""

Batch = Mapping[str, Int[Array, "B T"]]


class Context(eqx.Module):
    """What all layers of one forward pass share.

    Attributes:
        mask: who may look at whom.
        rotary: tables for the batch's positions; None with learned positions.
        keys: one key per row for dropout; None when evaluating.
    """

    mask: AttentionMask
    rotary: Rotary | None
    keys: Key[Array, " B"] | None


class Block(eqx.Module):
    """One layer: attention and feed-forward, each after a norm and around the residual stream.

    Its parts `project` and `finish` leave out the mixing between positions, so that sampling with a cache uses the
    same layer.
    """

    attention_norm: LayerNorm | RMSNorm
    attention: Attention
    mlp_norm: LayerNorm | RMSNorm
    mlp: FeedForward
    dropout: float = eqx.field(static=True)

    @classmethod
    def create(cls, key: Key[Array, ""], shape: DecoderShape) -> Block:
        """Initial parameters of one layer, in fp32."""
        attention_key, mlp_key = jax.random.split(key)
        return cls(
            attention_norm=create_norm(shape),
            attention=Attention.create(attention_key, shape),
            mlp_norm=create_norm(shape),
            mlp=FeedForward.create(mlp_key, shape),
            dropout=shape.dropout,
        )

    def __call__(
        self, x: Float[Array, "B T width"], context: Context, index: Int[Array, ""], attention: AttentionFunction
    ) -> Float[Array, "B T width"]:
        """Apply the layer; `index` is its number, which tells its dropout masks from those of other layers."""
        attention_keys, out_keys, mlp_keys = (_site(context.keys, 3 * index + place) for place in (1, 2, 3))
        x = residual(x, "block_input")
        query, key, value = self.project(x, context.rotary)
        with jax.named_scope("attention"):
            mixed = attention(
                query, key, value, context.mask, dropout_rate=self.dropout, dropout_keys=attention_keys
            )  # fmt: skip
        return self.finish(x, mixed, out_keys, mlp_keys)

    def project(
        self, x: Float[Array, "B T width"], rotary: Rotary | None
    ) -> tuple[Float[Array, "B T H D"], Float[Array, "B T K D"], Float[Array, "B T K D"]]:
        """Queries, keys and values of the residual stream."""
        with jax.named_scope("attention"):
            return self.attention.project(named("attention_norm", self.attention_norm, x), rotary)

    def finish(
        self,
        x: Float[Array, "B T width"],
        mixed: Float[Array, "B T H D"],
        out_keys: Key[Array, " B"] | None = None,
        mlp_keys: Key[Array, " B"] | None = None,
    ) -> Float[Array, "B T width"]:
        """The residual stream after mixed values are added and the feed-forward part has acted."""
        with jax.named_scope("attention"):
            x = x + dropout(self.attention.merge(mixed), self.dropout, out_keys)
        with jax.named_scope("feed_forward"):
            change = self.mlp(named("mlp_norm", self.mlp_norm, x))
            return x + dropout(change, self.dropout, mlp_keys)


class Decoder(eqx.Module):
    """The model. A module is its own parameter tree: every array in it is trainable.

    Attributes:
        token_embedding: [V, width].
        position_embedding: [context, width] for learned positions, else None.
        layers: ONE block whose arrays have a leading axis of layers; of the sets of weights, if layers share them.
        final_norm: before the head.
        head: [V, width], without a bias; None when tied to the token embedding.
        shape: sizes and switches; static.
    """

    token_embedding: Embedding
    position_embedding: Embedding | None
    layers: Block
    final_norm: LayerNorm | RMSNorm
    head: Linear | None
    shape: DecoderShape = eqx.field(static=True)

    @classmethod
    def create(cls, key: Key[Array, ""], shape: DecoderShape) -> Decoder:
        """Initial parameters in fp32: normal with deviation 0.02, residual projections smaller by sqrt(2 layers).

        Learned positions have deviation 0.02 too, as in nanoGPT; OpenAI's own code has 0.01 there.
        """
        token_key, position_key, layers_key, head_key = jax.random.split(key, 4)
        positions = Embedding.create(position_key, shape.context, shape.width) if shape.learned_positions else None
        head = None if shape.tied else Linear.create(head_key, shape.width, shape.vocabulary, bias=False)
        return cls(
            token_embedding=Embedding.create(token_key, shape.vocabulary, shape.width),
            position_embedding=positions,
            layers=jax.vmap(lambda layer_key: Block.create(layer_key, shape))(
                jax.random.split(layers_key, shape.layers_of_weights)
            ),
            final_norm=create_norm(shape),
            head=head,
            shape=shape,
        )

    @property
    def repeats(self) -> Repeats:
        """How often each of `layers` is used."""
        return Repeats(self.shape.layers // self.shape.layers_of_weights, self.shape.shared_layers == "cycles")

    @property
    def head_weight(self) -> Float[Array, "V width"]:
        """The weight of the head: its own, or the token embedding."""
        return self.token_embedding.weight if self.head is None else self.head.weight

    def embed(
        self, tokens: Int[Array, "B T"], positions: Int[Array, "B T"], dtype: DTypeLike
    ) -> Float[Array, "B T width"]:
        """The residual stream that enters the stack: embeddings are added in fp32, then cast."""
        x = self.token_embedding(tokens).astype(jnp.float32)
        if self.position_embedding is not None:
            x = x + self.position_embedding(positions).astype(jnp.float32)
        return x.astype(dtype)

    def rotary(self, positions: Int[Array, "B T"]) -> Rotary | None:
        """Rotary tables for a batch, or None with learned positions."""
        if self.shape.rope_theta is None:
            return None
        return Rotary.create(positions, self.shape.head_width, self.shape.rope_theta)

    def hidden(self, batch: Batch, keys: Key[Array, " B"] | None, ops: Ops) -> Float[Array, "B T width"]:
        """What the head is applied to: the residual stream after the stack and the final norm, in the compute dtype.

        Raises:
            ShapeError: if rows are longer than the context.
        """
        positions = self._positions(batch)
        context = Context(AttentionMask(batch.get("documents")), self.rotary(positions), keys)
        with jax.named_scope("embedding"):
            x = self.embed(batch["tokens"], positions, ops.dtypes.compute)
            x = dropout(x, self.shape.dropout, _site(keys, 0))

        def block(layer: Block, x: Array, context: Context, index: Array, /) -> Array:
            return layer(x, context, index, ops.attention)

        stack = ops.stack if self.repeats == ONCE else functools.partial(ops.stack, repeats=self.repeats)
        x = stack(block, self.layers, x, context)
        with jax.named_scope("head"):
            return self.final_norm(x)

    def logits(self, batch: Batch, ops: Ops) -> Float[Array, "B T V"]:
        """Logits in the compute dtype, without dropout. For looking and testing: training never makes them all."""
        hidden = self.hidden(batch, None, ops)
        return hidden @ self.head_weight.astype(hidden.dtype).T

    def _positions(self, batch: Batch) -> Int[Array, "B T"]:
        tokens = batch["tokens"]
        length = tokens.shape[1]
        if length > self.shape.context:
            raise ShapeError(f"a row has {length} positions; the model's context is {self.shape.context}")
        if "positions" in batch:
            return batch["positions"]
        return jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32)[None], tokens.shape)


def decoder_loss(
    trainable: Decoder, frozen: PyTree, variables: PyTree, batch: Batch, keys: Key[Array, " B"] | None, ops: Ops
) -> tuple[Loss, PyTree]:
    """Summed cross-entropy of the next token, and the number of targets."""
    del frozen
    hidden = trainable.hidden(batch, keys, ops)
    with jax.named_scope("loss"):
        total, count = ops.cross_entropy(hidden, trainable.head_weight, batch["targets"])
    return Loss(total, count), variables


def decoder_program(
    shape: DecoderShape,
    optimizer: optax.GradientTransformation,
    clip_norm: float | None = None,
    *,
    packed: bool = True,
) -> Program:
    """The program that trains a decoder on rows of `shape.context` tokens.

    Args:
        shape: sizes and switches.
        optimizer: an Optax transformation, without clipping.
        clip_norm: largest global norm of an update's gradient; None: no clipping.
        packed: whether batches say which document each position belongs to. When rows are never packed or padded,
            False spares attention a mask, and some fused kernels take no other.
    """
    names = ("tokens", "targets", "documents", "positions") if packed else ("tokens", "targets")

    def init(key: Key[Array, ""]) -> tuple[Decoder, PyTree, PyTree]:
        return Decoder.create(key, shape), (), ()

    return Program(
        init=init,
        loss=decoder_loss,
        optimizer=optimizer,
        row={name: jax.ShapeDtypeStruct((shape.context,), jnp.int32) for name in names},
        clip_norm=clip_norm,
        calls=frozenset({DTYPES, STACK, ATTENTION, CROSS_ENTROPY}),
        stacked=is_stacked,
        sizes=sizes_of(shape),
        tokens_per_row=shape.context,
    )


def is_stacked(name: str) -> bool:
    """Whether the first axis of a parameter counts layers, by its path."""
    return name.startswith("layers.")


def sizes_of(shape: DecoderShape) -> Sizes:
    """The sizes that techniques' formulas use."""
    return Sizes(
        length=shape.context,
        width=shape.width,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_width=shape.head_width,
        hidden=shape.hidden,
        gated=shape.gated,
        layers=shape.layers,
        vocabulary=shape.vocabulary,
    )


def decay_mask(parameters: Decoder) -> Any:
    """Which parameters weight decay acts on: matrices and embeddings, not norm scales and biases.

    What counts is the rank of ONE layer's array: a stacked norm scale [layers, width] is a vector. As in nanoGPT.

    Returns: a tree like `parameters`, of bools.
    """
    by_rank = jax.tree.map(lambda leaf: leaf.ndim >= 2, parameters)
    return eqx.tree_at(
        lambda model: model.layers, by_rank, jax.tree.map(lambda leaf: leaf.ndim >= 3, parameters.layers)
    )


def _site(keys: Key[Array, " B"] | None, site: int | Array) -> Key[Array, " B"] | None:
    """Keys of one dropout place: 0 is the embedding; layer `i` has 3i + 1 (attention), 3i + 2 and 3i + 3 (residual)."""
    return None if keys is None else site_keys(keys, site)
